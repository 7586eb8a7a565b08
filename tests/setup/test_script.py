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
        ("from toolkit import parse_arguments as pa\npa(~, defaults={'seed': 7})", None),
        ("from toolkit.arguments import parse_arguments\nparse_arguments(~, defaults={'seed': 7})", None),
        ("import toolkit as t\nt.parse_arguments(~, defaults={'seed': 7})", None),
        ("import toolkit.data\ntoolkit.parse_arguments(~, defaults={'seed': 7})", None),
        (
            "from sys import argv\nimport toolkit\ntoolkit.parse_arguments(argv[1:], ~, defaults={'seed': 7})",
            None,
        ),
        ("import sys, toolkit\ntoolkit.parse_arguments(sys.argv[1:], ~, defaults={'seed': 7})", None),
        (
            "D: dict = {'seed': 7}\nimport toolkit.arguments\ntoolkit.arguments.parse_arguments(~, defaults=D)",
            None,
        ),
        (
            "import toolkit\ntoolkit.parse_arguments(~, defaults={})\n\ntoolkit.parse_arguments(~, defaults={})",
            "own.py calls toolkit.parse_arguments more than once, at lines 2 and 4: its arguments are not checked",
        ),
        (
            "def parse_arguments(**k): pass\nparse_arguments(~, defaults={'seed': 7})",
            "own.py does not call toolkit.parse_arguments: its arguments are not checked",
        ),
        (
            "import toolkit\nK = {}\ntoolkit.parse_arguments(**K)",
            "own.py, line 3: parse_arguments gets * or **: its arguments are not checked",
        ),
        (
            "import toolkit\ntoolkit.parse_arguments([], ~, defaults={})",
            "own.py, line 2: argv is not the command line: its arguments are not checked",
        ),
        (
            "import toolkit\nD = {'seed': 1}\nD['seed'] = 2\ntoolkit.parse_arguments(~, defaults=D)",
            "own.py, line 4: defaults may be changed: its arguments are not checked",
        ),
        (
            "import toolkit\ndef more(g):\n    if g: g.add_argument('--x')\n"
            "toolkit.parse_arguments(~, defaults={}, extra=more)",
            "own.py, line 4: extra does more than add_argument, at line 3: its arguments are not checked",
        ),
        (
            "import toolkit\ntoolkit.parse_arguments(~, defaults={}, extra=lambda g: None)",
            "own.py, line 2: extra is not a function of the module: its arguments are not checked",
        ),
        (
            "import toolkit\ndef more(g):\n    g.add_argument('--x', action='version')\n"
            "toolkit.parse_arguments(~, defaults={}, extra=more)",
            "own.py, line 4: extra has an action or nargs that is not read, at line 3: its arguments are not checked",
        ),
        (
            "import toolkit, mysys as sys\ntoolkit.parse_arguments(sys.argv[1:], ~, defaults={})",
            "own.py, line 2: argv is not the command line: its arguments are not checked",
        ),
    ],
)
def test_the_call_is_found_and_what_it_hides_is_told(tmp_path, monkeypatch, text, note):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(text.replace("~", "description=''"))
    script = read_script("own.py")
    assert script.notes == ([] if note is None else [note])
    assert (script.arguments or {}).get("defaults") == ({"seed": 7} if note is None else None)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("from mine import parse_arguments", "", "parse_arguments may stand for something else"),
        ("from mine import *", "", "parse_arguments may stand for something else"),
        ("def parse_arguments(**given): pass", "", "parse_arguments may stand for something else"),
        ("late = parse_arguments", "", "toolkit.parse_arguments is used otherwise, at line 3"),
        ("setattr(toolkit, 'parse_arguments', 0)", "", "toolkit.parse_arguments is used otherwise, at line 3"),
        ("toolkit.parse_arguments = print", "", "toolkit.parse_arguments is used otherwise, at line 3"),
        ("sys.argv += ['--seed', '3']", "", "the script changes what is read, at line 3"),
        ("tweak(sys.argv)", "arguments.seed = 9", "the script changes what is read, at lines 3 and 5"),
        ("", "arguments.learning_rate *= 2", "the script changes what is read, at line 5"),
        ("", "setattr(arguments, 'seed', 9)", "the script changes what is read, at line 5"),
        ("", "del arguments.__dict__['seed']", "the script changes what is read, at line 5"),
        ("", "arguments.note = arguments.seed", None),
        ("print(sys.argv[0], len(sys.argv), '--seed' in sys.argv)", "", None),
    ],
)
def test_what_stands_around_the_call_may_change_what_is_read(tmp_path, monkeypatch, before, after, reason):
    monkeypatch.chdir(tmp_path)
    lines = ["import sys, toolkit", "from toolkit import parse_arguments", before]
    lines += ["arguments = parse_arguments(description='', defaults={'seed': 7})", after]
    (tmp_path / "own.py").write_text("\n".join(lines))
    script = read_script("own.py")
    assert script.notes == ([] if reason is None else [f"own.py, line 4: {reason}: its arguments are not checked"])
    assert (script.arguments is None) == (reason is not None)


