"""What rounding alone may do to a training is measured, and is no difference between setups."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from seeded import train

from toolkit.checkpoint import Checkpoint
from toolkit.compare.rounding import SIZE, disturbed, needed, once_more
from toolkit.compare.runs import DIFFERS, TOLERANCE
from toolkit.compare.setups import Start
from toolkit.compare.verdict import judge

# Every step brings what the ranks' sums have rounded 10,000 times further apart.
CHAOS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import toolkit

class Chaos(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        x = torch.sigmoid(self.layer(x))
        for _ in range(20):
            x = 3.9 * x * (1 - x)
        return x.mean(1)

def squared(outputs, targets):
    return (outputs - targets) ** 2

def main():
    own = ("model", "data")
    arguments = toolkit.parse_arguments(description="", defaults={"optimizer": "sgd", "learning_rate": 0.1}, unused=own)
    setup = toolkit.Setup.from_run(arguments)
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    data = toolkit.Data(TensorDataset(x, x.sum(1).sigmoid()), TensorDataset(x[:32], x[:32].sum(1).sigmoid()))
    toolkit.fit(toolkit.prepare(Chaos, squared, toolkit.optimizer_from(setup), setup), data, arguments)

if __name__ == "__main__":
    toolkit.run(main)
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "reference", norm=True)


def drifting(run, factor, label="run"):
    """The run with losses that come apart `factor` times as far in each step: 1e-8 before the first."""
    rows = [{**row, "loss": row["loss"] * (1 + 1e-8 * factor ** row["step"])} for row in run.rows]
    return replace(run, rows=tuple(rows), label=label)


def test_first_weights_are_changed_by_rounding_and_nothing_else(reference, tmp_path):
    source = reference.folder / "checkpoints" / "step-000000"
    first, again = (Checkpoint(disturbed(source, tmp_path / name)) for name in ("first", "again"))
    before = Checkpoint(source)
    assert first.faults() == [] and first.names == before.names
    for name in before.names:
        old, new = before.value(name), first.value(name)
        assert torch.equal(new, again.value(name))
        if before.about["parameters"][name]["trained"]:
            kept = old != 0  # a norm's bias begins with 0 and stays
            change = ((new - old) / old)[kept].abs()
            assert torch.equal(new[~kept], old[~kept]), name
            assert name == "norm.bias" or SIZE / 10 < change.max() <= 1.2 * SIZE, name
        else:
            assert torch.equal(new, old), name


def test_it_is_started_as_the_reference_was(reference, tmp_path):
    command = ("accelerate", "launch", "s.py", "--output_dir", "out/runs/ddp", "--seed", "3")
    start = Start("ddp", reference.folder, command, 2, environ={"A": "b"})
    again = once_more(start, reference, tmp_path)
    first = tmp_path / "rounding-start" / "step-000000"
    more = ("--output_dir", str(tmp_path / "rounding"), "--seed", "3", "--resume_from_checkpoint", str(first))
    assert again.command == (*command[:3], *more)
    assert (again.label, again.ranks, again.environ) == ("rounding", 2, {"A": "b"})


def told(reference, run, rounding):
    return judge(run, reference, (rounding, judge(rounding, reference)))


def test_what_drifts_as_rounding_does_is_within_tolerance(reference):
    run, rounding = drifting(reference, 5), drifting(reference, 4.9, "rounding")
    assert (judge(run, reference).verdict, judge(run, reference).step) == (DIFFERS, 5)
    beside = told(reference, run, rounding)
    assert (beside.verdict, beside.step) == (TOLERANCE, None)
    assert beside.cause == "as far apart as rounding brings this training: 3.3e-03 in the loss, see rounding"
    # Ten times as far as rounding is the end of it, and at each step, not only at the last.
    assert told(reference, run, drifting(reference, 3)).verdict == DIFFERS
    burst = replace(rounding, rows=(*rounding.rows[:-1], {**rounding.rows[-1], "loss": None}))
    assert told(reference, run, burst).verdict == DIFFERS
    late = replace(rounding, rows=(*reference.rows[:-1], rounding.rows[-1]))
    assert told(reference, run, late).verdict == DIFFERS


def test_rounding_is_measured_where_nothing_else_explains_a_difference(reference, tmp_path):
    def asked(run, reference=reference):
        return needed(reference, [(run, judge(run, reference))])

    assert asked(drifting(reference, 5)) and not asked(reference)
    assert not asked(train(tmp_path / "clips", norm=True, max_grad_norm=1.0))
    assert not asked(train(tmp_path / "weights", norm=True, fault="weights"))
    half = {**reference.summary["setup"], "weight_dtype": {"value": "bfloat16", "origin": ""}}
    halved = replace(reference, summary={**reference.summary, "setup": half})
    assert not asked(drifting(halved, 5), halved)
    # A setup's own difference stays one, whatever rounding does.
    clips = train(tmp_path / "again", norm=True, max_grad_norm=1.0)
    assert told(reference, clips, drifting(reference, 20)).verdict == DIFFERS


def test_a_training_that_amplifies_rounding_is_the_same_in_two_setups(tmp_path):
    (tmp_path / "chaos.py").write_text(CHAOS)
    argv = ["chaos.py", "--setups", "single", "ddp", "--steps", "12", "--output_dir", "out"]
    command = [sys.executable, "-m", "toolkit.cli", "compare", *argv]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    rows = {row["label"]: row for row in json.loads((tmp_path / "out" / "compare.json").read_text())["setups"]}
    assert done.returncode == 0, done.stdout
    print({name: (row["verdict"], row["loss"], row["weights"]) for name, row in rows.items()})
    assert rows["ddp"]["verdict"] == TOLERANCE and rows["ddp"]["loss"] > 1e-4
    assert rows["ddp"]["cause"].startswith("as far apart as rounding brings this training: ")
    assert (rows["rounding"]["verdict"], rows["rounding"]["samples_per_second"]) == ("for scale", None)
    assert "oneloop: a setup differs and was told nothing that explains it" in done.stderr
    assert "3 setups" not in (tmp_path / "out" / "report.html").read_text()
