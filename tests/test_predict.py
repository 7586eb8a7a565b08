"""`oneloop predict` against the models called by hand, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import written
from PIL import Image
from torch import nn
from written import LABELS

from toolkit import predict as module
from toolkit.data.images import image_data
from toolkit.data.text import text_data
from toolkit.errors import UserError
from toolkit.export import export, verify
from toolkit.models.bert import random_bert
from toolkit.models.cnn import CNN
from toolkit.models.vision import load_processor, load_vision
from toolkit.predict import check_output, predict, write

# Of every length up to and past the 10 tokens of training, so that batches by length stand in another order.
TEXTS = ["a film", "", "good good good", "NA", "bad", "a b c d a b c d a b c d", "007", "true film", "c", "film a d b"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with one checkpoint of BERT."""
    run = tmp_path_factory.mktemp("bert")
    written.write(run / "checkpoints" / "step-000002", written.bert())
    return run


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the CNN, for grey images of 8 x 6 pixels."""
    return written.write(tmp_path_factory.mktemp("cnn") / "step-000002", written.cnn())


def by_hand(texts: list[str], pairs: list[str] | None = None, max_length: int = 10) -> torch.Tensor:
    """Probabilities of each text, tokenized and put through the live model alone."""
    model, tokenizer = written.bert(), written.tokenizer()
    rows = []
    for number, text in enumerate(texts):
        pair = None if pairs is None else pairs[number]
        inputs = tokenizer(text, pair, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.inference_mode():
            rows.append(model(**inputs).logits.softmax(1))
    return torch.cat(rows)


def file_of(folder: Path, kind: str, columns: dict[str, list[Any]]) -> str:
    file = folder / f"rows{kind}"
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if kind == ".parquet":
        pq.write_table(pa.table(columns), file)
    elif kind == ".json":
        file.write_text(json.dumps(rows))
    elif kind == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == ".txt":
        file.write_text("\r\n".join(columns["text"]) + "\n")
    else:
        stream = io.StringIO()
        writer = csv.writer(stream, delimiter="\t" if kind == ".tsv" else ",")
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
        file.write_text(stream.getvalue())
    return str(file)


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt"])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_texts_get_what_the_model_gives_them_in_their_order(
    bert: Path, tmp_path: Path, kind: str, batch_size: int
) -> None:
    file = file_of(tmp_path, kind, {"id": list(range(len(TEXTS))), "text": TEXTS})
    found = predict(bert, file, batch_size=batch_size)
    expected = by_hand(TEXTS)
    assert found.label_names == LABELS
    assert len(set(expected.argmax(1).tolist())) > 1
    assert found.classes.tolist() == expected.argmax(1).tolist()
    torch.testing.assert_close(found.probabilities, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [".csv", ".txt"])
def test_an_encoding_and_rows_that_are_cut(
    bert: Path, tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = ["a b é", "a b c d " * 3, "film"]
    file = file_of(tmp_path, kind, {"text": texts})
    Path(file).write_bytes(Path(file).read_text().encode("latin-1"))
    with pytest.raises(UserError, match=r"line . is not UTF-8 \(byte 0xe9\); save the file as UTF-8, or give its"):
        predict(bert, file)
    found = predict(bert, file, encoding="latin-1")
    torch.testing.assert_close(found.probabilities, by_hand(texts), rtol=1e-5, atol=1e-6)
    assert f"oneloop: {file}: 1 of 3 rows are cut after 10 tokens\n" in capfd.readouterr().err
    parquet = file_of(tmp_path, ".parquet", {"text": texts})
    with pytest.raises(UserError, match="--encoding: 'latin-1': .* is not read from text files; leave it out"):
        predict(bert, parquet, encoding="latin-1")


def test_a_classifier_of_one_class_gives_it(tmp_path: Path) -> None:
    data = {"label_names": ["only"]}
    cnn = written.write(tmp_path / "step-000001", CNN(1, (8, 6), 1), data={**written.IMAGE, **data})
    picture(tmp_path / "a.png", 0)
    model = random_bert(1, vocab_size=len(written.WORDS), max_position_embeddings=16)
    model.config.problem_type = None  # as load_bert makes it
    bert = written.write(tmp_path / "step-000002", model, data={**written.TEXT, **data})
    for found in (predict(cnn, str(tmp_path / "a.png")), predict(bert, file_of(tmp_path, ".txt", {"text": ["a"]}))):
        assert (found.label_names, found.classes.tolist(), found.probabilities.tolist()) == (["only"], [0], [[1.0]])


@pytest.mark.parametrize("what", ["checkpoint", "export", "from_pretrained", "bf16"])
def test_every_kind_of_model(bert: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "model"
    if what == "checkpoint":
        folder = bert / "checkpoints" / "step-000002"
    elif what == "from_pretrained":
        written.bert().save_pretrained(folder)
        written.tokenizer().save_pretrained(folder)
    else:
        export(bert, folder, "bf16" if what == "bf16" else "fp32")
    found = predict(folder, file_of(tmp_path, ".csv", {"text": TEXTS}))
    # A folder that tells no length takes the tokenizer's 16.
    expected = by_hand(TEXTS, max_length=16 if what == "from_pretrained" else 10)
    assert found.label_names == (["LABEL_0", "LABEL_1", "LABEL_2"] if what == "from_pretrained" else LABELS)
    close = {"rtol": 0.05, "atol": 0.01} if what == "bf16" else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found.probabilities, expected, **close)


@pytest.mark.parametrize(
    ("columns", "names", "trained"),
    [
        (("q", "p"), {}, {"text_column_name": "q", "text_pair_column_name": "p"}),
        (("x", "y"), {"text_column_name": "x", "text_pair_column_name": "y"}, {}),
        (("sentence1", "sentence2"), {}, {"text_column_name": None}),
    ],
)
def test_pairs_of_texts(
    tmp_path: Path, columns: tuple[str, str], names: dict[str, str], trained: dict[str, Any]
) -> None:
    data = {**written.TEXT, **trained, "label_names": LABELS}
    checkpoint = written.write(tmp_path / "step-000001", written.bert(), data=data)
    texts, pairs = TEXTS[:5], TEXTS[5:]
    found = predict(checkpoint, file_of(tmp_path, ".csv", dict(zip(columns, (texts, pairs), strict=True))), **names)
    torch.testing.assert_close(found.probabilities, by_hand(texts, pairs), rtol=1e-5, atol=1e-6)


def picture(path: Path, seed: int, mode: str = "L", size: tuple[int, int] = (6, 8)) -> np.ndarray:
    """A PNG of noise; its pixels [H, W] or [H, W, 3]."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_images_as_folder_file_and_column(cnn: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ["b/10.png", "a.png", "b/9.png", "c.PNG"]
    pixels = {name: picture(tmp_path / "images" / name, number) for number, name in enumerate(names)}
    (tmp_path / "images" / "notes.md").write_text("no image")
    picture(tmp_path / "images" / ".cache" / "1.png", seed=9)  # as the system leaves them
    with torch.inference_mode():
        logits = written.cnn()(torch.from_numpy(np.stack([pixels[name] for name in sorted(names)]))[:, None])
    assert len(set(logits.argmax(1).tolist())) > 1
    in_folder = predict(cnn, str(tmp_path / "images"), batch_size=3)
    assert in_folder.files == sorted(names)
    assert "images: 1 of its 5 files left out: not .png, .jpg, " in capfd.readouterr().err
    rows = {"image": [f"images/{name}" for name in sorted(names)]}
    in_csv = predict(cnn, file_of(tmp_path, ".csv", rows))
    held = {"image": [{"bytes": (tmp_path / name).read_bytes(), "path": None} for name in rows["image"]]}
    in_parquet = predict(cnn, file_of(tmp_path, ".parquet", held))
    for found in (in_folder, in_csv, in_parquet):
        assert found.classes.tolist() == logits.argmax(1).tolist()
        torch.testing.assert_close(found.probabilities, logits.softmax(1), rtol=1e-5, atol=1e-6)
    one = predict(cnn, str(tmp_path / "images" / "b" / "9.png"))
    assert one.files == [str(tmp_path / "images" / "b" / "9.png")]
    torch.testing.assert_close(one.probabilities[0], logits.softmax(1)[2], rtol=1e-5, atol=1e-6)


