"""From the names that `compare` is given to launchers' command lines, each checked before any is started."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from toolkit.check import check
from toolkit.errors import UserError, fault
from toolkit.setup.script import Script, read_script
from toolkit.setup.templates import ABOUT, write_setup
from toolkit.setup.words import nearest

# Arguments of the script that `compare` gives, and where the user says them.
_OURS = {
    "output_dir": "give --output_dir before the --",
    "max_train_steps": "give --steps before the --",
    "save_initial": "leave it out, compare gives it",
    "stop_after_steps": "give --steps before the --",
    "find_learning_rate": "leave it out, compare trains",
    "save_total_limit": "leave it out, the first and the last weights are compared",
    "deepspeed_config": "name the file in --setups",
    "deepspeed": "name the file in --setups",
    "resume_from_checkpoint": "leave it out, every setup starts from the same weights",
}
_RANK_BYTES = 128 * 2**20  # of its own, at least: torch alone with a small model has more


@dataclass(frozen=True)
class Start:
    """A setup with its launcher's command line; with `errors` it is not started."""

    label: str
    folder: Path  # of its run
    command: tuple[str, ...]
    ranks: int = 0
    errors: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")


def plan_starts(
    script: str,
    setups: Sequence[str],
    num_processes: Sequence[int],
    steps: int,
    folder: Path,
    script_arguments: Sequence[str],
) -> tuple[list[Start], list[str]]:
    """(a start for each setup and number of ranks, what must be said).

    Args:
        setups: names of `oneloop init`, whose files are written into `folder`; paths of a DeepSpeed JSON, which the
            deepspeed launcher starts, or of an Accelerate YAML.
        num_processes: ranks; each setup's own where empty.
        steps: optimizer steps of every run.

    Raises:
        UserError: a script, a setup or an argument of the script that cannot be.
    """
    faults = [line for name in setups if (line := _setup_fault(name)) is not None]
    faults += [line for ranks in num_processes if (line := _ranks_fault(ranks)) is not None]
    faults += _argument_faults(script_arguments)
    told = read_script(script)
    if faults:
        raise UserError(*faults)
    arguments, notes = _arguments(told, steps, script_arguments)
    starts: list[Start] = []
    counts: list[int | None] = list(num_processes) or [None]
    several = len(num_processes) > 1
    for ranks in counts:
        for name in setups:
            name = "single" if several and ranks == 1 and name == "ddp" else name  # what DDP is on one rank
            label = _label(name, ranks, several, starts)
            if label is None:
                continue
            run = _folder(folder / "runs", label, starts)
            try:
                starts.append(_start(script, name, ranks, label, run, arguments, folder / "configs"))
            except UserError as error:
                if not several:
                    raise
                notes.append(f"{label} is left out: {error.lines[0]}")
    if all(start.errors for start in starts):
        raise UserError(*dict.fromkeys([line for start in starts for line in start.errors] or notes))
    return starts, [*told.notes, *notes]


def _setup_fault(name: str) -> str | None:
    if name in ABOUT or name.endswith((".json", ".yaml", ".yml")) and os.path.isfile(name):
        return None
    if name.endswith((".json", ".yaml", ".yml")):
        reason = "is a folder" if os.path.isdir(name) else f"no such file, searched from {Path.cwd()}"
        return fault("--setups", name, reason, "give the path of a file")
    remedy = nearest(name, ABOUT) or f"a file that ends in .json or .yaml, or one of {', '.join(ABOUT)}"
    return fault("--setups", name, "unknown", remedy)


def _ranks_fault(ranks: int) -> str | None:
    """What the machine cannot hold would take it down."""
    least = ranks * _RANK_BYTES
    if least <= (there := psutil.virtual_memory().total):
        return None
    reason = f"so many ranks need {least / 2**30:,.0f} GiB of memory and more, this machine has {there / 2**30:,.0f}"
    return fault("--num_processes", ranks, reason, "name fewer")


