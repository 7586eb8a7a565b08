"""Batch arithmetic: global batch = micro-batch x accumulation x data-parallel ranks. Pure; no process needed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolkit.errors import UserError, fault

GLOBAL, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@dataclass(frozen=True)
class Given:
    """A value and its origin: "--learning_rate", "ds_configs/zero2.json: gradient_clipping", "script's default".

    `overrode` is what else was said, and does not hold: "script's default 64".
    """

    value: Any
    origin: str
    overrode: str = ""

    def over(self, *others: "Given | None") -> "Given":
        """The same, telling which of `others` say something else."""
        other = [f"{each.origin} {each.value}" for each in others if each is not None and each.value != self.value]
        return replace(self, overrode=", ".join(other))


ONE_MICRO_BATCH = Given(1, "default")


@dataclass(frozen=True)
class BatchSizes:
    """`padding_rows` of the micro x accumulation x ranks rows of a step are padding of weight 0."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    data_parallel_size: int
    padding_rows: int
    origins: Mapping[str, str]
    overrode: Mapping[str, str]
    notes: tuple[str, ...]


def settle_batch(
    given: Mapping[str, Given],
    default: Given,
    ranks: int,
    *,
    counted: str = "",
    auto_accumulation: Given = ONE_MICRO_BATCH,
) -> BatchSizes:
    """Derives what is missing of the three numbers.

    Args:
        given: what the user typed or a file says, keyed by DeepSpeed's names; all of it binds.
        default: the script's global batch, which yields to anything given and may be padded.
        ranks: data-parallel ranks; `counted` says where their number comes from.
        auto_accumulation: micro-batches a rank where nobody gave a number; lowered until it divides the global batch.

    Raises:
        UserError: a number below 1, or numbers that do not multiply or divide.
    """
    low = [
        fault(known.origin, known.value, "must be 1 or more", "give a positive number of samples or steps")
        for known in given.values()
        if known.value < 1
    ]
    if low:
        raise UserError(*low)
    whole, micro, steps = given.get(GLOBAL), given.get(MICRO), given.get(ACCUMULATION)
    notes: list[str] = []
    if micro is not None and whole is None:
        steps = steps or auto_accumulation
        product = micro.value * steps.value * ranks
        whole = Given(product, "derived").over(default)
        if product != default.value:
            notes.append(
                f"train_batch_size is {product}, from {micro.origin}, instead of {default.value}, {default.origin}"
            )
    elif whole is None:
        steps = steps or _divisor(default.value, ranks, auto_accumulation)
        micro = Given(-(-default.value // (steps.value * ranks)), "derived")
        whole = default
    elif micro is not None:
        steps = steps or Given(_quotient(whole, micro, ranks, counted), "derived")
        product = micro.value * steps.value * ranks
        if product != whole.value:
            raise UserError(_disagree(whole, micro, steps, ranks, counted))
    else:
        steps = steps or _divisor(whole.value, ranks, auto_accumulation)
        micro = Given(_quotient(whole, steps, ranks, counted), "derived")
    if GLOBAL in given:
        whole = whole.over(default)
    rows = micro.value * steps.value * ranks
    if rows != whole.value:
        notes.append(
            f"train_batch_size {whole.value} ({whole.origin}) is not a multiple of {steps.value} x {ranks}: "
            f"micro-batches of {micro.value}, {rows - whole.value} of {rows} rows are padding of weight 0"
        )
    origins = {GLOBAL: whole.origin, MICRO: micro.origin, ACCUMULATION: steps.origin}
    overrode = {GLOBAL: whole.overrode, MICRO: micro.overrode, ACCUMULATION: steps.overrode}
    padding = rows - whole.value
    return BatchSizes(whole.value, micro.value, steps.value, ranks, padding, origins, overrode, tuple(notes))


def _divisor(whole: int, ranks: int, wished: Given) -> Given:
    """The largest accumulation up to `wished` that divides the global batch; 1 where none does."""
    return Given(next((n for n in range(wished.value, 1, -1) if whole % (n * ranks) == 0), 1), wished.origin)


def _ranks(ranks: int, counted: str) -> str:
    return f"{ranks} data-parallel rank{'s' * (ranks != 1)}" + f" ({counted})" * bool(counted)


def _quotient(whole: Given, factor: Given, ranks: int, counted: str) -> int:
    """whole / (factor x ranks), an error where it is not a positive integer."""
    product = factor.value * ranks
    if whole.value < product:
        reason = f"{whole.value} is smaller than {factor.value} x {ranks}"
    elif whole.value % product:
        reason = f"{whole.value} is not a multiple of {factor.value} x {ranks}"
    else:
        return whole.value // product
    reason += f" ({factor.origin} x {_ranks(ranks, counted)})"
    raise UserError(fault(whole.origin, whole.value, reason, f"give a multiple of {product}, or change the others"))


def _disagree(whole: Given, micro: Given, steps: Given, ranks: int, counted: str) -> str:
    product = micro.value * steps.value * ranks
    reason = (
        f"{micro.origin} {micro.value} x {steps.origin} {steps.value} x {_ranks(ranks, counted)} = {product}, "
        f"not {whole.value}"
    )
    return fault(whole.origin, whole.value, reason, f"write {product}, or drop one of the three")
