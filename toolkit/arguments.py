"""The command line of both scripts, with Hugging Face's and DeepSpeed's names; every mistake in it is told at once."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from toolkit.argument_table import ARGUMENTS
from toolkit.augmentation import augmentation_faults
from toolkit.errors import UserError, fault
from toolkit.kinds import Kind, as_typed, names, one_of, switch
from toolkit.setup.words import nearest
from toolkit.together import (
    check_early_stopping,
    check_streaming,
    check_together,
    check_trackers,
    one_deepspeed_file,
)


class _Parser(argparse.ArgumentParser):
    faults: Sequence[str] = ()  # found before the one that ends the parse
    argv: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise UserError(*self.faults, fault("arguments", " ".join(self.argv), message, "see --help"))

    def print_help(self, file: Any = None) -> None:
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)


class _Names(argparse.Action):
    """All names of an argument as one list, however they were divided."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        found = [*getattr(namespace, self.dest, ()), *(name for each in values for name in each or ())]
        setattr(namespace, self.dest, list(dict.fromkeys(found)))


def parse_arguments(
    argv: Sequence[str] | None = None,
    *,
    description: str,
    defaults: Mapping[str, Any],
    extra: Callable[[argparse._ArgumentGroup], None] | None = None,
    unused: Sequence[str] = (),
    own_model: Sequence[str] = (),
    layers: int | None = None,
) -> argparse.Namespace:
    """Parses and checks the command line.

    `oneloop check` reads `defaults`, `unused`, `own_model` and `layers` in the script's text: it finds literals, here
    or in constants of the module.

    Args:
        defaults: the script's own values in place of those in `ARGUMENTS` and of `extra`.
        extra: adds the script's own arguments to the group it is given.
        unused: names of arguments, or of the groups "model" and "data", that the script has no use for: refused when
            typed and left out of --help.
        own_model: names of arguments that shape the script's own model: refused beside --model_name_or_path.
        layers: of the script's own model, which a pipeline cuts.

    Returns:
        A namespace with every argument, `typed` (names the user gave, which bind where defaults yield), `script`,
        `script_defaults` and `script_layers`.

    Raises:
        UserError: one line for each unknown argument and each bad value, and for each mistake in the config files.
        ValueError: the script's author named an argument that there is not, or a default out of its range.
    """
    arguments, faults = read_arguments(
        argv,
        description=description,
        defaults=defaults,
        extra=extra,
        unused=unused,
        own_model=own_model,
        layers=layers,
    )
    if faults:
        from toolkit.setup.run import resolve

        raise UserError(*faults, *resolve(arguments, os.environ).faults)
    return arguments


def read_arguments(
    argv: Sequence[str] | None = None,
    *,
    description: str,
    defaults: Mapping[str, Any],
    extra: Callable[[argparse._ArgumentGroup], None] | None = None,
    unused: Sequence[str] = (),
    own_model: Sequence[str] = (),
    layers: int | None = None,
    script: str | None = None,
) -> tuple[argparse.Namespace, list[str]]:
    """As `parse_arguments`, with the faults beside the namespace, in which a faulty argument has its default."""
    if not isinstance(defaults, Mapping) or not all(isinstance(name, str) for name in defaults):
        raise ValueError("defaults: expected {name of an argument: value}")
    if "per_device_train_batch_size" in defaults:
        raise ValueError("a script's default is the global train_batch_size: a micro-batch would change with the ranks")
    if layers is not None and not (isinstance(layers, int) and layers > 0):
        raise ValueError(f"layers: {layers!r}: expected an integer of 1 or more")
    faults: list[str] = []
    script = sys.argv[0] if script is None else script
    parser = _Parser(prog=os.path.basename(script), description=description, allow_abbrev=False)
    parser.faults, parser.argv = faults, sys.argv[1:] if argv is None else argv
    fallback = {name: _default(name, kind, defaults.get(name, default)) for _, name, kind, default, _ in ARGUMENTS}
    of_group = {group: [row[1] for row in ARGUMENTS if row[0] == group] for group in ("model", "data")}
    unused = [each for name in unused for each in of_group.get(name, [name])]
    if strange := [name for name in unused if name not in fallback]:
        raise ValueError(f"unused names no argument: {', '.join(strange)}")
    bad: set[str] = set()
    _add_arguments(parser, fallback, unused, faults, bad)
    if extra is not None:
        extra(parser.add_argument_group("this script"))
    _add_own(parser, fallback, defaults, own_model, faults, bad)
    try:
        found, unknown = parser.parse_known_args(argv)
    except UserError as error:
        found, unknown, faults = argparse.Namespace(), [], list(error.lines)
    options = [option for action in parser._actions for option in action.option_strings]
    for token in unknown:
        if token == "--":
            faults.append(fault(token, token, "argparse takes nothing after it for an argument", "leave it out"))
            break
        if token.startswith("-") or token == unknown[0]:
            name = token.partition("=")[0]
            faults.append(fault(name, token, "unknown argument", nearest(name, options) or "see --help"))
    for name in bad & set(vars(found)):
        delattr(found, name)
    typed = frozenset(vars(found))
    one_deepspeed_file(found, faults)
    values = {**fallback, "deepspeed": None, "local_rank": None, **vars(found)}
    check_together(found, unused, own_model, script, faults)
    check_streaming(found, values, faults)
    check_early_stopping(found, values, faults)
    check_trackers(values, faults)
    faults += augmentation_faults(values)
    told = {"typed": typed, "script": script, "script_defaults": fallback, "script_layers": layers}
    return argparse.Namespace(**values, **told), faults