def _typed(name: str, script_arguments: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == f"--{name}" for word in script_arguments)


def _argument_faults(script_arguments: Sequence[str]) -> list[str]:
    return [
        fault(f"--{name}", "after --", "compare decides it for every setup", remedy)
        for name, remedy in _OURS.items()
        if _typed(name, script_arguments)
    ]


def _arguments(told: Script, steps: int, script_arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(the script's arguments in every setup but its folder, notes). Dropout draws other masks on each rank."""
    arguments = ["--max_train_steps", str(steps)]
    if not _typed("logging_steps", script_arguments):
        arguments += ["--logging_steps", str(max(1, steps // 10))]
    notes = []
    unused = (told.arguments or {"unused": ["model"]}).get("unused", ())
    if not {"dropout", "model"} & set(unused) and not _typed("dropout", script_arguments):
        arguments += ["--dropout", "0"]
        notes.append("--dropout 0: masks differ from rank to rank, and so would the losses; -- --dropout 0.1 keeps it")
    return [*arguments, *script_arguments], notes


def _label(name: str, ranks: int | None, several: bool, starts: Sequence[Start]) -> str | None:
    """None for what is one process, and has been planned."""
    label = name if name in ABOUT else os.path.basename(name)
    if several and name == "single":
        return None if any(start.label == "single" for start in starts) else "single"
    label += f" x{ranks}" if several else ""
    again = sum(start.label == label or start.label.startswith(f"{label} (") for start in starts)
    return f"{label} ({again + 1})" if again else label


def _folder(runs: Path, label: str, starts: Sequence[Start]) -> Path:
    """One for each label: "a b.json" and "a-b.json" are two."""
    name = re.sub(r"[^\w.-]+", "-", label)
    taken = {start.folder.name for start in starts}
    return next(runs / each for n in range(len(starts) + 1) if (each := name + f"-{n + 1}" * (n > 0)) not in taken)


def _start(
    script: str, name: str, ranks: int | None, label: str, run: Path, arguments: list[str], configs: Path
) -> Start:
    asked = None if name == "single" else ranks
    yaml, config = (name, None) if name.endswith((".yaml", ".yml")) else (None, name)
    if name in ABOUT:
        yaml = write_setup(name, str(configs / run.name), asked)[0] if name != "single" else None
        config = None
    save_initial = ["--save_initial", "true"]
    arguments = ["--output_dir", str(run), *save_initial, *arguments]
    report = check(
        os.environ,
        config_file=yaml,
        deepspeed_config=config,
        num_processes=asked or (_default_ranks() if config is not None else None),
        script=script,
        script_arguments=arguments,
    )
    errors = tuple(report.errors)
    world = 0 if errors else int(report.setup["world_size"]["value"])
    threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // max(1, world)))}
    command = _command(script, yaml, config, world, asked, arguments)
    return Start(label, run, command, world, errors, {**threads, **os.environ})


def _command(
    script: str, yaml: str | None, config: str | None, ranks: int, asked: int | None, arguments: list[str]
) -> tuple[str, ...]:
    """As a user types it, with a free port."""
    if yaml is not None:
        options = ["--num_processes", str(asked)] if asked is not None else []
        launch = [_beside("accelerate"), "launch", "--config_file", yaml, *options]
        return (*launch, "--main_process_port", _free_port(), script, *arguments)
    if config is not None:
        launch = [_beside("deepspeed"), "--num_gpus", str(ranks), "--master_port", _free_port()]
        return (*launch, script, "--deepspeed_config", config, *arguments)
    return (sys.executable, script, *arguments)


def _beside(launcher: str) -> str:
    """The launcher of this interpreter's environment, else the one on the PATH."""
    path = Path(sys.executable).with_name(launcher)
    return str(path) if path.is_file() else launcher


def _default_ranks() -> int:
    from toolkit.setup.device import count_gpus

    return count_gpus(os.environ) or 2


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
