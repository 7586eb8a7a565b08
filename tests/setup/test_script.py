"""A script's literals, read from its text."""

import argparse

import pytest
from launched import ROOT

from toolkit.arguments import read_arguments
from toolkit.errors import UserError
from toolkit.setup.script import read_script

OWN = """
import argparse
import toolkit
from toolkit.kinds import real, whole
raise SystemExit("it is not run")

def more(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--width", type=real(0, above=True), default=1.0)
    group.add_argument("--depth", type=whole(1), default=3)
    group.add_argument("--kind", choices=("a", "b"), default="a")
    group.add_argument("--count", type=int, default=COUNT)
    group.add_argument("--fast", action="store_true")
    group.add_argument("--odd", type=lambda text: text)

DEFAULTS = {"train_batch_size": 48, "width": 2.0}

def main():
    own = ("data",)
    arguments = toolkit.parse_arguments(description="x", defaults=DEFAULTS, extra=more, unused=own, layers=5)
"""


def test_defaults_and_own_arguments_are_read_without_running_it(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    script = read_script(str(tmp_path / "own.py"))
    argv = ["--depth", "0", "--kind", "c", "--fast", "--odd", "?", "--count", "x", "--max_length", "3"]
    arguments, faults = read_arguments(argv, script="own.py", **script.arguments)
    assert (arguments.train_batch_size, arguments.width, arguments.fast, arguments.odd) == (48, 2.0, True, "?")
    assert (arguments.script_layers, arguments.depth, arguments.kind) == (5, 3, "a")
    assert faults == [
        "--depth: '0': must be 1 or more; correct the value",
        "--kind: 'c': expected one of a, b; correct the value",
        "--count: 'x': expected an integer; correct the value",
        "--max_length: 3: own.py has no use for it; leave it out",
    ]


@pytest.mark.parametrize("name", ["train_cnn", "train_bert"])
def test_our_scripts_say_all_by_literals(name):
    path = ROOT / "scripts" / f"{name}.py"
    script = read_script(str(path))
    module: dict = {"__name__": "read"}
    exec(compile(path.read_text(), str(path), "exec"), module)
    assert script.notes == []
    assert script.arguments["defaults"] == module["DEFAULTS"]
    assert script.arguments["unused"] == module["UNUSED"]
    if name == "train_cnn":
        groups = [argparse.ArgumentParser().add_argument_group("own") for _ in range(2)]
        script.arguments["extra"](groups[0])
        module["own_arguments"](groups[1])
        read, real = ([vars(action) for action in group._group_actions] for group in groups)
        for ours, its in zip(read, real, strict=True):
            assert {key: ours[key] for key in ("dest", "choices", "default", "nargs")} == {
                key: its[key] for key in ("dest", "choices", "default", "nargs")
            }


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("print('x')", "does not call toolkit.parse_arguments: its arguments are not checked"),
        (
            "import toolkit\nD = {}\nD = {'seed': 1}\ntoolkit.parse_arguments(description='', defaults=D)",
            "defaults is not a literal: its arguments are not checked",
        ),
        (
            "import toolkit\nD = dict(a=1)\ntoolkit.parse_arguments(description='', defaults=D)",
            "defaults is not a literal: its arguments are not checked",
        ),
    ],
)
def test_what_a_script_decides_by_itself_is_told(tmp_path, text, note):
    (tmp_path / "own.py").write_text(text)
    script = read_script(str(tmp_path / "own.py"))
    assert script.arguments is None
    assert script.notes[0].endswith(note)


def test_a_script_that_is_missing_or_no_python_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("x = (\n")
    with pytest.raises(UserError) as caught:
        read_script("own.py")
    assert caught.value.lines == (
        "own.py: 'own.py': is not Python: '(' was never closed at line 1; name a Python script",
    )
    with pytest.raises(UserError) as caught:
        read_script("none.py")
    assert caught.value.lines == (f"script: 'none.py': no such file, searched from {tmp_path}; give its path",)
