"""`oneloop init`: a matched Accelerate YAML and DeepSpeed JSON of a setup, commented, for this machine."""

import json
import os
import shlex
import unicodedata
from typing import Any

from toolkit.errors import UserError, fault
from toolkit.setup.device import count_gpus
from toolkit.setup.words import nearest

# What each setup is, for its first line.
ABOUT = {
    "single": "One process.",
    "ddp": "DistributedDataParallel: every rank holds the model, gradients are averaged after each step.",
    "zero1": "ZeRO-1: each rank keeps and updates one shard of the optimizer state.",
    "zero2": "ZeRO-2: each rank keeps one shard of the optimizer state and of the gradients.",
    "zero3": "ZeRO-3: each rank keeps one shard of the optimizer state, the gradients and the weights.",
    "zero2_offload": "ZeRO-2 whose optimizer state lives and steps in the host's memory; Adam is DeepSpeedCPUAdam.",
    "zero3_offload": "ZeRO-3 whose weights and optimizer state live in the host's memory; Adam is DeepSpeedCPUAdam.",
    "pipeline": "Model parallelism: each rank holds some of the layers, micro-batches flow through. ZeRO-1 inside.",
    "pipeline_dp": "Replicas of a pipeline of two stages, which share the samples. ZeRO-1 inside.",
}
_CPU = {"device": "cpu"}
_COMMENTS = {
    "_batch": "auto is the script's argument. Numbers must multiply: global = micro x accumulation x replicas",
    "_gradient_clipping": "a norm, 0 is off; auto is --max_grad_norm",
    "_precision": "fp32. --mixed_precision bf16 is autocast; a section bf16 with enabled: auto holds weights in bf16",
}


def write_setup(name: str, folder: str = ".", num_processes: int | None = None) -> list[str]:
    """Writes NAME.yaml and NAME.json into `folder` and returns their paths; single has no JSON.

    Args:
        num_processes: ranks; those of this machine where None: its GPUs, or 2 on the CPU (4 for pipeline_dp).

    Raises:
        UserError: an unknown setup, ranks it cannot have, a file that exists already. Then nothing is written.
    """
    if name not in ABOUT:
        raise UserError(fault("SETUP", name, "unknown", nearest(name, ABOUT) or f"one of {', '.join(ABOUT)}"))
    ranks = _ranks(name, num_processes)
    _check_folder(folder)
    yaml, config = (os.path.normpath(os.path.join(folder, f"{name}.{ending}")) for ending in ("yaml", "json"))
    texts = {yaml: _yaml(name, yaml, config, ranks)}
    if name != "single":
        texts[config] = _json(name, config, ranks)
    if there := [path for path in texts if os.path.lexists(path)]:
        remedy = "name another folder with --output_dir, or remove it"
        raise UserError(*(fault(path, "exists", "a file is never overwritten", remedy) for path in there))
    begun = []
    try:
        os.makedirs(folder, exist_ok=True)
        for path, text in texts.items():
            with open(path, "x", encoding="utf-8") as file:
                begun.append(path)
                file.write(text)
    except OSError as error:
        for path in begun:
            os.unlink(path)
        line = fault("--output_dir", folder, f"cannot be written ({error.strerror})", "name a folder that can be")
        raise UserError(line) from None
    return list(texts)


def _ranks(name: str, asked: int | None) -> int:
    """The ranks that are written; a pipeline has a stage for each, pipeline_dp two stages."""
    least = {"single": 1, "ddp": 2, "pipeline": 2, "pipeline_dp": 4}.get(name, 1)
    if asked is not None:
        if asked < least or name == "single" and asked > 1 or name == "pipeline_dp" and asked % 2:
            rule = {"single": "is one process", "pipeline_dp": "has an even number of 4 or more ranks"}
            reason = f"{name} {rule.get(name, f'has {least} or more ranks')}"
            raise UserError(fault("--num_processes", asked, reason, "give such a number"))
        return asked
    gpus = count_gpus(os.environ)
    if name == "single" or gpus == 0:
        return {"single": 1, "pipeline_dp": 4}.get(name, 2)
    if gpus < least:
        remedy = "init another setup, or give --num_processes for the machine it is meant for"
        raise UserError(fault("SETUP", name, f"has {least} or more ranks, one a GPU, and there is {gpus} here", remedy))
    return {"pipeline": 2, "pipeline_dp": gpus - gpus % 2}.get(name, gpus)


