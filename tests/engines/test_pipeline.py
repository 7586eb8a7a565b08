"""What only a pipeline can get wrong: masks between stages, shared weights, cuts."""

from __future__ import annotations

import pytest

from toolkit.errors import UserError
from toolkit.setup import Setup


def test_an_integer_mask_over_real_padding_crosses_stages(got):
    single = got("masked", "single x1")[0]
    assert len(single) == 4
    for rank in got("masked", "pipeline x2"):
        assert rank == pytest.approx(single, rel=1e-6)  # measured: 0


@pytest.mark.parametrize("dtype", ["torch.bool", "torch.int64"])
def test_masks_that_need_no_gradient_cross_stages(got, dtype):
    single = got("mask_types", "single x1")[0][dtype]
    for rank in got("mask_types", "pipeline x2"):
        assert rank[dtype] == pytest.approx(single, rel=1e-6)  # measured: 0


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_shared_weight_is_the_same_bits_on_both_stages(got, step):
    first, last = got("tied", "pipeline x2")
    assert first["copies"][step] == last["copies"][step]
    assert first["copies"][step] != first["copies"][step - 1]


def test_a_shared_weight_trains_as_in_one_process(got):
    (single,) = got("tied", "single x1")
    for rank in got("tied", "pipeline x2"):
        assert rank["losses"] == pytest.approx(single["losses"], rel=1e-6)  # measured: 0
        assert rank["norms"] == pytest.approx(single["norms"], rel=1e-6)  # the shared weight counts once; 8e-8
        assert rank["names"] == single["names"]
        assert "head.weight" not in rank["names"]
        for name, values in single["weights"].items():
            assert rank["weights"][name] == pytest.approx(values, abs=1e-5)
        assert rank["obtained"]["layers"] == ["0-1", "2-3"]


@pytest.mark.parametrize("partition", ["uniform", "parameters", "type:linear"])
def test_five_layers_on_two_stages_each_stand_once(got, partition):
    for rank in got("ranges", "pipeline x2"):
        held = [range(int(first), int(last) + 1) for first, last in (part.split("-") for part in rank[partition])]
        assert [layer for part in held for layer in part] == [0, 1, 2, 3, 4]
        assert sorted(map(len, held)) == [2, 3]


def test_frozen_layers_do_not_count_where_a_pipeline_is_cut(got):
    (single,) = got("frozen", "single x1")
    for rank in got("frozen", "pipeline x2"):
        assert rank["layers"] == ["0-3", "4-4"]
        assert rank["losses"] == pytest.approx(single["losses"], rel=1e-6)  # measured: 0
        for name, values in single["weights"].items():
            assert rank["weights"][name] == pytest.approx(values, abs=1e-6)


REFUSED = {
    "frozen stage": "Setup.build: 'uniform': stage 0 (layers 0-1: Linear 0, Linear 1) has no parameter to train",
    "one layer": "Setup.build: 2: Chain has 1 layers, fewer than stages; use fewer stages",
    "no layers named": "model: 'Linear': has no pipeline_layers() method",
    "stage without parameters": "Setup.build: 'uniform': stage 1 (layers 2-3: Tanh, Tanh) has no parameter to train",
    "parameter left out": "model: 'Forgets': pipeline_layers() leaves out 2.weight, 2.bias",
    "no such type": "Setup.build: 'type:nosuch': no layer's class matches",
}


@pytest.mark.parametrize("case", REFUSED)
def test_cuts_that_cannot_train_are_refused_on_every_rank(got, case):
    for rank in got("refused", "pipeline x2"):
        (line,) = rank[case]
        assert line.startswith(REFUSED[case])


def test_three_ranks_do_not_divide_into_two_stages():
    with pytest.raises(UserError) as caught:
        Setup.build(strategy="pipeline", world_size=3, stages=2)
    (line,) = caught.value.lines
    assert "3 ranks do not divide into 2 stages (3 % 2 = 1)" in line


def test_groups_that_deepspeed_makes_have_the_setups_timeout(got):
    for rank in got("timeouts", "pipeline x2"):
        assert rank == ["0:02:00"]
