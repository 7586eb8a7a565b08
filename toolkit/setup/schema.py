"""DeepSpeed's JSON keys as oneloop takes them: kinds, fixed values, sections not taken, names removed or renamed.

DeepSpeed 0.19.8 accepts unknown top-level keys without a word and ignores them, so every key it reads stands here.
"""

# The names of --optimizer and --lr_scheduler_type.
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine")
LARGEST = 2**63 - 1  # of any integer: what 64 bits hold


def _kinds(**names: str) -> dict[str, str]:
    """{key: kind} from kind="key key": positive (integer >= 1), whole (integer >= 0), number (>= 0), bool, text, ..."""
    return {key: kind for kind, keys in names.items() for key in keys.split()}


TOP = _kinds(
    positive="""train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print
        vocabulary_size""",
    number="gradient_clipping gradient_predivide_factor",
    bool="""managed_gradient_accumulation wall_clock_breakdown memory_breakdown dump_state disable_allgather
        disable_python_gc prescale_gradients zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
        dataloader_drop_last use_data_before_expert_parallelism""",
    text="gradient_allreduce_op communication_data_type seq_parallel_communication_data_type log_level",
)

SECTIONS: dict[str, dict[str, str]] = {
    "zero_optimization": _kinds(
        positive="reduce_bucket_size allgather_bucket_size sub_group_size",
        whole="""stage stage3_prefetch_bucket_size stage3_param_persistence_threshold
            stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
            stage3_module_granularity_threshold zero_hpz_partition_size""",
        bool="""contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions overlap_comm
            compute_grad_norm load_from_fp32_weights elastic_checkpoint stage3_gather_16bit_weights_on_model_save
            stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential ignore_unused_parameters legacy_stage1
            round_robin_gradients parameter_alignment zero_quantized_weights zero_quantized_nontrainable_weights
            zero_quantized_gradients memory_efficient_linear pipeline_loading_checkpoint override_module_apply
            log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory""",
        object="offload_param offload_optimizer zenflow leaf_module",
    ),
    "optimizer": _kinds(text="type", object="params", bool="legacy_fusion"),
    "fp16": _kinds(
        bool="enabled auto_cast consecutive_hysteresis fp16_master_weights_and_grads",
        number="loss_scale",
        whole="initial_scale_power",
        positive="loss_scale_window hysteresis min_loss_scale",
    ),
    "torch_autocast": _kinds(bool="enabled", text="dtype", list="lower_precision_safe_modules"),
    "aio": _kinds(positive="block_size queue_depth intra_op_parallelism", bool="single_submit overlap_events use_gds"),
    "bf16": _kinds(
        bool="""enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads
            bf16_optimizer_states"""
    ),
    "pipeline": _kinds(
        positive="stages",
        text="partition",
        whole="activation_checkpoint_interval",
        bool="seed_layers pipe_partitioned grad_partitioned use_reentrant",
    ),
    "flops_profiler": _kinds(
        bool="enabled detailed",
        number="recompute_fwd_factor",
        positive="profile_step top_modules",
        any="module_depth output_file",
    ),
    "comms_logger": _kinds(bool="enabled prof_all verbose debug", list="prof_ops"),
    "tensorboard": _kinds(bool="enabled", text="output_path job_name"),
    "csv_monitor": _kinds(bool="enabled", text="output_path job_name"),
    "wandb": _kinds(bool="enabled", any="group team", text="project"),
    "comet": _kinds(
        bool="enabled",
        any="project workspace api_key experiment_name experiment_key online mode",
        positive="samples_log_interval",
    ),
}

# Sections inside a section.
SUBSECTIONS: dict[str, dict[str, str]] = {
    "zero_optimization.offload_optimizer": _kinds(
        text="device nvme_path",
        positive="buffer_count",
        bool="pin_memory pipeline_read pipeline_write fast_init super_offload",
        number="ratio cpuadam_cores_perc",
    ),
    "zero_optimization.offload_param": _kinds(
        text="device nvme_path", positive="buffer_count buffer_size max_in_cpu", bool="pin_memory"
    ),
}

