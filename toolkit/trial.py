"""What `parity` runs in each rank: the trainings of a plan, one after another in one process group.

torchrun --nproc_per_node 2 -m toolkit.trial PLAN.json
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.parity import Case, Variant


def _work(plan: Path) -> None:
    content = json.loads(plan.read_text(encoding="utf-8"))
    for raw in content["cases"]:
        case = Case(Variant(**raw.pop("variant")), **raw)
        _train(case, Path(content["folder"], case.folder))


def _train(case: Case, output_dir: Path) -> None:
    from safetensors.torch import save_file

    import toolkit
    from toolkit.arguments import parse_arguments
    from toolkit.optim import optimizer_from

    v = case.variant
    rank = int(os.environ.get("RANK", "0"))  # an engine for one process takes it away
    setup = toolkit.Setup.build(
        strategy=case.setup,
        rank=rank,
        local_rank=rank,
        world_size=case.ranks,
        stages=case.stages,
        partition="uniform",
        train_batch_size=v.train_batch_size,
        gradient_accumulation_steps=v.gradient_accumulation_steps,
        max_grad_norm=v.max_grad_norm,
        optimizer=v.optimizer,
        learning_rate=v.learning_rate,
        weight_decay=0.01,
        lr_scheduler_type=v.lr_scheduler_type,
        num_warmup_steps=v.num_warmup_steps,
        seed=v.seed,
        mixed_precision=v.mixed_precision,
        gradient_checkpointing=v.gradient_checkpointing,
        deepspeed={v.mixed_precision: {"enabled": "auto"}}
        if v.section and case.setup not in ("single", "ddp")
        else None,
    )
    model_fn, data = _material(v)
    engine = toolkit.prepare(model_fn, toolkit.cross_entropy, optimizer_from(setup), setup)
    resumes = str(output_dir.with_name(case.resumes)) if case.resumes else None
    told = {
        "stop_after_steps": case.stop_after_steps,
        "resume_from_checkpoint": resumes,
        "max_train_steps": v.steps,
        "logging_steps": v.steps,
        "group_by_length": True,
    }
    arguments = parse_arguments([], description="", defaults={**told, "output_dir": str(output_dir)})
    arguments.per_device_eval_batch_size = None
    initial = dict(engine.named_state())
    toolkit.fit(engine, data, arguments)
    if rank == 0:
        save_file(initial, output_dir / "initial.safetensors")
    engine.close()


def _material(v: Variant) -> tuple[Any, Any]:
    """(model_fn, data): several epochs, in each a last global batch that is not full, and texts of changing length."""
    from toolkit.arguments import parse_arguments

    few = {"max_train_samples": 660 if v.model.startswith("cnn") else 180, "max_length": 64}
    arguments = parse_arguments([], description="", defaults=few)
    if v.model.startswith("cnn"):
        from toolkit.data.images import image_data
        from toolkit.models.cnn import CNN

        # A tie of ReLU or max pooling is decided by rounding; GELU and average pooling have none.
        activation, pooling = ("relu", "max") if v.model == "cnn_article" else ("gelu", "avg")
        data = replace(image_data(arguments), evaluation=None)
        chosen: dict[str, Any] = {"activation": activation, "pooling": pooling, "dropout": v.dropout, "norm": v.norm}
        return lambda: CNN(1, 28, data.num_labels, **chosen), data
    from toolkit.data.text import text_data
    from toolkit.models import bert

    tokenizer = bert.load_tokenizer(None)
    data = replace(text_data(arguments, tokenizer), evaluation=None)
    if v.model == "bert":
        return lambda: bert.random_bert(2, vocab_size=len(tokenizer), dropout=v.dropout), data
    return lambda: bert.load_bert(None, label_names=data.label_names, dropout=v.dropout), data


if __name__ == "__main__":
    from toolkit.launch import run as run_script

    run_script(lambda: _work(Path(sys.argv[1])))
