"""Kinds of values in the key schemas: positive, whole, integer, number, bool, text, list, object, any."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from toolkit.setup import schema

EXPECTED = {
    "positive": "integer of 1 or more",
    "whole": "integer of 0 or more",
    "integer": "integer",
    "number": "number of 0 or more",
    "bool": "true or false",
    "text": "string",
    "list": "list",
    "object": "object",
}


def is_kind(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "positive" | "whole" | "integer":
            whole = number and abs(value) <= schema.LARGEST and value == int(value)
            return whole and value >= {"positive": 1, "whole": 0}.get(kind, value)
        case "number":
            return number and 0 <= value <= sys.float_info.max
        case "any":
            return True
        case "object":
            return isinstance(value, Mapping)
    return isinstance(value, {"bool": bool, "text": str, "list": list}[kind])


def unquoted(text: str, kind: str) -> Any:
    """What a value in quotes was meant to be; None where it is not of the kind without them either."""
    try:
        value = json.loads(text.lower(), parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None
    if kind in ("text", "any") or not is_kind(value, kind):
        return None
    return int(value) if kind in ("positive", "whole", "integer") else value
