"""report.html: a comparison as one page, without a script and without anything to load."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from toolkit.compare.figures import draw_all, rate
from toolkit.compare.runs import DIFFERS, FAILED, ROUNDING, SAME, TOLERANCE, Comparison, Measured, Run
from toolkit.compare.svg import clean
from toolkit.version import __version__

_HERE = Path(__file__).parent
_ABSENT = "–"
_OF_A_RANK = ("rank", "local_rank")


class Cell(NamedTuple):
    heading: str
    text: str
    more: str = ""  # what a pointer on it shows


class Difference(NamedTuple):
    name: str
    reference: str
    value: str
    origin: str


def write_page(comparison: Comparison, path: Path) -> None:
    """Write `comparison` as one self-contained page. What comes from a run is text in it, never markup.

    Raises:
        OSError: the file cannot be written.
    """
    jinja = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,  # not of what is Markup already
    )
    jinja.filters["breaking"] = _breaking
    page = jinja.get_template("page.html.jinja").render(
        title=f"Comparison of {comparison.script or 'runs'}",
        summary=_summary(comparison),
        notes=comparison.notes,
        verdicts=_table(comparison.measured, _training),
        costs=_table([each for each in comparison.measured if each.verdict not in (FAILED, ROUNDING)], _costs),
        failed=[run for run in comparison.runs if run.errors],
        figures=draw_all(comparison),
        differences=_differences(comparison),
        reference=comparison.reference,
        environment=list(_flat(comparison.environment)),
        version=__version__,
    )
    path.write_text(page, encoding="utf-8")


def _breaking(name: str) -> Markup:
    """A dotted name that may be broken after its dots."""
    return Markup.escape(clean(name)).replace(".", Markup(".<wbr>"))


def _summary(comparison: Comparison) -> str:
    count = Counter(each.verdict for each in comparison.measured)
    setups = len(comparison.measured) - count[ROUNDING]
    verdicts = ", ".join(f"{count[name]} {name}" for name in (SAME, TOLERANCE, DIFFERS, FAILED) if count[name])
    reference = comparison.reference
    beside = f"The reference is {reference.label}." if reference is not None else "There is no reference."
    return f"{setups} setup{'s' * (setups != 1)}{': ' * bool(verdicts)}{verdicts}. {beside}"


def _table(
    measured: Sequence[Measured], cells: Callable[[Measured], list[Cell]]
) -> list[tuple[Measured, tuple[Cell, ...]]]:
    """A row a setup, without the columns in which none says anything."""
    columns = zip(*map(cells, measured), strict=True)
    told = [column for column in columns if any(cell.text != _ABSENT for cell in column)]
    return list(zip(measured, zip(*told, strict=True), strict=True))


def _training(each: Measured) -> list[Cell]:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in sorted(each.metrics.items()))
    worst = _ABSENT if each.parameter is None else f"{each.parameter:.1e} {each.parameter_name}".rstrip()
    verdict = f"{each.verdict} from step {each.step}" if each.step is not None else each.verdict
    return [
        Cell("verdict", verdict),
        Cell("strategy", each.strategy or _ABSENT),
        Cell("ranks", str(each.ranks or _ABSENT)),
        Cell("precision", each.precision or _ABSENT),
        Cell("loss", _small(each.loss)),
        Cell("grad norm", _small(each.grad_norm)),
        Cell("learning rate", _small(each.learning_rate)),
        Cell("weights", _small(each.weights)),
        Cell("worst parameter", worst),
        Cell("final metrics", metrics or _ABSENT),
    ]


def _costs(each: Measured) -> list[Cell]:
    told = "" if each.samples_per_second is None else rate(each.samples_per_second)
    if each.spread is not None:
        told += f" ({rate(each.spread[0])} to {rate(each.spread[1])})"
    saved = [_bytes(each.checkpoint_bytes), _unit(each.checkpoint_seconds, ".2f", " s")]
    peaks = each.peak_memory_bytes
    return [
        Cell("ranks", str(each.ranks or _ABSENT)),
        Cell("samples/s", told or _ABSENT),
        Cell("scaling", _unit(each.efficiency, ".0%")),
        Cell("first step", _unit(each.seconds_to_first_step, ".1f", " s")),
        Cell("peak memory", _bytes(max(peaks, default=None)), ", ".join(map(_bytes, peaks))),
        Cell("checkpoint", ", ".join(text for text in saved if text != _ABSENT) or _ABSENT),
        Cell("communication", _bytes(each.communication_bytes)),
        Cell("idle", _unit(each.idle, ".0%")),
        Cell("idle, even", _unit(each.idle_even, ".0%")),
        Cell("idle, bound", _unit(each.idle_bound, ".0%")),
    ]


def _small(value: float | None) -> str:
    return _ABSENT if value is None else "0" if value == 0 else f"{value:.1e}"


def _unit(value: float | None, form: str, unit: str = "") -> str:
    return _ABSENT if value is None else f"{value:{form}}{unit}"


def _bytes(value: int | None) -> str:
    if value is None:
        return _ABSENT
    return f"{value / 2**30:.2f} GiB" if value >= 2**31 else f"{value / 2**20:.1f} MiB"


def _differences(comparison: Comparison) -> list[tuple[str, list[Difference]]]:
    """(label, values of its setup that are not the reference's), of every other run that tells its setup."""
    reference = comparison.reference
    if reference is None:
        return []
    told = _values(reference)
    found = []
    for run in comparison.runs:
        if run is reference or not run.summary.get("setup"):
            continue
        own = _values(run)
        names = [name for name in {**told, **own} if told.get(name, _ABSENT) != own.get(name, _ABSENT)]
        rows = [
            Difference(name, told.get(name, _ABSENT), own.get(name, _ABSENT), run.origin(name.partition(".")[0]))
            for name in names
        ]
        found.append((run.label, rows))
    return found


def _values(run: Run) -> dict[str, str]:
    values = {name: run.value(name) for name in run.summary.get("setup", {}) if name not in _OF_A_RANK}
    return dict(_flat(values))


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, text) of every value that is not None, however deep it lies."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
            yield f"{before}{name}", text
