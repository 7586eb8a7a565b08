"""What a script says about its arguments, read from its text: it is not run."""

import argparse
import ast
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit import kinds
from toolkit.errors import Place, UserError, fault
from toolkit.setup.literals import Literals
from toolkit.setup.results import last_name, names_of

_KINDS: dict[str, Any] = {f"toolkit.kinds.{each.__name__}": each for each in (kinds.real, kinds.whole, kinds.one_of)}
_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str}
_TYPES |= {f"toolkit.kinds.{name}": getattr(kinds, name) for name in ("path", "switch", "encoding", "steps_or_epoch")}
# Of `add_argument`: what decides how a command line is read, and what may stay the script's secret.
_DECIDING, _OPEN = ("action", "nargs", "const", "dest"), ("choices", "default", "help", "metavar", "required")
_ENDING = ("help", "version", "parsers")  # actions that end the program
_NARGS = (None, "?", "*", "+", *range(100))
_LITERALS = ("defaults", "unused", "own_model", "layers")
_NAME = "parse_arguments"
_OURS = {f"toolkit.{_NAME}", f"toolkit.arguments.{_NAME}"}
_LARGEST = 1_000_000  # bytes; of such a text Python's tree is near a gigabyte


@dataclass(frozen=True)
class Script:
    """`arguments` are those of `parse_arguments`; None where the script does not call it with literals, so that it
    decides by itself. `notes` say what its text does not tell."""

    path: str
    arguments: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Text:
    """A script's text: its tree, its literals, and what its imports call by which name."""

    tree: ast.Module
    literals: Literals
    imports: Mapping[str, set[str]]

    def origins(self, node: ast.AST) -> set[str]:
        """The dotted names that a name may stand for by imports; those of everything may bring any name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return set()
        stars = {each.removesuffix("*") + node.id for each in self.imports.get("*", ())}
        return {".".join([each, *parts]) for each in stars | self.imports.get(node.id, set())}

    def name(self, node: ast.expr) -> str:
        """The one dotted name, or builtin, that a name stands for; empty where it may be another one."""
        origins = self.origins(node)
        if len(origins) > 1 or not self.literals.imported(node):
            return ""
        return origins.pop() if origins else _text(node)


def read_script(path: str) -> Script:
    """Finds the script's one call of `toolkit.parse_arguments`, and the literals that it is given.

    Raises:
        UserError: a script that is missing, is not Python, or gives what `parse_arguments` does not take.
    """
    tree = _parse(path)
    text = _Text(tree, Literals(tree), _imported(tree))
    uses = [node for node in ast.walk(tree) if _is_ours(node, text)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.func in uses]
    if len(calls) != 1:
        what = f"calls toolkit.{_NAME} more than once, {_lines(calls)}" if calls else f"does not call toolkit.{_NAME}"
        return Script(path, None, [f"{path} {what}: its arguments are not checked"])
    (call,) = calls
    found: dict[str, Any] = {"description": path, "defaults": {}}
    try:
        if others := [node for node in uses if node is not call.func]:
            raise ValueError(f"toolkit.{_NAME} is used otherwise, {_lines(others)}")
        found |= _given(call, text)
        read = _try(path, call, found)
        if changed := _changed(call, read, text):
            raise ValueError(f"the script changes what is read, {_lines(changed)}")
    except ValueError as error:
        return Script(path, None, [f"{path}, line {call.lineno}: {error}: its arguments are not checked"])
    except TypeError as error:  # of a kind's own arguments
        raise _mistake(path, call, {}, error) from None
    return Script(path, found)


def _lines(nodes: Sequence[ast.AST]) -> str:
    lines = sorted({getattr(node, "lineno", 0) for node in nodes})
    return f"at line{'s' * (len(lines) > 1)} " + " and ".join(map(str, lines))


def _parse(path: str) -> ast.Module:
    try:
        if not path or os.path.exists(path) and not os.path.isfile(path):
            reason = "is empty" if not path else "is not a file"
            raise UserError(fault("script", path, reason, "give the path of a Python script"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a text: the script's matter
            with open(path, "rb") as file:
                content = file.read(_LARGEST + 1)
            if len(content) > _LARGEST:
                reason = f"is larger than {_LARGEST} bytes"
                raise UserError(fault("script", path, reason, "give the path of a Python script"))
            tree = ast.parse(content, path)
            compile(tree, path, "exec", dont_inherit=True)  # a return outside of a function is found here
            return tree
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


def _imported(tree: ast.Module) -> dict[str, set[str]]:
    """For each name that imports bind the dotted names that it gets, and "*" with the modules taken whole."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.partition(".")[0]
                found.setdefault(each.asname or first, set()).add(each.name if each.asname else first)
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                module = "." * node.level + (node.module or "")
                found.setdefault(each.asname or each.name, set()).add(f"{module}.{each.name}")
    return found


