"""A stream that one process began trains on the same samples on two ranks with workers."""

from __future__ import annotations

import json

import pytest
from starting import ROOT, launch_matrix

import toolkit
from toolkit.data.images import image_data
from toolkit.models.cnn import CNN

ARGUMENTS = [
    *("--train_file", str(ROOT / "toolkit/samples/fashion_mnist_small/train.parquet"), "--streaming"),
    *("--shuffle_buffer_size", "40", "--max_eval_samples", "20", "--max_train_samples", "60", "--optimizer", "adamw"),
    *("--train_batch_size", "16", "--max_train_steps", "6", "--learning_rate", "0.001"),
]
TWO = ["--width", "0.25", "--per_device_train_batch_size", "4", "--dataloader_num_workers", "2"]


def here(folder, *argv):
    """Run in this process what scripts/train_cnn.py runs; its losses."""
    arguments = toolkit.parse_arguments([*ARGUMENTS, "--output_dir", str(folder), *argv], description="", defaults={})
    setup = toolkit.Setup.from_run(arguments)
    data = image_data(arguments, None, setup)
    engine = toolkit.prepare(
        lambda: CNN(data.channels, data.image_size, data.num_labels, width=0.25, mean=data.mean, std=data.std),
        toolkit.cross_entropy,
        toolkit.optimizer_from(setup),
        setup,
    )
    toolkit.fit(engine, data, arguments)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def test_two_ranks_go_on_in_the_stream_of_one(tmp_path):
    losses = here(tmp_path / "one")
    assert len(set(losses)) == 6
    assert here(tmp_path / "two", "--stop_after_steps", "3") == losses[:3]
    assert here(tmp_path / "two", "--resume_from_checkpoint", "auto", "--stop_after_steps", "4") == losses[:4]

    line = launch_matrix.command("torchrun", "", ["scripts/train_cnn.py", *ARGUMENTS, *TWO])
    launched = launch_matrix.launch([*line, "--resume_from_checkpoint", "auto"], tmp_path / "two")
    assert launched.returncode == 0, launched.output
    assert launched.losses == pytest.approx(losses, rel=launch_matrix.LOSS_BOUND)
    assert launched.obtained == ("ddp", "DistributedDataParallel", 2)
    told = "train.parquet: streamed, shuffled in a buffer of 40 rows; 20 evaluation rows (its first, held out), image"
    assert launched.output.count(told) == 1
    assert launched.output.count("train.parquet: reading past 64 rows, to where the run goes on") == 1
