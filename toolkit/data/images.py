"""Image classification data: decoded once into memory where they fit, else when they are asked for."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from toolkit.data.decode import Picture, Unreadable, read_picture
from toolkit.data.pictures import (
    REMEDY,
    Form,
    Images,
    decode_all,
    moments,
    named,
    stack_images,
    tell,
    unreadable,
    value_at,
)
from toolkit.data.prepared import of_contents, prepared
from toolkit.data.readers import Table
from toolkit.data.rowwise import fetched
from toolkit.data.sources import Data, Labelled, load_labelled
from toolkit.data.streamed import Streamed, load_streamed
from toolkit.errors import UserError, fault
from toolkit.launch import say

IN_MEMORY = 2**30  # bytes of decoded images that are held
LOOKED_AT = 200  # images, evenly spread, looked at to choose between grey and colour where they are not all decoded
NAMED = 5  # images that cannot be read which an error names
SHOWN = 3  # and those that a line on skipped ones names
IMAGE_COLUMNS = ("image", "img")  # what a column of images is often called


def image_data(arguments: Namespace, processor: Any = None, setup: Any = None) -> Data:
    """Training and evaluation images as the arguments name them; without any, the embedded small Fashion-MNIST.

    Columns not named are `image` or `img`, and `label` or `labels`. With `image_size` (pixels) all are resized to
    squares, without it they must have one size; a `processor` (`toolkit.models.vision.load_processor`) says its own
    size and channels. Without one, images stay grey where all are, and become RGB otherwise. Those that cannot be read
    are refused, or left out where `on_bad_sample` is "skip". With a `setup` one rank of each node decodes, and the call
    is collective; `streaming` needs one. Raises UserError.
    """
    usual: dict[str, tuple[str, ...]] = {"image": IMAGE_COLUMNS}
    if arguments.streaming:
        return _streamed(load_streamed(arguments, usual, setup), arguments, processor, setup)
    found = load_labelled(arguments, ("fashion_mnist_small", "test"), usual, setup)
    column, names, skip = found.columns["image"], found.label_names, arguments.on_bad_sample == "skip"
    form = _form(arguments, found.train, column, processor)
    train, evaluation = (
        _read(table, column, ids, names, form, skip, setup)
        for table, ids in ((found.train, found.ids), (found.evaluation, found.eval_ids))
    )
    _check_classes(train, evaluation, names)
    if processor is None:
        form = replace(form, channels=max(train.channels, evaluation.channels))
    found.train, found.evaluation = train.table, evaluation.table
    return _data(
        found,
        form,
        _scale(arguments, processor, form, column, train.table, train.counts),
        processor,
        train=Images(train.table, column, train.ids, form, train.pixels, names),
        evaluation=Images(evaluation.table, column, evaluation.ids, form, evaluation.pixels, names),
        labels=train.ids,
    )


def _streamed(found: Streamed, arguments: Namespace, processor: Any, setup: Any) -> Data:
    column, names = found.columns["image"], found.label_names
    first = fetched(found.train, column)
    form = _form(arguments, first, column, processor)
    evaluation = _read(fetched(found.evaluation, column), column, found.eval_ids, names, form, False, setup)
    counts = None
    if processor is None:
        looked = decode_all(first, column, form, keep=False)
        remedy = f"save it in grey, or let one in colour be among the first {len(first)} rows"
        form = replace(form, channels=max(evaluation.channels, int(looked["channels"])), colour_remedy=remedy)
        counts = looked["counts"]
        if arguments.normalization == "dataset":
            say(f"normalization: by the first {len(first)} rows of the stream")
    stream = found.stream(lambda table, ids: Images(fetched(table, column), column, ids, form, label_names=names))
    return _data(
        found,
        form,
        _scale(arguments, processor, form, column, first, counts),
        processor,
        train=stream,
        evaluation=Images(evaluation.table, column, evaluation.ids, form, evaluation.pixels, names),
        sampler=stream.sampler,
    )


def _scale(
    arguments: Namespace, processor: Any, form: Form, column: str, train: Table, counts: np.ndarray | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel: the processor's, the training images', or a half."""
    if processor is not None:
        return processor.mean, processor.std
    if arguments.normalization == "half":
        return (0.5,) * form.channels, (0.5,) * form.channels
    if counts is None:
        some = train.take(np.linspace(0, len(train) - 1, LOOKED_AT).astype(int).tolist())
        say(f"normalization: by {LOOKED_AT} of the {len(train):,} images, evenly spread")
        counts = decode_all(some, column, form, keep=False)["counts"]
    return moments(counts[: form.channels])


def _data(found: Labelled | Streamed, form: Form, scale: tuple[Any, Any], processor: Any, **rows: Any) -> Data:
    column = found.columns["image"]
    return Data(
        **rows,
        collate=stack_images,
        label_names=found.label_names,
        description=found.describe(column) + f", {form.channels} x {form.size[0]} x {form.size[1]} pixels",
        channels=form.channels,
        image_size=form.size,
        mean=scale[0],
        std=scale[1],
        preprocessing={
            "kind": "image",
            "image_column_name": column,
            "channels": form.channels,
            "image_size": list(form.size),
            "resize": form.resize,
        },
        tokenizer=processor,
    )