def _add_arguments(
    parser: _Parser, fallback: Mapping[str, Any], unused: Sequence[str], faults: list[str], bad: set[str]
) -> None:
    """The arguments that every script has."""
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(row[0] for row in ARGUMENTS)}
    for group, name, kind, _, text in ARGUMENTS:
        shown = "" if fallback[name] is None else f" (default: {fallback[name]})".replace("%", "%%")
        several: dict[str, Any] = {"nargs": "?", "const": True} if kind is switch else {}
        several |= {"nargs": "+", "action": _Names} if kind is names else {}
        metavar = {"seed": "N", "timeout": "SECONDS"}.get(
            name, "FILE" if name.endswith(("file", "config")) else "VALUE"
        )
        groups[group].add_argument(
            f"--{name}",
            type=_collecting(name, name, kind, faults, bad),
            default=argparse.SUPPRESS,
            metavar=metavar,
            help=argparse.SUPPRESS if name in unused else text + shown,
            **several,
        )
    bare = groups["launcher"].add_argument(
        "--deepspeed", nargs="?", const=True, default=argparse.SUPPRESS, metavar="FILE"
    )
    bare.help = "DeepSpeed JSON file, or alone beside --deepspeed_config"
    groups["launcher"].add_argument(
        "--local_rank", "--local-rank", type=int, default=argparse.SUPPRESS, help="set by launchers; not used"
    )


def _add_own(
    parser: _Parser,
    fallback: dict[str, Any],
    defaults: Mapping[str, Any],
    own_model: Sequence[str],
    faults: list[str],
    bad: set[str],
) -> None:
    """Takes the script's own arguments, which `parser` has by now, as `ARGUMENTS` are taken."""
    shared = {f"--{name}" for name in fallback}
    if second := [
        each.dest for each in parser._actions if each.dest in fallback and shared.isdisjoint(each.option_strings)
    ]:
        raise ValueError(f"extra adds a second argument for {', '.join(second)}")
    own = {action.dest: action for action in parser._actions if action.dest not in (*fallback, "help")}
    for what, given in (("defaults", defaults), ("own_model", own_model)):
        if strange := [name for name in given if name not in fallback and name not in own]:
            raise ValueError(f"{what} name no argument: {', '.join(strange)}")
    for dest, action in own.items():
        kind = _own_kind(action)
        if action.default is not argparse.SUPPRESS:
            value = defaults.get(dest, action.default)
            fallback[dest] = _default(dest, kind, value) if isinstance(value, str) else value
            action.default = argparse.SUPPRESS
        if action.nargs != 0:  # a flag takes no value
            name = action.option_strings[0].lstrip("-") if action.option_strings else dest
            action.type = _collecting(name, dest, kind, faults, bad)
            if action.choices is not None:
                action.metavar = action.metavar or f"{{{','.join(map(str, action.choices))}}}"
                action.choices = None


def _default(name: str, kind: Kind, value: Any) -> Any:
    """A script's default as `kind` reads it; None is no value."""
    try:
        if kind is str and not isinstance(value, str | None):
            raise ValueError("expected a string")
        return None if value is None else kind(as_typed(value))
    except ValueError as error:
        raise ValueError(f"default of {name}: {value!r}: {error}") from None


def _own_kind(action: argparse.Action) -> Kind:
    """Type and choices of a script's own argument as one kind."""
    choices = action.choices

    def read(text: str) -> Any:
        try:
            value = action_type(text) if callable(action_type) else text
        except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
            named = {int: "expected an integer", float: "expected a number"}
            raise ValueError(named.get(action_type, str(error))) from None
        if choices is not None and value not in choices:
            one_of(*map(str, choices))(text)
        return value

    action_type: Any = action.type
    return read


def _collecting(name: str, dest: str, kind: Kind, faults: list[str], bad: set[str]) -> Kind:
    """`kind`, with its complaint collected instead of ending the parse at the first; `bad` gets the `dest`."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            faults.append(fault(f"--{name}", text, str(error), "correct the value"))
            bad.add(dest)
            return None

    return read
