"""Nothing is unpickled: no module imports what could, and a pickle in the place of a file is not opened as one."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
from fitting import Run, copied, fit, seal

from toolkit.errors import UserError

ROOT = Path(__file__).parents[2] / "toolkit"
MODULES = sorted(ROOT.rglob("*.py"))
UNPICKLERS = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch.jit", "torch.package"}
# `oneloop import` reads other tools' pickles through torch's restricted unpickler, and catches pickle's own error.
FOREIGN = [path for path in MODULES if "foreign" in path.relative_to(ROOT).parts[0]]


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_unpickles(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    for call in calls(tree):
        name = ast.unparse(call.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name in ("torch.load", "load") and (name == "torch.load" or "torch.load" in imported):
            assert path in FOREIGN and given.get("weights_only") == "True", ast.unparse(call)
        assert given.get("weights_only", "True") == "True", ast.unparse(call)
        assert given.get("allow_pickle", "False") == "False", ast.unparse(call)
        assert given.get("trust_remote_code", "False") == "False", ast.unparse(call)
        assert name not in ("eval", "exec", "torch.serialization.load", "torch.hub.load", "yaml.unsafe_load")
        if name in ("np.load", "numpy.load"):
            assert given.get("allow_pickle") == "False", ast.unparse(call)
    if path in FOREIGN:
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert {name for name in used if name.startswith("pickle.")} <= {"pickle.UnpicklingError"}
        imported -= {"pickle"}
    assert imported & UNPICKLERS == set()


def test_torch_load_is_called_where_it_is_looked_for() -> None:
    """The test above looks at the calls that there are."""
    names = [ast.unparse(call.func) for path in FOREIGN for call in calls(ast.parse(path.read_text()))]
    assert "torch.load" in names


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("part", ["model", "optimizer", "random"])
def test_a_pickle_is_refused_unread(tmp_path: Path, whole: Run, part: str, sealed: bool) -> None:
    folder = copied(whole, tmp_path / "run").checkpoint(16)
    file, ran = folder / f"{part}-00001-of-00001.safetensors", tmp_path / "ran"
    file.write_bytes(pickle.dumps(Bomb(ran)))
    if sealed:  # by someone who knows the format
        seal(folder)
    with pytest.raises(UserError) as caught:
        fit(tmp_path / "new", "--resume_from_checkpoint", str(folder))
    assert len(caught.value.lines) == 1
    assert str(folder) in caught.value.lines[0]
    assert not ran.exists()
    pickle.loads(file.read_bytes())  # it would have
    assert ran.exists()
