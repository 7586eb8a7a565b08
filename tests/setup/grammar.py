"""A grammar of small scripts that call `parse_arguments`, plainly or with something odd around it."""

import random

IMPORTS = [
    ("import toolkit", "toolkit.parse_arguments"),
    ("import toolkit as t", "t.parse_arguments"),
    ("import toolkit.arguments", "toolkit.parse_arguments"),
    ("import toolkit.arguments as t", "t.parse_arguments"),
    ("from toolkit import parse_arguments", "parse_arguments"),
    ("from toolkit import parse_arguments as pa", "pa"),
    ("from toolkit.arguments import parse_arguments", "parse_arguments"),
    ("from toolkit import *", "parse_arguments"),
]
REBINDS = """\
from mine import parse_arguments
from mine import parse_arguments as pa
import mine as toolkit
import mine as t
from mine import *
import mine.deep
toolkit.parse_arguments = mine.parse_arguments
setattr(toolkit, "parse_arguments", mine.parse_arguments)
p = toolkit.parse_arguments; p(description="", defaults={"seed": 71})
def parse_arguments(**given): mine.parse_arguments()
def pa(**given): mine.parse_arguments()
parse_arguments = mine.parse_arguments
sys.argv += ["--seed", "1"]
sys.argv.append("--streaming")
sys.argv = ["own.py"]
del sys.argv[1:]
sys.argv[1:] = ["--seed", "2"]
from sys import argv; argv.append("--seed")
print(sys.argv, sys.argv[0], len(sys.argv), "--x" in sys.argv)
print(mine.parse_arguments)""".split("\n")
VALUES = {
    "D": ["{}", "{'seed': 1}", "{'seed': 2, 'learning_rate': 0.5}", "dict(seed=3)", "{'seed': 2 + 2}", "{**D0}", "D0"],
    "U": [
        "()",
        "('data',)",
        "set()",
        "['image_size']",
        "['model', 'max_length']",
        "{'seed'}",
        "tuple(['data'])",
        "('seed')",
    ],
    "L": ["1", "2", "None", "True", "1 + 1", "int('3')"],
}
# {n}: a constant's name, {v}: an expression, {b}: a statement
BINDS = """\
{n} = {v}
{n}: object = {v}
{n} = E = {v}
{n} = E = {v}; tweak(E)
{n}, E = {v}, 0
[*{n}] = {v},
({n} := {v})
print({n} := {v})
if {c}: {n} = {v}
for {n} in [{v}]: pass
for _ in [0]: {n} = {v}
while {c}: {n} = {v}; break
try: {n} = {v}
with Given({v}) as {n}: pass
def {n}(): pass
class {n}: pass
import mine as {n}
from mine import {n}
from mine import D as {n}
def set_it():$ global {n}$ {n} = {v}
set_it()
def other({n}): return {n}
[{n} for {n} in [{v}]]
[{n} := each for each in [{v}]]
lambda {n}: {n}
del {n}
match {v}:$ case {n}: pass
match [{v}]:$ case [*{n}]: pass
match {{'a': {v}}}:$ case {{'a': 0, **{n}}}: pass
globals()['{n}'] = {v}
exec('{n} = {v}', globals())
import builtins; builtins.globals()['{n}'] = {v}
from builtins import globals as g; g()['{n}'] = {v}
from sys import modules as m; setattr(m[__name__], '{n}', {v})
import sys as s; s._getframe().f_globals['{n}'] = {v}
import inspect; inspect.currentframe().f_globals['{n}'] = {v}
import importlib; setattr(importlib.import_module(__name__), '{n}', {v})
from __main__ import {n} as E; tweak(E)
class Scope: {n} = {v}""".split("\n")
TOUCHES = """\
print({n})
print(len({n}), sorted({n}), *{n})
E = {n}
E = {n}; E.clear()
tweak({n})
[tweak(each) for each in [{n}]]
{n}['seed'] = 50
{n}['seed'] += 1
{n}.update(seed=51)
{n} |= {{'seed': 52}}
{n}.setdefault('epoch', 1)
{n}.pop('seed')
{n}.append('seed')
{n}.add('model')
{n} += ['seed']
{n} += ('seed',)
{n}[:] = ['seed']
{n}[0] = 'seed'
{n}.clear()
{n} += 1
E = {n} or 5; tweak(E)
E = dict(a={n}); tweak(E['a'])
E = list({n}); E.append('seed')
E = {{**{n}}}; tweak(E)
for key in {n}: print(key)
'seed' in {n} and print('x')
mine.kept.append({n}); tweak(mine.kept[0])
(lambda: tweak({n}))()
def later(d={n}): tweak(d)
later()
f = {n}.update; f(seed=53)
len = tweak; len({n})
more = tweak
@(lambda f: tweak)$def more(group): pass""".split("\n")
ROWS = """\
group.add_argument('--width', type=int, default=3)
group.add_argument('--depth', type=whole(1), choices=(1, 2))
group.add_argument('--fast', action='store_true')
group.add_argument('--kind', choices=('a', 'b'), default='a')
group.add_argument('--rate', type=toolkit_kinds.real(0, above=True), default=WIDE)
group.add_argument('--many', nargs='*', type=float)
group.add_argument('--odd', type=own)
group.add_argument(NAME, dest='named')
if WIDE: group.add_argument('--wide')
for each in ('--one',): group.add_argument(each)
helper(group)
group.set_defaults(width=9)
group = Given(group)
'a text'
pass""".split("\n")
PREFIX = """\
import sys, mine
from toolkit.kinds import whole
import toolkit.kinds as toolkit_kinds
class Given:
    def __init__(self, value): self.value = value
    def __enter__(self): return self.value
    def __exit__(self, *error): pass
    def add_argument(self, *names, **options): pass
def tweak(it):
    if isinstance(it, dict): it['seed'] = 60
    if isinstance(it, list): it.append('seed')
def own(text): return text
def helper(group): group.add_argument('--helped')
D0 = {'seed': 9}
WIDE, NAME = 2.0, '--named'"""
AFTER = """\
arguments.seed = 80
arguments.learning_rate *= 2
setattr(arguments, 'seed', 81)
arguments.__dict__['seed'] = 82
del arguments.seed
arguments.note = 'x'
print(arguments.seed, vars(arguments))
other = arguments.seed""".split("\n")


