"""Arguments that a script changes after they were read, by whatever name, are decided by it."""

import pytest

from toolkit.setup.script import read_script

PARSE = "toolkit.parse_arguments(description='', defaults={'seed': 1})"
CHANGED = f"""a = {PARSE}; a.seed = 2
def get(): return {PARSE}~a = get()~a.seed = 2
def get():~    b = {PARSE}~    return b~a = get()~a.learning_rate = 3
a = {PARSE}~def fix(x): x.seed = 2~fix(a)
a = {PARSE}~def fix(*, x): x.seed = 2~fix(x=a)
a = {PARSE}~b = a~b.seed = 2
a, n = {PARSE}, 1~a.seed = 2
class C: pass~c = C()~c.a = {PARSE}~c.a.seed = 2
a = {PARSE}~vars(a)['seed'] = 2
a = {PARSE}~vars(a).update(seed=2)
a = {PARSE}~setattr(a, 'seed', 2)
a = {PARSE}~a.script_defaults['seed'] = 2
import argparse~a = {PARSE}~a = argparse.Namespace(**{{**vars(a), 'seed': 2}})
if (a := {PARSE}): a.seed = 2
import os~os.environ['ACCELERATE_MIXED_PRECISION'] = 'bf16'~a = {PARSE}
import os~os.environ.setdefault('WORLD_SIZE', '2')~a = {PARSE}
import os~os.chdir('/tmp')~a = {PARSE}
from os import environ~environ.update(RANK='1')~a = {PARSE}""".split("\n")
LEFT = f"""a = {PARSE}; print(a.seed, vars(a))
a = {PARSE}~a.own = 2
a = {PARSE}~class M:~    def __init__(self, seed): self.seed = seed~M(a.seed)
import os~os.environ.get('RANK')~os.environ['HOME']~a = {PARSE}
a = {PARSE}~b = a.seed~b += 1
a = {PARSE}~config = object()~config.seed = 2
a = {PARSE}~for k, v in vars(a).items(): print(k, v)""".split("\n")


def read(tmp_path, text):
    path = tmp_path / "own.py"
    path.write_text("import toolkit\n" + text.replace("~", "\n") + "\n")
    return read_script(str(path))


@pytest.mark.parametrize("text", CHANGED)
def test_what_is_changed_is_decided_by_the_script(tmp_path, text):
    script = read(tmp_path, text)
    assert script.arguments is None
    assert "the script changes what is read" in script.notes[0]


@pytest.mark.parametrize("text", LEFT)
def test_what_is_only_read_is_told(tmp_path, text):
    script = read(tmp_path, text)
    assert (script.notes, script.arguments["defaults"]) == ([], {"seed": 1})
