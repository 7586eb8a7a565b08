"""Streams: the same batches for every rank, worker and resume; what is held, told and refused."""

from __future__ import annotations

import gzip
import io
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import toolkit
from toolkit.data import streamed
from toolkit.data.images import image_data
from toolkit.data.loader import TrainLoader
from toolkit.data.sources import Data
from toolkit.data.stream import READ, Stream, raw
from toolkit.data.streamed import load_streamed
from toolkit.data.text import text_data
from toolkit.errors import UserError

B = 8
STEPS = 14  # over more than two passes
ROWS = 50
HELD_OUT = 6
TEXT: dict[str, tuple[str, ...]] = {"text": ("text",)}
Given = Callable[..., Namespace]


def setup_of(seed: int = 42) -> Any:
    return toolkit.Setup.build(
        strategy="single", launcher="python", use_cpu=True, train_batch_size=B, learning_rate=0.1, seed=seed
    )


@pytest.fixture
def given(arguments: Given) -> Given:
    def streaming(**typed: Any) -> Namespace:
        usual = {"streaming": True, "shuffle_buffer_size": 10, "max_length": 16, "typed": frozenset(typed)}
        return arguments(**{**usual, **typed})

    return streaming


def words(number: int) -> str:
    """A text that tells its row: as many a's, b's and so on as the number has digits of base 3."""
    return " ".join(word for place, word in enumerate("abcd") for _ in range(number // 3**place % 3)) or "film"


def jsonl(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return jsonl(tmp_path / "rows.jsonl", [{"text": words(i), "label": ["pos", "neg"][i % 2]} for i in range(ROWS)])


def samples(
    data: Data, rank: int = 0, size: int = 1, accumulation: int = 1, workers: int = 0, start: int = 0
) -> dict[int, Any]:
    """{id: (row without padding, target)} of all steps from `start` on that this rank trains on."""
    loader = TrainLoader(
        data.train,
        data.collate,
        data.sampler(len(data.train), B, 42, lengths=None, group_by_length=False, drop_last=False),
        micro_batch_size=B // accumulation // size,
        gradient_accumulation_steps=accumulation,
        rank=rank,
        size=size,
        num_workers=workers,
    )
    found: dict[int, Any] = {}
    for step in islice(loader.epoch(0, start), STEPS - start):
        for batch in step:
            held = batch.inputs["input_ids"] if isinstance(batch.inputs, dict) else batch.inputs[0].flatten(1)
            for number, row, target in zip(batch.ids.tolist(), held.tolist(), batch.targets.tolist(), strict=True):
                found[number] = ([value for value in row if value], target)
    return found


def test_every_rank_worker_and_resume_gets_the_same_samples(file: str, given: Given, tokenizer: Any) -> None:
    def data() -> Data:
        return text_data(given(train_file=file, max_eval_samples=HELD_OUT), tokenizer, setup_of())

    one = samples(data())
    assert sorted(one) == list(range(STEPS * B))
    for workers in (0, 2):
        ranks = [samples(data(), rank, 2, 2, workers) for rank in (0, 1)]
        assert ranks[0] | ranks[1] == one and len(ranks[0]) == len(ranks[1]) == STEPS * B // 2
        assert samples(data(), workers=workers, start=5) == {k: v for k, v in one.items() if k >= 5 * B}
    # Each pass has each row once, in an order of its own, without those held out.
    rows = ROWS - HELD_OUT
    encoded = [tokenizer(words(i))["input_ids"] for i in range(ROWS)]
    expected = sorted((encoded[i], 1 - i % 2) for i in range(HELD_OUT, ROWS))
    passes = [[one[i] for i in range(start, start + rows)] for start in (0, rows)]
    assert [sorted(each) for each in passes] == [expected, expected]
    assert passes[0] != passes[1] and passes[0] != expected


def test_seed_and_buffer_decide_the_order(file: str, given: Given, tokenizer: Any) -> None:
    def order(seed: int, buffer: int) -> dict[int, Any]:
        arguments = given(train_file=file, shuffle_buffer_size=buffer, max_eval_samples=HELD_OUT)
        return samples(text_data(arguments, tokenizer, setup_of(seed)))

    orders = [order(1, 10), order(1, 10), order(2, 10), order(1, 20)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] and orders[0] != orders[3]


class Counting:
    """Rows that count how many of them were read."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self) -> Iterator[dict[str, Any]]:
        for number in range(100_000):
            self.read += 1
            yield {"text": str(number), "label": number % 2}


def test_only_a_global_batch_is_held_beside_the_buffer() -> None:
    counting = Counting()
    stream = Stream(
        datasets.IterableDataset.from_generator(counting),
        lambda table, ids: [(table.values("text")[0], ids[0])],  # type: ignore[arg-type,return-value]
        ["0", "1"],
        "label",
        name="numbers",
        class_names={},
        train_batch_size=B,
        seed=0,
        buffer_size=100,
        order="",
    )
    assert counting.read <= READ  # `datasets` looks at the first rows for their columns
    for position in range(0, 4000, 3):
        text, label = stream[position]
        assert int(text) % 2 == label
        assert len(stream._held) == B
        assert counting.read <= position + B + 100 + READ + 1
    first = stream[0]  # from the start again
    assert stream[0] == first and counting.read < 4000 + 2 * (B + 100 + READ)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"text": None, "label": "pos"}, "--text_column_name: 'text': {file}, line 31: no text there"),
        ({"text": [1], "label": "pos"}, "--text_column_name: 'text': {file}, line 31: no text there"),
    ],
)
def test_a_bad_row_is_named_by_its_line(
    file: str, given: Given, tokenizer: Any, bad: dict[str, Any], told: str, workers: int
) -> None:
    lines = Path(file).read_text().splitlines()
    lines[30] = json.dumps(bad)
    Path(file).write_text("\n".join(lines))
    data = text_data(given(train_file=file, max_eval_samples=HELD_OUT), tokenizer, setup_of())
    with pytest.raises(UserError) as caught:
        samples(data, workers=workers)
    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith(told.format(file=file))


def test_labels_are_looked_at_first_and_kept(
    file: str, given: Given, tokenizer: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    told = f"oneloop: {file}: one pass over its labels, to know the classes\n"
    for number in range(2):
        data = text_data(given(train_file=file, max_eval_samples=HELD_OUT), tokenizer, setup_of())
        assert data.label_names == ["neg", "pos"]
        assert (told in capfd.readouterr().err) == (number == 0)
    lines = Path(file).read_text().splitlines()
    lines[40] = '{"text": "a", "label": null}'
    Path(file).write_text("\n".join(lines))
    with pytest.raises(UserError) as caught:
        text_data(given(train_file=file, max_eval_samples=HELD_OUT), tokenizer, setup_of())
    assert caught.value.lines[0].startswith(f"--label_column_name: 'label': {file}, line 41: the label is missing")


def test_numbers_as_labels_keep_their_order(tmp_path: Path, given: Given, tokenizer: Any) -> None:
    file = jsonl(tmp_path / "a.jsonl", [{"text": "a", "label": [10, 9, 2][i % 3]} for i in range(30)])
    data = text_data(given(train_file=file, max_eval_samples=3), tokenizer, setup_of())
    assert data.label_names == ["2", "9", "10"]
    assert [target for _, target in samples(data).values()].count(0) == pytest.approx(STEPS * B / 3, abs=5)
    assert data.evaluation is not None
    assert [int(data.evaluation[row]["label"]) for row in range(3)] == [2, 1, 0]


def test_what_is_evaluated_on(
    tmp_path: Path, file: str, given: Given, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.data.streamed.EVALUATED", 20)
    monkeypatch.setattr("toolkit.data.streamed.HELD_OUT", 7)
    other = jsonl(tmp_path / "other.jsonl", [{"text": str(i), "label": "neg"} for i in range(30)])

    def evaluated(**typed: Any) -> tuple[int, str, str]:
        found = load_streamed(given(train_file=file, **typed), TEXT, setup_of())
        first = next(iter(found.stream(lambda table, ids: table.values("text")).rows))["text"]  # type: ignore[arg-type,return-value]
        assert found.describe("text").startswith(f"{file}: streamed, shuffled in a buffer of 10 rows; ")
        return len(found.evaluation), found.evaluation.values("text")[-1], first

    assert evaluated(validation_file=other) == (20, "19", words(0))
    line = f"oneloop: {other}: its first 20 rows are evaluated on; --max_eval_samples gives another number\n"
    assert line in capfd.readouterr().err
    assert evaluated(validation_file=other, max_eval_samples=25) == (25, "24", words(0))
    assert evaluated(validation_file=other, max_eval_samples=40) == (30, "29", words(0))
    assert evaluated() == (7, words(6), words(7))
    assert evaluated(max_eval_samples=3) == (3, words(2), words(3))
    assert line not in capfd.readouterr().err
    with pytest.raises(UserError, match="50 rows in all, and 50 of them are held out for evaluation"):
        evaluated(max_eval_samples=50)


def test_the_order_says_what_decides_it(file: str, given: Given, tokenizer: Any) -> None:
    data = text_data(
        given(train_file=file, max_eval_samples=HELD_OUT, max_train_samples=9), tokenizer, setup_of(seed=3)
    )
    assert data.sampler(len(data.train), B, 3).order == {
        "seed": 3,
        "train_batch_size": B,
        "rows": "of a stream (buffer 10, first 6 held out, 9 rows)",
        "group_by_length": False,
        "drop_last": True,
    }
    assert len({str(data.train[position]) for position in range(40)}) == 9


def test_defaults_of_a_script_that_a_stream_has_no_use_for_are_told(
    file: str, given: Given, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = given(train_file=file, max_eval_samples=HELD_OUT)
    arguments.max_train_samples, arguments.group_by_length = 9, True
    found = load_streamed(arguments, TEXT, setup_of())
    assert len(list(found.stream(lambda table, ids: [0]).rows)) == ROWS - HELD_OUT
    told = capfd.readouterr().err
    assert "oneloop: max_train_samples 9, a default of the script, does not hold for a stream\n" in told
    assert "oneloop: group_by_length True, a default of the script, does not hold for a stream\n" in told


def picture(value: int, colour: bool = False, size: int = 6) -> bytes:
    stream = io.BytesIO()
    pixels = np.full((size, size, 3) if colour else (size, size), value, dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def image_file(folder: Path, pictures: list[bytes]) -> str:
    rows = {
        "image": [{"bytes": each, "path": None} for each in pictures],
        "label": [i % 2 for i in range(len(pictures))],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "images.parquet")
    return str(folder / "images.parquet")


def test_images_stream_from_parquet(tmp_path: Path, given: Given, capfd: pytest.CaptureFixture[str]) -> None:
    file = image_file(tmp_path, [picture(value + 1) for value in range(ROWS)])
    capfd.readouterr()

    def data() -> Data:
        return image_data(given(train_file=file, max_eval_samples=HELD_OUT, on_bad_sample="error"), None, setup_of())

    assert (data().label_names, data().channels, data().image_size) == (["cat", "dog"], 1, (6, 6))
    assert "labels" not in capfd.readouterr().err  # the file names its classes
    one = samples(data())
    assert sorted(one[i][0][0] for i in range(ROWS - HELD_OUT)) == list(range(HELD_OUT + 1, ROWS + 1))
    assert all((pixels[0] - 1) % 2 == target and len(pixels) == 36 for pixels, target in one.values())
    assert samples(data(), 0, 2, 2, 2) | samples(data(), 1, 2, 2, 2) == one


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"no image", "row 41 (class cat): not a readable image: "),
        (picture(3, size=7), "row 41: 7 x 7 pixels, where the first has 6 x 6; give --image_size"),
        (picture(3, colour=True), "row 41: in colour, where all that were looked at are grey; save it in grey, or let"),
    ],
)
def test_a_bad_image_is_named_by_its_row(
    tmp_path: Path, given: Given, monkeypatch: pytest.MonkeyPatch, bad: bytes, told: str
) -> None:
    monkeypatch.setattr("toolkit.data.streamed.LOOKED_AT", 20)
    pictures = [picture(value + 1) for value in range(ROWS)]
    file = image_file(tmp_path, pictures[:40] + [bad] + pictures[41:])
    data = image_data(given(train_file=file, max_eval_samples=HELD_OUT, on_bad_sample="error"), None, setup_of())
    with pytest.raises(UserError) as caught:
        samples(data)
    assert caught.value.lines[0].startswith(f"--image_column_name: 'image': {file}, {told}")


def test_class_folders_of_images_stream(tmp_path: Path, given: Given) -> None:
    for split, count in (("train", 9), ("test", 2)):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            for value in range(count):
                (tmp_path / split / name / f"{value}.png").write_bytes(picture(10 * value + number + 1, colour=True))
    data = image_data(given(dataset_name=str(tmp_path), on_bad_sample="error"), None, setup_of())
    assert (data.label_names, data.channels, data.evaluation and len(data.evaluation)) == (["cat", "dog"], 3, 4)
    one = samples(data)
    assert sorted(one[i][0][0] for i in range(18)) == sorted(10 * v + n + 1 for v in range(9) for n in (0, 1))
    assert all(pixels[0] % 10 - 1 == target for pixels, target in one.values())


def test_files_of_a_data_set_are_read_here_and_shuffled_together(tmp_path: Path, given: Given, tokenizer: Any) -> None:
    for shard in range(3):
        jsonl(tmp_path / f"train-{shard}.jsonl", [{"text": words(9 * shard + i), "label": i % 3} for i in range(9)])
    jsonl(tmp_path / "test.jsonl", [{"text": "good", "label": 2}])
    data = text_data(given(dataset_name=str(tmp_path)), tokenizer, setup_of())
    assert (data.label_names, data.evaluation and len(data.evaluation)) == (["0", "1", "2"], 1)
    one = samples(data)
    assert sorted(one[i] for i in range(27)) == sorted((tokenizer(words(i))["input_ids"], i % 9 % 3) for i in range(27))
    first = [one[i][0] for i in range(9)]
    shards = [[tokenizer(words(9 * shard + i))["input_ids"] for i in range(9)] for shard in range(3)]
    assert all(any(row in shard for row in first) for shard in shards)


def test_a_compressed_csv_streams_as_text_and_its_classes_must_be_named(
    tmp_path: Path, given: Given, tokenizer: Any
) -> None:
    with gzip.open(tmp_path / "train.csv.gz", "wt") as stream:
        stream.write("text,label\n" + "".join(f"{['007', 'NA', ''][i % 3]},{i % 2}\n" for i in range(30)))
    with pytest.raises(UserError, match=r"\(train\) does not name its classes, and a pass over all rows would load"):
        text_data(given(dataset_name=str(tmp_path), max_eval_samples=3), tokenizer, setup_of())
    source, _ = streamed._from_dataset(given(dataset_name=str(tmp_path)), "text")
    rows = [(row["text"], row["label"]) for row in islice(raw(source.rows), 3)]
    assert rows == [("007", "0"), ("NA", "1"), ("", "0")]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            {"train_file": "a.jsonl", "validation_file": "a.txt"},
            ["--train_file: 'a.jsonl'", "--validation_file: 'a.txt'"],
        ),
        ({"dataset_name": "/no/such/folder"}, ["--dataset_name: '/no/such/folder': cannot be loaded: "]),
    ],
)
def test_what_is_not_there_is_told(given: Given, typed: dict[str, str], told: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_streamed(given(**typed), TEXT, setup_of())
    assert len(caught.value.lines) == len(told)
    assert all(line.startswith(start) for line, start in zip(caught.value.lines, told, strict=True))