# DeepSpeed takes null for these, as for a key that is missing.
NULL = frozenset([*SUBSECTIONS, *(f"{section}.nvme_path" for section in SUBSECTIONS)])

OPTIMIZER_PARAMS = _kinds(
    number="lr weight_decay momentum eps dampening",
    list="betas",
    bool="adam_w_mode torch_adam bias_correction amsgrad nesterov",
)
# Those that not every optimizer has.
_ADAMS = ("adam", "adamw")
OPTIMIZERS_WITH: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("momentum", "dampening", "nesterov"), ("sgd",)),
    **dict.fromkeys(("betas", "eps", "adam_w_mode", "torch_adam", "bias_correction", "amsgrad"), _ADAMS),
}
# What the toolkit's optimizers use, torch's own defaults. Another value would be dropped without a word.
FIXED_OPTIMIZER_PARAMS: dict[str, object] = {
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "bias_correction": True,
    "amsgrad": False,
    "dampening": 0,
    "nesterov": False,
}

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
    "pipeline.seed_layers": (False, "weights come from the script's model, the same in every setup"),
    "pipeline.activation_checkpoint_interval": (0, _RECOMPUTE),
    "pipeline.use_reentrant": (True, _RECOMPUTE),
    "pipeline.pipe_partitioned": (True, _TENSOR),
    "pipeline.grad_partitioned": (True, _TENSOR),
}

# "auto" is the script's number, or, for the sizes of ZeRO, the engine's (buckets follow the model).
AUTO = frozenset(
    """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping optimizer.type
    optimizer.params.lr optimizer.params.weight_decay optimizer.params.momentum optimizer.params.betas
    optimizer.params.eps fp16.enabled bf16.enabled fp16.loss_scale fp16.initial_scale_power pipeline.stages
    pipeline.partition zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size
    zero_optimization.sub_group_size zero_optimization.stage3_prefetch_bucket_size
    zero_optimization.stage3_param_persistence_threshold zero_optimization.stage3_max_live_parameters
    zero_optimization.stage3_max_reuse_distance zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.overlap_comm zero_optimization.contiguous_gradients zero_optimization.reduce_scatter
    zero_optimization.offload_optimizer.device zero_optimization.offload_param.device
    zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path""".split()
)

# Known sections that this version does not take: (reason, remedy). One that switches nothing on is dropped.
NOT_TAKEN: dict[str, tuple[str, str]] = {
    "scheduler": (
        "the schedule is the script's, counted in optimizer steps alike in every setup",
        "remove the section and give --lr_scheduler_type and --num_warmup_steps",
    ),
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

# Keys of those sections as DeepSpeed 0.19.8 reads them. Sections that are not here have deeper forms of their own.
NESTED: dict[str, frozenset[str]] = {
    name: frozenset(keys.split())
    for name, keys in {
        "scheduler": "type params",
        "activation_checkpointing": """partition_activations number_checkpoints contiguous_memory_optimization
            cpu_checkpointing profile synchronize_checkpoint_boundary""",
        "data_types": "grad_accum_dtype buffer_dtype",
        "checkpoint": "tag_validation load_universal use_node_local_storage parallel_write writer",
        "hybrid_engine": """enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters
            tp_gather_partition_size enable_cuda_graph""",
        "zero_optimization.leaf_module": "classes names name_suffixes",
    }.items()
}

REMOVED = frozenset(
    """nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity
    graph_harvesting curriculum_learning progressive_layer_drop zero_optimization.mics_shard_size
    zero_optimization.mics_hierarchical_params_gather zero_optimization.zeropp_loco_param""".split()
)

RENAMED: dict[str, str] = {
    "bfloat16": "bf16",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.cpu_offload": "offload_optimizer",
    "zero_optimization.cpu_offload_param": "offload_param",
    "zero_optimization.cpu_offload_params": "offload_param",
    "zero_optimization.cpu_offload_use_pin_memory": "pin_memory in offload_optimizer or offload_param",
}
