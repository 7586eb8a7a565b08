"""Scripts made from a grammar of statements: what `check` reads in their text is what they hand over when they run."""

import argparse
import collections
import copy
import inspect
import io
import json
import sys
import tokenize
import types

import pytest
from grammar import AFTER, BINDS, IMPORTS, KEYWORDS, PLAIN, PREFIX, REBINDS, ROWS, TOUCHES, drawn, filled, script
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launched import ROOT

from toolkit import kinds
from toolkit.arguments import parse_arguments
from toolkit.check import check
from toolkit.errors import UserError
from toolkit.setup.script import read_script

OURS = inspect.signature(parse_arguments)
# Another module with the same names in it.
MINE = "D, U, L, more, sys = {'seed': 70}, ('data',), 7, None, None"


class Handed:
    """What a script that runs hands over to `parse_arguments`, and what becomes of what it gets back."""

    def __init__(self, text):
        self.calls, self.arguments, self.line = [], [], ["own.py", "--typed"]
        argv = list(self.line)
        ours, deep, mine = (types.ModuleType(name) for name in ("toolkit", "toolkit.arguments", "mine"))
        ours.parse_arguments = deep.parse_arguments = self._parse
        ours.arguments, ours.kinds, ours.__path__, ours.__all__ = deep, kinds, [], ["parse_arguments"]
        exec(MINE, mine.__dict__)
        mine.parse_arguments = lambda *argv, **given: self.calls.append("of another module")
        mine.kept, mine.deep, mine.__path__ = [], types.ModuleType("mine.deep"), []
        stubs = {"toolkit": ours, "toolkit.arguments": deep, "toolkit.kinds": kinds, "mine": mine}
        stubs |= {"mine.deep": mine.deep, "__main__": types.ModuleType("__main__")}
        with pytest.MonkeyPatch.context() as monkeypatch:
            for name, module in stubs.items():
                monkeypatch.setitem(sys.modules, name, module)
            monkeypatch.setattr(sys, "argv", argv)
            try:
                exec(compile(text, "own.py", "exec"), stubs["__main__"].__dict__)
            except Exception:  # a script that fails before, or after
                pass

    def _parse(self, *given, **named):
        bound = OURS.bind(*given, **named)
        bound.apply_defaults()
        extra = bound.arguments.pop("extra")
        read = copy.deepcopy(bound.arguments)
        read["argv"] = sys.argv[1:] if read["argv"] is None else read["argv"]
        self.calls.append(read | {"extra": rows(extra)})
        namespace = argparse.Namespace(seed=-1, learning_rate=-1.0)
        self.arguments.append(namespace)
        return namespace


def rows(extra):
    group = argparse.ArgumentParser().add_argument_group("own")
    if extra is not None:
        extra(group)
    return group._group_actions


def same_row(read, real):
    """Whether nothing is refused that the script takes."""
    for key in ("option_strings", "dest", "nargs", "const", "choices"):
        assert getattr(read, key) == getattr(real, key), key
    assert read.default in (None, real.default)
    for text in ("0", "1", "2.5", "x"):
        try:
            real.type is None or real.type(text)
        except ValueError:
            continue
        assert read.type is None or read.type(text) is not None


def compare(text, folder):
    """Runs and reads a script; whether it was told and did run."""
    path = folder / "own.py"
    path.write_text(text)
    try:
        script = read_script(str(path))
    except UserError as error:
        assert len(error.lines) == 1 and "\n" not in error.lines[0]
        return "refused"
    if script.arguments is None:
        assert len(script.notes) == 1 and script.notes[0].endswith(": its arguments are not checked")
        return "decided by the script"
    assert script.notes == []
    handed = Handed(text)
    told = {name: each.default for name, each in OURS.parameters.items()} | {"argv": handed.line[1:]}
    told |= script.arguments
    for call in handed.calls:
        assert call != "of another module", text
        for name in ("argv", "defaults", "unused", "own_model", "layers"):
            assert repr(told[name]) == repr(call[name]), (name, text)
        read = rows(told["extra"])
        assert len(read) == len(call["extra"]), text
        for ours, its in zip(read, call["extra"], strict=True):
            same_row(ours, its)
    for namespace in handed.arguments:
        assert {"seed": -1, "learning_rate": -1.0}.items() <= vars(namespace).items(), text
    return "told and run" if handed.calls else "told"


def test_what_is_told_is_what_is_handed_over(tmp_path):
    verdicts = collections.Counter(compare(drawn(number), tmp_path) for number in range(400))
    assert verdicts["told and run"] >= 100 and verdicts["decided by the script"] >= 100, verdicts


