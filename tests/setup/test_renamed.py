"""Old names of DeepSpeed's keys: taken with a note, or refused where they cannot be."""

import pytest

from toolkit.setup.dsjson import DeepSpeedFile, check_keys
from toolkit.setup.renamed import migrate
from toolkit.setup.schema import RENAMED


def moved(config, lines=None):
    file, notes, faults = migrate(DeepSpeedFile("a.json", config, lines=lines or {}))
    return file, notes, faults


@pytest.mark.parametrize(
    ("config", "new", "notes"),
    [
        (
            {"bfloat16": {"enabled": True}},
            {"bf16": {"enabled": True}},
            ["a.json: bfloat16: an older name, taken as bf16"],
        ),
        (
            {"zero_optimization": {"stage": 2, "cpu_offload": True}},
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            [
                "a.json: zero_optimization.cpu_offload: an older name, taken as "
                'zero_optimization.offload_optimizer: {"device": "cpu"}'
            ],
        ),
        (
            {"zero_optimization": {"cpu_offload": False, "cpu_offload_params": None}},
            {"zero_optimization": {}},
            [
                "a.json: zero_optimization.cpu_offload false: an older name, nothing is switched on",
                "a.json: zero_optimization.cpu_offload_params null: an older name, nothing is switched on",
            ],
        ),
        (
            {"zero_optimization": {"stage": 3, "cpu_offload_params": True, "cpu_offload_use_pin_memory": False}},
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": False}}},
            [
                "a.json: zero_optimization.cpu_offload_params: an older name, taken as "
                'zero_optimization.offload_param: {"device": "cpu"}',
                "a.json: zero_optimization.cpu_offload_use_pin_memory: an older name, taken as pin_memory in "
                "offload_param",
            ],
        ),
        (
            {"zero_optimization": {"stage": 2, "cpu_offload_use_pin_memory": True}},
            {"zero_optimization": {"stage": 2}},
            ["a.json: zero_optimization.cpu_offload_use_pin_memory: an older name, nothing is offloaded"],
        ),
        (
            {"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": "auto"}},
            {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": "auto"}},
            [
                "a.json: zero_optimization.stage3_gather_fp16_weights_on_model_save: an older name, taken as "
                "zero_optimization.stage3_gather_16bit_weights_on_model_save"
            ],
        ),
        (
            {"zero_optimization": {"prefetch_bucket_size": 5e7}},
            {"zero_optimization": {"stage3_prefetch_bucket_size": 5e7}},
            [
                "a.json: zero_optimization.prefetch_bucket_size: an older name, taken as "
                "zero_optimization.stage3_prefetch_bucket_size"
            ],
        ),
        (
            {"zero_optimization": True, "allgather_size": 100},
            {"zero_optimization": {"stage": 1, "allgather_bucket_size": 100}},
            [
                "a.json: zero_optimization true: an older form, taken as stage 1",
                "a.json: allgather_size: an older name, taken as zero_optimization.allgather_bucket_size",
            ],
        ),
        (
            {"zero_optimization": False},
            {"zero_optimization": {"stage": 0}},
            ["a.json: zero_optimization false: an older form, taken as stage 0"],
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "max_grad_norm": 0.5}}},
            {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "gradient_clipping": 0.5},
            ["a.json: optimizer.params.max_grad_norm: an older name, taken as gradient_clipping"],
        ),
        (
            {"fp32_allreduce": True, "aio": {"thread_count": 2}},
            {"communication_data_type": "fp32", "aio": {"intra_op_parallelism": 2}},
            [
                'a.json: fp32_allreduce: an older name, taken as communication_data_type: "fp32"',
                "a.json: aio.thread_count: an older name, taken as aio.intra_op_parallelism",
            ],
        ),
        ({"fp16": {"enabled": True}}, {"fp16": {"enabled": True}}, []),
        ({"_note": 1, "fp16": {"_x": 2, "enabled": True}}, {"fp16": {"enabled": True}}, []),
    ],
)
def test_an_old_name_is_moved_and_told(config, new, notes):
    file, told, faults = moved(config)
    assert (file.config, told, faults, check_keys(file)) == (new, notes, [], [])


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"bfloat16": {"enabled": True}, "bf16": {"enabled": True}},
            "a.json: bfloat16: {'enabled': True}: an older name of what a.json: bf16 says too; keep bf16",
        ),
        (
            {"zero_optimization": {"cpu_offload": False, "offload_optimizer": {"device": "cpu"}}},
            "a.json: zero_optimization.cpu_offload: False: an older name of what a.json: "
            "zero_optimization.offload_optimizer says too; keep zero_optimization.offload_optimizer",
        ),
        (
            {"zero_optimization": {"cpu_offload_param": True, "cpu_offload_params": True}},
            "a.json: zero_optimization.cpu_offload_params: True: an older name of what a.json: "
            "zero_optimization.cpu_offload_param says too; keep zero_optimization.offload_param",
        ),
        (
            {
                "zero_optimization": {
                    "offload_optimizer": {"device": "cpu", "pin_memory": True},
                    "cpu_offload_use_pin_memory": True,
                }
            },
            "a.json: zero_optimization.cpu_offload_use_pin_memory: True: an older name of what a.json: "
            "zero_optimization.offload_optimizer.pin_memory says too; "
            "keep zero_optimization.offload_optimizer.pin_memory",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}, "gradient_clipping": 0.5},
            "a.json: optimizer.params.max_grad_norm: 1: an older name of what a.json: gradient_clipping says too; "
            "keep gradient_clipping",
        ),
        (
            {"zero_optimization": {"cpu_offload": "true"}},
            "a.json: zero_optimization.cpu_offload: 'true': expected true or false, got string \"true\"; "
            "write zero_optimization.offload_optimizer",
        ),
    ],
)
def test_both_spellings_and_wrong_types_are_refused(config, line):
    file, _, faults = moved(config)
    assert (faults, check_keys(file)) == ([line], [])


