"""What a script says about its arguments, read from its text: it is not run."""

import argparse
import ast
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit import kinds
from toolkit.errors import Place, UserError, fault
from toolkit.setup.literals import Literals

_KINDS: dict[str, Any] = {"real": kinds.real, "whole": kinds.whole, "one_of": kinds.one_of}
_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "path": kinds.path, "switch": kinds.switch}
# Of `add_argument`: what decides how a command line is read, and what may stay the script's secret.
_DECIDING, _OPEN = ("action", "nargs", "const", "dest"), ("choices", "default", "help", "metavar", "required")
_LITERALS = ("defaults", "unused", "own_model", "layers")
_NAME = "parse_arguments"


@dataclass(frozen=True)
class Script:
    """`arguments` are those of `parse_arguments`; None where the script does not call it with literals, so that it
    decides by itself. `notes` say what its text does not tell."""

    path: str
    arguments: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def read_script(path: str) -> Script:
    """Finds the script's one call of `toolkit.parse_arguments`, and the literals that it is given.

    Raises:
        UserError: a script that is missing, is not Python, or gives what `parse_arguments` does not take.
    """
    tree = _parse(path)
    ours, modules = _imported(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_ours(node.func, ours, modules)]
    if len(calls) != 1:
        lines = " and ".join(str(call.lineno) for call in sorted(calls, key=lambda call: call.lineno))
        what = f"calls toolkit.{_NAME} more than once, at lines {lines}" if calls else f"does not call toolkit.{_NAME}"
        return Script(path, None, [f"{path} {what}: its arguments are not checked"])
    found: dict[str, Any] = {"description": path, "defaults": {}}
    try:
        found |= _given(calls[0], Literals(tree))
    except ValueError as error:
        return Script(path, None, [f"{path}, line {calls[0].lineno}: {error}: its arguments are not checked"])
    _try(path, calls[0], found)
    return Script(path, found)


def _parse(path: str) -> ast.Module:
    try:
        if not path or os.path.exists(path) and not os.path.isfile(path):
            reason = "is empty" if not path else "is not a file"
            raise UserError(fault("script", path, reason, "give the path of a Python script"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a text: the script's matter
            return ast.parse(Path(path).read_bytes(), path)
    except FileNotFoundError:
        raise UserError(fault("script", path, f"no such file, searched from {Path.cwd()}", "give its path")) from None
    except (MemoryError, RecursionError):
        raise UserError(fault(Place(path), path, "is nested too deep", "name a plain Python script")) from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        reason = getattr(error, "msg", None) or str(error)
        told = f"is not Python: {reason}" + f" at line {line}" * bool(line)
        raise UserError(fault(Place(path, line=line), path, told, "name a Python script")) from None
    except OSError as error:
        raise UserError(fault("script", path, f"unreadable: {error.strerror}", "give its path")) from None


def _imported(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The script's names of `parse_arguments`, and those of the modules that have it."""
    ours, modules = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in ("toolkit", "toolkit.arguments"):
                    modules.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module in ("toolkit", "toolkit.arguments"):
            ours |= {each.asname or each.name for each in node.names if each.name == _NAME}
            modules |= {each.asname or each.name for each in node.names if each.name == "arguments"}
            ours |= {_NAME} if any(each.name == "*" for each in node.names) else set()
    return ours, modules | ({"toolkit.arguments"} if "toolkit" in modules else set())


def _is_ours(node: ast.expr, ours: set[str], modules: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ours
    return isinstance(node, ast.Attribute) and node.attr == _NAME and _text(node.value) in modules


def _given(call: ast.Call, literals: Literals) -> dict[str, Any]:
    """What the call hands over; ValueError says what of it the text does not tell."""
    if not literals.imported(call.func):
        raise ValueError(f"{_text(call.func)} may stand for something else")
    found: dict[str, Any] = {}
    positional = [("argv", argument) for argument in call.args]
    for name, node in [*positional, *((keyword.arg, keyword.value) for keyword in call.keywords)]:
        if name is None or isinstance(node, ast.Starred):
            raise ValueError(f"{_NAME} gets * or **")
        try:
            if name == "argv" and _text(node) not in ("None", "sys.argv[1:]"):
                raise ValueError("is not the command line")
            if name == "extra" and not (isinstance(node, ast.Constant) and node.value is None):
                found[name] = _own_arguments(literals.function(node), literals)
            elif name in _LITERALS:
                found[name] = literals.value(node)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return found


def _own_arguments(function: ast.FunctionDef, literals: Literals) -> Callable[[argparse._ArgumentGroup], None]:
    """The `add_argument` calls of a function that does nothing else, with what is literal in them."""
    group = function.args.args[0].arg if function.args.args else ""
    rows = [_row(statement, group, literals) for statement in function.body if not _is_text(statement)]

    def add(group: argparse._ArgumentGroup) -> None:
        for names, options in rows:
            group.add_argument(*names, **options)

    return add


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Pass) or isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _row(statement: ast.stmt, group: str, literals: Literals) -> tuple[list[Any], dict[str, Any]]:
    """Names and options of one `group.add_argument(...)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or _text(call.func) != f"{group}.add_argument":
        raise ValueError(f"does more than add_argument, at line {statement.lineno}")
    options: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg == "type":
            options["type"] = _kind(keyword.value, literals)
        elif keyword.arg in _DECIDING:
            options[keyword.arg] = literals.value(keyword.value)
        elif keyword.arg in _OPEN:
            options |= _known(keyword.arg, keyword.value, literals)
        else:
            raise ValueError(f"does more than add_argument, at line {statement.lineno}")
    return [literals.value(each) for each in call.args], options


def _known(name: str, node: ast.expr, literals: Literals) -> dict[str, Any]:
    """The option where it is literal; without it any value passes, as the script may take it."""
    try:
        return {name: literals.value(node)}
    except ValueError:
        return {}


def _kind(node: ast.expr, literals: Literals) -> Any:
    """The type of an argument where it is a plain one or one of `toolkit.kinds`; any text where the script decides."""
    if isinstance(node, ast.Call) and (kind := _KINDS.get(_last(node.func))) is not None:
        try:
            values = [literals.value(each) for each in node.args]
            return kind(*values, **{str(each.arg): literals.value(each.value) for each in node.keywords})
        except ValueError:
            return str
    return _TYPES.get(_last(node), str)


def _text(node: ast.AST) -> str:
    """A name as it is written; an expression of thousands of parts is none."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def _last(node: ast.AST) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", None) or ""


def _try(path: str, call: ast.Call, found: Mapping[str, Any]) -> None:
    """What the script's author got wrong, which a run would tell with a traceback."""
    from toolkit.arguments import read_arguments

    try:
        read_arguments((), script=path, **found)
    except (ValueError, TypeError, AttributeError, argparse.ArgumentError) as error:
        reason = " ".join(str(error).split())
        raise UserError(fault(Place(path, _NAME, call.lineno), _shown(found), reason, "correct the script")) from None


def _shown(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in _LITERALS}
