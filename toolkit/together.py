"""Arguments that do not go together: what would be taken and then not used."""

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import fault

_OF_TRAINING = (  # what the range test has no use for
    *("stop_after_steps", "save_initial", "checkpointing_steps", "save_total_limit", "report_to", "eval_steps"),
    *("metric_for_best_model", "greater_is_better", "loss_spike_factor"),
    *("early_stopping_patience", "early_stopping_threshold"),
)


def one_deepspeed_file(found: argparse.Namespace, faults: list[str]) -> None:
    """--deepspeed FILE is --deepspeed_config FILE; a bare --deepspeed says no file."""
    file = getattr(found, "deepspeed", None)
    if not isinstance(file, str):
        return
    other = getattr(found, "deepspeed_config", file)
    if os.path.realpath(other) != os.path.realpath(file):
        faults.append(fault("--deepspeed", file, f"--deepspeed_config names {other}", "name one file"))
        file = found.deepspeed = None
    found.deepspeed_config = file


def check_together(
    found: argparse.Namespace,
    unused: Sequence[str],
    own_model: Sequence[str],
    script: str,
    faults: list[str],
) -> None:
    """What would be taken and then not used."""
    given = vars(found)
    script = os.path.basename(script)
    faults += [
        fault(f"--{name}", given[name], f"{script} has no use for it", "leave it out")
        for name in unused
        if name in given
    ]
    if "model_name_or_path" in given and "model_name_or_path" not in unused:
        reason = f"shapes the model that {script} has of its own, not {given['model_name_or_path']}"
        remedy = "leave it out, or --model_name_or_path"
        faults += [fault(f"--{name}", given[name], reason, remedy) for name in own_model if name in given]
    if "dataset_name" in given and ("train_file" in given or "validation_file" in given):
        faults.append(
            fault("--dataset_name", given["dataset_name"], "stands beside a local file", "give one of the two")
        )
    if given.get("find_learning_rate"):
        reason = "stands beside --find_learning_rate, which does not train and keeps nothing but its curve"
        faults += [
            fault(f"--{name}", given[name], reason, "leave one of the two out")
            for name in _OF_TRAINING
            if name in given
        ]
    if "dataset_config_name" in given and "dataset_name" not in given:
        value = given["dataset_config_name"]
        faults.append(fault("--dataset_config_name", value, "belongs to a data set", "give --dataset_name too"))


def check_streaming(found: argparse.Namespace, values: Mapping[str, Any], faults: list[str]) -> None:
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
    if values["class_weights"] is not None:
        reason = "which class each row of a stream has is not known ahead"
        faults.append(fault("--class_weights", values["class_weights"], reason, "leave it or --streaming out"))
    if values["on_bad_sample"] == "skip":
        reason = "which rows of a stream are bad is not known ahead, and every rank must make the same steps"
        faults.append(fault("--on_bad_sample", "skip", reason, "leave it or --streaming out"))


def check_early_stopping(found: argparse.Namespace, values: Mapping[str, Any], faults: list[str]) -> None:
    """What says how an evaluation is judged goes with what judges it."""
    given = vars(found)
    judged = "metric_for_best_model" in given or values["early_stopping_patience"] is not None
    if "early_stopping_threshold" in given and values["early_stopping_patience"] is None:
        reason, remedy = "goes with --early_stopping_patience, which is not given", "give both, or neither"
        faults.append(fault("--early_stopping_threshold", given["early_stopping_threshold"], reason, remedy))
    if "greater_is_better" in given and not judged:
        reason, remedy = "goes with --metric_for_best_model, which is not given", "give both, or neither"
        faults.append(fault("--greater_is_better", given["greater_is_better"], reason, remedy))


def check_trackers(values: Mapping[str, Any], faults: list[str]) -> None:
    """What a run is reported to is installed, by the name that it has for pip too."""
    faults += [
        fault("--report_to", name, "is not installed", f"pip install {name}, or leave it out")
        for name in values["report_to"] or ()
        if importlib.util.find_spec(name) is None
    ]
