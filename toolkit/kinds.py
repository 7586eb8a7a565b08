"""Kinds of values on a command line: each reads a text, or says in a ValueError what it expected."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from toolkit.setup.schema import LARGEST
from toolkit.setup.words import nearest

Kind: TypeAlias = Callable[[str], Any]


def whole(low: int) -> Kind:
    """An integer of at least `low` that 64 bits hold."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("expected an integer") from None
        if value < low:
            raise ValueError(f"must be {low} or more")
        if value > LARGEST:
            raise ValueError(f"must be {LARGEST} or less")
        return value

    return read


def real(low: float, high: float = math.inf, *, above: bool = False) -> Kind:
    """A finite number in [low, high), or (low, high) where `above`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("expected a number") from None
        if not math.isfinite(value):
            raise ValueError("expected a finite number")
        if value < low or value >= high or (above and value == low):
            raise ValueError(
                f"must be {'above' if above else 'at least'} {low:g}" + f" and below {high:g}" * (high < math.inf)
            )
        return value

    return read


def one_of(*names: str) -> Kind:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(
                f"expected one of {', '.join(names)}" + (f" ({hint})" if (hint := nearest(text, names)) else "")
            )
        return text

    return read


def switch(text: str) -> bool:
    """true or false, as `--name`, `--name true` and `--name false` give it."""
    if text.lower() not in ("true", "1", "yes", "false", "0", "no"):
        raise ValueError("expected true or false")
    return text.lower() in ("true", "1", "yes")


def names(text: str) -> list[str]:
    """Names between commas."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise ValueError("expected names, with commas or spaces between them")
    return found


def path(text: str) -> str:
    """A path that is not empty: the empty one is the working folder."""
    if not text:
        raise ValueError("expected a path")
    return text


def encoding(text: str) -> str:
    """The name of an encoding of text that Python knows."""
    try:
        known = codecs.lookup(text)._is_text_encoding  # of "hex" and its like it is False
    except LookupError:
        known = False
    if not known:
        raise ValueError("unknown encoding, expected utf-8, latin-1, cp1252, utf-16 or another that Python knows")
    return text


def steps_or_epoch(text: str) -> int | str:
    """A number of optimizer steps, or `epoch`."""
    try:
        return text if text == "epoch" else whole(1)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or epoch") from None


def several_of(*names: str) -> Kind:
    """Names separated by commas, each once; `none` is the empty list."""

    def read(text: str) -> list[str]:
        found = [] if text == "none" else text.split(",")
        for each in found:
            one_of("none", *names)(each)
        if len(set(found)) < len(found) or "none" in found:
            raise ValueError(f"expected none, or some of {', '.join(names)}, each once")
        return found

    return read


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, each of its names once."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f'expected a JSON object like {{"power": 2.0}}: {error}') from None
    if not isinstance(value, dict):
        raise ValueError('expected a JSON object like {"power": 2.0}')
    return value


def weights(text: str) -> Any:
    """`balanced`, or JSON: a list of numbers above 0, one a class, or an object of them by the classes' names."""
    if text == "balanced":
        return text
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError):
        value = None
    if not value or not isinstance(value, list | dict):
        raise ValueError('expected balanced, a list like [1, 2.5], or an object like {"owl": 2.5}')
    number = real(0, above=True)
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ValueError(f"{each!r} is no number")
        number(str(each))
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} stands twice")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def as_typed(value: Any) -> str:
    """The text that says a value on a command line."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return ",".join(value) or "none"
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else str(value)
