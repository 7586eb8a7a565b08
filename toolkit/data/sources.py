"""Where the rows come from: files, a data set of the hub or a folder of its form, or the embedded samples."""

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.columns import chosen_columns, class_ids
from toolkit.data.folders import class_folders, read_classes
from toolkit.data.loader import Collate, Rows, collate_rows
from toolkit.data.names import on_hub
from toolkit.data.readers import KINDS, Table, check_encoding, read_file
from toolkit.data.sampler import Sampler
from toolkit.errors import UserError, fault
from toolkit.once import once_per_node

SAMPLES = Path(__file__).parent.parent / "samples"
HELD_OUT = 0.1  # share of the training rows used for evaluation where there are no others


@dataclass
class Data:
    """What `fit` trains and evaluates on: any map-style data sets; the default `collate` takes (input, target) rows."""

    train: Rows
    evaluation: Rows | None = None
    collate: Collate = collate_rows  # list of rows -> (inputs, targets [B])
    label_names: list[str] = field(default_factory=list)  # name of each class id
    description: str = ""  # one line of what was loaded
    labels: Sequence[int] | None = None  # class id of each training row, for --class_weights
    lengths: Sequence[int] | None = None  # tokens of each training row, for texts
    eval_lengths: Sequence[int] | None = None
    channels: int = 0  # of images
    image_size: tuple[int, int] = (0, 0)  # height and width of images, in pixels
    # Of each channel, for pixels from 0 to 1: what the model itself does to images of uint8 [B, C, H, W].
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    # How a raw row becomes the model's input, for `oneloop predict`: JSON-able, kept in each checkpoint.
    preprocessing: dict[str, Any] = field(default_factory=dict)
    sampler: Callable[..., Sampler] = Sampler  # composes the global batches
    tokenizer: Any | None = None  # kept in each checkpoint by its save_pretrained

    @property
    def num_labels(self) -> int:
        return len(self.label_names)


@dataclass
class Labelled:
    """Training and evaluation rows with their class ids; `columns` maps what was asked for to the column chosen."""

    train: Table
    evaluation: Table
    ids: list[int]
    eval_ids: list[int]
    label_names: list[str]
    columns: dict[str, str]
    source: str

    def describe(self, inputs: str) -> str:
        shown = ", ".join(self.label_names[:10]) + (", ..." if len(self.label_names) > 10 else "")
        return (
            f"{self.source}: {len(self.train):,} training and {len(self.evaluation):,} evaluation rows, "
            f"{inputs} -> {self.columns['label']} ({len(self.label_names)} classes: {shown})"
        )


def load_labelled(
    arguments: Namespace, sample: tuple[str, str], usual: dict[str, tuple[str, ...]], setup: Any = None
) -> Labelled:
    """Loads the rows, chooses the columns, and keeps at most `max_train_samples` and `max_eval_samples` rows.

    With a `setup` a data set of the hub is downloaded once per node, and the call is collective.
    `usual` maps each kind of column asked for, "text" or "image" first, to the names it often has. Raises UserError.
    """
    train, evaluation, source = load_tables(arguments, sample, next(iter(usual)), setup)
    columns = chosen_columns(train, evaluation, arguments, usual)
    ids, eval_ids, names = class_ids(train, evaluation, columns["label"])
    rows = _at_most(len(train), arguments.max_train_samples)
    eval_rows = _at_most(len(evaluation), arguments.max_eval_samples)
    return Labelled(
        train.take(rows),
        evaluation.take(eval_rows),
        [ids[row] for row in rows],
        [eval_ids[row] for row in eval_rows],
        names,
        columns,
        source,
    )


