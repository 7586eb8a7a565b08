"""Makes real checkpoints of Accelerate and DeepSpeed, and writes down what the live run held, for test_foreign.py.

python -m torch.distributed.run --nproc_per_node 2 foreign_writer.py FOLDER KIND...

A kind is library-strategy-optimizer and flags, such as accelerate-ddp-sgd-bin; it is also the checkpoint's name.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS = 3
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Net(nn.Module):
    """Odd sizes, a frozen layer, a tied pair, BatchNorm: [B] int64 -> [B, 7]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.frozen = nn.Linear(5, 11).requires_grad_(False)
        self.mix = nn.Linear(11, 3)
        self.norm = nn.BatchNorm1d(3)
        self.up = nn.Linear(3, 5)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.up(self.norm(self.mix(self.frozen(self.embed(ids))))))
        return out


def optimizer_of(model: nn.Module, kind: str, named: bool = False) -> torch.optim.Optimizer:
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    parts = ([each for each in trained if each[1].dim() > 1], [each for each in trained if each[1].dim() <= 1])
    groups: list[dict[str, Any]] = [
        {"params": part if named else [p for _, p in part], "weight_decay": decay}
        for part, decay in zip(parts, (0.1, 0.0), strict=True)
    ]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.1)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Other rows on each rank, so that shards and buffers differ."""
    generator = torch.Generator().manual_seed(100 * step + RANK)
    ids = torch.randint(7, (6,), generator=generator)
    return ids, (ids + 1) % 7


def config(stage: int, **more: Any) -> dict[str, Any]:
    zero = {"stage": stage, "reduce_bucket_size": 1000, "allgather_bucket_size": 1000}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "sub_group_size": 20}
    return {
        "train_micro_batch_size_per_gpu": 6,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        **more,
    }


def write(folder: Path, kind: str) -> None:
    library, strategy, optimizer, *flags = kind.split("-")
    torch.manual_seed(5)
    model = Net()
    if library == "accelerate":
        live = accelerated(model, strategy, optimizer, flags, folder)
    elif strategy == "pipeline":
        live = piped(folder)
    else:
        live = engined(model, int(strategy[-1]), optimizer, flags, folder)
    if RANK == 0:
        torch.save(live, folder.with_suffix(".live"))
        if "universal" in flags:
            convert(folder)


def accelerated(model: Net, strategy: str, optimizer: str, flags: list[str], folder: Path) -> dict[str, Any]:
    from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    PartialState._reset_state()
    zero = strategy.startswith("zero")
    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(zero).lower()
    accelerator = Accelerator(
        cpu=not zero,
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(int(strategy[-1]))) if zero else None,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")] if zero else [],
    )
    made = optimizer_of(model, optimizer, named="named" in flags)
    schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1.0)
    wrapped, made, schedule = accelerator.prepare(model, made, schedule)
    for step in range(STEPS):
        ids, targets = batch(step)
        accelerator.backward(nn.functional.cross_entropy(wrapped(ids), targets))
        made.step()
        schedule.step()
        made.zero_grad()
    accelerator.save_state(str(folder), safe_serialization="bin" not in flags)
    return live_zero(model, wrapped, optimizer) if zero else live_plain(model, made.optimizer)


def engined(model: Net, stage: int, optimizer: str, flags: list[str], folder: Path) -> dict[str, Any]:
    import deepspeed

    more: dict[str, Any] = {}
    if "bf16" in flags or "accum" in flags:
        more = {"bf16": {"enabled": True}}
        model.norm = nn.Identity()  # BatchNorm does not run in bf16 on the CPU
    if "accum" in flags:  # another class keeps the masters then, DeepSpeed's BF16_Optimizer
        more["data_types"] = {"grad_accum_dtype": "fp32"}
    settings = config(stage, **more)
    for flag, key in (
        ("align", "parameter_alignment"),
        ("robin", "round_robin_gradients"),
        ("list", "elastic_checkpoint"),
    ):
        settings["zero_optimization"] |= {key: True} if flag in flags else {}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer_of(model, optimizer), config=settings)
    for step in range(STEPS):
        ids, targets = batch(step)
        engine.backward(nn.functional.cross_entropy(engine(ids).float(), targets))
        engine.step()
    engine.save_checkpoint(str(folder))
    live = live_zero(model, engine, optimizer) if stage else live_plain(model, engine.optimizer)
    engine.destroy()
    return live


def piped(folder: Path) -> dict[str, Any]:
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from deepspeed.utils import groups

    deepspeed.init_distributed("gloo")
    layers = PipelineModule([nn.Linear(3, 3), nn.Linear(3, 3)], num_stages=WORLD, loss_fn=nn.functional.mse_loss)
    engine, *_ = deepspeed.initialize(model=layers, optimizer=optimizer_of(layers, "adamw"), config=config(1))
    engine.train_batch(iter([(torch.ones(6, 3), torch.ones(6, 3))]))
    engine.save_checkpoint(str(folder))
    engine.destroy()
    groups.mpu = None
    return {}


def live_plain(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    states = {name: dict(optimizer.state[p]) for name, p in model.named_parameters() if p.requires_grad}
    for state in states.values():
        state.pop("step", None)
    return {"weights": {name: tensor.detach().clone() for name, tensor in weights.items()}, "states": states}


def live_zero(model: nn.Module, engine: Any, optimizer: str) -> dict[str, Any]:
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if engine.zero_optimization_stage() < 3:  # linked after the first group's step, before the second has a state
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    weights = {name: buffer.clone() for name, buffer in model.named_buffers()}
    states: dict[str, Any] = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            with GatheredParameters([p], enabled=hasattr(p, "ds_id")):
                weights[name] = p.detach().float().clone()
            continue
        weights[name] = safe_get_full_fp32_param(p).clone()
        keys = ("momentum_buffer",) if optimizer == "sgd" else ("exp_avg", "exp_avg_sq")
        states[name] = {key: safe_get_full_optimizer_state(p, key).clone() for key in keys}
    return {"weights": weights, "states": states}


def convert(folder: Path) -> None:
    from argparse import Namespace

    from deepspeed.checkpoint import ds_to_universal

    tag = f"global_step{STEPS}"
    told = {"strict": True, "inject_missing_state": True, "keep_temp_folder": False}
    workers = {"num_extract_workers": 1, "num_merge_workers": 1}
    folders = {"input_folder": str(folder / tag), "output_folder": str(folder / f"{tag}_universal")}
    ds_to_universal.main(Namespace(**folders, **workers, **told))


def main() -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    dist.init_process_group("gloo")
    for kind in sys.argv[2:]:
        write(Path(sys.argv[1]) / kind, kind)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