def _is_ours(node: ast.AST, text: _Text) -> bool:
    """Whether a node names our function, or may; as a text it may be looked up, or replaced."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in (_NAME, *_OURS)
    return not _OURS.isdisjoint(text.origins(node))


def _given(call: ast.Call, text: _Text) -> dict[str, Any]:
    """What the call hands over; ValueError says what of it the text does not tell."""
    if not text.name(call.func):
        raise ValueError(f"{_text(call.func)} may stand for something else")
    found: dict[str, Any] = {}
    positional = [("argv", argument) for argument in call.args]
    for name, node in [*positional, *((keyword.arg, keyword.value) for keyword in call.keywords)]:
        if name is None or isinstance(node, ast.Starred):
            raise ValueError(f"{_NAME} gets * or **")
        try:
            if name == "argv" and not _is_command_line(node, text):
                raise ValueError("is not the command line")
            if name == "extra" and not (isinstance(node, ast.Constant) and node.value is None):
                found[name] = _own_arguments(text.literals.function(node), text)
            elif name in _LITERALS:
                found[name] = text.literals.value(node)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return found


def _is_command_line(node: ast.expr, text: _Text) -> bool:
    if isinstance(node, ast.Subscript) and text.name(node.value) == "sys.argv":
        return _text(node.slice) == "1:"
    return isinstance(node, ast.Constant) and node.value is None


def _changed(call: ast.Call, read: argparse.Namespace, text: _Text) -> list[ast.AST]:
    """Where the script changes its command line or its environment, or an argument after it was read."""
    parents = text.literals.parents
    names = names_of(call, text.tree, parents)
    found: list[ast.AST] = []
    for node in ast.walk(text.tree):
        origins = text.origins(node)
        if origins & {"sys.argv", "os.environ"} and not _only_reads(parents[node]):
            found.append(node)
        elif origins & {"os.putenv", "os.unsetenv", "os.chdir", "os.execv", "os.execve", "os.execvp"}:
            found.append(node)
        elif isinstance(node, ast.Attribute) and last_name(node.value) in names:
            stored = not isinstance(node.ctx, ast.Load) and node.attr in vars(read)
            found += [node] * (stored or node.attr in ("__dict__", "__setattr__", "script_defaults", "typed"))
        elif isinstance(node, ast.Call) and node.args and last_name(node.args[0]) in names:
            name = text.name(node.func)
            found += [node] * (name in ("setattr", "delattr") or name == "vars" and not _only_reads(parents[node]))
    return found


def _only_reads(node: ast.AST) -> bool:
    """Whether what a list stands in leaves it as it is."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", None) in ("len", "print", "str", "list") or last_name(node.func) == "join"
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute):
        return node.attr in ("get", "items", "keys", "values", "copy")
    return isinstance(node, ast.Compare | ast.FormattedValue)


def _own_arguments(function: ast.FunctionDef, text: _Text) -> Callable[[argparse._ArgumentGroup], None]:
    """The `add_argument` calls of a function that does nothing else, with what is literal in them."""
    group = function.args.args[0].arg if function.args.args else ""
    rows = [_row(statement, group, text) for statement in function.body if not _is_text(statement)]

    def add(group: argparse._ArgumentGroup) -> None:
        for names, options in rows:
            group.add_argument(*names, **options)

    return add


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Pass) or isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _row(statement: ast.stmt, group: str, text: _Text) -> tuple[list[Any], dict[str, Any]]:
    """Names and options of one `group.add_argument(...)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or _text(call.func) != f"{group}.add_argument":
        raise ValueError(f"does more than add_argument, at line {statement.lineno}")
    options: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg == "type":
            options["type"] = _kind(keyword.value, text)
        elif keyword.arg in _DECIDING:
            options[keyword.arg] = text.literals.value(keyword.value)
        elif keyword.arg in _OPEN:
            options |= _known(keyword.arg, keyword.value, text)
        else:
            raise ValueError(f"does more than add_argument, at line {statement.lineno}")
    if options.get("action") in _ENDING or options.get("nargs") not in _NARGS:
        raise ValueError(f"has an action or nargs that is not read, at line {statement.lineno}")
    return [text.literals.value(each) for each in call.args], options


def _known(name: str, node: ast.expr, text: _Text) -> dict[str, Any]:
    """The option where it is literal; without it any value passes, as the script may take it."""
    try:
        return {name: text.literals.value(node)}
    except ValueError:
        return {}


def _kind(node: ast.expr, text: _Text) -> Any:
    """The type of an argument where it is a plain one or one of `toolkit.kinds`; any text where the script decides.

    Raises:
        TypeError: a kind that is given what it does not take.
    """
    if isinstance(node, ast.Call) and (kind := _KINDS.get(text.name(node.func))) is not None:
        try:
            values = [text.literals.value(each) for each in node.args]
            named = {each.arg or "**": text.literals.value(each.value) for each in node.keywords}
        except ValueError:
            return str
        return kind(*values, **named) if "**" not in named else str
    return _TYPES.get(text.name(node), str)


def _text(node: ast.AST) -> str:
    """A name as it is written; an expression of thousands of parts is none."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def _try(path: str, call: ast.Call, found: Mapping[str, Any]) -> argparse.Namespace:
    """Reads an empty command line: what the script's author got wrong, a run would tell with a traceback."""
    from toolkit.arguments import parse_arguments, read_arguments

    try:
        given = {str(each.arg): each.value for each in call.keywords}
        inspect.signature(parse_arguments).bind(*call.args, **given)
        return read_arguments((), script=path, **found)[0]
    except Exception as error:  # of argparse's own, whatever the values lead to
        raise _mistake(path, call, found, error) from None


def _mistake(path: str, call: ast.Call, found: Mapping[str, Any], error: Exception) -> UserError:
    shown = {name: value for name, value in found.items() if name in _LITERALS}
    reason = f"{' '.join(str(error).split()) or type(error).__name__}, at line {call.lineno}"
    return UserError(fault(Place(path, _NAME, call.lineno), shown, reason, "correct the script"))
