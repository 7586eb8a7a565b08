"""The nearest name is difflib's, and thousands of unknown keys take no time."""

import difflib
import random
import time

import pytest

from toolkit.setup import schema
from toolkit.setup.accelerate_file import read_yaml
from toolkit.setup.accelerate_keys import DEFAULTS
from toolkit.setup.dsjson import DeepSpeedFile, check_keys
from toolkit.setup.words import came, nearest, type_of

LETTERS = "abcdefghijklmnopqrstuvwxyz_-0123ABÄ"


def difflibs(name, names, cutoff):
    forms = {each.lower().replace("-", "_"): each for each in names}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), forms, n=1, cutoff=cutoff)
    return f"did you mean {forms[close[0]]}?" if close else ""


def misspelt(word, draw):
    letters = list(word)
    for _ in range(draw.randint(0, 12)):
        at = draw.randrange(len(letters) + 1)
        if draw.random() < 0.5:
            letters.insert(at, draw.choice(LETTERS))
        elif letters:
            letters.pop(min(at, len(letters) - 1))
    return "".join(letters)


@pytest.mark.parametrize("names", [schema.SECTIONS[""], schema.SECTIONS["zero_optimization"], DEFAULTS])
def test_the_nearest_name_is_the_one_that_difflib_finds(names):
    draw = random.Random(0)
    words = [misspelt(name, draw) for name in names for _ in range(10)] + ["", "x", "é" * 30]
    got = [[nearest(word, names, cutoff) for cutoff in (0.7, 0.9)] for word in words]
    assert got == [[difflibs(word, names, cutoff) for cutoff in (0.7, 0.9)] for word in words]
    assert 0.2 < sum(bool(row[0]) for row in got) / len(words) < 0.95


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (None, "null", "null"),
        (True, "boolean", "boolean true"),
        (3, "integer", "integer 3"),
        (0.5, "number", "number 0.5"),
        ("4", "string", 'string "4"'),
        ([1], "list", "list [1]"),
        ({"a": None}, "object", 'object {"a": null}'),
        ("x" * 500, "string", 'string "' + "x" * 75 + "..."),
    ],
)
def test_values_have_jsons_names(value, kind, shown):
    assert (type_of(value), came(value)) == (kind, shown)


def random_keys(count):
    draw = random.Random(1)
    return ["".join(draw.choices(LETTERS[:26], k=14)) for _ in range(count)]


# Seconds of this process: a quarter of the bounds on a free core, twice the bounds with difflib for each pair.
@pytest.mark.parametrize("keys", [[f"unknown_key_{n}" for n in range(5000)], random_keys(5000)])
def test_thousands_of_unknown_keys_have_a_line_each_in_no_time(write, keys):
    begin = time.process_time()
    faults = check_keys(DeepSpeedFile("a.json", dict.fromkeys(keys, 1)))
    told = [line.where.key for line in faults]
    assert (told, time.process_time() - begin < 0.6) == (keys, True)
    path = write("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n" + "".join(f"{key}: 1\n" for key in keys))
    begin = time.process_time()
    told = [line.where.key for line in read_yaml(path).faults]
    assert (told, time.process_time() - begin < 1.5) == (keys, True)
