"""Checkpoints under every strategy: each rank its share, all of them whole, and back again exactly."""

from __future__ import annotations

import re

import pytest

SETUPS = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "pipeline x2")
ALONE = ("zero1 x1", "zero2 x1", "zero3 x1")
THREE = ("ddp x3", "zero1 x3", "zero2 x3", "zero3 x3", "pipeline x3")
GROUPS = ("ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "pipeline x2", "ddp x3", "zero3 x3", "pipeline x3")
every_setup = pytest.mark.parametrize("setup", (*SETUPS, *ALONE, *THREE))
every_group = pytest.mark.parametrize("setup", GROUPS)
TRAINED = {"embedding.weight": 72, "hidden.0.weight": 36, "hidden.0.bias": 6, "norm.weight": 6, "norm.bias": 6}


def ranks_of(setup: str) -> int:
    return int(setup.partition(" x")[2])


@every_setup
def test_it_holds_the_models_own_keys_each_tensor_once(got, setup):
    for rank in got("saved", setup):
        assert len(rank["keys"]) == 11
        assert sorted(rank["names"]) == sorted(set(rank["keys"]) - {"head.weight"})  # the embedding's own
        assert rank["empty"] == []
        assert set(rank["dtypes"].values()) == {"torch.float32", "torch.int64"}
        assert [name for name, dtype in rank["dtypes"].items() if dtype == "torch.int64"] == [
            "norm.num_batches_tracked"
        ]
        assert sorted(rank["trained"]) == sorted(TRAINED)
        assert rank["faults"] == []


@every_setup
def test_it_is_the_live_model_and_comes_back_as_it(got, setup):
    for rank in got("saved", setup):
        assert rank["odd"] == []
        assert rank["back"] == []


@every_setup
def test_the_optimizers_state_is_there_whole_and_of_the_trained_alone(got, setup):
    (rank, *others) = got("saved", setup)
    assert rank["states"] == {name: ["exp_avg", "exp_avg_sq"] if name in TRAINED else [] for name in rank["names"]}
    assert rank["updates"] == {name: 3.0 if name in TRAINED else None for name in rank["names"]}
    assert rank["pieces"].keys() == {f"{name}/{state}" for name in TRAINED for state in ("exp_avg", "exp_avg_sq")}
    for key, pieces in rank["pieces"].items():
        assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
        assert pieces[-1][1] == TRAINED[key.rpartition("/")[0]]
        assert len(pieces) <= ranks_of(setup)
    # Stage 3 cuts each parameter; stages 1 and 2 cut where a rank's partition ends.
    if setup.startswith("zero") and others:
        cut = [key for key, pieces in rank["pieces"].items() if len(pieces) > 1]
        assert len(cut) == len(rank["pieces"]) if setup.startswith("zero3") else 0 < len(cut) < len(rank["pieces"])
    assert all(other["pieces"] == rank["pieces"] for other in others)


@every_setup
def test_a_resumed_engine_takes_the_same_steps(got, setup):
    for rank in got("saved", setup):
        assert rank["position"] == [3, 1, 1, 36, 3]
        assert rank["losses"][1] == rank["losses"][0]
        assert rank["ends"]


@every_setup
def test_evaluation_is_the_same_after_it_is_loaded(got, setup):
    for rank in got("saved", setup):
        assert rank["scores"][1] == rank["scores"][0] == got("saved", setup)[0]["scores"][0]


@pytest.mark.parametrize("setup", [setup for setup in (*SETUPS, *THREE) if setup.startswith(("ddp", "zero"))])
def test_batchnorm_is_each_ranks_own_before_a_save_and_one_after(got, setup):
    first, *others = got("saved", setup)
    assert all(other["own"] != first["own"] for other in others)
    assert all(other["shared"] == first["shared"] for other in others)


@pytest.mark.parametrize("setup", ["zero1 x2", "zero2 x2", "zero3 x2", "zero1 x3", "zero2 x3", "zero3 x3"])
def test_zero_goes_on_where_ddp_was(got, setup):
    for rank in got("saved", setup):
        ddp, zero = rank["of_ddp"]
        # Measured: 0 at 2 ranks, 1.5e-7 at 3.
        assert zero == pytest.approx(ddp, rel=1e-6)


@pytest.mark.parametrize("setup", ["pipeline x2", "pipeline x3"])
def test_stages_hold_equal_copies_of_a_shared_weight_after_resuming(got, setup):
    ranks = got("saved", setup)
    copies = [rank for rank in ranks if rank["tied"] is not None]
    assert len(copies) == 2 and ranks[0]["tied"] and ranks[-1]["tied"]
    assert copies[0]["tied"] == copies[1]["tied"]
    assert copies[0]["tied_end"] == copies[1]["tied_end"] != copies[0]["tied"]


# ---- shares, and ranks that fail -----------------------------------------------------------------------------------


@every_group
def test_each_rank_writes_its_share_alone(got, setup):
    written = got("half_written", setup)[0]["written"]
    # 6 layers of 12 x 12 + 12 numbers of 4 bytes; two moments of each, and 12 counts of updates.
    for kind, total in (("model", 6 * 156 * 4), ("optimizer", 6 * 156 * 4 * 2 + 12 * 4)):
        shares = [size for name, size in written.items() if name.startswith(kind)]
        assert len(shares) == ranks_of(setup)
        assert sum(shares) == total
        assert max(shares) <= 2 * min(shares)


@every_group
def test_a_save_on_one_rank_names_the_missing_ones(got, setup):
    first, *others = got("half_written", setup)
    (line,) = first["alone"]
    missing = ", ".join(str(rank) for rank in range(1, ranks_of(setup)))
    assert line.endswith(
        f"rank 0 saves, and within 1 s rank {missing} did not; call it on every rank, not under a rank test"
    )
    assert re.match(r"save: '.*/checkpoints/step-000001': ", line)
    assert [rank["alone"] for rank in others] == [None] * len(others)


@every_group
def test_random_states_of_every_rank_are_there(got, setup):
    count = ranks_of(setup)
    assert got("half_written", setup)[0]["random"] == [
        f"random-{rank + 1:05d}-of-{count:05d}.safetensors" for rank in range(count)
    ]


@every_group
def test_a_full_disk_of_one_rank_is_the_same_answer_on_all(got, setup):
    told = ["[Errno 28] No space left on device"] * 6
    told[:5] = [f"rank {ranks_of(setup) - 1}: {text}" for text in told[:5]]
    for rank in got("half_written", setup):
        assert [problem for problem, _ in rank["full"]] == told
        assert [left for _, left in rank["full"]] == [["step-000001"]] * 6
        # With room again the next save is as good as any.
        assert rank["failed"] is False
        assert rank["faults"] == [[], []]
        assert rank["odd"] == []
        assert rank["steps"] == [1, 7]


DAMAGES = ("truncated", "gone", "first rank's", "flipped", "no manifest", "no JSON", "empty", "other shape")


@pytest.mark.parametrize("setup", ["zero1 x2", "pipeline x2", "zero1 x3"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_line_alike_on_all_ranks(got, setup, damage):
    ranks = [rank[damage] for rank in got("damaged", setup)]
    (line,), step = ranks[0]
    last = f"{ranks_of(setup):05d}-of-{ranks_of(setup):05d}.safetensors"
    named = {
        "truncated": f"optimizer-{last}: '100 bytes': ",
        "gone": f"optimizer-{last}: 'missing': ",
        "first rank's": f"model-00001-of-{ranks_of(setup):05d}.safetensors: '50 bytes': ",
        "flipped": f"random-{last}: '",
        "no manifest": "no manifest.json in it",
        "no JSON": "manifest.json is damaged",
        "empty": "an empty folder",
        "other shape": "0.weight has shape (4, 4), oneloop.json says (2, 8)",
    }
    assert "/checkpoints/step-000002" in line and named[damage] in line
    assert step == 1  # `auto` falls back
    assert all(rank == ranks[0] for rank in ranks)


@pytest.mark.parametrize("setup", ["zero1 x2", "pipeline x2", "zero1 x3"])
def test_without_damage_the_newest_is_taken(got, setup):
    assert [rank["whole"] for rank in got("damaged", setup)] == [[[], 2]] * ranks_of(setup)


# ---- C39 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", ["ddp x2", "zero2 x2"])
def test_every_sample_once_an_epoch_across_a_break(got, setup):
    ranks = got("broken_off", setup)
    for rank in ranks:
        assert rank["first"]["read"] + rank["second"]["read"] == rank["whole"]["read"]
        assert [len(rank[part]["read"]) for part in ("first", "second")] == [12, 52]
        assert rank["first"]["losses"] + rank["second"]["losses"] == rank["whole"]["losses"]
        assert len(rank["whole"]["losses"]) == 16
        assert rank["second"]["weights"] == rank["whole"]["weights"] != rank["first"]["weights"]
    for epoch in range(2):
        read = [sample for rank in ranks for sample in rank["whole"]["read"][32 * epoch : 32 * (epoch + 1)]]
        assert sorted(read) == list(range(64))
    assert ranks[0]["whole"]["read"][:32] != ranks[0]["whole"]["read"][32:]
