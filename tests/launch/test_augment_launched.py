"""--augment with the real scripts: the grid is drawn, training goes on, a change is told; texts have no use for it."""

from __future__ import annotations

import json
from pathlib import Path

from launch_matrix import command, launch
from PIL import Image

CNN = ["scripts/train_cnn.py", "--max_train_samples", "128", "--max_eval_samples", "20", "--width", "0.25"]


def test_a_run_draws_its_pictures_and_tells_on_resume_what_has_changed(tmp_path: Path) -> None:
    run, grid = tmp_path / "run", tmp_path / "grid.png"
    given = ["--augment", "light", "--num_train_epochs", "2", "--logging_steps", "1"]
    shown = ["--show_augmentations", str(grid), "--stop_after_steps", "2"]
    done = launch(command("python", "", [*CNN, *given, *shown]), run)
    assert done.returncode == 0, done.output[-3000:]
    told = f"{grid}: 6 training images as --augment changes them; training goes on"
    assert done.output.count(told) == 1
    with Image.open(grid) as picture:
        assert picture.format == "PNG"

    other = ["--augment_kwargs", '{"degrees": 30}', "--resume_from_checkpoint", "auto"]
    done = launch(command("python", "", [*CNN, *given, *other]), run)
    assert done.returncode == 0, done.output[-3000:]
    assert done.output.count("augmentation: degrees is 30.0, it was 5.0") == 1
    assert done.output.count("augmentation:") == 1
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4]


def test_a_grid_that_cannot_be_written_ends_the_run_before_training(tmp_path: Path) -> None:
    grid = tmp_path / "none" / "grid.png"
    given = ["--augment", "light", "--show_augmentations", str(grid)]
    done = launch(command("torchrun", "", [*CNN, *given]), tmp_path / "run")
    assert done.returncode != 0
    remedy = "name a file in a folder that is there"
    line = f"oneloop: error: --show_augmentations: '{grid}': cannot be written: No such file or directory; {remedy}"
    assert done.output.count(line) == 1
    assert not (tmp_path / "run").exists()


def test_texts_are_not_augmented(tmp_path: Path) -> None:
    done = launch(command("python", "", ["scripts/train_bert.py", "--augment", "light"]), tmp_path)
    assert done.returncode == 2
    assert "oneloop: error: --augment: 'light': train_bert.py has no use for it; leave it out" in done.output
