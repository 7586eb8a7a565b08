"""The command line of both scripts, with Hugging Face's and DeepSpeed's names; every mistake in it is told at once."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from toolkit.errors import UserError, fault
from toolkit.kinds import Kind, encoding, one_of, path, real, steps_or_epoch, switch, whole
from toolkit.setup.dsjson import nearest
from toolkit.setup.schema import OPTIMIZERS, SCHEDULES

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
    ("optimisation", "lr_scheduler_type", one_of(*SCHEDULES), "linear", "constant, linear or cosine"),
    ("optimisation", "num_warmup_steps", whole(0), 0, "optimizer steps of linear warm-up"),
    ("optimisation", "max_grad_norm", real(0), 1.0, "norm to which gradients are clipped; 0 is off"),
    ("optimisation", "num_train_epochs", whole(1), 3, "passes over the data"),
    ("optimisation", "max_train_steps", whole(1), None, "optimizer steps; overrides --num_train_epochs"),
    ("optimisation", "mixed_precision", one_of("no", "bf16", "fp16"), "no", "no (fp32), bf16 or fp16"),
    ("optimisation", "sync_batch_norm", switch, False, "BatchNorm over the samples of all ranks (GPUs alone)"),
    ("optimisation", "gradient_checkpointing", switch, False, "recompute activations in the backward pass"),
    ("run", "output_dir", path, None, "folder of the run; runs/<script>-<date-time> where left out"),
    ("run", "checkpointing_steps", steps_or_epoch, None, "steps between checkpoints, or epoch; else at the end"),
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

    def error(self, message: str) -> NoReturn:
        raise UserError(*self.faults, fault("arguments", " ".join(sys.argv[1:]), message, "see --help"))

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
) -> argparse.Namespace:
    """Parses and checks the command line.

    Args:
        defaults: the script's own values in place of those in `ARGUMENTS` and of `extra`.
        extra: adds the script's own arguments to the group it is given.
        unused: names of arguments, or of the groups "model" and "data", that the script has no use for: refused when
            typed and left out of --help.
        own_model: names of arguments that shape the script's own model: refused beside --model_name_or_path.

    Returns:
        A namespace with every argument, `typed` (names the user gave, which bind where defaults yield) and `script`.

    Raises:
        UserError: one line for each unknown argument and each bad value.
        ValueError: the script's author named an argument that there is not, or a default out of its range.
    """
    if "per_device_train_batch_size" in defaults:
        raise ValueError("a script's default is the global train_batch_size: a micro-batch would change with the ranks")
    faults: list[str] = []
    parser = _Parser(description=description, allow_abbrev=False)
    parser.faults = faults
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(row[0] for row in ARGUMENTS)}
    fallback = {name: _default(name, kind, defaults.get(name, default)) for _, name, kind, default, _ in ARGUMENTS}
    of_group = {group: [row[1] for row in ARGUMENTS if row[0] == group] for group in ("model", "data")}
    unused = [each for name in unused for each in of_group.get(name, [name])]
    if strange := [name for name in unused if name not in fallback]:
        raise ValueError(f"unused names no argument: {', '.join(strange)}")
    for group, name, kind, _, text in ARGUMENTS:
        shown = "" if fallback[name] is None else f" (default: {fallback[name]})".replace("%", "%%")
        several: dict[str, Any] = {"nargs": "?", "const": True} if kind is switch else {}
        metavar = {"seed": "N", "timeout": "SECONDS"}.get(
            name, "FILE" if name.endswith(("file", "config")) else "VALUE"
        )
        groups[group].add_argument(
            f"--{name}",
            type=_collecting(name, kind, faults),
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
    if extra is not None:
        extra(parser.add_argument_group("this script"))
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
            action.type = _collecting(
                action.option_strings[0].lstrip("-") if action.option_strings else dest, kind, faults
            )
            if action.choices is not None:
                action.metavar = action.metavar or f"{{{','.join(map(str, action.choices))}}}"
                action.choices = None
    found, unknown = parser.parse_known_args(argv)
    options = [option for action in parser._actions for option in action.option_strings]
    for token in unknown:
        if token.startswith("-") or token == unknown[0]:
            faults.append(
                fault(
                    token.partition("=")[0],
                    token,
                    "unknown argument",
                    nearest(token.partition("=")[0], options) or "see --help",
                )
            )
    typed = frozenset(vars(found))
    _one_deepspeed_file(found, faults)
    values = {**fallback, "deepspeed": None, "local_rank": None, **vars(found)}
    _check_together(found, values["optimizer"], unused, own_model, faults)
    _check_streaming(found, values, faults)
    if faults:
        raise UserError(*faults)
    values = {**fallback, "deepspeed": None, "local_rank": None, **vars(found)}
    return argparse.Namespace(**values, typed=typed, script=sys.argv[0])


def _default(name: str, kind: Kind, value: Any) -> Any:
    """A script's default as `kind` reads it; None is no value."""
    try:
        if kind is str and not isinstance(value, str | None):
            raise ValueError("expected a string")
        return None if value is None else kind(str(value))
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


