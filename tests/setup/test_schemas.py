"""The key schemas are what the installed Accelerate and DeepSpeed read, and every rule of ours is about such a key."""

import importlib
import sys
from pathlib import Path

import pytest

from toolkit.setup import accelerate_keys, schema
from toolkit.setup.value_kinds import EXPECTED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return importlib.import_module("schemas")


def test_the_stored_schemas_are_the_installed_versions(generator):
    stored = ROOT / "toolkit" / "setup" / "schemas"
    for name, text in generator.texts().items():
        assert (stored / name).read_text(encoding="utf-8") == text, "run python .ci/schemas.py"


def test_check_exits_1_where_they_differ(generator, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generator, "FOLDER", tmp_path)
    monkeypatch.setattr(generator, "texts", lambda: {"a.json": "{}\n"})
    monkeypatch.setattr(sys, "argv", ["schemas.py", "--check"])
    assert generator.main() == 1
    assert capsys.readouterr().out == f"{tmp_path}/a.json differs from what is installed: run python .ci/schemas.py\n"
    monkeypatch.setattr(sys, "argv", ["schemas.py"])
    assert (generator.main(), (tmp_path / "a.json").read_text()) == (0, "{}\n")
    monkeypatch.setattr(sys, "argv", ["schemas.py", "--check"])
    assert generator.main() == 0


def known(path):
    section, _, name = path.rpartition(".")
    if section == "optimizer.params":
        return any(name in schema.OPTIMIZER_PARAMS[each] for each in schema.OPTIMIZERS)
    if section == "scheduler.params":
        return any(name in keys for keys in schema.SCHEDULER_PARAMS.values())
    return name in schema.SECTIONS[section]


def test_every_rule_is_about_a_key_that_deepspeed_reads():
    assert [path for path in (*schema.FIXED, *schema.AUTO, *schema.NOT_TAKEN) if not known(path)] == []
    assert [path for path in schema.RENAMED.values() if not known(path)] == []
    assert [
        path for path in (*schema.RENAMED, *schema.REMOVED) if path != "optimizer.params.max_grad_norm" and known(path)
    ] == []


def test_every_name_that_deepspeed_calls_deprecated_is_moved():
    assert [path for path in schema._DATA["deprecated"] if path not in schema.RENAMED] == []


def test_every_key_has_a_kind():
    keys = [*schema.SECTIONS.values(), *schema.OPTIMIZER_PARAMS.values(), *schema.SCHEDULER_PARAMS.values()]
    assert {entry["kind"] for section in keys for entry in section.values()} == {*EXPECTED, "any"}
    assert {*accelerate_keys._KINDS.values()} <= {*EXPECTED, "any"}


@pytest.mark.parametrize(
    ("section", "key", "entry"),
    [
        ("", "train_batch_size", {"kind": "positive", "null": True}),
        ("", "gradient_clipping", {"kind": "number", "default": 1}),
        ("zero_optimization", "reduce_bucket_size", {"kind": "positive", "default": 500000000}),
        ("zero_optimization", "overlap_comm", {"kind": "bool", "null": True}),
        (
            "zero_optimization.offload_optimizer",
            "device",
            {"kind": "text", "choices": ["none", "cpu", "nvme"], "default": "none"},
        ),
        ("activation_checkpointing", "number_checkpoints", {"kind": "any", "null": True}),
        ("checkpoint.writer", "io_buffer_size", {"kind": "integer", "default": 67108864}),
        ("timers", "throughput", {"kind": "object"}),
        ("pipeline", "use_reentrant", {"kind": "bool", "default": True}),
    ],
)
def test_a_key_as_deepspeed_reads_it(section, key, entry):
    assert schema.SECTIONS[section][key] == entry


def test_the_parameters_are_those_of_the_classes():
    assert set(schema.OPTIMIZER_PARAMS["sgd"]) == {
        *("lr", "momentum", "weight_decay", "dampening", "nesterov"),
        *("maximize", "foreach", "fused", "differentiable"),
    }
    assert schema.OPTIMIZER_PARAMS["adamw"]["betas"] == {"kind": "list", "default": [0.9, 0.999]}
    assert schema.SCHEDULER_PARAMS["WarmupDecayLR"]["warmup_max_lr"] == {"kind": "number", "default": 0.001}
    assert schema.SCHEDULER_PARAMS["WarmupDecayLR"]["total_num_steps"] == {"kind": "integer", "required": True}
