"""A ResNet of transformers on a folder of images, some of them damaged, on two ranks; then exported and asked again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import written
from launch_matrix import command, launch
from PIL import Image

from toolkit.export import export
from toolkit.predict import predict


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and 10 training (2 of them bad) and 5 evaluation images of two classes."""
    folder = tmp_path_factory.mktemp("images")
    written.vision("resnet", folder)
    draw = np.random.default_rng(0)
    for split, count in (("train", 5), ("test", 3)):
        for number, name in enumerate(("cat", "dog")):
            (folder / "data" / split / name).mkdir(parents=True)
            for image in range(count - (split == "test") * number):
                pixels = draw.integers(0, 128, (20, 24 + image, 3)) + 100 * number
                Image.fromarray(pixels.astype(np.uint8)).save(folder / "data" / split / name / f"{image}.png")
    half = folder / "data" / "train" / "cat" / "1.png"
    half.write_bytes(half.read_bytes()[:300])
    (folder / "data" / "train" / "dog" / "4.png").write_text("<html></html>")
    return folder, folder / "data"


def test_two_ranks_skip_the_same_images_and_make_equal_steps(folders: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    model, data = folders
    script = ["scripts/train_cnn.py", "--model_name_or_path", str(model), "--dataset_name", str(data)]
    given = ["--on_bad_sample", "skip", "--train_batch_size", "4", "--num_train_epochs", "1", "--learning_rate", "0.01"]
    done = launch(command("torchrun", "", [*script, *given, "--logging_steps", "1"]), run)
    assert done.returncode == 0, done.output[-3000:]
    assert done.obtained == ("ddp", "DistributedDataParallel", 2)
    told = [line for line in done.output.splitlines() if "images are left out" in line]
    assert len(told) == 1 and "2 of 10 images are left out, 8 used: " in told[0]
    assert "train/cat/1.png, class cat): cannot be decoded: " in told[0]
    assert "train/dog/4.png, class dog): of no kind that is known here: it begins with b'<html></html" in told[0]
    assert "8 training and 5 evaluation rows" in done.output
    assert "a new head for 2 classes: classifier.1.bias, classifier.1.weight start at random" in done.output
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["samples"]) for row in rows if "loss" in row] == [(1, 4), (2, 8)]

    export(run, tmp_path / "export")
    found = predict(tmp_path / "export", str(data / "test"))
    assert (found.label_names, found.files) == (
        ["cat", "dog"],
        ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png"],
    )
    right = [math.log(float(found.probabilities[row, int(row > 2)])) for row in range(5)]
    assert -sum(right) / 5 == pytest.approx(rows[-1]["eval_loss"], rel=1e-5)


def test_what_a_model_of_the_hub_does_not_go_with_is_refused(tmp_path: Path) -> None:
    """Before the model is asked for: there is none of that name."""
    given = ["scripts/train_cnn.py", "--model_name_or_path", "no/model"]
    done = launch(command("python", "", [*given, "--norm", "batch", "--width", "2"]), tmp_path)
    assert done.returncode == 2
    for name, value in (("norm", "'batch'"), ("width", "2.0")):
        reason = "shapes the model that train_cnn.py has of its own, not no/model"
        assert f"oneloop: error: --{name}: {value}: {reason}; leave it out, or --model_name_or_path" in done.output
