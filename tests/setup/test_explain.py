"""What `oneloop check --explain` says, and that it has a word for every key there is."""

import json

import pytest

from toolkit import cli
from toolkit.argument_table import ARGUMENTS
from toolkit.errors import UserError
from toolkit.setup import schema
from toolkit.setup.explain import SAME, explain
from toolkit.setup.launcher import INLINE
from toolkit.setup.run import BATCH_ARGUMENTS

SCHEMAS = schema.__file__.removesuffix("schema.py") + "schemas"
AGREE = (
    "what you typed and what a file writes must be equal; either wins over the script's default; "
    '"auto" in a file is the argument'
)


def load(name):
    with open(f"{SCHEMAS}/{name}.json", encoding="utf-8") as file:
        return json.load(file)


MEANINGS, ACCELERATE, DEEPSPEED = load("meanings"), load("accelerate"), load("deepspeed")


def deepspeed_keys():
    keys = {*DEEPSPEED["top"], *DEEPSPEED["removed"], *DEEPSPEED["deprecated"]}
    for section, names in DEEPSPEED["sections"].items():
        keys |= {section, *(f"{section}.{name}" for name in names)}
    for section, kinds in (("optimizer", "optimizers"), ("scheduler", "schedulers")):
        keys |= {f"{section}.params.{name}" for names in DEEPSPEED[kinds].values() for name in names}
    return keys


def accelerate_keys():
    keys = {*ACCELERATE["fields"], *ACCELERATE["old_fields"], *ACCELERATE["options"], *ACCELERATE["sections"]}
    return keys.union(*ACCELERATE["sections"].values())


def check_options():
    """The long options of `oneloop check`."""
    commands = next(action for action in cli._parser()._actions if action.dest == "command")
    return {
        option for action in commands.choices["check"]._actions for option in action.option_strings if "--" in option
    }


def test_every_key_of_both_libraries_has_a_meaning_and_nothing_else_has():
    assert deepspeed_keys() == set(MEANINGS["deepspeed"])
    assert accelerate_keys() == set(MEANINGS["accelerate"])


def test_a_meaning_is_one_short_sentence():
    texts = [text for texts in MEANINGS.values() for text in texts.values()]
    assert [text for text in texts if not text or len(text) > 110 or text != text.strip(" .")] == []


@pytest.mark.parametrize("key", [row[1] for row in ARGUMENTS])
def test_every_argument_is_explained_by_its_own_help(key):
    text = next(row[4] for row in ARGUMENTS if row[1] == key)
    assert explain(f"--{key}").startswith(f"--{key}: {text}\n  default: ")


def test_every_key_is_explained():
    lines = [
        line.split(":")[0]
        for key in deepspeed_keys() | accelerate_keys()
        for block in explain(key).split("\n\n")
        for line in block.splitlines()[1:]
    ]
    assert set(lines) == {"  default", "  here", "  set by", "  which wins"}
    assert lines.count("  default") == lines.count("  set by") >= len(deepspeed_keys() | accelerate_keys())


