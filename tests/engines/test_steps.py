"""The optimizer step means the same under every strategy."""

from __future__ import annotations

import pytest

DATA_PARALLEL = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2")
ALL = (*DATA_PARALLEL, "pipeline x2")
ALONE = ("zero1 x1", "zero2 x1", "zero3 x1")
every_setup = pytest.mark.parametrize("setup", ALL)
every_setup_and_zero_alone = pytest.mark.parametrize("setup", (*ALL, *ALONE))


def name_of_weight(setup):
    return "0.weight" if setup.startswith("pipeline") else "weight"


@every_setup_and_zero_alone
@pytest.mark.parametrize("check, right", [("unclipped", 200.0), ("clipped", 0.5)])
def test_one_value_drives_clipping(got, setup, check, right):
    for rank in got(check, setup):
        assert rank["weights"][name_of_weight(setup)] == [right] * 4
        assert rank["grad_norm"] == 400.0  # before clipping, also where clipping is off
        assert rank["loss"] == 10000.0


def test_a_layer_with_zero_gradient_stays_under_a_pipeline(got):
    assert got("clipped", "pipeline x2")[1]["weights"]["1.weight"] == [1.0]


@every_setup
def test_learning_rate_counts_updates_whatever_the_ranks(got, setup):
    for rank in got("schedules", setup):
        inverse = rank["inverse"]
        assert inverse["rates"] == [1.0, 0.5, 1 / 3, 0.25]  # after 3 updates 0.25
        # The weight is fp32 near 2: 1.2e-7 a step.
        assert inverse["moved"] == pytest.approx([1.0, 0.5, 1 / 3, 0.25], abs=2.4e-7)
        assert inverse["updates"] == 4


@every_setup
def test_linear_decay_reaches_zero_at_its_last_step(got, setup):
    for rank in got("schedules", setup):
        assert rank["linear"]["rates"] == [1 - step / 10 for step in range(11)]
        assert rank["linear"]["moved"][10] == 0.0
        # The weight is fp32 near 5.5: 4.8e-7 a step.
        assert rank["linear"]["moved"] == pytest.approx([1 - step / 10 for step in range(11)], abs=1e-6)


@every_setup_and_zero_alone
def test_the_last_partial_window_weighs_its_real_samples(got, setup):
    for rank in got("accumulated", setup):
        assert rank["after"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@every_setup_and_zero_alone
def test_no_step_crosses_an_epoch(got, setup):
    ranks = got("accumulated", setup)
    for rank in ranks:
        assert rank["steps_per_epoch"] == 3
        assert rank["updates"] == 6
        assert [step["micro_batches"] for step in rank["ids"]] == [4] * 6
    replicas = ranks[:1] if setup.startswith("pipeline") else ranks
    for epoch in (0, 1):
        for index, size in enumerate((8, 8, 4)):
            ids = [i for rank in replicas for i in rank["ids"][3 * epoch + index]["ids"]]
            assert len(set(ids)) == len(ids) == size
        taken = [i for rank in replicas for step in rank["ids"][3 * epoch : 3 * epoch + 3] for i in step["ids"]]
        assert sorted(taken) == list(range(20))


@pytest.mark.parametrize("setup", ["ddp x2", "zero1 x2", "zero2 x2", "zero3 x2"])
def test_ranks_train_on_disjoint_halves(got, setup):
    first, second = got("shares", setup)
    assert (first["size"], second["size"]) == (2, 2)
    assert (first["steps"], second["steps"]) == (2, 2)
    for mine, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert not set(mine) & set(theirs)
        assert sorted(mine + theirs) == list(range(16))


def test_stages_of_one_replica_see_the_same_batches(got):
    first, last = got("shares", "pipeline x2")
    assert (first["rank"], first["size"]) == (last["rank"], last["size"]) == (0, 1)
    assert first["epochs"] == last["epochs"]
    assert sorted(first["epochs"][0]) == list(range(16))


@pytest.mark.parametrize("setup", ["ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "pipeline x2"])
def test_epochs_differ_in_order_and_agree_between_setups(got, setup):
    def sets(which):
        ranks = got("shares", which)
        ranks = ranks[:1] if which.startswith("pipeline") else ranks
        half = 8 // len(ranks)
        return [
            [
                sorted(i for rank in ranks for i in rank["epochs"][epoch][half * step : half * (step + 1)])
                for step in (0, 1)
            ]
            for epoch in range(3)
        ]

    assert sets(setup) == sets("ddp x2")
    assert len({str(got("shares", setup)[0]["epochs"][epoch]) for epoch in range(3)}) == 3


@every_setup
def test_short_and_long_micro_batches_lose_nothing(got, setup):
    for rank, reference in zip(got("uneven", setup), got("uneven", "ddp x2"), strict=False):
        # Measured: losses 1e-7, weights 1.5e-7.
        assert rank["losses"] == pytest.approx(reference["losses"], rel=1e-5)
        for name, values in reference["weights"].items():
            assert rank["weights"][name] == pytest.approx(values, abs=1e-5)


def test_a_pipeline_takes_micro_batches_of_4_rows_and_any_length(got):
    rank = got("uneven", "pipeline x2")[0]
    assert all(first[0] == second[0] == 4 for first, second in rank["shapes"])
    assert all(first[1] != second[1] for first, second in rank["shapes"])  # within one step, too
    assert rank["seen"] == list(range(15))


@every_setup
@pytest.mark.parametrize("model", ["cnn", "bert"])
def test_recomputed_activations_change_no_loss(got, setup, model):
    kept = got("checkpointed", setup)[0][f"{model} kept"]
    assert len(kept) == 3
    for rank in got("checkpointed", setup):
        assert rank[f"{model} recomputed"] == kept
    # Between setups: measured 3e-7.
    assert kept == pytest.approx(got("checkpointed", "single x1")[0][f"{model} kept"], rel=1e-6)


@pytest.mark.parametrize("setup", DATA_PARALLEL)
def test_a_loss_function_that_returns_a_scalar_is_refused(got, setup):
    for rank in got("scalar_loss", setup):
        (line,) = rank["refused"]
        assert line.startswith("loss_fn: (): must return one loss per sample")
