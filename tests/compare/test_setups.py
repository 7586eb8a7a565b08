"""Which command line each setup gets, and what is refused before anything starts."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from toolkit.compare.setups import plan_starts
from toolkit.errors import UserError

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/train_cnn.py"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def plan(tmp_path, setups, num_processes=(), arguments=(), script=SCRIPT, steps=20):
    return plan_starts(script, setups, num_processes, steps, tmp_path, arguments)


def refused(*args, **more):
    with pytest.raises(UserError) as caught:
        plan(*args, **more)
    return caught.value.lines


def test_each_kind_of_setup_has_its_launcher(tmp_path):
    (tmp_path / "my.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 3\n")
    starts, notes = plan(tmp_path, ["single", "zero2", "ds_configs/zero1.json", str(tmp_path / "my.yaml")])
    assert [(start.label, start.ranks, start.errors) for start in starts] == [
        ("single", 1, ()),
        ("zero2", 2, ()),
        ("zero1.json", 2, ()),
        ("my.yaml", 3, ()),
    ]
    given = ["--save_initial", "true", "--max_train_steps", "20", "--logging_steps", "2", "--dropout", "0"]
    run = tmp_path / "runs"
    assert starts[0].command == (sys.executable, SCRIPT, "--output_dir", str(run / "single"), *given)
    yaml = str(tmp_path / "configs" / "zero2" / "zero2.yaml")
    assert starts[1].command[1:5] == ("launch", "--config_file", yaml, "--main_process_port")
    assert starts[1].command[6:] == (SCRIPT, "--output_dir", str(run / "zero2"), *given)
    assert starts[2].command[1:4] == ("--num_gpus", "2", "--master_port")
    assert starts[2].command[5:8] == (SCRIPT, "--deepspeed_config", "ds_configs/zero1.json")
    assert starts[3].command[1:4] == ("launch", "--config_file", str(tmp_path / "my.yaml"))
    assert notes == ["--dropout 0: masks differ from rank to rank, and so would the losses; -- --dropout 0.1 keeps it"]
    assert starts[3].environ["OMP_NUM_THREADS"] == "1"


def test_several_numbers_of_ranks(tmp_path):
    starts, notes = plan(tmp_path, ["single", "ddp", "pipeline_dp", "ds_configs/zero1.json"], [2, 4])
    assert [(start.label, start.ranks) for start in starts] == [
        ("single", 1),
        ("ddp x2", 2),
        ("zero1.json x2", 2),
        ("ddp x4", 4),
        ("pipeline_dp x4", 4),
        ("zero1.json x4", 4),
    ]
    assert starts[3].command[4:6] == ("--num_processes", "4")
    alone, _ = plan(tmp_path / "again", ["ddp", "zero2"], [1, 2])
    assert [start.label for start in alone] == ["single", "zero2 x1", "ddp x2", "zero2 x2"]
    assert alone[0].command[:2] == (sys.executable, SCRIPT)
    assert notes[1].startswith("pipeline_dp x2 is left out: --num_processes: 2: pipeline_dp has an even number")


def test_the_same_setup_twice_has_two_folders(tmp_path):
    starts, _ = plan(tmp_path, ["ddp", "ddp", "ddp"])
    assert [start.label for start in starts] == ["ddp", "ddp (2)", "ddp (3)"]
    assert len({start.folder for start in starts}) == 3


def test_names_that_make_one_folder_have_two(tmp_path):
    paths = [tmp_path / name for name in ("a b.json", "a-b.json", "a+b.json")]
    for path in paths:
        path.write_text("{}")
    starts, _ = plan(tmp_path / "out", list(map(str, paths)))
    assert [start.folder.name for start in starts] == ["a-b.json", "a-b.json-2", "a-b.json-3"]


def test_a_file_that_check_refuses_is_not_started(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"gradient_cliping": 1.0}))
    starts, _ = plan(tmp_path, ["single", str(path)])
    assert [bool(start.errors) for start in starts] == [False, True]
    (line,) = starts[1].errors
    assert line == f"{path}: gradient_cliping: 1.0: unknown key, it would be ignored; did you mean gradient_clipping?"


@pytest.mark.parametrize(
    ("setups", "arguments", "line"),
    [
        (["zero22"], [], "--setups: 'zero22': unknown; did you mean zero2?"),
        (["no.json"], [], f"--setups: 'no.json': no such file, searched from {ROOT}; give the path of a file"),
        (["ddp"], ["--max_train_steps=5"], "--max_train_steps: 'after --': compare decides it for every setup; give"),
        (
            ["ddp"],
            ["--output_dir", "x"],
            "--output_dir: 'after --': compare decides it for every setup; give --output_",
        ),
        (["ddp"], ["--stop_after_steps", "2"], "--stop_after_steps: 'after --': compare decides it for every setup;"),
        (["ddp"], ["--save_total_limit", "1"], "--save_total_limit: 'after --': compare decides it for every setup;"),
        (["ddp"], ["--deepspeed_config", "x"], "--deepspeed_config: 'after --': compare decides it for every setup;"),
    ],
)
def test_what_cannot_be_compared(tmp_path, setups, arguments, line):
    (told,) = refused(tmp_path, setups, arguments=arguments)
    assert told.startswith(line)
    assert list(tmp_path.iterdir()) == []


def test_dropout_that_is_typed_is_kept_and_a_script_without_one_gets_none(tmp_path):
    starts, notes = plan(tmp_path, ["single"], arguments=["--dropout", "0.1"])
    assert (starts[0].command.count("--dropout"), notes) == (1, [])
    script = tmp_path / "mine.py"
    script.write_text("import toolkit\ntoolkit.parse_arguments(description='', defaults={}, unused=['model'])\n")
    starts, notes = plan(tmp_path, ["single"], script=str(script))
    assert ("--dropout" in starts[0].command, notes) == (False, [])


def test_a_folder_named_as_a_file_is_told(tmp_path):
    (tmp_path / "x.json").mkdir()
    line = f"--setups: '{tmp_path}/x.json': is a folder; give the path of a file"
    assert refused(tmp_path / "out", [str(tmp_path / "x.json")]) == (line,)


def test_more_ranks_than_memory_holds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=24 * 2**30))
    reason = "so many ranks need 12,500 GiB of memory and more, this machine has 24"
    assert refused(tmp_path, ["ddp"], [2, 100_000]) == (f"--num_processes: 100000: {reason}; name fewer",)
    assert [start.ranks for start in plan(tmp_path, ["ddp"], [192])[0]] == [192]


def test_nothing_is_started_where_every_setup_is_refused(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        path.write_text(json.dumps({"gradient_cliping": 1.0}))
    lines = refused(tmp_path / "out", list(map(str, paths)))
    reason = "gradient_cliping: 1.0: unknown key, it would be ignored; did you mean gradient_clipping?"
    assert lines == tuple(f"{path}: {reason}" for path in paths)


def test_two_minus_signs_among_the_scripts_arguments_are_told(tmp_path):
    (line,) = refused(tmp_path, ["single"], arguments=["--", "--seed", "3"])
    assert line == "--: '--': argparse takes nothing after it for an argument; leave it out"
