"""What `prepare` refuses before anything trains, in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import toolkit
from toolkit.errors import UserError
from toolkit.models import cross_entropy
from toolkit.models.cnn import CNN


def refused(model: nn.Module, **values: Any) -> str:
    setup = toolkit.Setup.build(strategy="single", use_cpu=True, train_batch_size=4, **values)
    with pytest.raises(UserError) as caught:
        toolkit.prepare(lambda: model, cross_entropy, torch.optim.AdamW, setup)
    (line,) = caught.value.lines
    return line


def test_sync_batch_norm_needs_gpus() -> None:
    """C50: torch has it for GPUs alone, and raises a ValueError in the first forward pass."""
    line = refused(CNN(1, 8, 4, norm="batch"), sync_batch_norm=True)
    assert line.startswith("--sync_batch_norm: True: SyncBatchNorm runs on GPUs alone, and these ranks use the CPU;")


def test_a_model_that_brings_sync_batch_norm_is_refused_alike() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(CNN(1, 8, 4, norm="batch"))
    assert refused(model).startswith("model: 'SyncBatchNorm': SyncBatchNorm runs on GPUs alone")


def test_a_model_starts_in_fp32() -> None:
    line = refused(nn.Linear(4, 2).bfloat16())
    assert line.startswith("model: 'weight': is bfloat16, and training starts from fp32;")
    assert "--mixed_precision" in line


def test_frozen_parameters_may_have_any_format() -> None:
    model = nn.Sequential(nn.Linear(4, 4).bfloat16().requires_grad_(False), nn.Linear(4, 2))
    setup = toolkit.Setup.build(strategy="single", use_cpu=True, train_batch_size=4)
    engine = toolkit.prepare(lambda: model, cross_entropy, torch.optim.AdamW, setup)
    assert engine.layout()["0.weight"] == (torch.bfloat16, (4, 4), False)
    engine.close()


def test_recomputing_needs_a_model_that_says_how() -> None:
    assert "has neither gradient_checkpointing_enable() nor pipeline_layers()" in refused(
        nn.Linear(4, 2), gradient_checkpointing=True
    )


def test_a_transformers_model_without_recomputation_is_refused_in_words() -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic", num_labels=2)
    line = refused(ResNetForImageClassification(config), gradient_checkpointing=True)
    assert line.startswith("--gradient_checkpointing: 'ResNetForImageClassification': ")
    assert "does not support activation checkpointing" in line