KEYWORDS = {
    "defaults": ["D", "{'seed': 4}", "dict(D)", "{**D}"],
    "unused": ["U", "('data',)", "[*U]"],
    "layers": ["L", "3", "L + 1", "-1"],
    "own_model": ["()", "['seed']", "U", "['width']"],
    "extra": ["more", "None", "lambda group: None"],
    "argv": ["None", "sys.argv[1:]", "[]"],
}
ODDITIES = ["bind", "value", "touch", "import", "rows", "keyword", "stars", "after", "inside", "loop"]
PLAIN = {"D": "{'seed': 1}", "U": "['image_size']", "L": "1"}
CONSTANTS = [f"{name} = {value}" for name, value in PLAIN.items()]


def filled(form, name, value, condition="True"):
    return form.format(n=name, v=value, c=condition)


def script(
    constants=CONSTANTS,
    rows=("pass",),
    lines=(),
    bring=IMPORTS[0],
    given="defaults=D, unused=U, layers=L, extra=more",
    before=(),
    after=("arguments.note = 'x'",),
    home="module",
    decorator="",
):
    """A text that binds the constants and calls `parse_arguments`."""
    body = [*before, f"arguments = {bring[1]}(description='', {given})", *after]
    inside = "$".join(f" {line}" for each in body for line in each.split("$"))
    if home == "loop":
        body = ["for _ in [0, 1]:$" + inside]
    elif home != "module":  # a function, of this parameter where it is no plain one
        parameter = "" if home == "function" else home
        body = [f"def main({parameter}):$" + inside, f"main({'0' * bool(parameter)})"]
    more = f"{decorator}def more(group):$" + "$".join(f" {row}" for row in rows)
    return "\n".join([PREFIX, bring[0], *constants, more, *lines, *body]).replace("$", "\n")


def drawn(number):
    """The script of that number, plain but for at most two oddities."""
    draw = random.Random(number)
    pick = draw.choice
    odd = {pick(ODDITIES), pick(ODDITIES)} if number % 8 else set()

    def statement():
        name = pick("DUL")
        form = pick(pick([TOUCHES, BINDS]) if "touch" in odd else TOUCHES[:2])
        return filled(form, name, pick(VALUES[name]), pick(["True", "False"]))

    strange = pick("DUL") if "bind" in odd else ""
    values = {name: pick(each if "value" in odd else each[:3]) for name, each in VALUES.items()}
    words = {key: pick(each if "keyword" in odd else each[:1]) for key, each in KEYWORDS.items() if pick([0, 1])}
    given = ", ".join(f"{key}={value}" for key, value in ({"defaults": "D"} | words).items())
    return script(
        constants=[filled(pick(BINDS if name == strange else BINDS[:2]), name, values[name]) for name in "DUL"],
        rows=draw.sample(ROWS if "rows" in odd else ROWS[:5], draw.randint(1, 3)),
        lines=[*(statement() for _ in range(draw.randint(0, 2))), *([pick(REBINDS)] if "import" in odd else [])],
        bring=pick(IMPORTS),
        given=f"**dict({given})" if "stars" in odd else given,
        before=[statement()] if "inside" in odd else [],
        after=[pick(AFTER if "after" in odd else AFTER[-3:])],
        home="loop" if "loop" in odd else pick(["module", "function"]),
    )