class _Part(NamedTuple):
    """The rows of one table whose images can be used."""

    table: Table
    ids: list[int]
    lost: set[int]  # classes of which no image is left
    pixels: np.ndarray | None
    channels: int
    counts: np.ndarray | None = None  # int64 [3, 256], as `decode_all` gives them; None where it did not look at all


def _read(table: Table, column: str, ids: list[int], names: list[str], form: Form, skip: bool, setup: Any) -> _Part:
    """Decode all images where they fit into memory, or must be looked at to know which to leave out."""
    fit = _fit(table, form)
    if not fit and not skip:
        say(
            f"{table.name}: {len(table):,} images are too many to hold, each is decoded when it is asked for: one that "
            "cannot be read ends the run then; transparent ones are laid on white, of several frames the first is taken"
        )
        return _Part(table, ids, set(), None, form.channels)
    # Whether all are grey is known in the end: with 3 channels asked for, a grey image stays [1, H, W].
    form = form if form.to_grey else replace(form, channels=3)
    key = {
        "images": of_contents(value_at(table, column, row)[0] for row in range(len(table))),
        "form": [form.channels, *form.size, form.resize, form.to_grey],
        "kept": fit,
        "pillow": version("pillow"),
    }
    found = prepared("images", key, lambda: decode_all(table, column, form, fit), setup)
    bad = dict(zip(found["bad"].tolist(), found["why"].tolist(), strict=True))
    tell(found["notes"], table.name, len(table))
    pixels, channels, counts = (found["pixels"] if fit else None), int(found["channels"]), found["counts"]
    if not bad:
        return _Part(table, ids, set(), pixels, channels, counts)
    classes = {row: names[ids[row]] for row in bad}
    if not skip or len(bad) == len(table):
        raise _all_named(table, column, classes, bad, skip)
    told = [f"{named(table, column, row, classes[row])}: {why}" for row, why in list(bad.items())[:SHOWN]]
    more = f"; ... ({len(bad):,} in all)" if len(bad) > SHOWN else ""
    say(f"{len(bad):,} of {len(table):,} images are left out, {len(table) - len(bad):,} used: {'; '.join(told)}{more}")
    kept = [row for row in range(len(table)) if row not in bad]
    kept_ids = [ids[row] for row in kept]
    return _Part(table.take(kept), kept_ids, {ids[row] for row in bad} - set(kept_ids), pixels, channels, counts)


def _all_named(table: Table, column: str, classes: dict[int, str], bad: dict[int, str], skip: bool) -> UserError:
    remedy = REMEDY if skip else f"{REMEDY}, or --on_bad_sample skip"
    lines = [unreadable(table, column, row, why, remedy, classes[row]) for row, why in list(bad.items())[:NAMED]]
    if len(bad) > NAMED or len(bad) == len(table):
        reason = f"{table.name}: {len(bad):,} of {len(table):,} images cannot be read, the first {len(lines)} are named"
        lines.append(fault("--image_column_name", column, reason, "see that it is the images' column"))
    return UserError(*lines)


def _check_classes(train: _Part, evaluation: _Part, names: list[str]) -> None:
    """A class without images is refused in training, and told in evaluation."""
    for part in (train, evaluation):
        left = ", ".join(names[number] for number in sorted(part.lost))
        reason = f"{part.table.name}: no image is left of {left}"
        if part.lost and part is train:
            raise UserError(fault("--on_bad_sample", "skip", reason, "repair some of them, or remove the class"))
        if part.lost:
            say(f"{reason}: the evaluation tells nothing about it")


def _form(arguments: Namespace, train: Table, column: str, processor: Any) -> Form:
    if processor is not None:
        return Form(processor.channels, processor.size, resize=True, to_grey=processor.channels == 1)
    if arguments.image_size is not None:
        form = Form(3, (arguments.image_size, arguments.image_size), resize=True)
    else:
        first = next(_looked_at(train, column, range(len(train)))).image
        form = Form(3, (first.height, first.width), resize=False)
    if _fit(train, form):
        return form
    rows = np.linspace(0, len(train) - 1, LOOKED_AT).astype(int).tolist()
    grey = all(picture.image.mode == "L" for picture in _looked_at(train, column, rows))
    return replace(form, channels=1 if grey else 3)


def _fit(table: Table, form: Form) -> bool:
    return len(table) * form.channels * form.size[0] * form.size[1] <= IN_MEMORY


def _looked_at(table: Table, column: str, rows: Sequence[int]) -> Iterator[Picture]:
    """The images of these rows that can be read; UserError where none can."""
    failed, read = "", False
    for row in rows:
        try:
            picture = read_picture(value_at(table, column, row)[0])
        except Unreadable as error:
            failed = failed or unreadable(table, column, row, str(error), REMEDY)
            continue
        read = True
        yield picture
    if not read:
        reason = f"{table.name}: none of {len(rows):,} images looked at can be read"
        raise UserError(failed, fault("--image_column_name", column, reason, "see that it is the images' column"))
