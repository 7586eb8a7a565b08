"""Optimizers under every setup: Nesterov's momentum, and layer-wise ones where layers stay whole."""

from __future__ import annotations

import pytest

ALL = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "pipeline x2")
SHARDED = ("zero1 x2", "zero2 x2", "zero3 x2", "zero2_offload x2", "zero3_offload x2", "pipeline x2")


@pytest.mark.parametrize("setup", ALL)
def test_nesterov_looks_ahead_in_every_setup(got, setup):
    # The velocity is 1, 1.5, 1.75; each step is 1 + 0.5 x velocity.
    for rank in got("nesterov", setup):
        assert rank == [1.5, 3.25, 5.125]


@pytest.mark.parametrize("setup", SHARDED)
def test_an_optimizer_of_whole_layers_is_refused_where_they_are_cut(got, setup):
    for rank in got("layerwise", setup):
        assert rank["refused"] == [
            "optimizer: 'Lamb': is another algorithm on ZeRO's flat partitions; use one that works element by element: "
            "SGD, Adam, AdamW, Lion, or a setup that keeps layers whole: single, ddp"
        ]


def test_an_optimizer_of_whole_layers_trains_the_same_under_ddp(got):
    (alone,) = got("layerwise", "single x1")
    assert got("layerwise", "ddp x2") == pytest.approx([alone] * 2, rel=1e-6)  # measured 0
