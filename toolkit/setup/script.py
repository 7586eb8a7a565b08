"""What a script says about its arguments, read from its text: it is not run."""

import argparse
import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit import kinds
from toolkit.errors import Place, UserError, fault

_KINDS: dict[str, Any] = {"real": kinds.real, "whole": kinds.whole, "one_of": kinds.one_of}
_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "path": kinds.path, "switch": kinds.switch}
_OPTIONS = ("choices", "default", "action", "nargs", "const", "help", "metavar", "dest")


@dataclass(frozen=True)
class Script:
    """`arguments` are those of `parse_arguments`; None where the script does not call it with literals, so that it
    decides by itself. `notes` say what its text does not tell."""

    path: str
    arguments: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def read_script(path: str) -> Script:
    """Finds the script's one call of `parse_arguments`, and the literals that it is given.

    Raises:
        UserError: a script that is missing, or is not Python.
    """
    try:
        tree = ast.parse(Path(path).read_bytes(), path)
    except FileNotFoundError:
        raise UserError(fault("script", path, f"no such file, searched from {Path.cwd()}", "give its path")) from None
    except (SyntaxError, ValueError) as error:
        line, reason = getattr(error, "lineno", None), getattr(error, "msg", None) or str(error)
        where = Place(path, line=line)
        raise UserError(fault(where, path, f"is not Python: {reason} at line {line}", "name a Python script")) from None
    except OSError as error:
        raise UserError(fault("script", path, f"unreadable: {error.strerror}", "give its path")) from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == "parse_arguments"]
    if len(calls) != 1:
        return Script(path, None, [f"{path} does not call toolkit.parse_arguments: its arguments are not checked"])
    assigned: dict[str, list[ast.expr]] = {}
    for assignment in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        for target in assignment.targets:
            assigned.setdefault(_name(target), []).append(assignment.value)
    constants = {name: values[0] for name, values in assigned.items() if len(values) == 1}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found: dict[str, Any] = {"description": path, "defaults": {}}
    for keyword in calls[0].keywords:
        node: ast.AST = constants.get(_name(keyword.value), keyword.value)
        if keyword.arg == "extra" and _name(node) in functions:
            found["extra"] = _own_arguments(functions[_name(node)])
        elif keyword.arg in ("defaults", "unused", "own_model", "layers"):
            try:
                found[keyword.arg] = ast.literal_eval(node)
            except ValueError:
                return Script(path, None, [f"{path}: {keyword.arg} is not a literal: its arguments are not checked"])
    return Script(path, found)


def _name(node: ast.AST) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", None) or ""


def _own_arguments(function: ast.FunctionDef) -> Callable[[argparse._ArgumentGroup], None]:
    """The `add_argument` calls of a function, with what is literal in them."""
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and _name(n.func) == "add_argument"]

    def add(group: argparse._ArgumentGroup) -> None:
        for call in calls:
            options: dict[str, Any] = {}
            for keyword in call.keywords:
                if keyword.arg == "type":
                    options["type"] = _kind(keyword.value)
                elif keyword.arg in _OPTIONS and (value := _literal(keyword.value)) is not _DECIDED:
                    options[keyword.arg] = value
            names = [value for value in map(_literal, call.args) if isinstance(value, str)]
            if names:
                group.add_argument(*names, **options)

    return add


_DECIDED = object()  # by the script


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _DECIDED


def _kind(node: ast.AST) -> Any:
    """The type of an argument where it is a plain one or one of `toolkit.kinds`; any text where the script decides."""
    if isinstance(node, ast.Call) and _name(node.func) in _KINDS:
        values = [_literal(each) for each in node.args]
        named = {each.arg: _literal(each.value) for each in node.keywords if each.arg is not None}
        if _DECIDED not in (*values, *named.values()):
            return _KINDS[_name(node.func)](*values, **named)
    return _TYPES.get(_name(node), str)
