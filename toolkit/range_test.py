"""--find_learning_rate: a range test under the chosen setup, which leaves a curve and a suggestion and no other trace.

One optimizer step at each rate of a geometric grid, from rates that change nothing to those that break the model
(Smith, arXiv 1506.01186).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from toolkit import stop, watch
from toolkit.checkpoint.position import Position
from toolkit.checkpoint.put_back import put_back
from toolkit.checkpoint.resume import resume
from toolkit.data.loader import TrainLoader
from toolkit.data.prepared import shown
from toolkit.engines import Engine, scaler
from toolkit.engines.ranks import on_rank_0
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.loop import loaders, steps
from toolkit.output import claim, let_go
from toolkit.range_curve import A_DECADE, Point, draw, found

ARGUMENT = "--find_learning_rate"
RESULT, PICTURE, KEPT = "learning_rate.json", "learning_rate.png", "before-the-range-test"
LOWEST, DECADES = 1e-7, 8
RATES = [LOWEST * 10 ** (number / A_DECADE) for number in range(DECADES * A_DECADE + 1)]
SPAN = f"{LOWEST:g} to {LOWEST * 10**DECADES:g}"
# For the end of the test alone: the loss's running mean, with the bias correction of Adam.
DECAY = 0.9
WORSE = 3.0  # how far above its lowest value the mean ends the test, in that value's size


@let_go()
def find_learning_rate(engine: Engine, data: Any, arguments: Any) -> float:
    """Try learning rates from 1e-7 to 10, and suggest the one at which the loss falls most steeply. Collective.

    Leaves learning_rate.json and learning_rate.png in the output folder. Everything is put back afterwards: a loop goes
    on as if there had been no test.

    Args:
        engine: from `prepare`.
        data: as for `fit`; evaluation sets are not used.
        arguments: from `parse_arguments`; with `resume_from_checkpoint` the test goes out from there.

    Returns:
        The suggestion, the same on every rank.

    Raises:
        UserError: the loss does not fall at any rate; the folder holds another run or test, or has no room.
        stop.Ended: a SystemExit with 143 or 130 after a signal.
    """
    setup = engine.setup
    train, _ = loaders(engine, data, arguments)
    output_dir, checkpoint = claim(arguments)
    on_rank_0(lambda: _check_free(output_dir))
    at = Position()
    if checkpoint:
        at = resume(engine, checkpoint, train.sampler, checkpoint.about.get("total_steps", 0))
    for line in (setup.banner(), *setup.notes):
        say(line)
    say(f"range test: {len(RATES)} steps with learning rates from {SPAN}; no other rate, schedule or length is used")
    stop.open_("ends without a suggestion")
    try:
        with put_back(engine, output_dir / KEPT):
            points, ended = _measure(engine, train, at)
            if stop.gate.signal:
                say(f"{stop.reason()} after {len(points)} of {len(RATES)} rates: no suggestion")
                raise stop.Ended(stop.exit_code())
    finally:
        stop.close_()
    suggestion: float = on_rank_0(lambda: _leave(output_dir, setup.title(), points, ended))
    return suggestion


def _measure(engine: Engine, train: TrainLoader, at: Position) -> tuple[list[Point], str]:
    """The points, and why there are no more. Every rank decides alike: losses are equal on all."""
    points: list[Point] = []
    mean = lowest = 0.0
    skipped = 0  # steps, one after another
    for batches in shown(steps(train, at, sys.maxsize), len(RATES), "range test"):
        if watch.current:
            watch.current.step = at.step + 1
        rate = RATES[len(points)]
        engine.set_lr(rate)
        stats = engine.train_step(batches)
        engine.check_first_step()
        at.advance(train.sampler, sys.maxsize)
        if stats.skipped:  # the rate was not tried: once more, with the next batch and a smaller loss scale
            skipped += 1
            if points and skipped == scaler.SKIPS_AT_FLOOR - 1:  # with one more the engine would end the run
                return points, f"at {rate:.2g} {skipped} steps in a row were skipped for fp16 overflow"
            continue
        if skipped:
            say(f"range test: skipped {skipped} steps at {rate:.2g} for fp16 overflow, and tried it again")
        skipped = 0
        points.append(Point(rate, stats.loss.item(), stats.grad_norm.item()))
        if not math.isfinite(points[-1].loss):
            return points, f"the loss is not finite at {rate:.2g}"
        weight = (1 - DECAY) / (1 - DECAY ** len(points))
        mean += weight * (points[-1].loss - mean)
        lowest = mean if len(points) == 1 else min(lowest, mean)
        if mean - lowest > WORSE * abs(lowest):
            return points, f"the loss has left all bounds at {rate:.2g}"
        if len(points) == len(RATES):
            break
    return points, "all rates were tried"


def _check_free(output_dir: Path) -> None:
    if (output_dir / RESULT).exists():
        raise UserError(fault("--output_dir", str(output_dir), f"already holds a {RESULT}", "name a new folder"))


def _leave(output_dir: Path, title: str, points: list[Point], ended: str) -> float:
    """Write the files and tell what they say; the suggestion."""
    curve = found(points)
    smoothed = iter(curve.smoothed)
    rows = []
    for point in points:
        finite = curve.smoothed and math.isfinite(point.loss)
        row = point._asdict() | {"smoothed": next(smoothed) if finite else None}
        rows.append(
            {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}
        )
    content = {"suggestion": curve.suggestion, "reason": curve.reason, "ended": ended, "setup": title, "points": rows}
    try:
        (output_dir / RESULT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        draw(output_dir / PICTURE, points, curve, f"{title}: range test of the learning rate")
    except OSError as error:
        reason = f"the curve cannot be written ({error.strerror})"
        raise UserError(fault("--output_dir", str(output_dir), reason, "make room for it")) from error
    where = f"the curve is in {output_dir / PICTURE}"
    if curve.suggestion is None:
        remedy = f"look at the data, the labels and the loss, or take larger batches; {where}"
        raise UserError(fault(ARGUMENT, SPAN, curve.reason, remedy))
    say(f"{ended} after {len(points)} rates; {where}")
    say(f"suggestion: --learning_rate {curve.suggestion:.2g}: {curve.reason}")
    return curve.suggestion
