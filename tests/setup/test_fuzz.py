"""Mutated configuration files: every one gets a verdict, and no key is ignored because its name changed."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from launched import ROOT

from toolkit.check import check
from toolkit.errors import Fault
from toolkit.setup import schema

ENVIRON = {"HF_HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}
WILD = Path(__file__).parent / "wild"
CHECKED = settings(
    max_examples=340,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
# Sections whose keys are the user's own.
FREE_FORM = frozenset({"data_sampling", "data_routing"})  # of data_efficiency, which passes only where it is off
VALUES = st.sampled_from(
    [None, True, False, 0, -1, 1, 2, 3, 8, 2.0, 0.5, 1e400, 10**30, "", "auto", "8", "true", "cpu", "nvme", "\ud800"]
    + [[], [1], ["a", None], {}, {"a": 1}, {"device": "cpu"}, {"enabled": True}, {"type": "AdamW", "params": {}}]
)


def verdict(path):
    """The report on a file, as JSON too; whatever else comes out is a fault of ours."""
    kind = "config_file" if path.suffix == ".yaml" else "deepspeed_config"
    report = check(ENVIRON, num_processes=2, script="scripts/train_cnn.py", **{kind: str(path)})
    for error in report.errors:
        assert isinstance(error, Fault) and error.where and error.reason and error.remedy
        assert "\n" not in error
    assert json.loads(report.as_json())["ok"] == (not report.errors)
    assert report.errors or report.table()
    return report


def read(path):
    return yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else json.loads(path.read_text())


def write(path, config):
    path.write_text(yaml.safe_dump(config) if path.suffix == ".yaml" else json.dumps(config))
    return path


def places(node, above=()):
    """The key paths of all keys in objects."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield (*above, key)
        yield from places(value, (*above, key))


def at(config, path):
    for key in path:
        config = config[key]
    return config


@pytest.fixture(scope="module", autouse=True)
def _at_the_root():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(ROOT)
        yield


def bases(suffix):
    folders = {"yaml": [ROOT / "accelerate_configs", WILD], "json": [ROOT / "ds_configs", WILD]}[suffix]
    return sorted(path for folder in folders for path in folder.glob(f"*.{suffix}"))


ALL = [*bases("json"), *bases("yaml")]


def accepted():
    """Configurations without an error, by name."""
    found = {}
    for path in ALL:
        try:
            config = read(path)
        except (ValueError, yaml.YAMLError):
            continue
        if isinstance(config, dict) and not verdict(path).errors:
            found[path.name] = config
    return found


@st.composite
def new_names(draw, name):
    """The name with a slip of the keyboard in it, or another one."""
    spot = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_-.1 "))
    return draw(
        st.sampled_from(
            [
                name[:spot] + name[spot + 1 :],
                name[:spot] + letter + name[spot:],
                name[:spot] + letter + name[spot + 1 :],
                name + "s",
                name.upper(),
                name.title(),
                name.replace("_", "-"),
                name.replace("_", ""),
                name.replace("z", "s"),
                letter * 3,
                f"_{name}",
            ]
        )
    )


def _recorded(name):
    return json.loads((Path(schema.__file__).parent / "schemas" / f"{name}.json").read_text())


DEEPSPEED, ACCELERATE = _recorded("deepspeed"), _recorded("accelerate")


def valid_names(suffix, section=None):
    """The names that mean something in a section, the tuple of its keys; of any section where it is None."""
    if section is None:
        everywhere = [DEEPSPEED["top"], *DEEPSPEED["sections"].values()]
        everywhere = everywhere if suffix == "json" else [ACCELERATE["fields"], *ACCELERATE["sections"].values()]
        return {name for names in everywhere for name in names}
    name = ".".join(section)
    if suffix == "yaml":
        return {*ACCELERATE["sections"].get(name, ())} if name else {*ACCELERATE["fields"], *ACCELERATE["old_fields"]}
    if name in ("optimizer.params", "scheduler.params"):
        kinds = DEEPSPEED["optimizers" if name.startswith("optimizer") else "schedulers"]
        return {each for names in kinds.values() for each in names}
    return {*DEEPSPEED["sections"].get(name, ())} if name else {*DEEPSPEED["top"]}


@CHECKED
@given(data=st.data())
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_renamed_key_is_never_silently_ignored(tmp_path, suffix, data):
    ours = {name: config for name, config in ACCEPTED.items() if name.endswith(suffix)}
    name = data.draw(st.sampled_from(sorted(ours)))
    config = copy.deepcopy(ours[name])
    path = data.draw(st.sampled_from(sorted(places(config))))
    new = data.draw(new_names(path[-1]))
    section = at(config, path[:-1])
    assume(new and new not in section and not set(path) & FREE_FORM)
    assume(not any(key.startswith("_") for key in path))
    section[new] = section.pop(path[-1])
    report = verdict(write(tmp_path / name, config))
    if new.startswith("_") or new in valid_names(suffix, path[:-1]):
        return
    told = [*report.errors, *report.warnings]
    assert any(new in each for each in told), (name, path, new, told)


@CHECKED
@given(data=st.data())
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_any_value_anywhere_gets_a_verdict(tmp_path, suffix, data):
    path = data.draw(st.sampled_from([each for each in ALL if each.suffix == f".{suffix}"]))
    try:
        config = read(path)
    except (ValueError, yaml.YAMLError):
        config = {}
    assume(isinstance(config, dict))
    config = copy.deepcopy(config)
    for _ in range(data.draw(st.integers(1, 3))):
        keys = sorted(places(config))
        key = data.draw(st.sampled_from(keys)) if keys else ("x",)
        section = at(config, key[:-1])
        match data.draw(st.sampled_from(["value", "delete", "move", "add"])):
            case "value":
                section[key[-1]] = copy.deepcopy(data.draw(VALUES))
            case "delete":
                section.pop(key[-1], None)
            case "move":
                config[key[-1]] = section.pop(key[-1], None)
            case "add":
                section[data.draw(st.sampled_from(sorted(valid_names(suffix))))] = copy.deepcopy(data.draw(VALUES))
    try:
        write(tmp_path / path.name, config)
    except (UnicodeEncodeError, yaml.YAMLError):
        assume(False)
    verdict(tmp_path / path.name)


@CHECKED
@given(data=st.data())
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_any_text_gets_a_verdict(tmp_path, suffix, data):
    path = data.draw(st.sampled_from([each for each in ALL if each.suffix == f".{suffix}"]))
    content = path.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        spot = data.draw(st.integers(0, len(content)))
        length = data.draw(st.sampled_from([0, 1, 2, 30]))
        pieces = st.sampled_from(
            [
                b"",
                b",",
                b"{",
                b"}",
                b"[",
                b'"',
                b":",
                b"\x00",
                b"\xff",
                b"#",
                b"//",
                b"/*",
                b"\n",
                b"-",
                b"&a",
                b"*a",
                b"!!python/object:os.system",
                b"NaN",
                b"1e999",
                b"\xe2\x80\xa8",
            ]
        )
        content = content[:spot] + data.draw(pieces) + content[spot + length :]
    (tmp_path / path.name).write_bytes(content)
    verdict(tmp_path / path.name)


@pytest.fixture(scope="module", autouse=True)
def _accepted(_at_the_root):
    ACCEPTED.update(accepted())
    assert len([name for name in ACCEPTED if name.endswith("json")]) >= 20
    assert len([name for name in ACCEPTED if name.endswith("yaml")]) >= 15


ACCEPTED: dict[str, dict] = {}
