"""DeepSpeed's JSON keys as oneloop takes them: kinds, fixed values, sections not taken, names removed or renamed.

DeepSpeed accepts unknown top-level keys without a word and ignores them, so every key that the installed version reads
stands in schemas/deepspeed.json, which .ci/schemas.py writes. Here is what oneloop makes of them.
"""

import json
from pathlib import Path
from typing import Any

# The names of --optimizer and --lr_scheduler_type.
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "one_cycle")
LARGEST = 2**63 - 1  # of any integer: what 64 bits hold

Keys = dict[str, dict[str, Any]]
_DATA: dict[str, Any] = json.loads((Path(__file__).parent / "schemas" / "deepspeed.json").read_text(encoding="utf-8"))
VERSION: str = _DATA["version"]
# {section: {key: {"kind": ..., "default": ..., "null": true}}}; "" is the top level. Kinds: positive (integer >= 1),
# whole (integer >= 0), integer, number (>= 0), bool, text, list, object, any.
SECTIONS: dict[str, Keys] = {"": _DATA["top"], **_DATA["sections"]}
# Parameters of DeepSpeed's optimizers by lower-case name, and of its schedulers.
OPTIMIZER_PARAMS: dict[str, Keys] = _DATA["optimizers"]
SCHEDULER_PARAMS: dict[str, Keys] = _DATA["schedulers"]

# Narrower than DeepSpeed's own check, which lets through what fails or does nothing later.
_KINDS = {
    "positive": """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print
        vocabulary_size sequence_parallel_size zero_optimization.allgather_bucket_size zero_optimization.sub_group_size
        zero_optimization.offload_optimizer.buffer_count zero_optimization.offload_param.buffer_count
        zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu fp16.loss_scale_window
        fp16.hysteresis fp16.min_loss_scale aio.block_size aio.queue_depth aio.intra_op_parallelism pipeline.stages
        flops_profiler.profile_step flops_profiler.top_modules comet.samples_log_interval""",
    "whole": """zero_optimization.stage3_module_granularity_threshold fp16.initial_scale_power
        pipeline.activation_checkpoint_interval""",
    "bool": "optimizer.legacy_fusion",
    "text": """communication_data_type seq_parallel_communication_data_type log_level torch_autocast.dtype
        optimizer.type scheduler.type""",
    "list": "torch_autocast.lower_precision_safe_modules",
    "object": "optimizer.params scheduler.params",
    "any": "datastates_ckpt",
}
for _kind, _paths in _KINDS.items():
    for _path in _paths.split():
        SECTIONS[_path.rpartition(".")[0]][_path.rpartition(".")[2]]["kind"] = _kind

# Another value would change the mathematics or have no effect here: the one right value in every setup, and why.
_AVERAGE, _ZERO_PP = "gradients are averaged alike in every setup", "ZeRO++ changes the numbers"
_OWN_CHECKPOINTS, _MASTERS = "oneloop writes its own checkpoints", "masters and optimizer state are kept in fp32"
_TRAVEL = "gradients travel in fp32, or in the weights' own format"
_TENSOR, _RECOMPUTE = "it acts on tensor parallelism alone", "--gradient_checkpointing decides it in every setup"
FIXED: dict[str, tuple[object, str]] = {
    "managed_gradient_accumulation": (True, "oneloop marks the accumulation boundary itself"),
    "prescale_gradients": (False, _AVERAGE),
    "gradient_predivide_factor": (1, _AVERAGE),
    "gradient_allreduce_op": ("mean", _AVERAGE),
    "communication_data_type": ("fp32", _TRAVEL),
    "seq_parallel_communication_data_type": ("fp32", _TRAVEL),
    "torch_autocast.lower_precision_safe_modules": ([], _TRAVEL),
    "zero_allow_untested_optimizer": (True, "the script's optimizer is used in every setup, SGD included"),
    "zero_force_ds_cpu_optimizer": (False, "offloaded Adam and AdamW are DeepSpeed's own anyway, SGD stays torch's"),
    "dataloader_drop_last": (False, "the last incomplete global batch is padded with rows of weight 0"),
    "sequence_parallel_size": (1, "sequence parallelism is not part of this version"),
    "use_data_before_expert_parallelism": (False, "there are no experts here"),
    "disable_allgather": (False, "updated weights must reach every rank"),
    "fp16.fp16_master_weights_and_grads": (False, _MASTERS),
    "bf16.bf16_master_weights_and_grads": (False, _MASTERS),
    "bf16.bf16_optimizer_states": (False, _MASTERS),
    "bf16.immediate_grad_update": (False, "it acts on DeepSpeed's other bf16 optimizer alone"),
    "bf16.check_grad_overflow": (False, "steps are skipped in fp16 alone, in every setup"),
    "zero_optimization.offload_optimizer.ratio": (1, "the whole optimizer state is offloaded"),
    "zero_optimization.offload_optimizer.super_offload": (False, "SuperOffload is not part of this version"),
    "zero_optimization.offload_optimizer.cpuadam_cores_perc": (0.8, "it acts on SuperOffload alone"),
    "zero_optimization.compute_grad_norm": (True, "the gradient norm is logged in every setup"),
    "zero_optimization.elastic_checkpoint": (False, _OWN_CHECKPOINTS),
    "zero_optimization.pipeline_loading_checkpoint": (False, _OWN_CHECKPOINTS),
    "zero_optimization.legacy_stage1": (False, "DeepSpeed leaves it at the user's own risk"),
    "zero_optimization.zero_hpz_partition_size": (1, _ZERO_PP),
    "zero_optimization.zero_quantized_weights": (False, _ZERO_PP),
    "zero_optimization.zero_quantized_nontrainable_weights": (False, _ZERO_PP),
    "zero_optimization.zero_quantized_gradients": (False, _ZERO_PP),
    "zero_optimization.save_muon_momentum_buffer_in_memory": (False, "Muon is not one of --optimizer's names"),
    **{
        f"{tracker}.enabled": (False, "trackers are not part of this version")
        for tracker in ("tensorboard", "wandb", "comet", "csv_monitor")
    },
    "optimizer.params.capturable": (False, "the optimizer's kernel is chosen here"),
    "optimizer.params.decoupled_weight_decay": (False, "AdamW is the optimizer that decays so"),
    "pipeline.seed_layers": (False, "weights come from the script's model, the same in every setup"),
    "pipeline.activation_checkpoint_interval": (0, _RECOMPUTE),
    "pipeline.use_reentrant": (True, _RECOMPUTE),
    "pipeline.pipe_partitioned": (True, _TENSOR),
    "pipeline.grad_partitioned": (True, _TENSOR),
}