def load_tables(
    arguments: Namespace, sample: tuple[str, str], kind: str, setup: Any = None
) -> tuple[Table, Table, str]:
    """Training rows, evaluation rows and a few words on where they come from; `sample` names a folder of embedded
    samples and its file of evaluation rows; `kind` is that of class folders, "image" or "text".

    Raises UserError for arguments that contradict each other and for what cannot be read.
    """
    faults = []
    if arguments.dataset_name and arguments.train_file:
        reason = f"--dataset_name {arguments.dataset_name} names training data too"
        faults.append(fault("--train_file", arguments.train_file, reason, "give one of the two"))
    if arguments.validation_file and not arguments.train_file:
        reason = "goes with --train_file, which is not given"
        faults.append(fault("--validation_file", arguments.validation_file, reason, "give both, or neither"))
    if arguments.dataset_config_name and not arguments.dataset_name:
        reason = "goes with --dataset_name, which is not given"
        faults.append(fault("--dataset_config_name", arguments.dataset_config_name, reason, "give both, or neither"))
    if faults:
        raise UserError(*faults)
    if arguments.train_file:
        return _from_files(arguments)
    if arguments.dataset_name:
        return _from_dataset(arguments, kind, setup)
    folder, stem = sample
    files = [str(SAMPLES / folder / f"{name}.parquet") for name in ("train", stem)]
    check_encoding(arguments.encoding, files, "the embedded sample")
    train, evaluation = (read_file(file, "embedded samples") for file in files)
    return train, evaluation, f"embedded samples {folder}"


def _at_most(size: int, rows: int | None) -> list[int]:
    """`rows` of `size` rows, drawn at random (files are often sorted by class), the same for every seed of a run."""
    if rows is None or rows >= size:
        return list(range(size))
    drawn: list[int] = sorted(np.random.default_rng(0).permutation(size)[:rows].tolist())
    return drawn


def _from_files(arguments: Namespace) -> tuple[Table, Table, str]:
    faults: list[str] = []
    tables = []
    given = {f"--{name}": getattr(arguments, name) for name in ("train_file", "validation_file")}
    files = {argument: path for argument, path in given.items() if path}
    for argument, path in files.items():
        if not (faults and os.path.realpath(path) == os.path.realpath(arguments.train_file)):
            try:
                tables.append(read_file(path, argument, encoding=arguments.encoding))
            except UserError as error:
                faults.extend(error.lines)
    if faults:
        raise UserError(*faults)
    source = ", ".join(files.values())
    check_encoding(arguments.encoding, files.values(), source)
    if len(tables) == 2:
        return tables[0], tables[1], source
    return _hold_out(tables[0], arguments, source, "--train_file", "no --validation_file")


def _hold_out(table: Table, arguments: Namespace, source: str, argument: str, why: str) -> tuple[Table, Table, str]:
    if len(table) < 2:
        raise UserError(fault(argument, source, "has one row, and none is left for evaluation", "give more rows"))
    order = np.random.default_rng([arguments.seed, 1]).permutation(len(table))
    count = max(1, round(HELD_OUT * len(table)))
    train, evaluation = table.take(sorted(order[count:].tolist())), table.take(sorted(order[:count].tolist()))
    said = f"{source} ({why}: {count:,} of its {len(table):,} rows, drawn by --seed {arguments.seed}, are held out)"
    return train, evaluation, said


def _from_dataset(arguments: Namespace, kind: str, setup: Any) -> tuple[Table, Table, str]:
    name, config = on_hub(arguments.dataset_name, arguments.dataset_config_name)
    folders = class_folders(name, kind)
    if folders:
        check_class_folders(arguments, kind)
    splits, table = (
        (folders, lambda split: read_classes(folders[split], kind, arguments.encoding))
        if folders
        else _dataset_tables(name, config, arguments.encoding, setup)
    )
    source = f"{name}, {config}" if config else name
    chosen = evaluation_split(name, [str(split) for split in splits])
    if chosen is None:
        return _hold_out(table("train"), arguments, source, "--dataset_name", "it has no split for evaluation")
    return table("train"), table(chosen), f"{source} (train, {chosen})"


