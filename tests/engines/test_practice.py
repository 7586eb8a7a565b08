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


@pytest.mark.parametrize("setup", (*ALL[1:], "zero2_offload x2"))
@pytest.mark.parametrize("model", ["cnn", "bert"])
def test_frozen_layers_train_the_same_model_in_every_setup(got, setup, model):
    (alone,) = got("frozen_by_name", "single x1")
    for rank in got("frozen_by_name", setup):
        assert rank[model]["losses"] == pytest.approx(
            alone[model]["losses"], rel=1e-5
        )  # measured 9e-8; 4e-6 with DeepSpeed's host Adam


@pytest.mark.parametrize("setup", (*ALL, "zero2_offload x2"))
@pytest.mark.parametrize(
    ("model", "prefixes"),
    [("cnn", ("stem.", "hidden.linear.bias")), ("bert", ("bert.embeddings.", "bert.encoder.layer.0."))],
)
def test_what_is_frozen_stays_bit_for_bit_and_the_rest_moves(got, setup, model, prefixes):
    for rank in got("frozen_by_name", setup):
        frozen = {name for name, trained in rank[model]["trained"].items() if not trained}
        assert frozen == {name for name in rank[model]["same"] if name.startswith(prefixes)}
        assert {name for name, same in rank[model]["same"].items() if same} == frozen


def test_a_stage_whose_layers_are_frozen_is_refused_by_their_names(got):
    for rank in got("idle_stage", "pipeline x2"):
        (line,) = rank["refused"]
        assert (
            "stage 0 (layers 0-1: Linear 0, Linear 1) has no parameter to train beside Setup.build: freeze 0, 1" in line
        )


def test_a_frozen_matrix_that_two_stages_share_waits_for_no_gradient(got):
    (alone,) = got("shared_frozen", "single x1")
    for rank in got("shared_frozen", "pipeline x2"):
        assert rank == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(("setup", "evaluated"), [("single x1", []), ("ddp x2", ["loss"])])
def test_a_compiled_model_is_the_same_model(got, setup, evaluated):
    for rank in got("compiled", setup):
        eager, compiled = rank["eager"], rank["compiled"]
        # Measured 2e-7 for both models in both setups.
        assert compiled["losses"] == pytest.approx(eager["losses"], rel=1e-6)
        for name in evaluated:
            assert compiled[name] == pytest.approx(eager[name], rel=1e-6)
        assert compiled["names"] == eager["names"]  # no _orig_mod. before them
        # Texts: for the first length, then for any. Images: to train, then to evaluate.
        assert (eager["graphs"], compiled["graphs"]) == (0, 2)