# "auto" is the script's number, or, for the sizes of ZeRO, the engine's (buckets follow the model).
AUTO = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping optimizer.type
    optimizer.params.lr optimizer.params.weight_decay optimizer.params.momentum optimizer.params.nesterov
    optimizer.params.betas optimizer.params.eps scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr
    scheduler.params.warmup_num_steps scheduler.params.total_num_steps fp16.enabled bf16.enabled fp16.loss_scale
    fp16.initial_scale_power pipeline.stages pipeline.partition zero_optimization.reduce_bucket_size
    zero_optimization.allgather_bucket_size
    zero_optimization.sub_group_size zero_optimization.stage3_prefetch_bucket_size
    zero_optimization.stage3_param_persistence_threshold zero_optimization.stage3_max_live_parameters
    zero_optimization.stage3_max_reuse_distance zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.overlap_comm zero_optimization.contiguous_gradients zero_optimization.reduce_scatter
    zero_optimization.offload_optimizer.device zero_optimization.offload_param.device
    zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path""".split()
)

# Known sections that this version does not take: (reason, remedy). One that switches nothing on is dropped.
NOT_TAKEN: dict[str, tuple[str, str]] = {
    "activation_checkpointing": (_RECOMPUTE, "remove the section and give --gradient_checkpointing"),
    "data_types": ("gradients add up in the weights' format, buffers stay in fp32", "remove the section"),
    "checkpoint": (_OWN_CHECKPOINTS, "remove the section"),
    "zero_optimization.zenflow": ("ZenFlow is not part of this version", "remove the section"),
    "zero_optimization.leaf_module": ("leaf modules are not part of this version", "remove the section"),
} | {
    name: (f"{name} is not part of this version", "remove the section")
    for name in """tensor_parallel autotuning data_efficiency hybrid_engine weight_quantization compile timers
        datastates_ckpt expert_parallel""".split()
}

# What DeepSpeed has removed and rejects, and what to do instead.
_BATCH_KEYS = "train_batch_size, train_micro_batch_size_per_gpu or gradient_accumulation_steps"
_NOTHING = "remove it, nothing takes its place"
REMOVED: dict[str, str] = dict.fromkeys(_DATA["removed"], _NOTHING) | {
    "amp": 'write "fp16": {"enabled": true} or "bf16": {"enabled": true}',
    "nebula": "remove it, oneloop writes its own checkpoints",
    "elasticity": f"remove it and write {_BATCH_KEYS}",
    "sparse_attention": "remove it, attention is the model's",
    "sparse_gradients": "remove it, gradients are dense",
    "curriculum_learning": "remove it, the order of the data is the script's",
    "zero_optimization.mics_shard_size": "remove it, stage 3 shards over all ranks",
    "zero_optimization.mics_hierarchical_params_gather": "remove it, stage 3 shards over all ranks",
}
REMOVED_OPTIMIZERS = {"onebitadam": "AdamW", "zerooneadam": "AdamW", "onebitlamb": "AdamW"}

# Older names that `toolkit.setup.renamed` moves, and second names that DeepSpeed takes too.
RENAMED: dict[str, str] = {
    old: f"{old.rpartition('.')[0]}.{new}" for old, new in _DATA["deprecated"].items() if " " not in new
} | {
    "bfloat16": "bf16",
    "allgather_size": "zero_optimization.allgather_bucket_size",
    "fp32_allreduce": "communication_data_type",
    "aio.thread_count": "aio.intra_op_parallelism",
    "optimizer.params.max_grad_norm": "gradient_clipping",
    "zero_optimization.cpu_offload_params": "zero_optimization.offload_param",
    "zero_optimization.cpu_offload_use_pin_memory": "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    ),
}
for _path in RENAMED:
    SECTIONS.get(_path.rpartition(".")[0], {}).pop(_path.rpartition(".")[2], None)

# Names of arguments and of Accelerate's fields that stand in DeepSpeed files, and how DeepSpeed writes them.
ELSEWHERE = {
    "zero_stage": "write zero_optimization.stage",
    "learning_rate": "write optimizer.params.lr",
    "mixed_precision": 'write "bf16": {"enabled": true} or "fp16": {"enabled": true}',
    "max_grad_norm": "write gradient_clipping",
    "per_device_train_batch_size": "write train_micro_batch_size_per_gpu",
    "batch_size": "write train_batch_size",
    "offload_optimizer_device": "write zero_optimization.offload_optimizer.device",
    "offload_param_device": "write zero_optimization.offload_param.device",
    "zero3_save_16bit_model": "write zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "num_processes": "the launcher decides it, remove it here",
    "pipe-parallel-size": "write pipeline.stages",  # GPT-NeoX's two
    "model-parallel-size": "remove it",
}
