"""One strict parser and one check for DeepSpeed's JSON."""

import json

import pytest

from toolkit.setup.dsjson import DeepSpeedFile, check_keys, plain_config


def verdict(config):
    return check_keys(DeepSpeedFile("a.json", config))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"gradient_accumulation_steps": "4"}, ("gradient_accumulation_steps", "expected integer", 'got string "4"')),
        ({"gradient_clipping": "1.0"}, ("gradient_clipping", "expected number", 'got string "1.0"')),
        ({"optimizer": {"params": {"lr": "1e-3"}}}, ("optimizer.params.lr", "expected number", 'got string "1e-3"')),
        ({"fp16": {"enabled": "false"}}, ("fp16.enabled", "expected true or false", 'got string "false"')),
        ({"zero_optimization": {"stage": "2"}}, ("zero_optimization.stage", "expected integer", 'got string "2"')),
        ({"train_batch_size": True}, ("train_batch_size", "got boolean true")),
        ({"train_batch_size": 2.5}, ("train_batch_size", "expected integer", "got number 2.5")),
        ({"gradient_accumulation_steps": 0}, ("integer of 1 or more", "got integer 0")),
        ({"train_micro_batch_size_per_gpu": -2}, ("integer of 1 or more", "got integer -2")),
        ({"gradient_clipping": None}, ("gradient_clipping", "got null")),
        ({"zero_optimization": True}, ("zero_optimization", "expected object", "got boolean true")),
        ({"gradient_cliping": 1.0}, ("gradient_cliping", "did you mean gradient_clipping?")),
        ({"zero_optimisation": {"stage": 2}}, ("zero_optimisation", "did you mean zero_optimization?")),
        ({"zero_optimization": {"overlap_com": True}}, ("zero_optimization.overlap_com", "did you mean overlap_comm?")),
        ({"offload_optimizer": {"device": "cpu"}}, ("offload_optimizer belongs under zero_optimization",)),
        ({"zero_optimization": {"aio": {"block_size": 1}}}, ("aio belongs at the top level",)),
        ({"zero_optimization": {"gradient_clipping": 1}}, ("gradient_clipping belongs at the top level",)),
        ({"bf16": {"enabled": False, "hysteresis": 2}}, ("hysteresis belongs under fp16",)),
        ({"optimizer": {"type": "AdamW", "params": {"weigth_decay": 0}}}, ("did you mean weight_decay?",)),
        ({"elasticity": {"enabled": False}}, ("elasticity", "removed")),
        ({"zero_optimization": {"mics_shard_size": 2}}, ("zero_optimization.mics_shard_size", "removed")),
        (
            {"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": True}},
            ("older name", "write stage3_gather_16bit_weights_on_model_save"),
        ),
        ({"zero_optimization": {"cpu_offload": True}}, ("write offload_optimizer",)),
        ({"scheduler": {"type": "WarmupLR", "params": {}}}, ("--lr_scheduler_type and --num_warmup_steps",)),
        ({"data_types": {"buffer_dtype": "bf16"}}, ("data_types", "buffers stay in fp32; remove the section")),
        ({"zero_optimization": {"stage": "auto"}}, ("zero_optimization.stage", 'no rule for "auto"')),
        ({"steps_per_print": "auto"}, ("steps_per_print", 'no rule for "auto"')),
        ({"gradient_allreduce_op": "sum"}, ("gradient_allreduce_op", 'write "mean" or remove the key')),
        ({"communication_data_type": "fp16"}, ("communication_data_type", 'write "fp32"')),
        (
            {"torch_autocast": {"lower_precision_safe_modules": ["torch.nn.Linear"]}},
            ("torch_autocast.lower_precision_safe_modules", "gradients travel in fp32, or in", "write [] or remove"),
        ),
        ({"bf16": {"check_grad_overflow": True}}, ("bf16.check_grad_overflow: True: steps are skipped in fp16 alone",)),
        ({"bf16": {"bf16_optimizer_states": True}}, ("masters and optimizer state are kept in fp32", "write false")),
        ({"bf16": {"bf16_master_weights_and_grads": True}}, ("masters and optimizer state are kept in fp32",)),
        ({"fp16": {"fp16_master_weights_and_grads": True}}, ("masters and optimizer state are kept in fp32",)),
        ({"bf16": {"immediate_grad_update": True}}, ("bf16.immediate_grad_update: True",)),
        ({"fp16": {"hysteresis": 0}}, ("fp16.hysteresis", "integer of 1 or more, got integer 0")),
        ({"fp16": {"loss_scale_window": True}}, ("fp16.loss_scale_window", "got boolean true")),
        ({"fp16": {"min_loss_scale": 0.5}}, ("fp16.min_loss_scale", "expected integer of 1 or more, got number 0.5")),
        ({"fp16": {"loss_scale": -1}}, ("fp16.loss_scale", "expected number of 0 or more, got integer -1")),
        ({"fp16": {"initial_scale_power": 1.5}}, ("fp16.initial_scale_power", "expected integer of 0 or more")),
        ({"fp16": {"hysteresis": "auto"}}, ("fp16.hysteresis", 'no rule for "auto"')),
        ({"fp16": {"loss_scal": 0}}, ("did you mean loss_scale?",)),
        (
            {"zero_force_ds_cpu_optimizer": True},
            ("zero_force_ds_cpu_optimizer: True", "SGD stays torch's; write false"),
        ),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memry": True}}}, ("mean pin_memory?",)),
        ({"zero_optimization": {"offload_param": {"device": "cpu", "pin_memory": "yes"}}}, ('got string "yes"',)),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, ("the whole optimizer state",)),
        ({"zero_optimization": {"offload_optimizer": {"super_offload": True}}}, ("SuperOffload is not part of this",)),
        ({"zero_optimization": {"offload_param": "cpu"}}, ("offload_param", 'expected object, got string "cpu"')),
        ({"zero_optimization": {"offload_param": {"device": None}}}, ("offload_param.device", "got null")),
        ({"pipeline": {"stage": 2}}, ("pipeline.stage", "stage belongs under zero_optimization")),
        ({"pipeline": {"stages": 2, "seed_layers": True}}, ("pipeline.seed_layers", "write false")),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "none", "pin_memry": True}}},
            ("zero_optimization.offload_optimizer.pin_memry: True", "did you mean pin_memory?"),
        ),
        (
            {"activation_checkpointing": {"partition_activation": False}},
            ("activation_checkpointing.partition_activation: False", "did you mean partition_activations?"),
        ),
        ({"activation_checkpointing": {"enabled": False}}, ("activation_checkpointing.enabled: False", "unknown key")),
        ({"scheduler": {"enabled": False}}, ("scheduler.enabled", "unknown key")),
        ({"tensorboard": {"enabled": True}}, ("tensorboard.enabled", "trackers are not part of this version")),
        ({"wandb": {"enabled": True}}, ("wandb.enabled", "trackers are not part of this version; write false")),
        ({"comet": {"enabled": True}}, ("comet.enabled", "trackers are not part of this version")),
        ({"csv_monitor": {"enabled": True}}, ("csv_monitor.enabled", "trackers are not part of this version")),
        ({"train_batch_size": 10**400}, ("train_batch_size", "expected integer")),
        ({"gradient_clipping": 10**400}, ("gradient_clipping", "expected number")),
    ],
)
def test_each_key_that_would_be_ignored_or_misread_is_refused(config, words):
    (line,) = verdict(config)
    assert line.startswith("a.json: ")
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"steps_per_print": 2000, "wall_clock_breakdown": False},
        {"zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 5e8}},
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "offload_optimizer": None}},
        {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": True, "nvme_path": None}}},
        {"torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}},
        {"fp16": {"enabled": "auto", "loss_scale": 0, "hysteresis": 2}, "bf16": {"enabled": False}},
        {"activation_checkpointing": {"partition_activations": False, "number_checkpoints": None}},
        {"autotuning": {"enabled": False, "fast": True}},
        {
            "tensorboard": {"enabled": False, "output_path": "tb"},
            "comet": {"enabled": False, "project": "a"},
            "flops_profiler": {"enabled": False},
        },
    ],
)
def test_keys_that_tune_log_or_switch_nothing_on_pass(config):
    assert verdict(config) == []


def test_all_mistakes_are_told_at_once():
    assert len(verdict({"gradient_cliping": 1, "fp16": {"enabled": "no"}, "amp": {}, "train_batch_size": "8"})) == 4


def test_no_auto_is_left_and_whole_numbers_are_integers():
    config = {
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 10.0,
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "pipeline": {"stages": 2},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": "auto",
            "allgather_bucket_size": 2e8,
            "offload_optimizer": {"device": "none"},
        },
    }
    settled = {"train_batch_size": 16, "gradient_clipping": 0.5, "zero_optimization.stage": 2}
    assert plain_config(DeepSpeedFile("a.json", config), settled) == {
        "steps_per_print": 10,
        "zero_optimization": {"stage": 2, "allgather_bucket_size": 200000000},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
        "train_batch_size": 16,
        "gradient_clipping": 0.5,
    }
    assert "auto" not in json.dumps(plain_config(DeepSpeedFile("a.json", config), settled))
    assert config["zero_optimization"]["reduce_bucket_size"] == "auto"
