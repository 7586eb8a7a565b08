"""The command line: names, defaults, what was typed, and every mistake told at once."""

import argparse
from collections.abc import Sequence

import pytest

from toolkit.arguments import parse_arguments
from toolkit.errors import UserError
from toolkit.kinds import real

DEFAULTS = {"train_batch_size": 64, "learning_rate": 0.05, "optimizer": "sgd"}


def parse(*argv, extra=None):
    return parse_arguments(argv, description="test", defaults=DEFAULTS, extra=extra)


def norm(group):
    group.add_argument("--norm", choices=("none", "group", "batch"), default="none")
    group.add_argument("--width", type=float, default=1.0)


def test_a_scripts_defaults_stand_and_nothing_counts_as_typed():
    arguments = parse()
    assert (arguments.train_batch_size, arguments.learning_rate, arguments.optimizer) == (64, 0.05, "sgd")
    assert (arguments.max_grad_norm, arguments.timeout, arguments.momentum, arguments.verbose) == (
        1.0,
        120.0,
        0.9,
        False,
    )
    assert arguments.typed == frozenset()
    assert arguments.script


def test_typed_holds_what_the_user_gave_also_where_it_equals_the_default():
    arguments = parse("--train_batch_size", "64", "--group_by_length", "--verbose", "false")
    assert arguments.typed == {"train_batch_size", "group_by_length", "verbose"}
    assert (arguments.group_by_length, arguments.verbose) == (True, False)


@pytest.mark.parametrize(
    "argv",
    [
        ("--deepspeed_config", "a.json"),
        ("--deepspeed", "a.json"),
        ("--deepspeed", "--deepspeed_config", "a.json"),
        ("--deepspeed", "a.json", "--deepspeed_config", "./a.json"),
        ("--local_rank=0", "--deepspeed_config=a.json"),
        ("--local-rank", "1", "--deepspeed", "a.json"),
    ],
)
def test_every_way_to_name_the_json(argv):
    assert parse(*argv).deepspeed_config == "a.json"


@pytest.mark.parametrize("name", ["utf9", "", "hex", "ä"])
def test_an_encoding_is_one_of_text_that_python_knows(name):
    assert parse("--encoding", "UTF-16").encoding == "UTF-16"
    with pytest.raises(UserError) as caught:
        parse("--encoding", name)
    reason = "unknown encoding, expected utf-8, latin-1, cp1252, utf-16 or another that Python knows"
    assert caught.value.lines == (f"--encoding: {name!r}: {reason}; correct the value",)


def test_a_bare_deepspeed_names_no_json():
    assert parse("--deepspeed").deepspeed_config is None


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("--learning_rat", "1"), "--learning_rat: '--learning_rat': unknown argument; did you mean --learning_rate?"),
        (
            ("--learning-rate=1",),
            "--learning-rate: '--learning-rate=1': unknown argument; did you mean --learning_rate?",
        ),
        (("--learning_rate", "-1"), "--learning_rate: '-1': must be at least 0; correct the value"),
        (("--learning_rate", "fast"), "--learning_rate: 'fast': expected a number; correct the value"),
        (("--learning_rate", "nan"), "--learning_rate: 'nan': expected a finite number; correct the value"),
        (("--dropout", "1"), "--dropout: '1': must be at least 0 and below 1; correct the value"),
        (("--output_dir", ""), "--output_dir: '': expected a path; correct the value"),
        (("--resume_from_checkpoint", ""), "--resume_from_checkpoint: '': expected a path; correct the value"),
        (
            ("--checkpointing_steps", "epochs"),
            "--checkpointing_steps: 'epochs': expected an integer, or epoch; correct the value",
        ),
        (("--save_total_limit", "0"), "--save_total_limit: '0': must be 1 or more; correct the value"),
        (("--num_train_epochs", "0"), "--num_train_epochs: '0': must be 1 or more; correct the value"),
        (("--seed", str(2**63)), f"--seed: '{2**63}': must be {2**63 - 1} or less; correct the value"),
        (("--seed", "1.5"), "--seed: '1.5': expected an integer; correct the value"),
        (("--timeout", "0"), "--timeout: '0': must be above 0; correct the value"),
        (("--group_by_length", "maybe"), "--group_by_length: 'maybe': expected true or false; correct the value"),
        (
            ("--optimizer", "adamww"),
            "--optimizer: 'adamww': expected one of sgd, adam, adamw (did you mean adamw?); correct the value",
        ),
        (
            ("--deepspeed", "a.json", "--deepspeed_config", "b.json"),
            "--deepspeed: 'a.json': --deepspeed_config names b.json; name one file",
        ),
        (
            ("--dataset_name", "x", "--train_file", "y.csv"),
            "--dataset_name: 'x': stands beside a local file; give one of the two",
        ),
        (("--dataset_config_name", "x"), "--dataset_config_name: 'x': belongs to a data set; give --dataset_name too"),
        (("stray",), "stray: 'stray': unknown argument; see --help"),
    ],
)
def test_a_wrong_argument_gives_its_line(argv, line):
    with pytest.raises(UserError) as caught:
        parse(*argv)
    assert caught.value.lines == (line,)