def test_the_pairs_are_those_of_a_run():
    pairs = {key: same.argument for same in SAME for key in same.json}
    assert {pairs[key]: key for key in BATCH_ARGUMENTS.values()} == BATCH_ARGUMENTS
    inline = {name.partition(".")[2]: same.json for same in SAME for name in same.fields}
    assert {name: inline[name][0] for name in INLINE} == INLINE
    assert {same.argument for same in SAME} - {""} <= {row[1] for row in ARGUMENTS}
    assert set(pairs) <= deepspeed_keys()
    assert {name.rpartition(".")[2] for same in SAME for name in same.fields} <= accelerate_keys()
    assert {name for same in SAME for name in same.options} <= set(ACCELERATE["options"])


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        (
            "learning_rate",
            [
                "--learning_rate: peak learning rate, per optimizer step",
                "  default: 0.001, where the script has none of its own",
                "  set by: --learning_rate, optimizer.params.lr in the JSON, scheduler.params.warmup_max_lr in the "
                "JSON, scheduler.params.cycle_max_lr in the JSON",
                f"  which wins: {AGREE}; what the optimizer section leaves out is DeepSpeed's default",
            ],
        ),
        (
            "optimizer.params.momentum",
            [
                "optimizer.params.momentum in the JSON: of SGD",
                "  default: 0 (sgd); without a type, --momentum",
                '  here: "auto" is --momentum',
                "  set by: optimizer.params.momentum in the JSON, --momentum",
                f"  which wins: {AGREE}",
            ],
        ),
        (
            "stage",
            [
                "zero_optimization.stage in the JSON: 0 shards nothing, 1 the optimizer state, 2 also gradients, 3 "
                "also weights",
                "  default: 0",
                "  set by: zero_optimization.stage in the JSON, deepspeed_config.zero_stage in the YAML, accelerate "
                "launch --zero_stage",
                "  which wins: where the YAML names a JSON, the JSON's counts and the field must say the same; an "
                "option wins over the YAML",
            ],
        ),
        (
            "zero_optimization.reduce_bucket_size",
            [
                "zero_optimization.reduce_bucket_size in the JSON: elements of gradients that are summed in one "
                "message",
                "  default: 500000000",
                '  here: "auto" is as if the key were not there',
                "  set by: zero_optimization.reduce_bucket_size in the JSON",
            ],
        ),
        (
            "prescale_gradients",
            [
                "prescale_gradients in the JSON: divides gradients by the ranks before they are summed, instead of "
                "after",
                "  default: false",
                "  here: only false: gradients are averaged alike in every setup",
                "  set by: prescale_gradients in the JSON",
            ],
        ),
        (
            "activation_checkpointing.profile",
            [
                "activation_checkpointing.profile in the JSON: times recomputation",
                "  default: false",
                "  here: not taken where it switches something on: --gradient_checkpointing decides it in every setup; "
                "remove the section and give --gradient_checkpointing",
                "  set by: activation_checkpointing.profile in the JSON",
            ],
        ),
        (
            "amp",
            [
                "amp in the JSON: NVIDIA's apex for mixed precision",
                "  default: none",
                '  here: DeepSpeed 0.19.8 has removed it; write "fp16": {"enabled": true} or "bf16": {"enabled": true}',
                "  set by: amp in the JSON",
            ],
        ),
        (
            "fp32_allreduce",
            [
                "fp32_allreduce in the JSON: an older name",
                "  default: none",
                "  here: an older name of communication_data_type, taken as that",
                "  set by: fp32_allreduce in the JSON",
            ],
        ),
        (
            "--num_machines",
            [
                "num_machines in the YAML: machines",
                "  default: 1",
                "  set by: num_machines in the YAML, accelerate launch --num_machines",
                "  which wins: the option wins over the YAML",
            ],
        ),
        (
            "same_network",
            [
                "same_network in the YAML: whether all machines are in one network",
                "  default: false",
                "  here: Accelerate 1.15.0 does not take it from the YAML, from the option alone",
                "  set by: same_network in the YAML, accelerate launch --same_network",
                "  which wins: the option wins over the YAML",
            ],
        ),
        (
            "backend",
            [
                "fp8_config.backend in the YAML: library of fp8",
                "  default: none",
                "  here: not supported yet: refused where it switches something on",
                "  set by: fp8_config.backend in the YAML",
            ],
        ),
        (
            "cpu",
            [
                "accelerate launch --cpu: trains on the CPU, as use_cpu",
                "  default: none",
                "  set by: accelerate launch --cpu, use_cpu in the YAML",
                "  which wins: the CPU is used where one asks for it, or where there is no GPU",
            ],
        ),
    ],
)
def test_meaning_default_setters_and_winner(key, lines):
    assert explain(key).splitlines() == lines


def test_the_options_of_check_are_explained():
    options = {option.removeprefix("--") for option in check_options()} - {"help"}
    assert options == set(MEANINGS["check"])
    for name in options:
        assert f"oneloop check --{name}: {MEANINGS['check'][name]}" in explain(f"--{name}").splitlines()
    assert explain("hostfile").splitlines() == [
        "oneloop check --hostfile: machines of deepspeed, a line for each: worker-0 slots=8; all slots are the ranks",
        "  default: none",
        "  set by: oneloop check --hostfile",
        "  which wins: --num_processes, or that of the YAML, must be as many as its slots",
    ]


def test_a_name_that_stands_in_several_places_gives_all_of_them():
    titles = [block.partition(":")[0] for block in explain("gradient_accumulation_steps").split("\n\n")]
    assert titles == [
        "--gradient_accumulation_steps",
        "gradient_accumulation_steps in the JSON",
        "deepspeed_config.gradient_accumulation_steps in the YAML",
    ]


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("zero_stag", "did you mean zero_stage?"),
        ("--learning_rat", "did you mean learning_rate?"),
        ("optimizer.params.lrr", "did you mean optimizer.params.lr?"),
        ("", "see scripts' --help and ds_configs/README.md"),
    ],
)
def test_an_unknown_key_is_refused(key, remedy):
    with pytest.raises(UserError) as caught:
        explain(key)
    assert caught.value.lines == (f"--explain: {key!r}: unknown key; {remedy}",)