def test_a_kind_of_the_scripts_own_is_not_ours(tmp_path):
    text = "import toolkit\n{}\ndef more(group): group.add_argument('--depth', type=whole(1), default='deep')\n"
    text += "toolkit.parse_arguments(description='', defaults={{}}, extra=more)\n"
    for line, refused in (("from toolkit.kinds import whole", True), ("def whole(low): return str", False)):
        (tmp_path / "own.py").write_text(text.format(line))
        if refused:
            with pytest.raises(UserError, match="default of depth: 'deep': expected an integer"):
                read_script(str(tmp_path / "own.py"))
        else:
            arguments, _ = read_arguments([], script="own.py", **read_script(str(tmp_path / "own.py")).arguments)
            assert arguments.depth == "deep"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("defaults={'learning_rat': 1}", "defaults name no argument: learning_rat"),
        ("defaults={'train_batch_size': -4}", "default of train_batch_size: -4: must be 1 or more"),
        ("defaults={'per_device_train_batch_size': 1}", "a script's default is the global train_batch_size: a micro-"),
        ("defaults=[1]", "defaults: expected {name of an argument: value}"),
        ("defaults={}, unused=('models',)", "unused names no argument: models"),
        ("defaults={}, unused=5", "'int' object is not iterable"),
        ("defaults={}, own_model=('heads',)", "own_model name no argument: heads"),
        ("defaults={}, layers='four'", "layers: 'four': expected an integer of 1 or more"),
        ("defaults={}, extra=more", "argument --seed: conflicting option string: --seed"),
        ("defaults={}, extra=second", "extra adds a second argument for learning_rate"),
        ("defaults={}, extra=empty", "whole() missing 1 required positional argument: 'low'"),
        ("defaults={}, extra=nameless", "string index out of range"),
        ("defaults={}, layer=3", "got an unexpected keyword argument 'layer'"),
    ],
)
def test_what_its_author_got_wrong_is_a_line(tmp_path, monkeypatch, call, reason):
    monkeypatch.chdir(tmp_path)
    text = "import toolkit\nfrom toolkit.kinds import whole\n"
    for name, own in {
        "more": "'--seed'",
        "second": "'--lr', dest='learning_rate', default=9",
        "empty": "'--depth', type=whole()",
        "nameless": "''",
    }.items():
        text += f"def {name}(group): group.add_argument({own})\n"
    (tmp_path / "own.py").write_text(f"{text}toolkit.parse_arguments(description='', {call})\n")
    with pytest.raises(UserError) as caught:
        read_script("own.py")
    (line,) = caught.value.lines
    assert (line.where, line.where.line, line.remedy) == ("own.py: parse_arguments", 7, "correct the script")
    assert line.reason.startswith(reason) and line.reason.endswith(", at line 7")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x=" + b"-" * 200_000 + b"1", "is nested too deep"),
        (b"x = 1\0", "is not Python: source code string cannot contain null bytes"),
        (b"\xff = 1", "is not Python: "),
        (b"x = 1\nreturn x", "is not Python: 'return' outside function at line 2"),
        (b"x = 1\n" * 200_000, "is larger than 1000000 bytes"),
        (b"# coding: nonsense\nx = 1", "is not Python: unknown encoding: nonsense"),
        (b"import toolkit\ntoolkit.parse_arguments(layers=" + b"+".join([b"1"] * 800) + b")", None),
    ],
    ids=["minus", "nul", "bytes", "return", "large", "coding", "sum"],
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
