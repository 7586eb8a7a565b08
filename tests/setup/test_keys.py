"""Every key of a DeepSpeed JSON: unknown, misplaced, removed, of a wrong type, fixed, "auto", or taken."""

import pytest

from toolkit.setup.dsjson import DeepSpeedFile, check_keys
from toolkit.setup.schema import AUTO, FIXED


def nested(paths):
    """{"a.b": 1} as {"a": {"b": 1}}."""
    config = {}
    for path, value in paths.items():
        *sections, last = path.split(".")
        node = config
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return config


def verdict(paths):
    return check_keys(DeepSpeedFile("a.json", nested(paths)))


@pytest.mark.parametrize(
    ("key", "remedy", "more"),
    [
        ("gradient_cliping", "did you mean gradient_clipping?", {}),
        ("gradient_acumulation_steps", "did you mean gradient_accumulation_steps?", {}),
        ("zero_optimisation", "did you mean zero_optimization?", {}),
        ("optimiser", "did you mean optimizer?", {}),
        ("FP16", "did you mean fp16?", {}),
        ("zero_optimization.overlap_com", "did you mean overlap_comm?", {}),
        ("fp16.loss_scal", "did you mean loss_scale?", {}),
        ("pipeline.stage", "did you mean stages?", {}),
        ("zero_optimization.offload_optimizer.pin_memry", "did you mean pin_memory?", {}),
        ("zero_optimization.offload_param.devise", "did you mean device?", {}),
        # Sections that are switched off, or not taken.
        ("tensorboard.job_nam", "did you mean job_name?", {"tensorboard.enabled": False}),
        ("wandb.entity", "remove it", {"wandb.enabled": False}),
        ("comet.experiment_nam", "did you mean experiment_name?", {}),
        ("activation_checkpointing.partition_activation", "did you mean partition_activations?", {}),
        ("activation_checkpointing.enabled", "remove it", {}),
        ("data_efficiency.sed", "did you mean seed?", {"data_efficiency.enabled": False}),
        ("compile.deepcompil", "did you mean deepcompile?", {}),
        ("zero_optimization.zenflow.topk", "remove it", {}),
        ("scheduler.enabled", "remove it", {}),
        # The parameters of the class that `type` names.
        ("optimizer.params.weigth_decay", "did you mean weight_decay?", {"optimizer.type": "AdamW"}),
        ("optimizer.params.adam_w_mod", "did you mean adam_w_mode?", {"optimizer.type": "adam"}),
        ("optimizer.params.momentun", "did you mean momentum?", {"optimizer.type": "SGD"}),
        ("optimizer.params.max_coef", "did you mean max_coeff?", {"optimizer.type": "Lamb"}),
        ("optimizer.params.betta", "did you mean betas?", {}),
        ("scheduler.params.warmup_steps", "did you mean warmup_num_steps?", {"scheduler.type": "WarmupLR"}),
        ("scheduler.params.cycle_max_l", "did you mean cycle_max_lr?", {"scheduler.type": "OneCycle"}),
        # Known keys in the wrong place.
        ("offload_optimizer", "offload_optimizer belongs under zero_optimization", {}),
        ("stage", "stage belongs under zero_optimization", {}),
        ("hysteresis", "hysteresis belongs under fp16", {}),
        ("bf16.hysteresis", "hysteresis belongs under fp16", {}),
        ("lr", "lr belongs under optimizer.params", {}),
        ("optimizer.lr", "lr belongs under optimizer.params", {}),
        ("warmup_num_steps", "warmup_num_steps belongs under scheduler.params", {}),
        ("block_size", "block_size belongs under aio", {}),
        ("profile", "profile belongs under activation_checkpointing", {}),
        (
            "pin_memory",
            "pin_memory belongs under zero_optimization.offload_optimizer or zero_optimization.offload_param",
            {},
        ),
        ("zero_optimization.offload_optimizer.overlap_comm", "overlap_comm belongs under zero_optimization", {}),
        ("zero_optimization.aio", "aio belongs at the top level", {}),
        ("zero_optimization.gradient_clipping", "gradient_clipping belongs at the top level", {}),
        ("optimizer.params.gradient_clipping", "gradient_clipping belongs at the top level", {}),
        ("fp16.zero_optimization", "zero_optimization belongs at the top level", {}),
        ("enabled", "remove it", {}),
        # Names of Accelerate's and of arguments.
        ("zero_stage", "write zero_optimization.stage", {}),
        ("learning_rate", "write optimizer.params.lr", {}),
        ("max_grad_norm", "write gradient_clipping", {}),
        ("pipe-parallel-size", "write pipeline.stages", {}),
        ("mixed_precision", 'write "bf16": {"enabled": true} or "fp16": {"enabled": true}', {}),
    ],
)
def test_an_unknown_key_is_refused_with_the_right_one(key, remedy, more):
    assert verdict(more | {key: False}) == [f"a.json: {key}: False: unknown key, it would be ignored; {remedy}"]


