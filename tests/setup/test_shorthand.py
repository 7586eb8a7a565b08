"""A section that is given as one value: the line that refuses it says what to write."""

import pytest
from test_keys import verdict


@pytest.mark.parametrize(
    ("key", "value", "expected", "got", "remedy"),
    [
        ("zero_optimization", 2, "object", "integer 2", 'write {"stage": 2}'),
        ("zero_optimization", "2", "object", 'string "2"', 'write {"stage": 2}'),
        ("zero_optimization", "true", "object", 'string "true"', 'write {"stage": 1}'),
        ("zero_optimization", 7, "object", "integer 7", "correct the value"),
        ("optimizer", "AdamW", "object", 'string "AdamW"', 'write {"type": "AdamW"}'),
        ("optimizer", False, "object", "boolean false", "remove the section"),
        ("optimizer", 3, "object", "integer 3", "correct the value"),
        ("optimizer.params", 1e-3, "object", "number 0.001", 'write {"lr": 0.001}'),
        ("scheduler", "WarmupLR", "object", 'string "WarmupLR"', 'write {"type": "WarmupLR"}'),
        ("pipeline", "2", "object", 'string "2"', 'write {"stages": 2}'),
        ("pipeline", True, "object", "boolean true", "correct the value"),
        ("torch_autocast", "bfloat16", "object", 'string "bfloat16"', 'write {"enabled": true, "dtype": "bfloat16"}'),
        ("tensorboard", "true", "object", 'string "true"', "remove the section"),
        ("compile", False, "object", "boolean false", "remove the section"),
        ("flops_profiler", 0, "object", "integer 0", 'write {"enabled": false}'),
        ("zero_optimization.offload_param", "cpu", "object", 'string "cpu"', 'write {"device": "cpu"}'),
        ("zero_optimization.offload_param", True, "object", "boolean true", 'write {"device": "cpu"}'),
        ("zero_optimization.offload_param", "disk", "object", 'string "disk"', "correct the value"),
        ("bf16", "true", "object", 'string "true"', 'write {"enabled": true}'),
        ("bf16", 1, "object", "integer 1", 'write {"enabled": true}'),
        ("bf16", [1], "object", "list [1]", "correct the value"),
        ("fp16", True, "object", "boolean true", 'write {"enabled": true}'),
        ("bf16", [], "object", "list []", "remove the section"),
    ],
)
def test_a_section_in_one_value_is_refused_with_what_was_meant(key, value, expected, got, remedy):
    assert verdict({key: value}) == [f"a.json: {key}: {value!r}: expected {expected}, got {got}; {remedy}"]


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("optimizer", "type"),
        ("fp16", "enabled"),
        ("bf16", "enabled"),
        ("pipeline", "stages"),
        ("zero_optimization.offload_param", "device"),
    ],
)
def test_auto_in_a_sections_place_is_that_of_its_key(section, name):
    rule = f'there is no rule for "auto" here; write {{"{name}": "auto"}}'
    assert verdict({section: "auto"}) == [f"a.json: {section}: 'auto': {rule}"]
    assert verdict({f"{section}.{name}": "auto"}) == []