@pytest.mark.parametrize(
    ("config", "lines", "key", "shown", "number"),
    [
        ({"bfloat16": {"enabled": "yes"}}, {"bfloat16.enabled": 3}, "bf16.enabled", "bfloat16.enabled", 3),
        (
            {"optimizer": {"params": {"max_grad_norm": -1}}},
            {"optimizer.params.max_grad_norm": 4},
            "gradient_clipping",
            "optimizer.params.max_grad_norm",
            4,
        ),
        (
            {"zero_optimization": {"cpu_offload": True}},
            {"zero_optimization.cpu_offload": 2},
            "zero_optimization.offload_optimizer.device",
            "zero_optimization.cpu_offload",
            2,
        ),
        ({"zero_optimization": True}, {"zero_optimization": 5}, "zero_optimization.stage", "zero_optimization", 5),
    ],
)
def test_later_lines_name_what_the_user_wrote(config, lines, key, shown, number):
    file, _, _ = moved(config, lines)
    assert (file.where(key), file.where(key).line) == (f"a.json: {shown}", number)


def test_a_file_whose_old_key_is_faulty_can_go_on_without_it():
    file, _, _ = moved({"bfloat16": {"enabled": "yes", "x": 1}})
    wrong = {line.where.key for line in check_keys(file)}
    assert (wrong, file.without(wrong).config) == ({"bfloat16.enabled", "bfloat16.x"}, {"bf16": {}})


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_no_old_name_is_left_or_unknown(old):
    *sections, last = old.split(".")
    config = {last: True}
    for section in reversed(sections):
        config = {section: config}
    file, notes, faults = moved(config)
    assert len(notes + faults) == 1
    assert [line for line in check_keys(file) if "unknown" in line or "older" in line] == []


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": 2, "allgather_size": 5},
        {"zero_optimization": {"offload_optimizer": "cpu", "cpu_offload_use_pin_memory": True}},
        {"optimizer": {"params": []}, "aio": None},
    ],
)
def test_sections_of_another_type_are_left_to_the_check_of_types(config):
    file, _, faults = moved(config)
    assert faults == []
    assert [line for line in check_keys(file) if "expected object, got" in line] != []


def test_the_file_that_was_read_stays_as_it_was():
    config = {"zero_optimization": {"cpu_offload": True, "_a": 1}}
    moved(config)
    assert config == {"zero_optimization": {"cpu_offload": True, "_a": 1}}
