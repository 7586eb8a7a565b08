"""What the names of a module stand for, where its text alone proves it."""

import ast
from collections.abc import Iterator
from typing import Any

# Builtins and methods that read a container and keep nothing of it.
_READERS = {"len", "sorted", "tuple", "set", "list", "dict", "frozenset", "print", "str", "repr", "bool", "sum", "any"}
_METHODS = {"get", "keys", "values", "items", "copy", "index", "count"}
# With these a name may get another value without standing in the text. A model has an eval of its own.
_HIDDEN_ATTRIBUTES = {"modules", "import_module", "_getframe", "currentframe", "f_globals", "f_locals"}
_HIDDEN_ATTRIBUTES |= {"__dict__", "__globals__", "__builtins__", "__main__", "__code__", "exec", "globals", "locals"}
_HIDDEN = {"eval", "__import__"} | _HIDDEN_ATTRIBUTES
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Literals:
    """The literals of a module. What is bound twice, changed, or handed to something that may change it, is none.

    It errs to one side: a name that is bound in any scope of the module a second time counts as bound twice.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._names: dict[str, list[ast.AST]] = {}  # everything that binds, or may bind, a name
        self._loads: dict[str, list[ast.Name]] = {}
        self._attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self._hidden = False
        for node in ast.walk(tree):
            for name in _bound(node):
                self._names.setdefault(name, []).append(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.setdefault(node.id, []).append(node)
        own = any(
            isinstance(call := self.parents[load], ast.Call) and not call.args for load in self._loads.get("vars", ())
        )
        words = {word for node in ast.walk(tree) for word in self._words(node)}
        hidden = own or bool(_HIDDEN_ATTRIBUTES & words) or bool(_HIDDEN & set(self._loads))
        self._hidden = hidden or "*" in self._names

    def value(self, node: ast.expr) -> Any:
        """What the expression stands for.

        Raises:
            ValueError: no literal, and no name of one.
        """
        if isinstance(node, ast.Name):
            node = self._constant(node)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, MemoryError, RecursionError):  # TypeError: {[]: 1}
            raise ValueError("is not a literal") from None

    def imported(self, node: ast.expr) -> bool:
        """Whether the first name of a dotted one comes from imports alone."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and all(isinstance(each, ast.alias) for each in self._names.get(node.id, ()))

    def function(self, node: ast.expr) -> ast.FunctionDef:
        """The module's function of that name.

        Raises:
            ValueError: no plain function, or a name that may stand for another one.
        """
        if isinstance(node, ast.Name) and not self._hidden and node.id not in self._attributes:
            bound = self._names.get(node.id, [])
            if len(bound) == 1 and isinstance(found := bound[0], ast.FunctionDef) and found in self._tree.body:
                if not found.decorator_list:
                    return found
        raise ValueError("is not a function of the module")

    def _constant(self, name: ast.Name) -> ast.expr:
        bound = self._names.get(name.id, [])
        mangled = name.id.startswith("_") and "__" in name.id  # in a class it may be another name
        if self._hidden or mangled or len(bound) != 1 or name.id in self._attributes:
            raise ValueError("is not a literal")
        assigned = self.parents[bound[0]]
        if isinstance(assigned, ast.Assign) and assigned.targets == [bound[0]]:
            value = assigned.value
        elif isinstance(assigned, ast.AnnAssign) and assigned.target is bound[0] and assigned.value is not None:
            value = assigned.value
        else:
            raise ValueError("is not a literal")
        home = self.parents[assigned]
        if home is not self._tree and (not isinstance(home, _FUNCTION) or home is not self._scope(name)):
            raise ValueError("is not a literal")  # assigned in an if, a loop, another function
        flat = _flat(value)
        if flat is not None and any(not self._reads(load, flat) for load in self._loads[name.id] if load is not name):
            raise ValueError("may be changed")
        return value

    def _words(self, node: ast.AST) -> Iterator[str]:
        """An attribute, and what an import takes under whatever name; a model has modules() of its own."""
        if isinstance(node, ast.Attribute):
            parent = self.parents[node]
            if not (node.attr == "modules" and isinstance(parent, ast.Call) and parent.func is node):
                yield node.attr
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""

    def _scope(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, _FUNCTION | ast.Module):
            node = self.parents[node]
        return node

    def _reads(self, load: ast.Name, flat: bool) -> bool:
        """Whether this use of a container leaves it as it is; of one with containers inside fewer do."""
        parent = self.parents[load]
        if isinstance(parent, ast.Compare | ast.FormattedValue):
            return True
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and load in parent.args:
            return (flat or parent.func.id == "len") and parent.func.id in _READERS - set(self._names)
        if not flat:
            return False
        if isinstance(parent, ast.Subscript):
            return isinstance(parent.ctx, ast.Load) and parent.value is load
        if isinstance(parent, ast.Attribute):
            called = self.parents[parent]
            return parent.attr in _METHODS and isinstance(called, ast.Call) and called.func is parent
        if isinstance(parent, ast.Starred):
            return True
        if isinstance(parent, ast.For | ast.comprehension):
            return parent.iter is load
        copied = (
            isinstance(parent, ast.Dict) and load in parent.values and parent.keys[parent.values.index(load)] is None
        )
        return copied or isinstance(parent, ast.keyword) and parent.arg is None


def _flat(value: ast.expr) -> bool | None:
    """Of a container whether it has none inside; None for what nothing can change."""
    inner = [node for node in ast.walk(value) if isinstance(node, ast.Dict | ast.List | ast.Set | ast.Call)]  # set()
    if not inner:
        return None
    return inner == [value]


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a node of the tree binds, deletes, or takes from another scope; "*" for an import of everything."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest
