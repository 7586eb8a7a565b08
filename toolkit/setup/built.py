"""A setup from numbers alone, for tests and for a loop of one's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolkit.errors import UserError, fault
from toolkit.setup.batch import Given
from toolkit.setup.checks import build_faults, owned_faults
from toolkit.setup.dsjson import DeepSpeedFile, check_keys
from toolkit.setup.launcher import Launch
from toolkit.setup.precision import asked_precision
from toolkit.setup.renamed import migrate
from toolkit.setup.settle import settle
from toolkit.setup.settled import STRATEGIES, ZERO_STAGE, Setup
from toolkit.setup.values import VALUES, settle_values

BY_HAND = "Setup.build"


def setup_by_hand(
    launch: Launch,
    strategy: str,
    stages: int | None,
    partition: str,
    batch: Mapping[str, int | None],
    default_train_batch_size: int,
    mixed_precision: str,
    deepspeed: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Setup:
    """See `Setup.build`."""
    if strategy not in STRATEGIES:
        raise UserError(fault("strategy", strategy, "unknown", f"one of {', '.join(STRATEGIES)}"))
    remedy = f"one of {', '.join(VALUES)}"
    if unknown := [fault(name, value, "unknown", remedy) for name, value in values.items() if name not in VALUES]:
        raise UserError(*unknown)
    given = {key: value for key, value in batch.items() if value is not None}
    file, notes, faults = migrate(DeepSpeedFile(BY_HAND, deepspeed))
    settings = {**given, **values, "mixed_precision": mixed_precision}
    faults += build_faults(strategy, launch.world_size, launch.rank, partition, settings) + check_keys(file)
    faults = faults or owned_faults(file, strategy, ZERO_STAGE.get(strategy))
    if faults:
        raise UserError(*faults)
    if stages is None:
        stages = launch.world_size if strategy.startswith("pipeline") else 1
    by_name = Given(mixed_precision, f"{BY_HAND}: mixed_precision")
    precision, faults = asked_precision(None if mixed_precision == "no" else by_name, None, file, by_name)
    typed = {name: Given(value, f"{BY_HAND}: {name}") for name, value in values.items()}
    defaults = {name: Given(default, BY_HAND) for name, default in VALUES.items()}
    settled = settle_values(file, typed, defaults, faults, notes)
    if faults:
        raise UserError(*faults)
    return settle(
        replace(launch, requested_processes=Given(launch.world_size, f"{BY_HAND}: world_size")),
        Given(strategy, BY_HAND),
        Given(stages, BY_HAND),
        Given(partition, BY_HAND),
        {key: Given(value, f"{BY_HAND}: {key}") for key, value in given.items()},
        Given(default_train_batch_size, "default"),
        settled,
        file,
        precision=precision,
        notes=notes,
    )