@pytest.mark.parametrize("name", ["D", "U", "L"])
def test_a_name_that_is_bound_or_touched_otherwise(tmp_path, name):
    other = {"D": "{'seed': 2}", "U": "['model']", "L": "2"}[name]
    for form in [*BINDS, *TOUCHES]:
        for condition in ("True", "False"):
            compare(script(lines=[filled(form, name, other, condition)]), tmp_path)
        compare(script(before=[filled(form, name, other)], home="function"), tmp_path)
        constants = [filled(form if each == name else "{n} = {v}", each, value) for each, value in PLAIN.items()]
        compare(script(constants), tmp_path)
    assert compare(script(home=name), tmp_path) == "decided by the script"


def test_what_else_stands_around_the_call(tmp_path):
    told = "told and run"
    for bring in IMPORTS:
        unknown = bring[0].endswith("*")  # it may bring other constants too
        assert compare(script(bring=bring), tmp_path) == ("decided by the script" if unknown else told)
        for line in REBINDS:
            compare(script(bring=bring, lines=[line]), tmp_path)
            compare(script(bring=bring, lines=[line], given="defaults={'seed': 4}"), tmp_path)
    for line in AFTER:
        verdict = compare(script(after=[line]), tmp_path)
        assert verdict == (told if line in AFTER[-3:] else "decided by the script"), line
        assert compare(script(after=[line], given="defaults={}"), tmp_path) == verdict
    assert compare(script(decorator="@(lambda f: helper)$"), tmp_path) == "decided by the script"
    for row in ROWS:
        verdict = compare(script(rows=[row]), tmp_path)
        assert verdict == (told if row in [*ROWS[:7], *ROWS[-2:]] else "decided by the script"), row
    for key, values in KEYWORDS.items():
        for value in values:
            compare(
                script(given=", ".join(f"{each}={word}" for each, word in {"defaults": "D", key: value}.items())),
                tmp_path,
            )


BASES = [(ROOT / "scripts" / f"train_{name}.py").read_text() for name in ("cnn", "bert")]
BASES.append(
    f"{PREFIX}\nimport toolkit\nD: dict = {{'seed': 1, 'width': 2}}\nU = ['data']\nL = 3\n\ndef more(group):\n    "
    + "\n    ".join(ROWS[:7])
    + "\n\narguments = toolkit.parse_arguments(None, description='', defaults=D, extra=more, unused=U, layers=L)\n"
)
BASES.append(
    "from toolkit.arguments import parse_arguments as pa\npa(description='', defaults={'seed': 1}, own_model=())\n"
)
WORDS = """0 -1 1e999 0x1p 1_0 08 None True ... '' 'seed' b'x' f'{x}' "\\d" () [] {} {1:2} {'seed':[]} {[]:1} set() 2j
    * ** := lambda:0 parse_arguments toolkit defaults extra group self dest= nargs= version action='help' type=whole()
    type=real(1,0) choices=5 yield return await del global not ( ) [ { } , : = == @ ; \\ # ''' é ﬁ \0 \f""".split()
TYPED = [
    [],
    ["--help_me"],
    ["--width", "x"],
    ["--seed"],
    ["--depth=0", "--fast"],
    ["word"],
    ["--typed", "--odd", ""],
    ["-"],
]


@settings(max_examples=250, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_a_script_of_other_words_and_lines_gets_a_verdict(tmp_path, recwarn, data):
    base = data.draw(st.sampled_from(BASES))
    words = [token.string for token in tokenize.generate_tokens(io.StringIO(base).readline) if token.string.strip()]
    for _ in range(data.draw(st.integers(1, 3))):
        lines = base.split("\n")
        spot = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["word", "word", "double", "delete", "move", "touch"])):
            case "word":
                base = base.replace(data.draw(st.sampled_from(words)), data.draw(st.sampled_from(WORDS + words)), 1)
                continue
            case "double":
                lines.insert(spot, lines[spot])
            case "delete":
                del lines[spot]
            case "move":
                lines.append(lines.pop(spot))
            case "touch":
                name = data.draw(st.sampled_from(["D", "DEFAULTS", "UNUSED", "more", "own_arguments"]))
                form = data.draw(st.sampled_from(BINDS + TOUCHES + REBINDS + AFTER))
                lines.insert(spot, form.replace("{n}", name).replace("{v}", "{}").replace("$", "\n"))
        base = "\n".join(lines)
    path = tmp_path / "own.py"
    path.write_text(base)
    report = check({"CUDA_VISIBLE_DEVICES": ""}, script=str(path), script_arguments=data.draw(st.sampled_from(TYPED)))
    assert json.loads(report.as_json())["ok"] == (not report.errors)
    assert report.errors or report.table()
    assert not any("\n" in each for each in [*report.errors, *report.warnings])
    assert len(recwarn) == 0
