"""`oneloop check --explain KEY`: what a key means, its default, who else may set it, and which of them wins."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toolkit.errors import UserError, fault
from toolkit.setup import schema
from toolkit.setup.launcher import INLINE
from toolkit.setup.machines import OPTION_ALONE
from toolkit.setup.schedule import SCHEDULERS
from toolkit.setup.words import nearest

_FOLDER = Path(__file__).parent / "schemas"
# Beginnings of Accelerate's names for ways to train that this version does not have.
_NOT_YET = tuple(
    "fsdp use_fsdp megatron use_megatron fp8 parallelism use_parallelism tpu no_tpu dynamo mpirun aws".split()
)
_AUTO = {"scheduler.params.total_num_steps": "the optimizer steps of the run"}
_AGREE = (
    "what you typed and what a file writes must be equal; either wins over the script's default; "
    '"auto" in a file is the argument'
)
_FIELD = "where the YAML names a JSON, the JSON's counts and the field must say the same; an option wins over the YAML"
_OPTION = "the option wins over the YAML"


@dataclass(frozen=True)
class Same:
    """One value that several places may set: an argument, keys of the JSON, fields of the YAML, options of a launch."""

    wins: str
    argument: str = ""
    json: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def places(self) -> list[str]:
        """Each place as it is shown."""
        return [
            *([f"--{self.argument}"] if self.argument else ()),
            *(f"{key} in the JSON" for key in self.json),
            *(f"{name} in the YAML" for name in self.fields),
            *(f"accelerate launch --{name}" for name in self.options),
        ]


def _inline(name: str, argument: str = "") -> Same:
    """A field of the YAML's deepspeed_config, with its key of the JSON."""
    wins = f"{_AGREE}; {_FIELD}" if argument else _FIELD
    return Same(wins, argument, (INLINE[name],), (f"deepspeed_config.{name}",), (name,))


_WITH_ARGUMENT = {"gradient_accumulation_steps": "gradient_accumulation_steps", "gradient_clipping": "max_grad_norm"}
_MULTIPLY = "; global = micro x accumulation x data-parallel ranks, and what is missing is derived"
SAME: tuple[Same, ...] = (
    Same(_AGREE + _MULTIPLY, "train_batch_size", ("train_batch_size",)),
    Same(_AGREE + _MULTIPLY, "per_device_train_batch_size", ("train_micro_batch_size_per_gpu",)),
    Same(
        f"{_AGREE}; what the optimizer section leaves out is DeepSpeed's default",
        "learning_rate",
        ("optimizer.params.lr", "scheduler.params.warmup_max_lr", "scheduler.params.cycle_max_lr"),
    ),
    Same(_AGREE, "weight_decay", ("optimizer.params.weight_decay",)),
    Same(_AGREE, "momentum", ("optimizer.params.momentum",)),
    Same(_AGREE, "nesterov", ("optimizer.params.nesterov",)),
    Same(_AGREE, "optimizer", ("optimizer.type",)),
    Same(
        "the JSON's wins over the script's default; a typed one must be alike: constant for WarmupLR, linear for "
        "WarmupDecayLR, cosine for WarmupCosineLR",
        "lr_scheduler_type",
        ("scheduler.type",),
    ),
    Same("of --lr_scheduler_type alone; beside a scheduler in the JSON it is refused", "lr_scheduler_kwargs"),
    Same(_AGREE, "num_warmup_steps", ("scheduler.params.warmup_num_steps",)),
    Same(
        "all that ask for a precision must ask for the same one; 'no' in the YAML asks for nothing",
        "mixed_precision",
        ("fp16.enabled", "bf16.enabled", "torch_autocast.enabled"),
        ("mixed_precision",),
        ("mixed_precision",),
    ),
    Same(
        "all must name the same file",
        "deepspeed_config",
        (),
        ("deepspeed_config.deepspeed_config_file",),
        ("deepspeed_config_file",),
    ),
    Same(
        f"{_OPTION}; the ranks that were started must be as many; torchrun has --nproc_per_node, deepspeed --num_gpus",
        fields=("num_processes",),
        options=("num_processes",),
    ),
    Same("the CPU is used where one asks for it, or where there is no GPU", fields=("use_cpu",), options=("cpu",)),
    *(_inline(name, _WITH_ARGUMENT.get(name, "")) for name in INLINE),
)

# Options of `oneloop check`.
_CHECK = {
    "num_processes": Same("the ranks of a hostfile must be as many; it wins over the YAML"),
    "hostfile": Same("--num_processes, or that of the YAML, must be as many as its slots"),
}


def explain(key: str) -> str:
    """One block of lines for each place that knows the key: argument, DeepSpeed's JSON, Accelerate's YAML, launch.

    Args:
        key: with or without "--"; of a key path its last name is enough: "stage", "zero_optimization.stage".

    Raises:
        UserError: nothing has such a key.
    """
    known = _known()
    name = key.strip().removeprefix("--").replace("-", "_")
    exact = [text for path, text in known if path == name]
    # A path is one key; a last name may be many.
    found = exact if "." in name else exact + [text for path, text in known if path.rpartition(".")[2] == name != path]
    if not found:
        hint = nearest(name, {each for path, _ in known for each in (path, path.rpartition(".")[2])})
        raise UserError(fault("--explain", key, "unknown key", hint or "see scripts' --help and ds_configs/README.md"))
    return "\n\n".join(found)


@cache
def _known() -> list[tuple[str, str]]:
    """(key path, text) of everything that has a meaning."""
    return list(_blocks())


