"""By which names a module knows the result of a call: bound to it, to each other, returned, or handed on."""

import ast
from collections.abc import Mapping


def names_of(call: ast.Call, tree: ast.Module, parents: Mapping[ast.AST, ast.AST]) -> set[str]:
    """Names, and last parts of dotted ones, that may stand for the call's result anywhere in the module.

    It errs to one side: a name is taken for the result in every scope.
    """
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names = set[str]()
    sources: set[str] = set()  # functions that return it
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
    grown = -1
    while grown != len(names) + len(sources):
        grown = len(names) + len(sources)
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                if any(_is(each, call, names, sources) for each in _parts(node.value)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    names |= {last_name(each) for target in targets for each in _parts(target)} - {""}
            elif isinstance(node, ast.Return) and node.value is not None:
                if any(_is(each, call, names, sources) for each in _parts(node.value)):
                    sources |= {home.name for home in functions.values() if _inside(node, home, parents)}
            elif isinstance(node, ast.Call) and (handed := functions.get(last_name(node.func))) is not None:
                parameters = [each.arg for each in (*handed.args.posonlyargs, *handed.args.args)]
                names |= {
                    name for name, each in zip(parameters, node.args, strict=False) if _is(each, call, names, sources)
                }
                names |= {each.arg for each in node.keywords if each.arg and _is(each.value, call, names, sources)}
    return names


def _is(node: ast.AST, call: ast.Call, names: set[str], sources: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return node is call or last_name(node.func) in sources
    return isinstance(node, ast.Name | ast.Attribute) and last_name(node) in names


def _parts(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List) else [node]


def last_name(node: ast.AST) -> str:
    """Of a name or a dotted one; "" for anything else."""
    return getattr(node, "id", None) or getattr(node, "attr", None) or ""


def _inside(node: ast.AST, home: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    while node in parents:
        node = parents[node]
        if node is home:
            return True
    return False