def arguments(**typed: Any) -> Namespace:
    names = (
        "dataset_name dataset_config_name train_file validation_file text_column_name text_pair_column_name image_size "
        "image_column_name label_column_name max_train_samples max_eval_samples max_length on_bad_sample streaming "
        "encoding normalization"
    )
    return Namespace(**{**dict.fromkeys(names.split()), "seed": 0, **typed})


@pytest.mark.parametrize("source", ["checkpoint", "export"])
def test_what_training_did_to_images_and_texts_is_done_again(tmp_path: Path, source: str) -> None:
    """From the data sets as training reads them, through a checkpoint: resized, in colour; and cut at max_length."""
    for number in range(6):
        picture(tmp_path / f"{number}.png", number, "RGB", (9 + number, 12))
    rows = {"photo": [f"{n}.png" for n in range(6)], "kind": [0, 1] * 3, "review": TEXTS[1:7]}
    file = file_of(tmp_path, ".csv", rows)
    given = arguments(
        train_file=file,
        validation_file=file,
        image_column_name="photo",
        text_column_name="review",
        label_column_name="kind",
        image_size=8,
        max_length=5,
    )
    for number, data in enumerate((image_data(given), text_data(given, written.tokenizer()))):
        torch.manual_seed(0)
        model = written.bert() if number else written.CNN(data.channels, data.image_size, 3, width=0.2).eval()
        about = {**json.loads(json.dumps(data.preprocessing)), "label_names": LABELS}
        folder = written.write(tmp_path / f"step-00000{number}", model, data=about)
        if source == "export":
            export(folder, tmp_path / f"export-{number}")
            folder = tmp_path / f"export-{number}"
        assert data.evaluation is not None
        inputs, _ = data.collate([data.evaluation[index] for index in range(6)])
        with torch.inference_mode():
            logits = model(**inputs).logits if isinstance(inputs, dict) else model(*inputs)
        found = predict(folder, file, batch_size=4)
        assert found.classes.tolist() == logits.argmax(1).tolist()
        torch.testing.assert_close(found.probabilities, logits.softmax(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", ["checkpoint", "export", "from_pretrained"])
@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_image_models_of_transformers(tmp_path: Path, kind: str, source: str) -> None:
    """As training and evaluation read the same file: grey and colour, of several sizes, one transparent."""
    from transformers import AutoModelForImageClassification

    folder = tmp_path / "model"
    folder.mkdir()
    model = written.vision(kind, folder)
    processor = load_processor(str(folder))
    for number in range(6):
        picture(tmp_path / f"{number}.png", number, "RGB" if number % 2 else "L", (9 + number, 12))
    Image.new("RGBA", (5, 5), (0, 100, 200, 51)).save(tmp_path / "6.png")
    file = file_of(tmp_path, ".csv", {"image": [f"{n}.png" for n in range(7)], "kind": [0, 1, 2] * 2 + [0]})
    data = image_data(arguments(train_file=file, validation_file=file, label_column_name="kind"), processor)
    trained = load_vision(str(folder), processor, label_names=LABELS).eval()
    assert data.evaluation is not None
    (images,), _ = data.collate([data.evaluation[index] for index in range(7)])
    with torch.inference_mode():
        logits = trained(images).logits
    assert logits.std(0).min() > 0.1  # one row is told from another
    if source != "from_pretrained":
        about = {**json.loads(json.dumps(data.preprocessing)), "label_names": LABELS}
        folder = written.write(tmp_path / "step-000001", trained, data=about, processor=processor)
    if source == "export":
        assert [whole for whole, _ in verify([folder], tmp_path / "model")] == [True]
        export(folder, tmp_path / "export")
        folder = tmp_path / "export"
        theirs = AutoModelForImageClassification.from_pretrained(folder)
        assert theirs.config.id2label == dict(enumerate(LABELS))
        assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    found = predict(folder, file, batch_size=4)
    assert found.label_names == (LABELS if source != "from_pretrained" else ["LABEL_0", "LABEL_1", "LABEL_2"])
    torch.testing.assert_close(found.probabilities, logits.softmax(1), rtol=1e-5, atol=1e-6)


def test_what_is_done_to_images_is_told(cnn: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number, mode in enumerate(("RGB", "L", "RGB", "RGBA", "L")):
        Image.new(mode, (6, 8)).save(tmp_path / f"{number}.png")
    predict(cnn, str(tmp_path), batch_size=4)
    assert capfd.readouterr().err.splitlines() == [
        f"oneloop: {tmp_path}: 1 of 5 images are transparent in places: they are laid on white",
        f"oneloop: {tmp_path}: 3 of 5 images are in colour: the model takes grey ones, and they are made grey",
    ]


def test_output_is_csv_or_jsonl_in_the_order_of_the_rows(
    bert: Path, cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = predict(bert, file_of(tmp_path, ".txt", {"text": TEXTS}))
    write(found, None)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    write(found, str(tmp_path / "out.jsonl"))
    objects = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == len(objects) == len(TEXTS)
    for number, (row, values) in enumerate(zip(rows, objects, strict=True)):
        assert list(row) == list(values)
        assert list(row) == ["label", "probability", "probability_bad", "probability_fair", "probability_good"]
        assert row["label"] == values["label"] == LABELS[int(found.classes[number])]
        numbers = [float(row[f"probability_{name}"]) for name in LABELS]
        assert numbers == [values[f"probability_{name}"] for name in LABELS]
        assert torch.equal(torch.tensor(numbers), found.probabilities[number])  # nothing lost in writing
        assert float(row["probability"]) == values["probability"] == max(numbers)
    picture(tmp_path / "images" / "a, b.png", 1)
    write(predict(cnn, str(tmp_path / "images")), str(tmp_path / "out.csv"))
    header, row = csv.reader((tmp_path / "out.csv").open())
    assert (header[:3], row[0]) == (["file", "label", "probability"], "a, b.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "out.csv", "out.jsonl", "rows.txt"]


def test_progress_is_a_line_now_and_then(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", -1.0)
    predict(bert, file_of(tmp_path, ".csv", {"text": TEXTS}), batch_size=4)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("oneloop: predicted")]
    assert told == [f"oneloop: predicted {number} of 10 rows" for number in (4, 8, 10)]


def test_the_cpu_can_be_asked_for(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit import trained

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert trained._device() == torch.device("cuda")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert trained._device() == torch.device("cpu")


def test_a_mistake_in_the_file_is_one_line_with_file_and_row(bert: Path, cnn: Path, tmp_path: Path) -> None:
    picture(tmp_path / "images" / "1.png", 1)
    (tmp_path / "images" / "2.png").write_bytes((tmp_path / "images" / "1.png").read_bytes()[:60])
    picture(tmp_path / "wide.png", 1, size=(7, 8))
    (tmp_path / "bare").mkdir()
    contents = {
        "other.csv": "sentence,label\na,1\n",
        "empty.csv": "",
        "header.csv": "text\n",
        "empty.txt": "",
        "null.jsonl": '{"text": "a"}\n{"text": null}\n',
        "latin.txt": b"a\n\xe9\n",
        "images.csv": "image\nimages/1.png\nimages/2.png\n",
        "uneven.csv": "text\na,b\n",
        "fine.txt": "a\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    cases: list[tuple[Path, str, str]] = [
        (bert, "other.csv", "--text_column_name: 'text': no such column in {}, which has: sentence, label; name one"),
        (bert, "empty.csv", "FILE: '{}': is empty"),
        (bert, "header.csv", "FILE: '{}': has no rows"),
        (bert, "empty.txt", "FILE: '{}': has no rows"),
        (bert, "null.jsonl", "--text_column_name: 'text': {}, line 2: no text there"),
        (bert, "latin.txt", "FILE: '{}': line 2 is not UTF-8 (byte 0xe9)"),
        (bert, "uneven.csv", "FILE: '{}': line 2: not the 1 fields"),
        (bert, "none.csv", "FILE: '{}': no such file (working folder "),
        (bert, "wide.png", "FILE: '{}': unknown kind of file; use one of .csv, .tsv, .json, .jsonl, .parquet, .txt"),
        (bert, "images", "FILE: '{}': is a folder; give the path of a file"),
        (cnn, "images", "--image_column_name: 'file': {}, row 2 ({}/2.png): not a readable image: "),
        (cnn, "images.csv", "--image_column_name: 'image': {}, line 3 ("),
        (cnn, "other.csv", "--image_column_name: 'image': no such column in {}, which has: sentence, label"),
        (cnn, "wide.png", "{}, row 1 ({}): 8 x 7 pixels, where the model takes 8 x 6; resize it to that, or train"),
        (cnn, "none.png", "FILE: '{}': no such file (working folder "),
        (cnn, "bare", "FILE: '{}': no images in this folder; use one of .png, "),
        (cnn, "fine.txt", "FILE: '{}': unknown kind of file; use one of .csv, .tsv, .json, .jsonl, .parquet, .png"),
    ]
    for model, name, told in cases:
        with pytest.raises(UserError) as caught:
            predict(model, str(tmp_path / name))
        [line] = caught.value.lines
        assert told.replace("{}", str(tmp_path / name)) in line and "\n" not in line
    for model, names in ((cnn, {"text_column_name": "a"}), (bert, {"image_column_name": "a"})):
        with pytest.raises(UserError, match="classifies .*; leave it out"):
            predict(model, str(tmp_path / "fine.txt"), **names)  # type: ignore[arg-type]
    paired = written.write(
        tmp_path / "step-000001", written.bert(), data={**written.TEXT, "text_pair_column_name": "b"}
    )
    with pytest.raises(UserError, match="the model takes pairs of texts; give them in two columns"):
        predict(paired, str(tmp_path / "fine.txt"))


class Own(nn.Linear):
    pass


def test_a_model_that_cannot_be_used_is_refused_in_words(tmp_path: Path, bert: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\na\n")
    own = written.write(tmp_path / "step-000001", Own(2, 2), data={"kind": None})
    bare = tmp_path / "bare"
    bare.mkdir()
    folders = {name: tmp_path / name for name in ("pickled", "base", "no_tokenizer", "tokens", "numbers", "code")}
    for name, folder in folders.items():
        model = written.bert()
        if name == "base":
            model.bert.save_pretrained(folder)
        else:
            model.config.problem_type = "regression" if name == "numbers" else None
            model.save_pretrained(folder)
        if name != "no_tokenizer":
            written.tokenizer().save_pretrained(folder)
    (folders["pickled"] / "model.safetensors").rename(folders["pickled"] / "pytorch_model.bin")
    vocabulary = {f"word{number}": number + len(written.WORDS) for number in range(3)}
    tokenizer = written.tokenizer()
    tokenizer.add_tokens(list(vocabulary))
    tokenizer.save_pretrained(folders["tokens"])
    config = json.loads((folders["code"] / "config.json").read_text())
    (folders["code"] / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folders["code"] / "config.json").write_text(json.dumps(config))
    headless = tmp_path / "headless"
    headless.mkdir()
    for file in folders["base"].iterdir():
        (headless / file.name).write_bytes(file.read_bytes())
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps(config | {"architectures": None}))
    broken = tmp_path / "run" / "checkpoints" / "step-000002"
    written.write(broken, written.cnn())
    (broken / written.SHARD).write_bytes(b"")
    wild = written.cnn()
    with torch.no_grad():
        wild.head.linear.bias[0] = torch.nan
    nan = written.write(tmp_path / "step-000004", wild)
    picture(tmp_path / "a.png", 0)

    cases = [
        (tmp_path / "nowhere", "MODEL: '{}': no such folder; give an export, a checkpoint or a run's folder"),
        (bare, "MODEL: '{}': neither oneloop.json nor config.json in it"),
        (own, "MODEL: '{}': a Own of your own, or rows of your own: how to build it is not known here; load"),
        (folders["pickled"], "pickled weights (pytorch_model.bin) may run code and are not read"),
        (folders["base"], "MODEL: '{}': a BertModel is no text classifier; train it as one first"),
        (headless, "MODEL: '{}': its weights lack classifier.bias, classifier.weight: no trained text classifier"),
        (folders["no_tokenizer"], "MODEL: '{}': has no tokenizer; save the tokenizer into the folder"),
        (folders["tokens"], "MODEL: '{}': its tokenizer has 20 words, the model 17"),
        (folders["numbers"], "gives numbers or several labels a row, not one of two or more classes"),
        (folders["code"], "MODEL: '{}': cannot be loaded: "),
        (tmp_path / "run", f"{broken / written.SHARD}: '0 bytes': "),
        (nan, f"MODEL: '{{}}': gives no numbers for {tmp_path / 'a.png'}, row 1; its weights are not finite"),
    ]
    for model, told in cases:
        with pytest.raises(UserError) as caught:
            predict(model, str(tmp_path / ("a.png" if model == nan else "rows.csv")))
        [line] = caught.value.lines
        assert told.replace("{}", str(model)) in line and "\n" not in line
    assert not (tmp_path / "ran").exists()  # a folder's own code is not run


def test_output_that_cannot_be_written_is_refused_first(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("kept")
    for name, told in (
        ("there.csv", "exists; name a new file"),
        ("out.xlsx", "unknown kind of file; use one of .csv, .jsonl"),
        ("no/out.csv", "its folder does not exist"),
    ):
        with pytest.raises(UserError, match=f"--output: '{tmp_path / name}': {told}"):
            check_output(str(tmp_path / name))
    check_output(None)
    check_output(str(tmp_path / "out.csv"))
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(UserError, match="--output: .*: cannot be written"):
        write(predict(bert, file_of(tmp_path, ".txt", {"text": TEXTS})), str(tmp_path / "out.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "rows.txt", "there.csv"]
