"""The files of wild/, written for this project in the forms of public repositories: what `check` says of each."""

import json
import re
import shlex
import sys

import pytest
from launched import ROOT
from verdicts import FOLDER, SCRIPT, read_verdicts

from toolkit import cli

VERDICTS = read_verdicts()
DOCS = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")


@pytest.fixture
def oneloop(monkeypatch, capsys):
    """(exit code, stdout, stderr) of a command, from the files' folder."""
    monkeypatch.chdir(FOLDER)

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["oneloop", *argv])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def check(oneloop):
    return lambda *options: oneloop("check", *options, SCRIPT)


def in_a_line(setup):
    """Strategy, ranks, precision, batch, optimizer, decay, schedule, clipping, offload."""
    value = {name: row["value"] for name, row in setup.items()}
    weights = " weights" if value["weight_dtype"] != "float32" else ""
    precision = "fp32" if value["mixed_precision"] == "no" else value["mixed_precision"] + weights
    replicas = value["world_size"] // value["stages"]
    steps = value["gradient_accumulation_steps"]
    parts = [
        f"{value['strategy']} of {value['world_size']}",
        precision,
        f"{value['train_batch_size']} = {replicas} x {value['train_micro_batch_size_per_gpu']} x {steps}",
        f"{value['optimizer']} {value['learning_rate']:g}",
        f"decay {value['weight_decay']:g}",
        value["lr_scheduler_type"],
        f"clip {value['max_grad_norm']:g}",
        *(f"{name.removeprefix('offload_')} on {device}" for name, device in (value["offload"] or {}).items()),
    ]
    return ", ".join(parts)


def test_every_file_has_a_verdict():
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(verdict.name for verdict in VERDICTS)
    assert [verdict.name for verdict in VERDICTS if bool(verdict.passes) == bool(verdict.error)] == []
    assert len(VERDICTS) >= 36


def test_twelve_of_those_that_pass_are_launched():
    launched = [verdict for verdict in VERDICTS if verdict.launched]
    assert (len(launched), [verdict.name for verdict in launched if not verdict.passes]) == (12, [])


@pytest.mark.parametrize("verdict", [each for each in VERDICTS if each.passes], ids=lambda verdict: verdict.name)
def test_what_passes(check, verdict):
    code, table, errors = check(*verdict.options)
    assert (code, table.split()[:2], errors) == (0, ["strategy", verdict.passes.partition(" ")[0]], "")
    report = json.loads(check("--json", *verdict.options)[1])
    assert (in_a_line(report["setup"]), report["warnings"]) == (verdict.passes, verdict.note)


@pytest.mark.parametrize("verdict", [each for each in VERDICTS if each.error], ids=lambda verdict: verdict.name)
def test_what_is_refused(check, verdict):
    code, table, errors = check(*verdict.options)
    assert (code, table) == (2, "")
    told = json.loads(check("--json", *verdict.options)[1])["errors"]
    assert len(told) == len(verdict.error), errors
    lines = [line.replace("{...}", repr(row["value"])) for line, row in zip(verdict.error, told, strict=True)]
    assert errors.splitlines() == [f"oneloop: error: {line.replace('FOLDER', str(FOLDER))}" for line in lines]


@pytest.mark.parametrize(("command", "shown"), re.findall(r"```\n\$ oneloop (.*?)\n(.*?)```", DOCS, re.DOTALL))
def test_the_docs_show_what_is_printed(oneloop, monkeypatch, command, shown):
    monkeypatch.chdir(ROOT)
    code, printed, _ = oneloop(*shlex.split(command))
    lines = shown.splitlines()
    whole = len(lines) if lines[-1] != "  ..." else len(lines) - 1
    assert (code, printed.splitlines()[:whole]) == (0, lines[:whole])
    assert whole < len(lines) or printed == shown
