"""The files that `oneloop init` writes: those of the presets, for the machine at hand."""

import json
import os
import shlex

import pytest
import yaml
from launched import ROOT

from toolkit.check import check
from toolkit.errors import UserError
from toolkit.setup import templates
from toolkit.setup.templates import ABOUT, write_setup


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A working folder; called with a number, a machine with so many GPUs."""
    monkeypatch.chdir(tmp_path)

    def has(gpus):
        monkeypatch.setattr("toolkit.setup.templates.count_gpus", lambda environ: gpus)

    has(0)
    return has


def refused(*arguments):
    with pytest.raises(UserError) as caught:
        write_setup(*arguments)
    return caught.value.lines


def written(name):
    """(YAML, JSON) of the working folder, without the JSON's comments."""
    with open(f"{name}.yaml", encoding="utf-8") as file:
        settings = yaml.safe_load(file)
    if not os.path.exists(f"{name}.json"):
        return settings, None
    with open(f"{name}.json", encoding="utf-8") as file:
        return settings, {key: value for key, value in json.load(file).items() if not key.startswith("_")}


@pytest.mark.parametrize("name", ABOUT)
def test_the_files_say_what_the_presets_say(machine, name):
    paths = write_setup(name)
    assert paths == [f"{name}.yaml", f"{name}.json"][: 1 if name == "single" else 2]
    settings, config = written(name)
    right = yaml.safe_load((ROOT / "accelerate_configs" / f"{name}.yaml").read_text(encoding="utf-8"))
    if "deepspeed_config" in right:
        right["deepspeed_config"]["deepspeed_config_file"] = f"{name}.json"
    assert settings == right
    preset = ROOT / "ds_configs" / f"{name}.json"
    assert config == (json.loads(preset.read_text(encoding="utf-8")) if preset.exists() else None)


def test_every_preset_can_be_written():
    assert set(ABOUT) == {path.stem for path in (ROOT / "accelerate_configs").glob("*.yaml")}


FOLDERS = ["configs", "a folder: with #", 'it\'s "here"', "$HOME", "[a, b]", "-x", "ü\u3000é"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_yaml_finds_its_json_beside_it_from_any_folder(machine, monkeypatch, tmp_path, folder):
    paths = write_setup("zero2", folder)
    assert paths == [os.path.join(folder, "zero2.yaml"), os.path.join(folder, "zero2.json")]
    with open(paths[0], encoding="utf-8") as file:
        assert yaml.safe_load(file)["deepspeed_config"]["deepspeed_config_file"] == "zero2.json"
    for start in (tmp_path, tmp_path / folder, tmp_path.parent):
        monkeypatch.chdir(start)
        report = check({}, config_file=os.path.relpath(tmp_path / paths[0]))
        assert (list(report.errors), report.setup["strategy"]["value"]) == ([], "zero2")
        assert report.setup["strategy"]["origin"].startswith(os.path.relpath(tmp_path / paths[1]))


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", ["ddp", "zero2"])
def test_the_commands_in_the_files_are_as_a_shell_takes_them(machine, folder, name):
    yaml_file, json_file = write_setup(name, folder)
    with open(yaml_file, encoding="utf-8") as file:
        lines = [line.removeprefix("#").strip() for line in file if "SCRIPT" in line or "--deepspeed_config" in line]
    with open(json_file, encoding="utf-8") as file:
        lines.append(json.load(file)["_start"])
    named = [shlex.split(line[line.index("--") :])[-2 if line.endswith("SCRIPT") else -1] for line in lines]
    assert len(named) == (4 if name == "ddp" else 3)
    assert {os.path.normpath(path) for path in named} == {yaml_file, json_file}
    assert [path for path in named if path.startswith("-")] == []


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("a\udcff", "its name is not UTF-8, and the files tell it"),
        *(
            (f"a{letter}b", f"its name has the character U+{ord(letter):04X}, and the files tell it in a comment")
            for letter in "\n\r\t\0\x1b\x7f\x85\u2028\u2029\ufffe"
        ),
    ],
)
@pytest.mark.parametrize("name", ["single", "zero2"])
def test_a_folder_that_the_comments_cannot_tell_is_refused(machine, name, folder, reason):
    assert list(refused(name, folder)) == [f"--output_dir: {folder!r}: {reason}; name another folder"]
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("name", "gpus", "asked", "ranks", "stages"),
    [
        ("single", 2, None, 1, None),
        ("ddp", 3, None, 3, None),
        ("zero3", 1, None, 1, None),
        ("zero2", 2, 8, 8, None),
        ("pipeline", 4, None, 2, 2),
        ("pipeline", 0, 4, 4, 4),
        ("pipeline_dp", 7, None, 6, 2),
        ("pipeline_dp", 0, 8, 8, 2),
    ],
)
def test_ranks_and_stages_are_the_machines_or_as_asked(machine, name, gpus, asked, ranks, stages):
    machine(gpus)
    write_setup(name, ".", asked)
    settings, config = written(name)
    assert settings["num_processes"] == ranks
    assert ((config or {}).get("pipeline") or {"stages": None})["stages"] == stages


