"""A script's literals, read from its text."""

import argparse
import os

import pytest
from launched import ROOT

from toolkit.arguments import read_arguments
from toolkit.errors import UserError
from toolkit.setup.script import read_script

OWN = """
import argparse
import os
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


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("from toolkit import parse_arguments as pa\npa(description='', defaults={'seed': 7})", None),
        ("from toolkit.arguments import parse_arguments\nparse_arguments(description='', defaults={'seed': 7})", None),
        ("import toolkit as t\nt.parse_arguments(description='', defaults={'seed': 7})", None),
        ("import sys, toolkit\ntoolkit.parse_arguments(sys.argv[1:], description='', defaults={'seed': 7})", None),
        ("D: dict = {'seed': 7}\nimport toolkit.arguments\ntoolkit.arguments.parse_arguments(defaults=D)", None),
        (
            "import toolkit\ntoolkit.parse_arguments(defaults={})\n\ntoolkit.parse_arguments(defaults={})",
            "own.py calls toolkit.parse_arguments more than once, at lines 2 and 4: its arguments are not checked",
        ),
        (
            "def parse_arguments(**k): pass\nparse_arguments(defaults={'seed': 7})",
            "own.py does not call toolkit.parse_arguments: its arguments are not checked",
        ),
        (
            "import toolkit\nK = {}\ntoolkit.parse_arguments(**K)",
            "own.py, line 3: parse_arguments gets * or **: its arguments are not checked",
        ),
        (
            "import toolkit\ntoolkit.parse_arguments([], defaults={})",
            "own.py, line 2: argv is not the command line: its arguments are not checked",
        ),
        (
            "import toolkit\nD = {'seed': 1}\nD['seed'] = 2\ntoolkit.parse_arguments(defaults=D)",
            "own.py, line 4: defaults may be changed: its arguments are not checked",
        ),
        (
            "import toolkit\ndef more(g):\n    if g: g.add_argument('--x')\ntoolkit.parse_arguments(extra=more)",
            "own.py, line 4: extra does more than add_argument, at line 3: its arguments are not checked",
        ),
        (
            "import toolkit\ntoolkit.parse_arguments(extra=lambda g: None)",
            "own.py, line 2: extra is not a function of the module: its arguments are not checked",
        ),
    ],
)
def test_the_call_is_found_and_what_it_hides_is_told(tmp_path, monkeypatch, text, note):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(text)
    script = read_script("own.py")
    assert script.notes == ([] if note is None else [note])
    assert (script.arguments or {}).get("defaults") == ({"seed": 7} if note is None else None)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("defaults={'learning_rat': 1}", "defaults name no argument: learning_rat"),
        ("defaults={'train_batch_size': -4}", "default of train_batch_size: -4: must be 1 or more"),
        ("defaults={'per_device_train_batch_size': 1}", "a script's default is the global train_batch_size: a micro-"),
        ("defaults=[1]", "'list' object has no attribute 'get'"),
        ("unused=('models',)", "unused names no argument: models"),
        ("unused=5", "'int' object is not iterable"),
        ("own_model=('heads',)", "own_model name no argument: heads"),
        ("layers='four'", "layers: 'four': expected an integer of 1 or more"),
        ("extra=more", "argument --seed: conflicting option string: --seed"),
    ],
)
def test_what_its_author_got_wrong_is_a_line(tmp_path, monkeypatch, call, reason):
    monkeypatch.chdir(tmp_path)
    text = "import toolkit\ndef more(group):\n    group.add_argument('--seed')\n\n"
    (tmp_path / "own.py").write_text(f"{text}toolkit.parse_arguments({call})\n")
    with pytest.raises(UserError) as caught:
        read_script("own.py")
    (line,) = caught.value.lines
    assert (line.where, line.where.line, line.remedy) == ("own.py: parse_arguments", 5, "correct the script")
    assert line.reason.startswith(reason)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x=" + b"-" * 200_000 + b"1", "is nested too deep"),
        (b"x = 1\0", "is not Python: source code string cannot contain null bytes"),
        (b"\xff = 1", "is not Python: "),
        (b"# coding: nonsense\nx = 1", "is not Python: unknown encoding: nonsense"),
        (b"import toolkit\ntoolkit.parse_arguments(layers=" + b"+".join([b"1"] * 800) + b")", None),
    ],
    ids=["minus", "nul", "bytes", "coding", "sum"],
)
def test_what_no_parser_takes_is_a_line(tmp_path, monkeypatch, recwarn, content, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_bytes(content)
    if reason is None:
        assert read_script("own.py").arguments is None
        return
    with pytest.raises(UserError) as caught:
        read_script("own.py")
    (line,) = caught.value.lines
    assert line.reason.startswith(reason) and "None" not in line.reason
    assert len(recwarn) == 0


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "fifo.py")
    for path, reason in (
        ("", "is empty"),
        (str(tmp_path), "is not a file"),
        (str(tmp_path / "fifo.py"), "is not a file"),
    ):
        with pytest.raises(UserError) as caught:
            read_script(path)
        assert caught.value.lines == (f"script: {path!r}: {reason}; give the path of a Python script",)
