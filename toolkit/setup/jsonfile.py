"""A JSON file read alike under every launcher: comments and trailing commas pass, what readers differ in is refused.

DeepSpeed itself reads hjson; Accelerate and transformers read strict JSON and take the last of two equal keys.
"""

import json
import os
import re
from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import Place, UserError, fault
from toolkit.setup.words import type_of

LARGEST = 2**63 - 1  # of any integer: what 64 bits hold

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|(//[^\n]*|\#[^\n]*|/\*.*?\*/)", re.DOTALL)
_COMMA = re.compile(rf"{_STRING}|(?<![\s,{{\[])(\s*),(?=\s*[}}\]])", re.DOTALL)
_TOKEN = re.compile(rf'{_STRING}|[{{}}\[\],:]|[^\s{{}}\[\],:"]+', re.DOTALL)


def read_json(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The object in a file, and the line of each of its keys ("zero_optimization.stage": 4).

    Raises:
        UserError: a file that is missing, undecodable, empty, not JSON or not an object; keys that stand twice (but for
            those that begin with `_`), NaN, infinity, integers of more than 64 bits. Each with line and column.
    """
    text = read_text(path)
    plain = _COMMA.sub(_without_comma, _COMMENT.sub(_blank, text))
    if not plain.strip():
        reason = "the file is empty (line 1 column 1)"
        raise UserError(fault(Place(path, line=1), "", reason, "write {} or a configuration"))
    try:
        config = json.loads(plain, parse_int=_integer)
    except RecursionError:
        reason = "nested too deep"
        raise UserError(fault(Place(path), text[:20] + "...", reason, "write a configuration")) from None
    except json.JSONDecodeError as error:
        shown = text.split("\n")[error.lineno - 1].strip()
        reason = f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
        remedy = "write JSON: double quotes, a comma between two keys"
        raise UserError(fault(Place(path, line=error.lineno), shown, reason, remedy)) from None
    if not isinstance(config, dict):
        before = plain[: len(plain) - len(plain.lstrip())]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        reason = f"expected an object at line {line} column {column}, got {type_of(config)}"
        raise UserError(fault(Place(path, line=line), config, reason, 'write {"key": value}'))
    lines, faults = _keys(path, plain, config)
    if faults:
        raise UserError(*faults)
    return config, lines


def read_text(path: str) -> str:
    """UTF-8, with or without a byte-order mark; UserError with line and column for what is not."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # reading a device or a pipe may never end
            kind = "a folder" if os.path.isdir(path) else "a device or a pipe"
            raise UserError(fault(Place(path), "no file", f"unreadable: {kind}", "give the path of a readable file"))
        return Path(path).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        reason = f"searched from {os.getcwd()}"
        raise UserError(fault(Place(path), "no such file", reason, "give the path of a file")) from None
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line = before.count(10) + 1
        start = f"line {line} column {error.start - before.rfind(10)}"
        reason = f"unreadable: byte 0x{error.object[error.start]:02x} at {start} is not UTF-8"
        raise UserError(fault(Place(path, line=line), "not text", reason, "save it as UTF-8 text")) from None
    except (OSError, ValueError) as error:
        reason = f"unreadable: {getattr(error, 'strerror', None) or error}"
        raise UserError(fault(Place(path), "no file", reason, "give the path of a readable file")) from None


def _blank(match: re.Match[str]) -> str:
    """A comment as spaces: what follows keeps its line and column."""
    return match[0] if match[1] is None else re.sub(r"[^\n]", " ", match[0])


def _without_comma(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f"{match[1]} "


def _integer(text: str) -> int:
    return int(text) if len(text) <= 20 else LARGEST + 1


def _keys(path: str, text: str, config: Any) -> tuple[dict[str, int], list[str]]:
    """The line of each key in valid JSON, and a line for each key or value that is refused."""
    lines: dict[str, int] = {}
    faults: list[str] = []
    breaks = [-1, *(match.start() for match in re.finditer("\n", text))]
    for key, token, start, previous in _walk(text):
        line = bisect(breaks, start)
        spot = f"line {line} column {start - breaks[line - 1]}"
        where = Place(path, key, line)
        if previous is not None:
            if previous and not key.rpartition(".")[2].startswith("_"):
                faults.append(
                    fault(where, _at(config, key), f"stands twice, at line {lines[key]} and at {spot}", "keep one")
                )
            lines.setdefault(key, line)
        elif token in ("NaN", "Infinity", "-Infinity"):
            faults.append(fault(where, token, f"is not JSON at {spot}", "write a finite number"))
        elif re.fullmatch(r"-?\d+", token) and abs(_integer(token)) > LARGEST:
            shown = token if len(token) <= 20 else f"{token[:10]}... ({len(token)} characters)"
            faults.append(fault(where, shown, f"is more than 64 bits hold at {spot}", "write a smaller number"))
    return lines, faults


def _at(config: Any, key: str) -> Any:
    """The value at a key path, the last of several; the path itself where a name has a dot."""
    for name in key.split("."):
        if isinstance(config, list) and name.isdecimal() and int(name) < len(config):
            config = config[int(name)]
        elif isinstance(config, dict) and name in config:
            config = config[name]
        else:
            return key
    return config


def _walk(text: str) -> Iterator[tuple[str, str, int, bool | None]]:
    """(key path, token, start, whether the key stood there before) of each key; of each value with None at the end."""
    path: list[str] = []  # of the value that comes next
    seen: list[set[str] | None] = []  # keys of the open objects, None for a list
    is_key = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "{[":
            seen.append(set() if token == "{" else None)
            path += ["0"] if token == "[" else []
            is_key = token == "{"
        elif token in "}]":
            if seen.pop() is None or not is_key:  # an empty object has added no key
                path.pop()
            is_key = False
        elif token == ",":
            is_key = seen[-1] is not None
            last = path.pop()
            path += [] if is_key else [str(int(last) + 1)]
        elif is_key and (keys := seen[-1]) is not None:
            name = json.loads(token)
            path.append(name)
            yield ".".join(path), token, match.start(), name in keys
            keys.add(name)
            is_key = False
        elif token != ":":
            yield ".".join(path), token, match.start(), None