@pytest.mark.parametrize(
    ("name", "gpus", "asked", "line"),
    [
        ("zero4", 0, None, "SETUP: 'zero4': unknown; did you mean zero3?"),
        (
            "fsdp",
            0,
            None,
            "SETUP: 'fsdp': unknown; one of single, ddp, zero1, zero2, zero3, zero2_offload, zero3_offload, pipeline, "
            "pipeline_dp",
        ),
        ("single", 0, 2, "--num_processes: 2: single is one process; give such a number"),
        ("ddp", 0, 1, "--num_processes: 1: ddp has 2 or more ranks; give such a number"),
        ("zero1", 0, 0, "--num_processes: 0: zero1 has 1 or more ranks; give such a number"),
        (
            "pipeline_dp",
            0,
            5,
            "--num_processes: 5: pipeline_dp has an even number of 4 or more ranks; give such a number",
        ),
        (
            "ddp",
            1,
            None,
            "SETUP: 'ddp': has 2 or more ranks, one a GPU, and there is 1 here; init another setup, or give "
            "--num_processes for the machine it is meant for",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(machine, name, gpus, asked, line):
    machine(gpus)
    (got,) = refused(name, ".", asked)
    assert (got, os.listdir()) == (line, [])


@pytest.mark.parametrize("there", [["zero1.yaml"], ["zero1.json"], ["zero1.yaml", "zero1.json"]])
def test_nothing_is_overwritten(machine, write, there):
    for name in there:
        write(name, "mine")
    assert list(refused("zero1")) == [
        f"{name}: 'exists': a file is never overwritten; name another folder with --output_dir, or remove it"
        for name in there
    ]
    assert sorted(os.listdir()) == sorted(there)
    assert [open(name, encoding="utf-8").read() for name in there] == ["mine"] * len(there)


def test_half_a_setup_is_not_left(machine, monkeypatch):
    def full(path, mode, encoding):
        if path.endswith(".json"):
            raise OSError(28, "No space left on device")
        return open(path, mode, encoding=encoding)

    monkeypatch.setattr(templates, "open", full, raising=False)
    right = "--output_dir: '.': cannot be written (No space left on device); name a folder that can be"
    assert (list(refused("zero1")), os.listdir()) == ([right], [])


def test_a_folder_that_is_a_file_is_refused(machine, write):
    write("here", "")
    right = "--output_dir: 'here': cannot be written (File exists); name a folder that can be"
    assert list(refused("zero1", "here")) == [right]


@pytest.mark.parametrize("folder", [".", "configs"])
@pytest.mark.parametrize("name", ABOUT)
def test_check_accepts_the_files(machine, name, folder):
    yaml_file, *json_file = write_setup(name, folder)
    ranks = {"single": 1, "pipeline_dp": 4}.get(name, 2)
    reports = [check({}, config_file=yaml_file)]
    reports += [check({}, deepspeed_config=path, num_processes=ranks) for path in json_file]
    assert [list(report.errors) for report in reports] == [[]] * len(reports)
    got = [[report.setup[value]["value"] for value in ("strategy", "world_size")] for report in reports]
    assert got == [[name, ranks]] * len(reports)
