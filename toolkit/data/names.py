"""Short names of data sets of the hub."""

from pathlib import Path

from toolkit.errors import UserError, fault
from toolkit.launch import say

# Name on the hub, and configuration. The hub still knows some of the short ones, but forwards or has moved them.
HUB: dict[str, tuple[str, str | None]] = {
    "cifar10": ("uoft-cs/cifar10", None),
    "cifar100": ("uoft-cs/cifar100", None),
    "glue": ("nyu-mll/glue", None),
    "imdb": ("stanfordnlp/imdb", None),
    "mrpc": ("nyu-mll/glue", "mrpc"),
    "sst2": ("nyu-mll/glue", "sst2"),
}


def on_hub(name: str, config: str | None) -> tuple[str, str | None]:
    """The hub's name and configuration for a short one (also CIFAR-10, SST-2, IMDb); any other as it is.

    A folder of that name goes first, and that is told. UserError for another configuration than the name's own.
    """
    known = HUB.get(name.lower().replace("-", ""))
    if known is None:
        return name, config
    full, own = known
    if Path(name).is_dir():
        say(f"--dataset_name {name}: the folder of that name here, not {full} of the hub")
        return name, config
    if own and config not in (None, own):
        reason = f"{name} is the configuration {own} of {full}"
        raise UserError(fault("--dataset_config_name", config, reason, f"leave it out, or --dataset_name {full}"))
    return full, own or config
