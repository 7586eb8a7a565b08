"""What `check` reads in a script's text is what the script hands over when it runs, or it is not told at all."""

import copy
import sys
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.check import check
from toolkit.setup.script import read_script

CONSTANTS = """
D = {"seed": 1, "learning_rate": 0.5}
N = {"seed": 1, "nested": {"a": [1]}}
U = ("data",)
L = 3
def tweak(d): d["seed"] = 99
class Nothing:
    def __enter__(self): return {"seed": 20}
    def __exit__(self, *a): pass
"""
READS = """\
print(D["seed"], L)
x = D.get("seed")
y = len(D) + len(N)
z = {**D, "seed": 30}
c = dict(D); c["seed"] = 31
for key in D: pass
w = "seed" in D
q = sorted(D)
v = [*D]
t = L + 1
print(f"{D} {N}")
m = type("Net", (), {"modules": lambda self: []})().modules()
s = str(L)
k = [k for k in D.items()]""".split("\n")
# A ~ stands for a new line.
CHANGES = """\
D["seed"] = 2
D.update(seed=2)
D |= {"seed": 2}
del D["seed"]
D = {"seed": 3}
for D in [{"seed": 4}]: pass
with Nothing() as D: pass
(D := {"seed": 5})
E = D; E["seed"] = 6
tweak(D)
if True: D = {"seed": 7}
D.pop("seed")
globals()["D"] = {"seed": 8}
exec("D = {'seed': 9}")
vars()["D"] = {"seed": 10}
a, D = 1, {"seed": 11}
L += 1
L = 4
[D.update(seed=13) for _ in [0]]
(lambda d: d.update(seed=14))(D)
D["seed"] += 1
D.__setitem__("seed", 15)
U += ("model",)
for D["seed"] in [16]: pass
D.setdefault("epoch", 1)
D.clear()
N["nested"]["a"].append(2)
m = N["nested"]; m["b"] = 1
N.get("nested").clear()
class C: D["seed"] = 17
f = D.update; f(seed=18)
D: dict = {"seed": 19}
U = (*U, "model")
dict.update(D, seed=21)
m = [D]; m[0]["seed"] = 22
list(map(D.pop, ["seed"]))
print = D.update; print({"seed": 23})
import operator; operator.setitem(D, "seed", 24)
setattr(__import__("sys").modules[__name__], "D", {})
import sys; setattr(sys.modules[__name__], "D", {})
L: int = 5
try: raise KeyError~except KeyError as D: pass~D = {"seed": 25}
(lambda: [x for x in [D]][0].update(seed=26))()
D, = [{"seed": 27}]
match {"seed": 28}:~    case D: pass
m = dict(x=D); m["x"]["seed"] = 29
x = D or {}; x["seed"] = 32
[L := 9]
def g():~    global D~    D = {"seed": 33}~g()
x = (D if True else 0); x["seed"] = 34
x = N["nested"]; x.clear()
def g(d=D): d["seed"] = 35~g()
for x in N.values(): x = 36~N["seed"] = 37
toolkit_ = toolkit~class toolkit: parse_arguments = lambda **k: toolkit_.parse_arguments(defaults={})""".split("\n")
KEYWORDS = ["defaults=D", "defaults=N", "defaults=dict(D)", "defaults={**D}", "defaults={'seed': 40}", "unused=U"]
KEYWORDS += ["unused=('model',)", "layers=L", "layers=2 + 2", "layers=-L", "own_model=U", "**dict(layers=7)"]
KEYWORDS += ["layers=len(D)", "defaults=D.copy()", "defaults=D | {}"]


def ran(text):
    """The keywords that the script hands over; None where it fails before."""
    got = []
    stub = types.ModuleType("toolkit")
    stub.parse_arguments = lambda *argv, description, **given: got.append(copy.deepcopy(given))
    before, sys.modules["toolkit"] = sys.modules.get("toolkit"), stub
    this = types.ModuleType("fuzzed")
    sys.modules["fuzzed"] = this
    try:
        exec(compile(text, "fuzzed.py", "exec"), this.__dict__)
    except Exception:
        return None
    finally:
        sys.modules["toolkit"] = before
        del sys.modules["fuzzed"]
    return got


def told(text, folder):
    path = folder / "fuzzed.py"
    path.write_text(text, encoding="utf-8")
    try:
        return read_script(str(path)).arguments
    except Exception as error:
        assert type(error).__name__ == "UserError", error
        return None


def script(before, call, after, inside):
    before, after = ([each.replace("~", "\n") for each in part] for part in (before, after))
    lines = ["import toolkit", CONSTANTS, *before]
    if inside:
        body = "\n".join(f"    {line}" for each in after for line in each.split("\n"))
        lines += ["def main():", body or "    pass", f"    toolkit.parse_arguments(description='', {call})", "main()"]
    else:
        lines += [*after, f"toolkit.parse_arguments(description='', {call})"]
    return "\n".join(lines)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", ["defaults=D, layers=L, unused=U", "defaults=N"])
def test_what_is_changed_is_not_told_as_it_was(tmp_path, change, call):
    text = script([change], call, [], False)
    got, read = ran(text), told(text, tmp_path)
    if read is not None and got is not None:
        assert [{name: read.get(name) for name in given} for given in got] == got


@pytest.mark.parametrize("read", READS)
def test_what_is_only_read_is_told(tmp_path, read):
    path = tmp_path / "own.py"
    path.write_text(script([read], "defaults=D, layers=L", [], False))
    found = read_script(str(path)).arguments
    assert (found["defaults"], found["layers"]) == ({"seed": 1, "learning_rate": 0.5}, 3)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(st.sampled_from(READS + CHANGES), max_size=3),
    st.lists(st.sampled_from(KEYWORDS), min_size=1, max_size=3, unique_by=lambda word: word.partition("=")[0]),
    st.lists(st.sampled_from(READS + CHANGES), max_size=2),
    st.booleans(),
)
def test_what_is_told_is_what_is_handed_over(tmp_path, before, call, after, inside):
    text = script(before, ", ".join(call), after, inside)
    got, read = ran(text), told(text, tmp_path)
    if read is not None and got:
        assert [{name: read.get(name) for name in given} for given in got] == got, text


BASES = [(Path(__file__).parents[2] / "scripts" / name).read_text() for name in ("train_cnn.py", "train_bert.py")]
PIECES = [
    "{",
    ")",
    "toolkit",
    "'",
    "None",
    "*",
    "**",
    "1e999",
    "lambda: 0",
    "\0",
    "\\d",
    "\ud800",
    "[" * 300,
    "-" * 3000,
]
PIECES += [
    "layers=True",
    "defaults=[]",
    "group.add_argument()",
    "unused=5",
    "extra=print",
    "parse_arguments()",
    "99" * 3000,
]


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.sampled_from(BASES),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_a_mutated_script_gives_a_report(tmp_path, base, edits):
    for place, piece, cut in edits:
        at = int(place * len(base))
        base = base[:at] + piece + base[at + cut :]
    path = tmp_path / "mutated.py"
    path.write_bytes(base.encode("utf-8", "surrogatepass"))
    report = check({"CUDA_VISIBLE_DEVICES": ""}, script=str(path))
    report.as_json()
    assert report.errors or report.setup
