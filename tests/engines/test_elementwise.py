"""Which optimizers mean the same under ZeRO, and have state that every setup can read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from toolkit.engines.state import check_elementwise
from toolkit.errors import UserError

CPU = torch.device("cpu")


class Lamb(torch.optim.SGD):
    """The trust ratio of LAMB, over a whole parameter."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                with torch.no_grad():
                    parameter -= group["lr"] * parameter.grad * parameter.norm() / parameter.grad.norm()


FINE = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1),
    "plain sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.1, amsgrad=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.1),
}
LAYERWISE = {"lamb": lambda groups: Lamb(groups, lr=0.1), "muon": lambda groups: torch.optim.Muon(groups, lr=0.1)}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", FINE)
def test_one_that_works_element_by_element_is_taken(name: str, sharded: bool) -> None:
    check_elementwise(FINE[name], sharded, CPU)


@pytest.mark.parametrize("name", LAYERWISE)
def test_one_that_looks_at_whole_layers_is_refused_where_layers_are_cut(name: str) -> None:
    check_elementwise(LAYERWISE[name], False, CPU)
    with pytest.raises(UserError, match="is another algorithm on ZeRO's flat partitions"):
        check_elementwise(LAYERWISE[name], True, CPU)


@pytest.mark.parametrize("sharded", [False, True])
def test_state_of_another_shape_is_refused(sharded: bool) -> None:
    with pytest.raises(UserError) as caught:
        check_elementwise(lambda groups: torch.optim.Adafactor(groups, lr=0.1), sharded, CPU)
    assert caught.value.lines[0].startswith("optimizer: 'Adafactor': keeps row_var of shape (2, 1) for a parameter of ")
