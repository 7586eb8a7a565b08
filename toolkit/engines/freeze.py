"""Layers that do not train, by the model's own names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.setup.words import nearest


def freeze(model: nn.Module, names: Sequence[str], where: str) -> None:
    """Take parameters out of training: each name is a parameter's, or a module's with all that is in it.

    Args:
        where: what asked for it.

    Raises:
        UserError: a name that the model does not have, or nothing that is left to train.
    """
    # A shared parameter goes by each of its names.
    parameters = dict(model.named_parameters(remove_duplicate=False))
    known = {path for name in parameters for path in _paths(name)}
    remedy = f"one of {', '.join(dict.fromkeys(name.partition('.')[0] for name in parameters))}, or what is in them"
    if unknown := [name for name in names if name not in known]:
        reason = f"{type(model).__name__} has no parameter or layer with parameters of this name"
        raise UserError(*(fault(where, name, reason, nearest(name, known) or remedy) for name in unknown))
    for name, parameter in parameters.items():
        if not set(names).isdisjoint(_paths(name)):
            parameter.requires_grad_(False)
    counts = {True: 0, False: 0}
    for parameter in model.parameters():
        counts[parameter.requires_grad] += parameter.numel()
    if not counts[True]:
        reason = f"all {counts[False]:,} parameters of {type(model).__name__} are frozen"
        raise UserError(fault(where, ", ".join(names), reason, "leave a layer that trains"))
    say(f"{', '.join(names)} ({where}): {counts[False]:,} parameters are frozen, {counts[True]:,} train")


def _paths(name: str) -> list[str]:
    """A parameter's name, and those of the modules around it."""
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]
