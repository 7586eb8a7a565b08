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


class Lars(torch.optim.SGD):
    """The ratio of LARS, of matrices alone: biases and norms are left out of it."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                ratio = parameter.norm() / parameter.grad.norm() if parameter.dim() > 1 else 1.0
                with torch.no_grad():
                    parameter -= group["lr"] * ratio * parameter.grad


class Shampoo(torch.optim.SGD):
    """A preconditioner of Shampoo for the rows of a matrix."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                rows = self.state[parameter].setdefault("rows", torch.eye(len(parameter)))
                rows += parameter.grad @ parameter.grad.T
                with torch.no_grad():
                    parameter -= group["lr"] * torch.linalg.solve(rows, parameter.grad)


class UnitGradients(torch.optim.AdamW):
    """Each parameter's gradient at norm 1, as layer-wise clipping has it."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad / parameter.grad.norm()
        super().step(closure)


class Lion(torch.optim.SGD):
    """The sign of a moving average, with a decoupled decay (arXiv 2302.06675)."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                with torch.no_grad():
                    parameter *= 1 - group["lr"] * 0.1
                    parameter -= group["lr"] * (0.9 * average + 0.1 * parameter.grad).sign()
                average.lerp_(parameter.grad, 0.01)


FINE = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1),
    "plain sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.1, amsgrad=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.1),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
    "radam": lambda groups: torch.optim.RAdam(groups, lr=0.1),
    "lion": lambda groups: Lion(groups, lr=0.1),
}
LAYERWISE = {
    "lamb": lambda groups: Lamb(groups, lr=0.1),
    "lars": lambda groups: Lars(groups, lr=0.1),
    "unit gradients": lambda groups: UnitGradients(groups, lr=0.1, weight_decay=0.1),
    "muon": lambda groups: torch.optim.Muon(groups, lr=0.1),
}


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
    # One number for each tensor, which a checkpoint of cut parameters has no place for.
    with pytest.raises(UserError, match=r"'NAdam': keeps mu_product of shape \(\)"):
        check_elementwise(lambda groups: torch.optim.NAdam(groups, lr=0.1), sharded, CPU)
    with pytest.raises(UserError, match=r"'Shampoo': keeps rows of shape \(2, 2\) for a parameter of shape \(2, 3\)"):
        check_elementwise(lambda groups: Shampoo(groups, lr=0.1), sharded, CPU)