def _collecting(name: str, kind: Kind, faults: list[str]) -> Kind:
    """`kind`, with its complaint collected instead of ending the parse at the first."""

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            faults.append(fault(f"--{name}", text, str(error), "correct the value"))
            return None

    return read


def _one_deepspeed_file(found: argparse.Namespace, faults: list[str]) -> None:
    """--deepspeed FILE is --deepspeed_config FILE; a bare --deepspeed says no file."""
    file = getattr(found, "deepspeed", None)
    if not isinstance(file, str):
        return
    other = getattr(found, "deepspeed_config", file)
    if os.path.realpath(other) != os.path.realpath(file):
        faults.append(fault("--deepspeed", file, f"--deepspeed_config names {other}", "name one file"))
    found.deepspeed_config = file


def _check_together(
    found: argparse.Namespace, optimizer: Any, unused: Sequence[str], own_model: Sequence[str], faults: list[str]
) -> None:
    """What would be taken and then not used."""
    given = vars(found)
    script = os.path.basename(sys.argv[0])
    faults += [
        fault(f"--{name}", given[name], f"{script} has no use for it", "leave it out")
        for name in unused
        if name in given
    ]
    if "model_name_or_path" in given and "model_name_or_path" not in unused:
        reason = f"shapes the model that {script} has of its own, not {given['model_name_or_path']}"
        remedy = "leave it out, or --model_name_or_path"
        faults += [fault(f"--{name}", given[name], reason, remedy) for name in own_model if name in given]
    if "momentum" in given and optimizer in ("adam", "adamw"):
        faults.append(
            fault("--momentum", given["momentum"], f"{optimizer} has none", "leave it out, or --optimizer sgd")
        )
    if "dataset_name" in given and ("train_file" in given or "validation_file" in given):
        faults.append(
            fault("--dataset_name", given["dataset_name"], "stands beside a local file", "give one of the two")
        )
    if "dataset_config_name" in given and "dataset_name" not in given:
        value = given["dataset_config_name"]
        faults.append(fault("--dataset_config_name", value, "belongs to a data set", "give --dataset_name too"))


def _check_streaming(found: argparse.Namespace, values: Mapping[str, Any], faults: list[str]) -> None:
    """What a stream needs, and what it has not."""
    given = vars(found)
    if not values["streaming"]:
        if "shuffle_buffer_size" in given:
            reason = "goes with --streaming, which is not given"
            faults.append(fault("--shuffle_buffer_size", given["shuffle_buffer_size"], reason, "give both, or neither"))
        return
    if values["max_train_steps"] is None:
        faults.append(fault("--streaming", True, "where a stream ends is not known", "give --max_train_steps too"))
    if values["dataset_name"] is None and values["train_file"] is None:
        remedy = "give --dataset_name or --train_file too"
        faults.append(fault("--streaming", True, "the embedded sample is in memory", remedy))
    if given.get("group_by_length"):
        reason = "the lengths of a stream are not known ahead"
        faults.append(fault("--group_by_length", True, reason, "leave it or --streaming out"))
    if values["checkpointing_steps"] == "epoch":
        faults.append(fault("--checkpointing_steps", "epoch", "a stream has no epochs", "give a number of steps"))
    if values["on_bad_sample"] == "skip":
        reason = "which rows of a stream are bad is not known ahead, and every rank must make the same steps"
        faults.append(fault("--on_bad_sample", "skip", reason, "leave it or --streaming out"))