def check_class_folders(arguments: Namespace, kind: str) -> None:
    """UserError for arguments that class folders have no use for."""
    name, config = arguments.dataset_name, arguments.dataset_config_name
    if config is not None:
        reason = f"{name} is a folder of classes, without configurations"
        raise UserError(fault("--dataset_config_name", config, reason, "leave it out"))
    check_encoding(arguments.encoding, [".txt"] if kind == "text" else [], name)


def _dataset_tables(
    name: str, config: str | None, encoding: str | None, setup: Any
) -> tuple[Iterable[Any], Callable[[str], Table]]:
    """The splits of a data set, and what reads one of them."""
    import datasets

    builder, files = find_dataset(name, config)
    check_encoding(encoding, [file for found in files.values() for file in found], name)
    if files:
        return files, lambda split: _joined(
            [read_file(file, "--dataset_name", encoding=encoding) for file in files[split]], builder.info.features
        )
    # Empty texts and texts such as "NA" are texts, not missing ones.
    options = {"keep_default_na": False} if builder.name == "csv" else {}

    def load() -> Any:
        with told(name):
            return datasets.load_dataset(name, config, **options)

    loaded = once_per_node(setup, load) or load()  # the others find it in the cache of `datasets`
    return loaded, lambda split: _of_datasets(loaded[split], f"{name} ({split})")


@contextmanager
def told(name: str) -> Iterator[None]:
    """What `datasets` raises for a data set that it cannot load is the user's to mend."""
    import datasets

    try:
        yield
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetGenerationError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "give a folder or a name on the hub, and --dataset_config_name where it has several configurations"
        raise UserError(fault("--dataset_name", name, f"cannot be loaded: {reason}", remedy)) from error


def find_dataset(name: str, config: str | None) -> tuple[Any, dict[str, list[str]]]:
    """The builder of a data set; and the files of each split, where all are local ones of a kind that is read here."""
    import datasets

    with told(name):
        builder = datasets.load_dataset_builder(name, config)
        files = {
            str(split): [str(file) for file in found] for split, found in (builder.config.data_files or {}).items()
        }
    ours = all(
        Path(file).is_file() and Path(file).suffix.lower() in KINDS for found in files.values() for file in found
    )
    return builder, files if ours else {}


def evaluation_split(name: str, splits: list[str]) -> str | None:
    """The split to evaluate on, if there is one. UserError where there is none to train on."""
    if "train" not in splits:
        reason = f"has no split 'train'; it has: {', '.join(splits)}"
        raise UserError(fault("--dataset_name", name, reason, "choose another data set or configuration"))
    # SST-2 and MNLI evaluate on validation splits (their test labels are hidden), CIFAR-10 and its like have only
    # "test".
    others = sorted((split for split in splits if split != "train"), key=lambda split: not split.startswith("valid"))
    return next((split for split in others if split.startswith(("valid", "test"))), None)


def class_names(features: Any) -> dict[str, list[str]]:
    """The classes of each column, as a data set of `datasets` names them."""
    return {name: feature.names for name, feature in (features or {}).items() if getattr(feature, "names", None)}


def _of_datasets(rows: Any, name: str) -> Table:
    held = rows.data.table
    return Table(name, {column: held.column(column) for column in held.column_names}, class_names(rows.features))


def _joined(tables: list[Table], features: Any) -> Table:
    """The shards of one split as one table."""
    first = tables[0]
    names = {**first.class_names, **class_names(features)}
    if len(tables) == 1:
        first.class_names = names
        return first
    for other in tables[1:]:
        if set(other.columns) != set(first.columns):
            reason = (
                f"its columns ({', '.join(other.columns)}) are not those of {first.name} ({', '.join(first.columns)})"
            )
            raise UserError(fault("--dataset_name", other.name, reason, "give every file of a split the same columns"))
    columns = {column: [value for table in tables for value in table.values(column)] for column in first.columns}
    return Table(f"{first.name} and {len(tables) - 1} more", columns, names, folder=first.folder)
