"""`oneloop predict`: labels and probabilities for a file's rows, prepared exactly as in training."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.data.columns import choose_columns
from toolkit.data.folders import IMAGES, files_in
from toolkit.data.images import IMAGE_COLUMNS
from toolkit.data.loader import Collate, EvalLoader, Rows
from toolkit.data.pictures import NOTES, Form, Images, stack_images, tell
from toolkit.data.readers import KINDS, Table, check_encoding, read_file
from toolkit.data.text import TEXT_COLUMNS, PadTexts, read_texts, usual_pair
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.trained import Model, load

OUTPUTS = (".csv", ".jsonl")
LINE_SECONDS = 10.0  # between lines where there is no terminal to draw a bar on


@dataclass
class Predictions:
    """In the order of the rows."""

    label_names: list[str]
    classes: Tensor  # [N] int64: that of the largest logit
    probabilities: Tensor  # [N, C] float32
    files: list[str] | None = None  # path of each row, where the rows are image files

    def lines(self, kind: str) -> Iterator[str]:
        """As ".csv", after a line of column names, or ".jsonl"."""
        names = ["label", "probability", *(f"probability_{name}" for name in self.label_names)]
        names = names if self.files is None else ["file", *names]
        if kind == ".csv":
            yield _csv_line(names)
        for row, chosen in enumerate(self.classes.tolist()):
            # numpy spells a float32 with the fewest digits that give it back.
            numbers = [float(str(value)) for value in self.probabilities[row].numpy()]
            values = [self.label_names[chosen], numbers[chosen], *numbers]
            values = values if self.files is None else [self.files[row], *values]
            if kind == ".csv":
                yield _csv_line(values)
            else:
                yield json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False) + "\n"


def predict(
    model: Path,
    file: str,
    *,
    batch_size: int = 32,
    text_column_name: str | None = None,
    text_pair_column_name: str | None = None,
    image_column_name: str | None = None,
    encoding: str | None = None,
) -> Predictions:
    """Classify the rows of a file, or the images of a folder, each once.

    Args:
        model: an export, a checkpoint, an output folder (its newest whole checkpoint) or a `from_pretrained` folder
            of a classifier of texts or images.
        file: csv, tsv, json, jsonl or parquet; for texts also txt, a text a line; for images also an image or a
            folder of them, in the order of their paths.
        text_column_name, text_pair_column_name, image_column_name: training's own where left out.
        encoding: of a text file; UTF-8 where left out.

    Raises:
        UserError: the model or the file cannot be used, or the model gives no numbers; one line says what and where.
    """
    loaded = load(model)
    asked = {"text": text_column_name, "text_pair": text_pair_column_name, "image": image_column_name}
    kind = loaded.preprocessing["kind"]
    for name in ("image",) if kind == "text" else ("text", "text_pair"):
        if asked[name] is not None:
            reason = f"{model} classifies {kind}s"
            raise UserError(fault(f"--{name}_column_name", asked[name], reason, "leave it out"))
    check_encoding(encoding, [file], file)
    rows, collate, lengths, table, files = (_texts if kind == "text" else _images)(loaded, file, asked, encoding)
    loader = EvalLoader(rows, collate, batch_size=min(batch_size, len(rows)), rank=0, size=1, lengths=lengths)
    logits = torch.empty(len(rows), len(loaded.label_names))
    with torch.inference_mode():
        for batch in _shown(loader, batch_size, len(rows)):
            if isinstance(batch.inputs, dict):
                inputs = {name: value.to(loaded.device) for name, value in batch.inputs.items()}
                outputs: Any = loaded.module(**inputs)
            else:
                outputs = loaded.module(*(value.to(loaded.device) for value in batch.inputs))
            real = batch.weights > 0  # the last batch is filled with repeated rows
            logits[batch.ids[real]] = getattr(outputs, "logits", outputs).cpu()[real]
    if isinstance(rows, Images):
        tell(np.array(list(rows.notes.values()), dtype=int).reshape(-1, len(NOTES)).sum(0), file, len(rows))
    probabilities = logits.softmax(1)
    odd = probabilities.isnan().any(1).nonzero().flatten().tolist()
    if odd:
        reason = f"gives no numbers for {table.name}, {table.where(odd)}"
        raise UserError(fault("MODEL", str(model), reason, "its weights are not finite: take an earlier checkpoint"))
    return Predictions(loaded.label_names, logits.argmax(1), probabilities, files)


def write(predictions: Predictions, output: str | None) -> None:
    """Write csv or jsonl, by the ending of `output`, there whole or not at all; csv to stdout without one.

    Raises:
        UserError: it cannot be written.
    """
    if output is None:
        sys.stdout.writelines(predictions.lines(".csv"))
        sys.stdout.flush()
        return
    temporary = Path(output).with_name(f".{Path(output).name}.{os.getpid()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.writelines(predictions.lines(Path(output).suffix.lower()))
        temporary.rename(output)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = f"cannot be written: {error.strerror or error}"
        raise UserError(fault("--output", output, reason, "make room, or name another file")) from error


def check_output(output: str | None) -> None:
    """UserError, before anything is loaded, for a file that `write` would not write."""
    if output is None:
        return
    path = Path(output)
    if path.suffix.lower() not in OUTPUTS:
        raise UserError(fault("--output", output, "unknown kind of file", f"use one of {', '.join(OUTPUTS)}"))
    if os.path.lexists(path):
        raise UserError(fault("--output", output, "exists", "name a new file"))
    if not path.absolute().parent.is_dir():
        raise UserError(fault("--output", output, "its folder does not exist", "make it, or name another"))


Prepared = tuple[Rows, Collate, Sequence[int] | None, Table, list[str] | None]


def _texts(model: Model, file: str, asked: dict[str, str | None], encoding: str | None) -> Prepared:
    table = read_file(file, "FILE", (*KINDS, ".txt"), encoding)
    given = model.preprocessing
    text = asked["text"] or given["text_column_name"]
    pair = asked["text_pair"] or given["text_pair_column_name"]
    if Path(file).suffix.lower() == ".txt":
        if pair is not None:
            raise UserError(fault("FILE", file, "the model takes pairs of texts", "give them in two columns of a csv"))
        text = "text"
    columns: dict[str, tuple[str | None, Sequence[str]]] = {"--text_column_name": (text, TEXT_COLUMNS)}
    if pair is not None:
        columns["--text_pair_column_name"] = (pair, ())
    chosen = choose_columns(table, table, columns)
    if text is None and pair is None:
        pair = usual_pair(chosen[0], table)
    texts = read_texts(model.tokenizer, table, chosen[0], pair, [0] * len(table), given["max_length"])
    if texts.cut:
        say(f"{file}: {texts.cut:,} of {len(texts):,} rows are cut after {given['max_length']} tokens")
    return texts, PadTexts(model.tokenizer), texts.lengths, table, None


def _images(model: Model, file: str, asked: dict[str, str | None], encoding: str | None) -> Prepared:
    given = model.preprocessing
    path, files = Path(file), None
    if path.is_dir():
        inside = sorted(map(Path, files_in(path)))
        files = [str(each.relative_to(path)) for each in inside if each.suffix.lower() in IMAGES]
        if not files:
            raise UserError(fault("FILE", file, "no images in this folder", f"use one of {', '.join(IMAGES)}"))
        if len(files) < len(inside):
            say(f"{file}: {len(inside) - len(files)} of its {len(inside)} files left out: not {', '.join(IMAGES)}")
        table, column = Table(file, {"file": files}, folder=path), "file"
    elif path.suffix.lower() in IMAGES:
        if not path.is_file():
            raise UserError(fault("FILE", file, f"no such file (working folder {os.getcwd()})", "give an image"))
        files = [file]
        table, column = Table(file, {"file": files}), "file"
    else:
        table = read_file(file, "FILE", (*KINDS, *IMAGES), encoding)
        wanted = (asked["image"] or given["image_column_name"], IMAGE_COLUMNS)
        [column] = choose_columns(table, table, {"--image_column_name": wanted})
    form = Form(
        given["channels"],
        tuple(given["image_size"]),
        given["resize"],
        to_grey=True,
        size_rule=("the model takes", "resize it to that, or train with --image_size, which resizes"),
    )
    images = Images(table, column, [0] * len(table), form)
    return images, stack_images, None, table, files


def _shown(loader: EvalLoader, batch_size: int, rows: int) -> Iterator[Any]:
    """The loader's batches, with a bar on a terminal's stderr, else a line now and then."""
    from rich.console import Console
    from rich.progress import track

    shows, told = sys.stderr.isatty(), time.monotonic()
    console = Console(file=sys.stderr)
    batches = track(loader, "predict", len(loader), console=console, disable=not shows, transient=True)
    for number, batch in enumerate(batches, 1):
        yield batch
        if not shows and time.monotonic() - told > LINE_SECONDS:
            told = time.monotonic()
            say(f"predicted {min(number * batch_size, rows):,} of {rows:,} rows")


def _csv_line(values: Sequence[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(values)
    return stream.getvalue()
