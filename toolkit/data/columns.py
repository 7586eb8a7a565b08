"""Which column is what, and labels as class ids."""

from collections.abc import Mapping, Sequence

from toolkit.data.readers import Table
from toolkit.errors import UserError, fault


def choose_columns(train: Table, evaluation: Table, asked: Mapping[str, tuple[str | None, Sequence[str]]]) -> list[str]:
    """For each argument `(given, usual)`: the column the user gave, or else the only one of the `usual` names there is.

    Raises UserError, with the columns there are, for each that is missing in a table or cannot be guessed.
    """
    faults: list[str] = []
    chosen: list[str] = []
    for argument, (given, usual) in asked.items():
        there = [name for name in usual if name in train.columns]
        if given is None and len(there) != 1:
            found = f"{' and '.join(there)} are all columns" if there else f"none of {', '.join(usual)} is a column"
            reason = f"not given, and {found} of {train.name}, which has: {_columns(train)}"
            faults.append(fault(argument, None, reason, "name the column"))
            continue
        column = there[0] if given is None else given
        for table in {train.name: train, evaluation.name: evaluation}.values():
            if column not in table.columns:
                reason = f"no such column in {table.name}, which has: {_columns(table)}"
                faults.append(fault(argument, column, reason, "name one of these"))
        chosen.append(column)
    if faults:
        raise UserError(*faults)
    return chosen


def class_ids(train: Table, evaluation: Table, column: str) -> tuple[list[int], list[int], list[str]]:
    """Class ids of both tables and the name of each id: the names that the data set gives, else the values in order.

    Raises UserError for missing labels, fractions, a single label, and labels that only the evaluation rows have.
    """
    keys: list[list[str]] = []
    faults: list[str] = []
    for table in (train, evaluation):
        try:
            keys.append(label_keys(table, column))
        except UserError as error:
            faults.extend(error.lines)
    if faults:
        raise UserError(*dict.fromkeys(faults))  # both tables may be one file
    names = train.class_names.get(column) or _in_order(set(keys[0]))
    if len(names) < 2:
        reason = f"all rows of {train.name} have the label {names[0]!r}"
        raise UserError(fault("--label_column_name", column, reason, "give rows of two labels or more"))
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [row for row, key in enumerate(keys[1]) if key not in numbers]
    if unknown:
        new = ", ".join(sorted({keys[1][row] for row in unknown})[:5])
        reason = f"{evaluation.name}, {evaluation.where(unknown)}: labels that no training row has: {new}"
        raise UserError(fault("--label_column_name", column, reason, "correct them, or train on rows that have them"))
    ids, eval_ids = ([numbers[key] for key in part] for part in keys)
    return ids, eval_ids, list(names)


def label_keys(table: Table, column: str) -> list[str]:
    """Each label as text: its class's name, or the whole number, or the string."""
    names = table.class_names.get(column)
    keys: list[str] = []
    missing, odd = [], []
    for row, value in enumerate(table.values(column)):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        # -1 is how data sets of the hub mark a row whose class is not told.
        if value is None or value != value or (isinstance(value, str) and not value.strip()) or (names and value == -1):
            missing.append(row)
        elif isinstance(value, str) or (isinstance(value, int) and not names):
            keys.append(str(value).strip())
        elif isinstance(value, int) and names and 0 <= value < len(names):
            keys.append(names[value])
        else:
            odd.append(row)
    faults = []
    if missing:
        reason = f"{table.name}, {table.where(missing)}: the label is missing"
        faults.append(fault("--label_column_name", column, reason, "give each row a label, or remove the row"))
    if odd:
        example = table.values(column)[odd[0]]
        reason = f"{table.name}, {table.where(odd)}: {example!r} is not a class"
        faults.append(fault("--label_column_name", column, reason, "labels are whole numbers or names"))
    if faults:
        raise UserError(*faults)
    return keys


def _in_order(keys: set[str]) -> list[str]:
    """Whole numbers by value, anything else by spelling."""
    try:
        return sorted(keys, key=int)
    except ValueError:
        return sorted(keys)


def _columns(table: Table) -> str:
    listed = ", ".join(table.columns)
    return listed if "\t" not in listed else listed.replace("\t", "\\t") + " (separated by tabs? then call it .tsv)"
