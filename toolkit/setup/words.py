"""Words for error lines: what came, by JSON's names of types, and the nearest known name of a misspelt one."""

import difflib
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_TYPES = {str: "string", bool: "boolean", dict: "object", list: "list", int: "integer", float: "number"}
_LONGEST = 80  # characters of a value in a reason


def type_of(value: Any) -> str:
    """JSON's name of a value's type: null, string, boolean, object, list, integer, number."""
    return "null" if value is None else _TYPES.get(type(value), "value")


def came(value: Any) -> str:
    """A value with its type in words: integer 0, string "4", null."""
    shown = "" if value is None else f" {as_json(value)}"
    return type_of(value) + (f"{shown[: _LONGEST - 3]}..." if len(shown) > _LONGEST else shown)


def as_json(value: Any) -> str:
    """As JSON writes it; what only YAML has (dates, bytes, keys that are no text) as Python does."""
    try:
        return json.dumps(value, default=str)
    except TypeError:
        return repr(value)


def nearest(name: str, names: Iterable[str], cutoff: float = 0.7) -> str:
    """ "did you mean x?", or "" where nothing is near."""
    return closest(name, names, cutoff)[1]


def closest(name: str, names: Iterable[str], cutoff: float = 0.7) -> tuple[float, str]:
    """The likeness of the nearest name, by difflib's get_close_matches, and "did you mean x?"; (0, "") without one.

    A file of thousands of unknown keys must not take seconds, so difflib sees only names that share enough letters.
    """
    form = _form(name)
    letters = _letters(form)
    near = [
        (each, known)
        for each, known, theirs, only_here, only_there in _table(tuple(names), len(form), cutoff)
        if (letters & ~theirs).bit_count() <= only_here and (theirs & ~letters).bit_count() <= only_there
    ]
    if not near:
        return 0.0, ""
    best, matcher = (cutoff, "", ""), difflib.SequenceMatcher()
    matcher.set_seq2(form)
    for each, known in near:
        matcher.set_seq1(each)
        if matcher.real_quick_ratio() >= best[0] and matcher.quick_ratio() >= best[0]:
            best = max(best, (matcher.ratio(), each, known))
    return (best[0], f"did you mean {best[2]}?") if best[2] else (0.0, "")


@lru_cache(maxsize=1024)
def _table(names: tuple[str, ...], length: int, cutoff: float) -> list[tuple[str, str, int, float, float]]:
    """(form, name, letters, letters that a word of this length may have alone, those that the form may have alone)."""
    rows = []
    for name in names:
        form = _form(name)
        shared = cutoff * (length + len(form)) / 2 - 1e-9  # at least, for a ratio of 2 * shared / (length + len(form))
        if shared <= min(length, len(form)):
            rows.append((form, name, _letters(form), length - shared, len(form) - shared))
    return rows


def _letters(form: str) -> int:
    """A bit for each letter. Where two letters have one bit, more words pass."""
    bits = 0
    for letter in set(form):
        bits |= 1 << ord(letter) % 64
    return bits


def _form(name: str) -> str:
    return name.lower().replace("-", "_")