STREAM = ("--streaming", "--train_file", "a.csv", "--max_train_steps", "9")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (STREAM[:3], "--streaming: True: where a stream ends is not known; give --max_train_steps too"),
        (
            ("--streaming", "--max_train_steps", "9"),
            "--streaming: True: the embedded sample is in memory; give --dataset_name or --train_file too",
        ),
        (
            (*STREAM, "--group_by_length"),
            "--group_by_length: True: the lengths of a stream are not known ahead; leave it or --streaming out",
        ),
        (
            (*STREAM, "--checkpointing_steps", "epoch"),
            "--checkpointing_steps: 'epoch': a stream has no epochs; give a number of steps",
        ),
        (
            (*STREAM, "--on_bad_sample", "skip"),
            "--on_bad_sample: 'skip': which rows of a stream are bad is not known ahead, and every rank must make the "
            "same steps; leave it or --streaming out",
        ),
        (
            ("--shuffle_buffer_size", "9"),
            "--shuffle_buffer_size: 9: goes with --streaming, which is not given; give both, or neither",
        ),
    ],
)
def test_what_a_stream_needs_and_what_it_has_not(argv, line):
    with pytest.raises(UserError) as caught:
        parse(*argv)
    assert caught.value.lines == (line,)


def test_a_scripts_default_order_yields_to_a_stream():
    arguments = parse_arguments(STREAM, description="", defaults={"group_by_length": True})
    assert (arguments.streaming, arguments.shuffle_buffer_size) == (True, 1000)
    assert parse(*STREAM, "--group_by_length", "false").group_by_length is False


def test_all_mistakes_are_told_at_once():
    with pytest.raises(UserError) as caught:
        parse("--dropout", "2", "--seed", "x", "--nonsense", "1", "--max_train_steps", "0")
    assert [line.partition(":")[0] for line in caught.value.lines] == [
        "--dropout",
        "--seed",
        "--max_train_steps",
        "--nonsense",
    ]


@pytest.mark.parametrize("argv", [("--learning_rate",), ("--norm",)])
def test_argparses_own_errors_are_lines_too(argv):
    with pytest.raises(UserError) as caught:
        parse(*argv, extra=norm)
    assert argv[0] in caught.value.lines[0]


def test_a_scripts_own_arguments():
    assert (parse(extra=norm).norm, parse(extra=norm).width, parse(extra=norm).typed) == ("none", 1.0, frozenset())
    arguments = parse("--norm", "group", extra=norm)
    assert (arguments.norm, arguments.typed) == ("group", {"norm"})


def test_help_groups_the_arguments_and_names_units(capsys):
    with pytest.raises(SystemExit) as caught:
        parse("--help", extra=norm)
    text = capsys.readouterr().out
    assert caught.value.code == 0
    groups = ("model:", "data:", "batch:", "optimisation:", "run:", "launcher:", "this script:")
    assert [group for group in groups if f"\n{group}" not in text] == []
    assert "seconds after which" in text