def _blocks() -> Iterator[tuple[str, str]]:
    from toolkit.argument_table import ARGUMENTS

    meanings = json.loads((_FOLDER / "meanings.json").read_text(encoding="utf-8"))
    for _, name, _, default, text in ARGUMENTS:
        shown = "none" if default is None else f"{default}, where the script has none of its own"
        yield name, _block(f"--{name}", text, shown, _others("argument", name))
    older = {name: "an older name" for name in schema.RENAMED}
    for path, text in (older | meanings["deepspeed"]).items():
        yield path, _block(f"{path} in the JSON", text, _default(path), _others("json", path), _here(path))
    accelerate = _accelerate()
    fields = {**dict.fromkeys(accelerate["old_fields"], {}), **accelerate["fields"]}
    fields |= {f"{section}.{key}": {} for section, keys in accelerate["sections"].items() for key in keys}
    for path, kind in fields.items():
        # -1 is Accelerate's word for a number of processes that nobody gave.
        default = _shown(None if kind.get("default") == -1 else kind.get("default"))
        text = meanings["accelerate"][path.rpartition(".")[2]]
        yield path, _block(f"{path} in the YAML", text, default, _others("fields", path), _of_accelerate(path))
    names = {path.rpartition(".")[2] for path in fields}
    for name in accelerate["options"]:
        if name not in names:
            text = meanings["accelerate"][name]
            yield (
                name,
                _block(f"accelerate launch --{name}", text, "none", _others("options", name), _of_accelerate(name)),
            )
    for name, text in meanings["check"].items():
        yield name, _block(f"oneloop check --{name}", text, "none", _CHECK.get(name))


def _block(title: str, meaning: str, default: str, same: Same | None, here: str = "") -> str:
    lines = [f"{title}: {meaning}", f"  default: {default}"]
    others = [place for place in same.places() if place not in (title, f"--{title}")] if same is not None else []
    lines += [f"  here: {here}"] if here else []
    lines += [f"  set by: {', '.join([title, *others])}"]
    lines += [f"  which wins: {same.wins}"] if same is not None else []
    return "\n".join(lines)


def _others(kind: str, name: str) -> Same | None:
    """The row of `SAME` that names it; a field that is an option too has a row of its own."""
    for same in SAME:
        value = getattr(same, kind)
        if name == value or isinstance(value, tuple) and name in value:
            return same
    if kind != "fields":
        return None
    last = name.rpartition(".")[2]
    return Same(_OPTION, fields=(name,), options=(last,)) if last in _accelerate()["options"] else None


@cache
def _accelerate() -> dict[str, Any]:
    """The fields, sections and options of the installed Accelerate."""
    keys: dict[str, Any] = json.loads((_FOLDER / "accelerate.json").read_text(encoding="utf-8"))
    return keys


def _default(path: str) -> str:
    """DeepSpeed's default, or the argument that stands in its place."""
    section, _, name = path.rpartition(".")
    if path in schema.FIXED:
        return _shown(schema.FIXED[path][0])
    if section == "optimizer.params":
        kinds = {kind: keys[name] for kind, keys in schema.OPTIMIZER_PARAMS.items() if name in keys}
        shown = _by_kind({kind: key for kind, key in kinds.items() if kind in schema.OPTIMIZERS} or kinds)
        same = _others("json", path)
        return f"{shown}; without a type, --{same.argument}" if same is not None else shown
    if section == "scheduler.params":
        kinds = {kind: keys[name] for kind, keys in schema.SCHEDULER_PARAMS.items() if name in keys}
        return _by_kind({kind: key for kind, key in kinds.items() if kind in SCHEDULERS} or kinds)
    same = _others("json", path)
    if same is not None and same.argument:
        return f"--{same.argument}"
    return _shown(schema.SECTIONS.get(section, {}).get(name, {}).get("default"))


def _by_kind(kinds: dict[str, dict[str, Any]]) -> str:
    """ "0.001 (adam, adamw, sgd)", with what is different apart."""
    shown: dict[str, list[str]] = {}
    for kind, key in kinds.items():
        shown.setdefault(_shown(key.get("default")), []).append(kind)
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in shown.items())


def _here(path: str) -> str:
    """What oneloop makes of a DeepSpeed key, where that is not what DeepSpeed makes of it."""
    if path in schema.REMOVED:
        return f"DeepSpeed {schema.VERSION} has removed it; {schema.REMOVED[path]}"
    if path in schema.RENAMED:
        return f"an older name of {schema.RENAMED[path]}, taken as that"
    for section in (path, *(path[:n] for n, letter in enumerate(path) if letter == ".")):
        if section in schema.NOT_TAKEN:
            reason, remedy = schema.NOT_TAKEN[section]
            return f"not taken where it switches something on: {reason}; {remedy}"
    if path in schema.FIXED:
        value, reason = schema.FIXED[path]
        return f"only {_shown(value)}: {reason}"
    if path not in schema.AUTO:
        return ""
    same = _others("json", path)
    argument = f"--{same.argument}" if same is not None and same.argument else "as if the key were not there"
    return f'"auto" is {_AUTO.get(path, argument)}'


def _of_accelerate(path: str) -> str:
    if path in OPTION_ALONE:
        return f"Accelerate {_accelerate()['version']} does not take it from the YAML, from the option alone"
    return "not supported yet: refused where it switches something on" if path.startswith(_NOT_YET) else ""


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value)
