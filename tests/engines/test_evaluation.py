"""Every sample is scored once, and state is complete, under every strategy and number of ranks."""

from __future__ import annotations

import pytest

DATA_PARALLEL = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2")
ALL = (*DATA_PARALLEL, "pipeline x2")
ALONE = ("zero1 x1", "zero2 x1", "zero3 x1")
THREE = ("ddp x3", "zero1 x3", "zero2 x3", "zero3 x3", "pipeline x3")
every_setup = pytest.mark.parametrize("setup", ALL)
every_setup_and_zero_alone = pytest.mark.parametrize("setup", (*ALL, *ALONE))
every_setup_up_to_three = pytest.mark.parametrize("setup", (*ALL, *ALONE, *THREE))
SIZES = ((11, 4), (9, 4), (7, 4), (5, 4), (1, 4), (3, 8), (22, 8))


@every_setup_up_to_three
@pytest.mark.parametrize("size, batch", SIZES)
def test_each_sample_is_scored_once(got, setup, size, batch):
    for rank in got("counted", setup):
        assert rank[f"{size}/{batch}"]["ids"] == list(range(size))


@every_setup_up_to_three
def test_ten_right_of_eleven(got, setup):
    for rank in got("counted", setup):
        assert round(rank["11/4"]["accuracy"], 5) == 0.90909


@every_setup_up_to_three
@pytest.mark.parametrize("batch", ["8", "3"])
def test_the_loss_is_a_mean_over_samples(got, setup, batch):
    assert [rank[batch] for rank in got("weighted", setup)] == [2.0] * len(got("weighted", setup))


@every_setup
def test_ranks_end_together_where_samples_do_not_divide(got, setup):
    _, _, ranks = setup.partition(" x")
    replicas = 1 if setup.startswith("pipeline") else int(ranks)
    for rank in got("uneven_ranks", setup):
        assert rank == {"steps": -(-9 // (2 * replicas)), "eval_batches": -(-9 // (2 * replicas)), "scored": 9}


@every_setup_up_to_three
def test_1007_reviews_give_the_same_count(got, setup):
    reference = got("reviews", "single x1")[0]
    for rank in got("reviews", setup):
        assert rank["rows"] == 1007
        assert rank["right"] == reference["right"]
        assert rank["right"] == pytest.approx(round(rank["right"]), abs=1e-9)  # a count
        # Rows meet in other batches and paddings: measured 4e-9.
        assert rank["loss"] == pytest.approx(reference["loss"], rel=1e-7)


@pytest.mark.parametrize("setup", ["ddp x2", "zero1 x2", "zero2 x2", "zero3 x2"])
def test_batchnorm_statistics_are_each_ranks_own_in_training_and_one_at_evaluation(got, setup):
    first, second = got("buffers", setup)
    assert first["couples"] is True
    assert first["own"] != second["own"]
    assert first["shared"] == second["shared"]
    for index, values in enumerate(first["shared"]):
        if isinstance(values[0], float):
            mean = [(a + b) / 2 for a, b in zip(first["own"][index], second["own"][index], strict=True)]
            assert values == pytest.approx(mean, rel=1e-6)
    assert first["scores"] == second["scores"] == first["again"]
    assert first["state"] == second["state"]


@pytest.mark.parametrize("setup", ["zero1 x2", "zero2 x2", "zero3 x2"])
def test_batchnorm_is_the_same_under_ddp_and_zero(got, setup):
    rank, ddp = got("buffers", setup)[0], got("buffers", "ddp x2")[0]
    # Measured: 3e-7.
    assert rank["losses"] == pytest.approx(ddp["losses"], rel=1e-5)
    assert rank["scores"]["loss"] == pytest.approx(ddp["scores"]["loss"], rel=1e-5)
    assert rank["scores"]["accuracy"] == ddp["scores"]["accuracy"]
    for name, values in ddp["state"].items():
        assert rank["state"][name] == pytest.approx(values, abs=1e-5)


def test_batchnorm_is_the_same_under_a_pipeline_and_one_process(got):
    rank, single = got("buffers", "pipeline x2")[0], got("buffers", "single x1")[0]
    assert rank["losses"] == pytest.approx(single["losses"], rel=1e-5)
    assert rank["scores"]["loss"] == pytest.approx(single["scores"]["loss"], rel=1e-5)
    for name, values in single["state"].items():
        assert rank["state"][name] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("setup", ["ddp x2", "zero1 x2", "zero2 x2", "zero3 x2"])
def test_ranks_drop_other_units_of_the_same_weights(got, setup):
    first, second = got("dropout", setup)
    assert first["initial"] == second["initial"] == got("dropout", "single x1")[0]["initial"]
    assert first["outputs"] != second["outputs"]


@pytest.mark.parametrize("setup", ["ddp x2", "zero1 x2", "zero2 x2"])
def test_ranks_that_drift_apart_are_noticed(got, setup):
    for number, rank in enumerate(got("strayed", setup)):
        assert rank.startswith(f"data-parallel ranks {number} and {1 - number} hold different weights")


OBTAINED = {
    "single x1": ("CNN", None, 1, 1),
    "zero1 x1": ("DeepSpeedEngine", 1, 1, 1),
    "zero2 x1": ("DeepSpeedEngine", 2, 1, 1),
    "zero3 x1": ("DeepSpeedEngine", 3, 1, 1),
    "ddp x2": ("DistributedDataParallel", None, 2, 1),
    "zero1 x2": ("DeepSpeedEngine", 1, 2, 1),
    "zero2 x2": ("DeepSpeedEngine", 2, 2, 1),
    "zero3 x2": ("DeepSpeedEngine", 3, 2, 1),
    "pipeline x2": ("PipelineEngine", 1, 1, 2),
}


@every_setup_and_zero_alone
def test_a_ready_model_keeps_every_name_and_value(got, setup):
    for rank in got("state", setup):
        assert rank["missing"] == []
        assert rank["differ"] == []
        assert rank["dtypes"] == ["torch.float32", "torch.int64"]
        assert rank["norm"] == got("state", "single x1")[0]["norm"]


@every_setup_and_zero_alone
def test_what_was_asked_for_is_obtained(got, setup):
    for rank in got("state", setup):
        obtained = rank["obtained"]
        names = ("engine", "stage", "data_parallel_ranks", "pipeline_stages")
        assert tuple(obtained[name] for name in names) == OBTAINED[setup]  # the formats: test_16_bit.py