@pytest.mark.parametrize(
    ("kind", "name", "others"),
    [
        ("WarmupLR", "total_num_steps", "WarmupCosineLR and WarmupDecayLR"),
        ("WarmupCosineLR", "warmup_max_lr", "WarmupDecayLR and WarmupLR"),
    ],
)
def test_a_parameter_of_another_schedule_is_refused(kind, name, others):
    key, remedy = f"scheduler.params.{name}", "remove it, or choose that schedule"
    assert verdict({"scheduler.type": kind, key: 1}) == [
        f"a.json: {key}: 1: {kind} has none, only {others}; {remedy}",
    ]


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        (
            "elasticity",
            "remove it and write train_batch_size, train_micro_batch_size_per_gpu or gradient_accumulation_steps",
        ),
        ("amp", 'write "fp16": {"enabled": true} or "bf16": {"enabled": true}'),
        ("nebula", "remove it, oneloop writes its own checkpoints"),
        ("sparse_attention", "remove it, attention is the model's"),
        ("sparse_gradients", "remove it, gradients are dense"),
        ("curriculum_learning", "remove it, the order of the data is the script's"),
        ("compression_training", "remove it, nothing takes its place"),
        ("quantize_training", "remove it, nothing takes its place"),
        ("eigenvalue", "remove it, nothing takes its place"),
        ("graph_harvesting", "remove it, nothing takes its place"),
        ("progressive_layer_drop", "remove it, nothing takes its place"),
        ("zero_optimization.mics_shard_size", "remove it, stage 3 shards over all ranks"),
        ("zero_optimization.mics_hierarchical_params_gather", "remove it, stage 3 shards over all ranks"),
        ("zero_optimization.zeropp_loco_param", "remove it, nothing takes its place"),
    ],
)
def test_a_removed_key_is_refused_with_what_to_do_instead(key, remedy):
    reason = "DeepSpeed 0.19.8 has removed this feature and rejects the key"
    assert verdict({key: {"enabled": True}}) == [f"a.json: {key}: {{'enabled': True}}: {reason}; {remedy}"]
    for off in ({"enabled": False}, {}, None, False):
        assert verdict({key: off}) == [f"a.json: {key}: {off!r}: {reason}; remove it"]


@pytest.mark.parametrize("kind", ["OneBitAdam", "ZeroOneAdam", "OneBitLamb", "onebitadam"])
def test_the_1_bit_optimizers_are_refused_and_their_parameters_not_searched(kind):
    assert verdict({"optimizer.type": kind, "optimizer.params.freeze_step": 400}) == [
        f"a.json: optimizer.type: '{kind}': DeepSpeed 0.19.8 has removed the 1-bit optimizers; "
        "write AdamW, without the parameters of the 1-bit one"
    ]


_POSITIVE, _WHOLE, _NUMBER = "integer of 1 or more", "integer of 0 or more", "number of 0 or more"


