"""`--find_learning_rate` in one process: what it leaves, refuses and puts back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting import Run, fit, same
from torch import Tensor, nn

import toolkit
from toolkit import range_test, stop
from toolkit.arguments import parse_arguments
from toolkit.errors import UserError

FIND = "--find_learning_rate"
LEFT = ["learning_rate.json", "learning_rate.png"]


def found(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "learning_rate.json").read_text())


def test_fit_leaves_the_curve_and_does_not_train(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path / "run", FIND)
    assert run.scores == {}
    assert sorted(path.name for path in run.folder.iterdir()) == LEFT
    curve = found(run.folder)
    assert 1e-3 < curve["suggestion"] < 1  # measured: 0.018
    assert f"falls most steeply at {curve['suggestion']:.2g}" in curve["reason"]
    assert set(curve["points"][0]) == {"learning_rate", "loss", "grad_norm", "smoothed"}
    # One step a rate, on the samples of the first steps, epoch after epoch.
    assert len(run.read) == 8 * len(curve["points"]) and sorted(run.read[:64]) == list(range(64))
    told = capfd.readouterr().err
    assert "161 steps with learning rates from 1e-07 to 10; no other rate, schedule or length is used" in told
    assert f"suggestion: --learning_rate {curve['suggestion']:.2g}: {curve['reason']}" in told


def test_a_training_in_the_same_folder_is_the_one_without_a_test(tmp_path: Path) -> None:
    fit(tmp_path / "run", FIND)
    run = fit(tmp_path / "run")
    assert same(run.checkpoint(16), fit(tmp_path / "other").checkpoint(16))
    with pytest.raises(UserError, match=r"--output_dir: '.*': already holds a run \(summary.json\)"):
        fit(tmp_path / "run", FIND)


def test_a_second_test_does_not_overwrite_the_first(tmp_path: Path) -> None:
    fit(tmp_path / "run", FIND)
    with pytest.raises(UserError, match="already holds a learning_rate.json; name a new folder"):
        fit(tmp_path / "run", FIND)


def test_it_goes_out_from_a_checkpoint_and_leaves_its_run_alone(whole: Run, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*")}
    run = fit(tmp_path / "run", FIND, "--resume_from_checkpoint", str(whole.checkpoint(12)))
    assert run.read[:8] == whole.read[8 * 12 : 8 * 13]
    step = next(row for row in whole.rows if row["step"] == 13)
    assert found(run.folder)["points"][0]["loss"] == step["loss"]  # before the first step, with the same dropout
    assert {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*")} == before


class Blind(nn.Module):
    """Its outputs do not depend on its inputs, and the classes are even: there is nothing to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2] * 0 + self.bias


class Even:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.ones(4), index % 2


def test_a_loss_that_does_not_fall_is_a_users_error_and_leaves_its_curve(tmp_path: Path) -> None:
    arguments = parse_arguments([FIND, "--output_dir", str(tmp_path / "run")], description="", defaults={})
    setup = toolkit.Setup.build(strategy="single", launcher="python", use_cpu=True, train_batch_size=64)
    engine = toolkit.prepare(Blind, toolkit.cross_entropy, toolkit.optimizer_from(setup), setup)
    with pytest.raises(UserError) as caught:
        toolkit.find_learning_rate(engine, toolkit.Data(Even()), arguments)
    [line] = caught.value.lines
    assert line.startswith("--find_learning_rate: '1e-07 to 10': the loss does not fall: it starts at 0.6931")
    assert line.endswith(f"the curve is in {tmp_path / 'run' / 'learning_rate.png'}")
    assert found(tmp_path / "run")["suggestion"] is None
    assert found(tmp_path / "run")["ended"] == "all rates were tried"
    assert engine.updates == 0


def test_a_loss_that_is_not_finite_ends_it(tmp_path: Path) -> None:
    class Breaks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / (self.weight.abs().max() < 1)  # type: ignore[return-value]

    fit(tmp_path / "run", FIND, build=lambda: Breaks(4, 2))
    curve = found(tmp_path / "run")
    assert curve["points"][-1]["loss"] is curve["points"][-1]["smoothed"] is None
    assert curve["ended"] == f"the loss is not finite at {curve['points'][-1]['learning_rate']:.2g}"


@pytest.fixture
def own_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A signal that ends a run is for the whole process: the next test has the gate and the handlers of before."""
    monkeypatch.setattr(stop, "gate", stop.Gate())
    before = {number: signal.getsignal(number) for number in stop.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_gate")
def test_a_signal_ends_it_in_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def ask() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.gate.woken.wait(10)

    with pytest.raises(stop.Ended) as ended:
        fit(tmp_path / "run", FIND, before={5: ask})
    assert ended.value.code == 143
    assert list((tmp_path / "run").iterdir()) == []
    told = capfd.readouterr().err
    assert "SIGTERM: ends without a suggestion; a second signal ends it at once" in told
    assert "ended by SIGTERM after 5 of 161 rates: no suggestion" in told


def test_a_disk_without_room_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.checkpoint import put_back

    monkeypatch.setattr(put_back, "save", lambda *_: "no space left")
    with pytest.raises(UserError, match=r"cannot be kept in it meanwhile \(no space left\); make room for them"):
        fit(tmp_path / "run", FIND)


def test_what_has_no_meaning_beside_it_is_refused() -> None:
    beside = {"stop_after_steps": 3, "save_initial": True, "checkpointing_steps": "epoch", "save_total_limit": 2}
    beside |= {"report_to": ["tensorboard"], "eval_steps": 3, "metric_for_best_model": "f1", "greater_is_better": True}
    beside |= {"loss_spike_factor": 2.0, "early_stopping_patience": 1, "early_stopping_threshold": 0.5}
    texts = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in beside.items()}
    argv = [each for name, text in texts.items() for each in (f"--{name}", text)]
    parse_arguments(argv, description="", defaults={})
    with pytest.raises(UserError) as caught:
        parse_arguments([FIND, *argv], description="", defaults={})
    reason = "stands beside --find_learning_rate, which does not train and keeps nothing but its curve"
    assert caught.value.lines == tuple(
        f"--{name}: {value!r}: {reason}; leave one of the two out" for name, value in beside.items()
    )


def test_the_grid_has_20_points_a_decade() -> None:
    assert (range_test.RATES[0], len(range_test.RATES)) == (1e-7, 8 * 20 + 1)
    assert range_test.RATES[-1] == pytest.approx(10)
    assert all(b / a == pytest.approx(10 ** (1 / 20)) for a, b in pairwise(range_test.RATES))