def _check_folder(folder: str) -> None:
    """Refuses a name that cannot stand in the files' comments: not UTF-8, or with characters that end a line."""
    for letter in folder:
        kind, remedy = unicodedata.category(letter), "name another folder"
        if kind == "Cs":
            raise UserError(fault("--output_dir", folder, "its name is not UTF-8, and the files tell it", remedy))
        if kind in ("Cc", "Zl", "Zp") or letter in "\ufffe\uffff":
            reason = f"its name has the character U+{ord(letter):04X}, and the files tell it in a comment"
            raise UserError(fault("--output_dir", folder, reason, remedy))


def _typed(path: str) -> str:
    """A path as it is typed in a shell, where a first - would make it an option."""
    return shlex.quote(os.path.join(".", path) if path.startswith("-") else path)


def _yaml(name: str, path: str, config: str, ranks: int) -> str:
    """Accelerate's file in the words of accelerate_configs/."""
    lines = [
        f"# {ABOUT[name]}",
        f"#   accelerate launch --config_file {_typed(path)} SCRIPT",
        f"#   oneloop check --config_file {_typed(path)} SCRIPT",
        "compute_environment: LOCAL_MACHINE",
    ]
    if name in ("single", "ddp"):
        if name == "ddp":
            lines.append("# MULTI_GPU also starts CPU ranks on a machine without GPUs; MULTI_CPU starts one process.")
            lines.append(f"# The same under the deepspeed launcher: --deepspeed_config {_typed(config)}")
        # In quotes: YAML reads a bare NO as false.
        lines.append(
            "distributed_type: " + ("'NO'  # in quotes, or YAML reads false" if name == "single" else "MULTI_GPU")
        )
        precision = ["mixed_precision: 'no'  # bf16, fp16, or 'no' in quotes: fp32"]
    else:
        lines += [
            "distributed_type: DEEPSPEED",
            "deepspeed_config:",
            "  # Everything about the engine stands in this one file; the deepspeed launcher and torchrun take it too.",
            f"  deepspeed_config_file: {name}.json  # in the folder the run is started in, else beside this file",
            "  zero3_init_flag: false  # the script's model is built whole, then sharded",
        ]
        precision = [
            "# bf16 or fp16: --mixed_precision of the script. Accelerate itself refuses mixed_precision beside a JSON."
        ]
    many = (
        "a multiple of the JSON's pipeline.stages" if name.startswith("pipeline") else "one a GPU where there are GPUs"
    )
    lines += ["num_machines: 1", f"num_processes: {ranks}  # ranks, {many}", *precision]
    return "\n".join(lines) + "\n"


def _json(name: str, path: str, ranks: int) -> str:
    """DeepSpeed's file as in ds_configs/, strict JSON: keys that begin with _ are its comments."""
    pipeline = name.startswith("pipeline")
    stage = 1 if pipeline else 0 if name == "ddp" else int(name[4])
    zero: dict[str, Any] = {"stage": stage}
    if name.endswith("_offload"):
        zero |= {"offload_optimizer": _CPU} | ({"offload_param": _CPU} if stage == 3 else {})
    keys = dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
        "auto",
    )
    start = f"deepspeed --num_gpus {ranks} SCRIPT --deepspeed_config {_typed(path)}"
    content: dict[str, Any] = {"_": ABOUT[name], "_start": start, **_COMMENTS, **keys, "zero_optimization": zero}
    if pipeline:
        content["pipeline"] = {"stages": ranks if name == "pipeline" else 2, "partition": "parameters"}
    return json.dumps(content, indent=2) + "\n"
