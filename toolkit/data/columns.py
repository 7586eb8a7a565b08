"""Which column is what, and labels as class ids."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any

from toolkit.data.readers import Table
from toolkit.errors import UserError, fault
from toolkit.launch import say

LABEL_COLUMNS = ("label", "labels", "fine_label")  # the last is CIFAR-100's, beside coarse_label
# Fractions of more different values than this number, and than this share of the rows, are measured and not classes.
MOST_FRACTIONS, SHARE_OF_FRACTIONS = 100, 0.1
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
NOT_FINITE = ("nan", "inf", "-inf", "infinity", "-infinity")  # among numbers, however the letters are
PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?", re.ASCII)  # the spelling of numbers in which equal ones are one class


def chosen_columns(
    train: Table, evaluation: Table, arguments: Namespace, usual: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The column of each kind in `usual` ("text" for `--text_column_name`), which maps it to names that it often has,
    and of the label. UserError."""
    kinds = {**usual, "label": LABEL_COLUMNS}
    asked = {
        f"--{kind}_column_name": (getattr(arguments, f"{kind}_column_name"), names) for kind, names in kinds.items()
    }
    return dict(zip(kinds, choose_columns(train, evaluation, asked), strict=True))


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

    Raises UserError for missing labels, numbers that are no classes, two spellings of one number, and labels that only
    the evaluation rows have. A single class is told.
    """
    keys: list[list[str]] = []
    faults: list[str] = []
    given = train.class_names.get(column)
    for table in (train, evaluation):
        try:
            keys.append(label_keys(table, column, given))
        except UserError as error:
            faults.extend(error.lines)
    if faults:
        raise UserError(*dict.fromkeys(faults))  # both tables may be one file
    found = set(keys[0])
    if not given:
        _check_classes(train, evaluation, column, *keys)
    names = given or in_order(found)
    if len(found) == 1:
        say(f"all rows of {train.name} have the label {keys[0][0]!r}: a model of one class has nothing to learn")
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [row for row, key in enumerate(keys[1]) if key not in numbers]
    if unknown:
        new = ", ".join(sorted({keys[1][row] for row in unknown})[:5])
        reason = f"{evaluation.name}, {evaluation.where(unknown)}: labels that no training row has: {new}"
        raise UserError(fault("--label_column_name", column, reason, "correct them, or train on rows that have them"))
    ids, eval_ids = ([numbers[key] for key in part] for part in keys)
    return ids, eval_ids, list(names)


def label_keys(table: Table, column: str, others: list[str] | None = None) -> list[str]:
    """Each label as the name of its class: where the data set names them the one of that name or number, else the text,
    or the number as it is spelled shortest. `others` are the names where the table has none itself. UserError."""
    names = table.class_names.get(column) or others or []
    keys: list[str] = []
    missing, odd = [], []
    values = table.values(column)
    texts = [_spelled(value) for value in values]
    none = ("", *NOT_FINITE) if any(text and NUMBER.fullmatch(text) for text in texts) else ("",)
    for row, (value, text) in enumerate(zip(values, texts, strict=True)):
        # -1 is how data sets of the hub mark a row whose class is not told.
        if value is None or (text is not None and text.lower() in none) or (names and value == -1):
            missing.append(row)
            continue
        key = _named(value, text, names) if names and text is not None else text
        if key is None:
            odd.append(row)
        else:
            keys.append(key)
    faults = []
    if missing:
        reason = f"{table.name}, {table.where(missing)}: the label is missing"
        faults.append(fault("--label_column_name", column, reason, "give each row a label, or remove the row"))
    if odd:
        reason = f"{table.name}, {table.where(odd)}: {values[odd[0]]!r} is not a class"
        remedy = f"the classes are {', '.join(names[:10])}" if names else "labels are numbers or names"
        faults.append(fault("--label_column_name", column, reason, remedy))
    if faults:
        raise UserError(*faults)
    return keys


def in_order(keys: set[str]) -> list[str]:
    """Numbers by value, anything else by spelling."""
    if all(NUMBER.fullmatch(key) for key in keys):
        return sorted(keys, key=lambda key: (Decimal(key), key))
    return sorted(keys)


def _spelled(label: Any) -> str | None:
    """A label as text: 1, 1.0, "1" and "1.0" are one, and NaN is "". None where it is neither a number nor a text."""
    if isinstance(label, bool):
        return str(label).lower()  # as JSON has it
    if isinstance(label, float):
        return str(int(label)) if label.is_integer() else float.__repr__(label) if isfinite(label) else ""
    if not isinstance(label, str | int):
        return None
    text = str(label).strip()
    if "." in text and PLAIN.fullmatch(text):
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _named(value: Any, text: str, names: list[str]) -> str | None:
    """The class that a label stands for, by its name or by its number; None where there is none."""
    if isinstance(value, str) and value.strip() in names:
        return value.strip()
    number = int(text) if text.isdecimal() and len(text) < 10 else len(names)
    return names[number] if number < len(names) else None


def _check_classes(train: Table, evaluation: Table, column: str, keys: list[str], eval_keys: list[str]) -> None:
    """UserError where the labels look like measurements, or one number is spelled in two ways; letters are told."""
    classes = set(keys)
    fractions = any("." in key or "e-" in key for key in classes) and all(NUMBER.fullmatch(key) for key in classes)
    if fractions and len(classes) > max(MOST_FRACTIONS, SHARE_OF_FRACTIONS * len(keys)):
        reason = f"{len(classes):,} different numbers in the {len(keys):,} rows of {train.name} look like measurements"
        raise UserError(fault("--label_column_name", column, reason, "name a column of classes, or round them to some"))
    spellings: dict[Any, str] = {}
    alike: list[str] = []
    where = train.name if train.name == evaluation.name else f"{train.name} and {evaluation.name}"
    for key in sorted(classes.union(eval_keys)):
        number = NUMBER.fullmatch(key)
        other = spellings.setdefault(Decimal(key) if number else key.casefold(), key)
        if other != key and number:
            reason = f"{where}: {other!r} and {key!r} are one number in two spellings"
            raise UserError(fault("--label_column_name", column, reason, "spell it in one way"))
        if other != key:
            alike.append(f"{other!r} and {key!r}")
    if alike:
        more = ", ..." if len(alike) > 3 else ""
        say(f"{where}: labels that differ in case alone are classes of their own: {', '.join(alike[:3])}{more}")


def _columns(table: Table) -> str:
    listed = ", ".join(table.columns)
    if "\t" in listed:
        return listed.replace("\t", "\\t") + " (separated by tabs? then call it .tsv)"
    return listed + (" (separated by semicolons? save it with commas)" if ";" in listed else "")
