"""The command line of both scripts, with Hugging Face's and DeepSpeed's names; every mistake in it is told at once."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from toolkit.errors import UserError, fault
from toolkit.kinds import Kind, as_typed, encoding, json_object, one_of, path, real, steps_or_epoch, switch, whole
from toolkit.setup.schema import OPTIMIZERS, SCHEDULES
from toolkit.setup.words import nearest
from toolkit.together import check_streaming, check_together, one_deepspeed_file

# (group, name, kind, default, help). A script's `defaults` replace the defaults here.
ARGUMENTS: tuple[tuple[str, str, Kind, Any, str], ...] = (
    ("model", "model_name_or_path", str, None, "a model of the hub or a folder; the script's own where left out"),
    ("model", "dropout", real(0, 1), None, "probability in [0, 1); the model's own where left out"),
    ("data", "dataset_name", str, None, "of the hub, or a folder of that form or of class folders; else the sample"),
    ("data", "dataset_config_name", str, None, "a configuration of it"),
    ("data", "train_file", str, None, "local csv, tsv, json, jsonl or parquet file"),
    ("data", "validation_file", str, None, "local file to evaluate on"),
    ("data", "encoding", encoding, None, "of local text files, such as latin-1; utf-8 where left out"),
    ("data", "text_column_name", str, None, "column of the text"),
    ("data", "text_pair_column_name", str, None, "column of the second text of a pair"),
    ("data", "image_column_name", str, None, "column of the image"),
    ("data", "label_column_name", str, None, "column of the label"),
    ("data", "streaming", switch, False, "read training rows as they are needed; with --max_train_steps"),
    ("data", "shuffle_buffer_size", whole(1), 1000, "rows of a stream that are shuffled together"),
    ("data", "max_train_samples", whole(1), None, "samples to train on; all where left out"),
    ("data", "max_eval_samples", whole(1), None, "samples to evaluate on; all where left out"),
    ("data", "max_length", whole(1), 128, "tokens after which a text is cut"),
    ("data", "image_size", whole(1), None, "pixels a side to which images are resized; else the model's or their own"),
    ("data", "on_bad_sample", one_of("error", "skip"), "error", "an image that cannot be read: error, or skip it"),
    ("data", "group_by_length", switch, False, "texts of like length in one batch (true or false)"),
    ("run", "dataloader_num_workers", whole(0), 0, "loading processes a rank"),
    ("batch", "train_batch_size", whole(1), 32, "samples of an optimizer step over all ranks"),
    ("batch", "per_device_train_batch_size", whole(1), None, "samples of a micro-batch on one rank"),
    ("batch", "gradient_accumulation_steps", whole(1), None, "micro-batches of an optimizer step on one rank"),
    ("batch", "per_device_eval_batch_size", whole(1), 64, "samples of an evaluation batch on one rank"),
    ("optimisation", "optimizer", one_of(*OPTIMIZERS), "adamw", "sgd, adam or adamw"),
    ("optimisation", "learning_rate", real(0), 1e-3, "peak learning rate, per optimizer step"),
    ("optimisation", "weight_decay", real(0), 0.0, "decay rate; decoupled for adamw"),
    ("optimisation", "momentum", real(0, 1), 0.9, "of sgd, in [0, 1)"),
    ("optimisation", "lr_scheduler_type", one_of(*SCHEDULES), "linear", ", ".join(SCHEDULES)),
    ("optimisation", "lr_scheduler_kwargs", json_object, None, 'its numbers as JSON, such as {"power": 2.0}'),
    ("optimisation", "num_warmup_steps", whole(0), 0, "optimizer steps of linear warm-up"),
    ("optimisation", "max_grad_norm", real(0), 1.0, "norm to which gradients are clipped; 0 is off"),
    ("optimisation", "num_train_epochs", whole(1), 3, "passes over the data"),
    ("optimisation", "max_train_steps", whole(1), None, "optimizer steps; overrides --num_train_epochs"),
    ("optimisation", "mixed_precision", one_of("no", "bf16", "fp16"), "no", "no (fp32), bf16 or fp16"),
    ("optimisation", "sync_batch_norm", switch, False, "BatchNorm over the samples of all ranks (GPUs alone)"),
    ("optimisation", "gradient_checkpointing", switch, False, "recompute activations in the backward pass"),
    ("run", "output_dir", path, None, "folder of the run; runs/<script>-<date-time> where left out"),
    ("run", "checkpointing_steps", steps_or_epoch, None, "steps between checkpoints, or epoch; else at the end"),
    ("run", "save_initial", switch, False, "also keep a checkpoint of the weights before the first step"),
    ("run", "save_total_limit", whole(1), None, "newest kept, and the one of lowest eval_loss; else all"),
    ("run", "resume_from_checkpoint", path, None, "auto, a checkpoint, or the folder of a run"),
    ("run", "stop_after_steps", whole(1), None, "end after this step with a checkpoint, the schedule unchanged"),
    ("run", "logging_steps", whole(1), 10, "optimizer steps between two writes of metrics.jsonl"),
    ("run", "seed", whole(0), 42, "of weights, sample order and dropout"),
    ("run", "timeout", real(0, above=True), 120.0, "seconds after which a silent rank ends the job"),
    ("run", "verbose", switch, False, "show the libraries' own messages of every rank"),
    ("launcher", "deepspeed_config", str, None, "DeepSpeed JSON file; also --deepspeed FILE"),
)


class _Parser(argparse.ArgumentParser):
    faults: Sequence[str] = ()  # found before the one that ends the parse
    argv: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise UserError(*self.faults, fault("arguments", " ".join(self.argv), message, "see --help"))

    def print_help(self, file: Any = None) -> None:
        if os.environ.get("RANK", "0") == "0":
            super().print_help(file)


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
    for what, names in (("defaults", defaults), ("own_model", own_model)):
        if strange := [name for name in names if name not in fallback and name not in own]:
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