def test_help_is_printed_once(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        parse("--help")
    assert capsys.readouterr().out == ""


def test_an_argument_without_a_use_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments(
            ["--max_length", "3", "--momentum", "0.3"], description="", defaults={}, unused=("max_length", "image_size")
        )
    assert [line.partition(": ")[0] for line in caught.value.lines] == ["--max_length", "--momentum"]
    assert parse_arguments(["--momentum", "0.3", "--optimizer", "sgd"], description="", defaults={}).momentum == 0.3


@pytest.mark.parametrize(
    ("defaults", "unused", "words"),
    [
        ({"learning_rat": 1}, (), "defaults name no argument: learning_rat"),
        ({}, ("max_lenght",), "unused names no argument: max_lenght"),
        ({"learning_rate": -1}, (), "default of learning_rate: -1: must be at least 0"),
        ({"train_batch_size": 2.5}, (), "default of train_batch_size: 2.5: expected an integer"),
        ({"optimizer": "lion"}, (), "default of optimizer: 'lion': expected one of sgd, adam, adamw"),
        ({"train_file": 3}, (), "default of train_file: 3: expected a string"),
        ({"norm": "layer"}, (), "default of norm: 'layer': expected one of none, group, batch"),
    ],
)
def test_a_scripts_mistake_in_its_defaults_is_its_authors_error(defaults, unused, words):
    with pytest.raises(ValueError, match=words):
        parse_arguments([], description="", defaults=defaults, extra=norm, unused=unused)


def test_a_scripts_defaults_reach_its_own_arguments_too():
    got = parse_arguments([], description="", defaults={"norm": "group", "width": 2, "max_length": None}, extra=norm)
    assert (got.norm, got.width, got.max_length) == ("group", 2, None)


def test_mistakes_in_a_scripts_own_arguments_are_told_with_the_others():
    def own(group):
        norm(group)
        group.add_argument("--factor", type=real(0, above=True), default=1.0)

    argv = ("--norm", "layer", "--width", "wide", "--factor", "inf", "--seed", "x", "--local_rank", "y")
    expected = {
        "--norm: 'layer': expected one of none, group, batch; correct the value",
        "--width: 'wide': expected a number; correct the value",
        "--factor: 'inf': expected a finite number; correct the value",
        "--seed: 'x': expected an integer; correct the value",
        "--local_rank: 'y': expected an integer; correct the value",
    }
    with pytest.raises(UserError) as caught:
        parse(*argv, extra=own)
    assert set(caught.value.lines) == expected
    with pytest.raises(UserError) as caught:
        parse("--seed", "x", "--learning_rate", extra=own)
    assert [line.partition(":")[0] for line in caught.value.lines] == ["--seed", "arguments"]


def test_a_script_with_its_own_data_and_model_refuses_the_arguments_of_both() -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments(
            ["--train_file", "x.csv", "--dropout", "0.5", "--dataloader_num_workers", "2"],
            description="",
            defaults={},
            unused=("model", "data"),
        )
    assert [line.partition(": ")[0] for line in caught.value.lines] == ["--dropout", "--train_file"]


def test_what_shapes_a_scripts_own_model_does_not_go_with_another() -> None:
    def given(*argv: str, **more: Sequence[str]) -> argparse.Namespace:
        more = {"own_model": ("norm", "width"), **more}
        return parse_arguments(argv, description="", defaults={}, extra=norm, **more)

    assert given("--norm", "batch").norm == "batch"
    assert given("--model_name_or_path", "a/b").model_name_or_path == "a/b"
    with pytest.raises(UserError) as caught:
        given("--model_name_or_path", "a/b", "--width", "2", "--norm", "batch")
    assert [line.partition(": ")[0] for line in caught.value.lines] == ["--norm", "--width"]
    assert caught.value.lines[1].endswith("has of its own, not a/b; leave it out, or --model_name_or_path")
    with pytest.raises(ValueError, match="own_model name no argument: nom"):
        given(own_model=("nom",))