@pytest.mark.parametrize(
    ("key", "value", "expected", "got", "remedy"),
    [
        ("gradient_accumulation_steps", "4", _POSITIVE, 'string "4"', "write 4, without quotes"),
        ("gradient_clipping", "1.0", _NUMBER, 'string "1.0"', "write 1.0, without quotes"),
        ("optimizer.params.lr", "1e-3", _NUMBER, 'string "1e-3"', "write 0.001, without quotes"),
        ("fp16.enabled", "false", "true or false", 'string "false"', "write false, without quotes"),
        ("wall_clock_breakdown", "True", "true or false", 'string "True"', "write true, without quotes"),
        ("zero_optimization.stage", "2", _WHOLE, 'string "2"', "write 2, without quotes"),
        ("zero_optimization.sub_group_size", "1e9", _POSITIVE, 'string "1e9"', "write 1000000000, without quotes"),
        ("zero_optimization.stage", "two", _WHOLE, 'string "two"', "correct the value"),
        ("zero_optimization.offload_param.pin_memory", "yes", "true or false", 'string "yes"', "correct the value"),
        ("train_batch_size", True, _POSITIVE, "boolean true", "correct the value"),
        ("train_batch_size", 2.5, _POSITIVE, "number 2.5", "correct the value"),
        ("train_batch_size", 2**63, _POSITIVE, "integer 9223372036854775808", "correct the value"),
        ("gradient_accumulation_steps", 0, _POSITIVE, "integer 0", "correct the value"),
        ("train_micro_batch_size_per_gpu", -2, _POSITIVE, "integer -2", "correct the value"),
        ("steps_per_print", float("inf"), _POSITIVE, "number Infinity", "correct the value"),
        ("gradient_clipping", None, _NUMBER, "null", "write a value or remove the key"),
        ("gradient_clipping", -1.5, _NUMBER, "number -1.5", "correct the value"),
        ("zero_optimization.offload_param.device", None, "string", "null", "write a value or remove the key"),
        ("fp16.hysteresis", 0, _POSITIVE, "integer 0", "correct the value"),
        ("fp16.loss_scale_window", True, _POSITIVE, "boolean true", "correct the value"),
        ("fp16.min_loss_scale", 0.5, _POSITIVE, "number 0.5", "correct the value"),
        ("fp16.loss_scale", -1, _NUMBER, "integer -1", "correct the value"),
        ("fp16.initial_scale_power", 1.5, _WHOLE, "number 1.5", "correct the value"),
        ("tensorboard.enabled", "false", "true or false", 'string "false"', "write false, without quotes"),
        ("optimizer.params.betas", 0.9, "list", "number 0.9", "correct the value"),
        ("scheduler.params.warmup_num_steps", "10", "integer", 'string "10"', "write 10, without quotes"),
    ],
)
def test_a_value_of_another_type_is_refused(key, value, expected, got, remedy):
    assert verdict({key: value}) == [f"a.json: {key}: {value!r}: expected {expected}, got {got}; {remedy}"]


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("gradient_allreduce_op", "sum", '"mean"'),
        ("communication_data_type", "fp16", '"fp32"'),
        ("torch_autocast.lower_precision_safe_modules", ["torch.nn.Linear"], "[]"),
        ("bf16.check_grad_overflow", True, "false"),
        ("bf16.bf16_optimizer_states", True, "false"),
        ("bf16.bf16_master_weights_and_grads", True, "false"),
        ("fp16.fp16_master_weights_and_grads", True, "false"),
        ("bf16.immediate_grad_update", True, "false"),
        ("zero_force_ds_cpu_optimizer", True, "false"),
        ("zero_optimization.offload_optimizer.ratio", 0.5, "1"),
        ("zero_optimization.offload_optimizer.super_offload", True, "false"),
        ("sequence_parallel_size", 2, "1"),
        ("pipeline.seed_layers", True, "false"),
        ("optimizer.params.capturable", True, "false"),
        ("tensorboard.enabled", True, "false"),
        ("wandb.enabled", True, "false"),
        ("comet.enabled", True, "false"),
        ("csv_monitor.enabled", True, "false"),
    ],
)
def test_a_value_that_would_change_the_mathematics_is_refused(key, value, right):
    remedy = f"write {right} or remove the key"
    assert verdict({key: value}) == [f"a.json: {key}: {value!r}: {FIXED[key][1]}; {remedy}"]
    assert verdict({key: FIXED[key][0]}) == []


