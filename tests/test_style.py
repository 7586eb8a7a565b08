"""The sizes and boundaries that CONTRIBUTING names."""

from __future__ import annotations

import ast
import os
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "toolkit").rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
# What a room may not import: dependencies point one way, scripts -> loop -> engines -> setup.
FORBIDDEN = {
    "setup": ("toolkit.data", "toolkit.models", "toolkit.engines", "toolkit.loop", "toolkit.monitor", "toolkit.launch"),
    "data": ("toolkit.models", "toolkit.engines", "toolkit.loop", "toolkit.monitor", "toolkit.setup"),
    "models": ("toolkit.data", "toolkit.engines", "toolkit.loop", "toolkit.monitor", "toolkit.setup"),
    "engines": ("toolkit.loop", "toolkit.monitor", "toolkit.models", "toolkit.parity", "toolkit.compare"),
}


def imports(path: Path, *, top_level: bool = False) -> set[str]:
    """Modules that a file imports, in functions too unless `top_level`; not those for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_at_most_300_lines(path: Path) -> None:
    assert lines(path) <= 300


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_holds_only_what_is_its_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert lines(path) <= 100
    assert {name.split(".")[0] for name in imports(path)} <= {"__future__", "argparse", "typing", "toolkit"}
    tests = [ast.unparse(node.test) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If | ast.IfExp)]
    assert [test for test in tests if "setup" in test or "rank" in test or "strategy" in test or "engine" in test] == []
    assert [word for word in (".to(", ".cuda(", "get_rank", "local_rank", "deepspeed") if word in text] == []


def test_the_scripts_have_the_same_paragraphs() -> None:
    headings = ["# Arguments and setup", "# Data", "# Model", "# Loss and optimizer", "# Train"]
    for path in SCRIPTS:
        comments = [line.strip().split(":")[0] for line in path.read_text().splitlines() if line.startswith("    # ")]
        assert comments == headings, path.name


@pytest.mark.parametrize(("room", "forbidden"), FORBIDDEN.items(), ids=FORBIDDEN)
def test_dependencies_point_one_way(room: str, forbidden: tuple[str, ...]) -> None:
    for path in (ROOT / "toolkit" / room).rglob("*.py"):
        assert [name for name in imports(path) if name.startswith(forbidden)] == [], path.name


def test_the_engines_and_the_trackers_alone_import_accelerate_and_deepspeed() -> None:
    users = {
        path.relative_to(ROOT / "toolkit").parts[0]
        for path in MODULES
        if any(name.split(".")[0] in ("accelerate", "deepspeed") for name in imports(path))
    }
    assert users == {"engines", "trackers.py"}


@pytest.mark.parametrize("path", sorted((ROOT / "toolkit" / "setup").glob("*.py")), ids=lambda path: path.name)
def test_a_refusal_waits_for_nothing_heavy(path: Path) -> None:
    heavy = {"torch", "accelerate", "deepspeed", "transformers", "datasets", "numpy", "yaml"}
    assert {name.split(".")[0] for name in imports(path, top_level=True)} & heavy == set()


def test_each_setup_has_a_yaml_a_json_and_a_row() -> None:
    yamls = {path.stem for path in (ROOT / "accelerate_configs").glob("*.yaml")}
    jsons = {path.stem for path in (ROOT / "ds_configs").glob("*.json")}
    assert yamls - jsons == {"single"}  # the one without DeepSpeed in it, and without ranks
    assert jsons - yamls == set()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for stem in yamls:
        assert f"\n| {stem} | `accelerate_configs/{stem}.yaml` |" in readme
        assert (f"`ds_configs/{stem}.json`" in readme) == (stem in jsons)


def test_contributing_is_short() -> None:
    assert lines(ROOT / "CONTRIBUTING.md") < 60


def test_what_is_installed_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = [line.split("==") for line in text.splitlines() if not line.startswith("#")]
    versions = {canonicalize_name(name): version for name, version in pins}
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier
    assert versions["torch"] == "2.13.0"  # any build of it, for a CPU or for GPUs


def test_pre_commit_checks_what_ci_checks() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    for check in ("ruff check", "ruff format --check", "mypy"):
        assert f"\n{check}" in script
        assert check in [hook["entry"] for hook in hooks]
    assert script.index("mypy") < script.index("test_command=")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
