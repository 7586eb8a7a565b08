"""Augmented training, through the loop's own loaders: losses, and which pictures a rank's first layer is given."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from typing import Any

import torch
from small import prepare
from torch import nn

import toolkit
from toolkit.data.pictures import stack_images
from toolkit.loop import loaders
from toolkit.models import cross_entropy
from toolkit.models.cnn import CNN

TWICE = ("single x1", "ddp x2", "zero2 x2", "pipeline x2")


def augmented(strategy: str) -> dict[str, Any]:
    """22 images in global batches of 8, so that each epoch ends with padding; two epochs of 3 steps."""
    random = torch.Generator().manual_seed(1)
    rows = [(torch.randint(0, 256, (3, 12, 12), generator=random, dtype=torch.uint8), n % 4) for n in range(22)]
    data = toolkit.Data(rows, rows[:6], collate=stack_images, channels=3, mean=(0.5,) * 3, std=(0.25,) * 3)
    arguments = Namespace(augment="strong", augment_kwargs=None, group_by_length=False, dataloader_num_workers=0)
    arguments.per_device_eval_batch_size = None

    def model_fn() -> nn.Module:
        return CNN(3, 12, 4, width=0.25, activation="gelu", pooling="avg")

    micro_batches = 1 if strategy in ("single", "ddp") else 2
    values = {"train_batch_size": 8, "gradient_accumulation_steps": micro_batches}
    engine = prepare(strategy, model_fn, cross_entropy, lambda g: torch.optim.SGD(g, lr=0.05, momentum=0.9), **values)
    train, evaluation = loaders(engine, data, arguments)
    losses, seen = [], {}
    for epoch in (0, 1):
        for batches in train.epoch(epoch):
            taken = list(batches)
            for batch in taken:
                for sample, image in zip(batch.ids.tolist(), batch.inputs[0], strict=True):
                    seen[f"{epoch} {sample}"] = hashlib.md5(image.numpy().tobytes()).hexdigest()
            losses.append(engine.train_step(iter(taken)).loss.item())
    evaluated = {str(batch.inputs[0].dtype) for batch in evaluation or ()}
    left = {"losses": losses, "seen": seen, "evaluated": sorted(evaluated), "reads_inputs": engine.reads_inputs}
    engine.close()
    return left


CHECKS = {"augmented": (augmented, TWICE)}