@pytest.mark.parametrize(
    ("key", "value", "reason", "remedy"),
    [
        ("data_types", {"buffer_dtype": "bf16"}, "gradients add up in the weights' format, buffers stay in fp32", ""),
        ("checkpoint", {"load_universal": True}, "oneloop writes its own checkpoints", ""),
        (
            "activation_checkpointing",
            {"partition_activations": True},
            "--gradient_checkpointing decides it in every setup",
            " and give --gradient_checkpointing",
        ),
        ("autotuning", {"enabled": True}, "autotuning is not part of this version", ""),
        ("tensor_parallel", {"autotp_size": 2}, "tensor_parallel is not part of this version", ""),
        ("zero_optimization.zenflow", {"offload": True}, "ZenFlow is not part of this version", ""),
    ],
)
def test_a_section_that_is_not_taken_is_refused(key, value, reason, remedy):
    assert verdict({key: value}) == [f"a.json: {key}: {value!r}: {reason}; remove the section{remedy}"]


@pytest.mark.parametrize("key", sorted(AUTO))
def test_auto_is_taken_where_others_take_it(key):
    assert verdict({key: "auto"}) == []


@pytest.mark.parametrize(
    "key",
    """zero_optimization zero_optimization.stage steps_per_print wall_clock_breakdown aio.block_size fp16.hysteresis
    optimizer.params.adam_w_mode scheduler.params.warmup_type zero_optimization.offload_optimizer.pin_memory""".split(),
)
def test_auto_is_refused_elsewhere(key):
    rule = 'there is no rule for "auto" here; write a value or remove the key'
    assert verdict({key: "auto"}) == [f"a.json: {key}: 'auto': {rule}"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"steps_per_print": 2000.0, "wall_clock_breakdown": False, "train_batch_size": None},
        {"zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 5e8}},
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "offload_optimizer": None}},
        {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": True, "nvme_path": None}}},
        {"torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}},
        {"fp16": {"enabled": "auto", "loss_scale": 0, "hysteresis": 2}, "bf16": {"enabled": False}},
        {"activation_checkpointing": {"partition_activations": False, "number_checkpoints": None}},
        {"autotuning": {"enabled": False, "fast": False, "mp_size": "auto"}},
        {"autotuning": {"fast": True, "metric": "throughput"}},
        {"checkpoint": {"tag_validation": "Warn", "load_universal": False}},
        {"optimizer": {"type": "Unheard", "params": {"anything": 1}}},
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-6, "torch_adam": True}}},
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_type": "linear"}}},
        {
            "tensorboard": {"enabled": False, "output_path": "tb"},
            "comet": {"enabled": False, "project": "a"},
            "flops_profiler": {"enabled": False, "module_depth": -1},
        },
        {"_note": 1, "zero_optimization": {"_why": {"stage": "x"}, "offload_param": {"_": 1}}, "fp16": {"_": None}},
        {"optimizer": {"_a": 1, "params": {"_b": 2}}, "checkpoint": {"_c": True}, "wandb": {"_d": [1]}},
    ],
)
def test_keys_that_tune_log_comment_or_switch_nothing_on_pass(config):
    assert check_keys(DeepSpeedFile("a.json", config)) == []


def test_all_mistakes_are_told_at_once_with_their_lines():
    config = {"gradient_cliping": 1, "fp16": {"enabled": "no"}, "amp": {}, "train_batch_size": "8"}
    lines = {"gradient_cliping": 2, "fp16": 3, "fp16.enabled": 4, "amp": 6, "train_batch_size": 7}
    found = check_keys(DeepSpeedFile("a.json", config, lines=lines))
    assert [(line.where.key, line.where.line) for line in found] == [
        ("gradient_cliping", 2),
        ("fp16.enabled", 4),
        ("amp", 6),
        ("train_batch_size", 7),
    ]


def test_a_typo_in_a_section_that_is_not_taken_has_its_own_line():
    assert verdict({"timers": {"throughput": {"enable": True}}}) == [
        "a.json: timers: {'throughput': {'enable': True}}: timers is not part of this version; remove the section",
        "a.json: timers.throughput.enable: True: unknown key, it would be ignored; did you mean enabled?",
    ]
