"""Accelerate's file: every mistake in it with its place, what passes, and what Accelerate makes of it itself."""

import json

import pytest
from accelerate.commands.config.config_args import ClusterConfig

from toolkit.setup.accelerate_file import read_yaml

MULTI = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
ZERO = "distributed_type: DEEPSPEED\nnum_processes: 2\n"


def refused(write, text):
    return read_yaml(write("a.yaml", text)).faults


# --- the file itself -------------------------------------------------------------------------------------------------


def test_a_missing_file_names_path_and_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (line,) = read_yaml("b/a.yaml").faults
    assert line == f"b/a.yaml: 'no such file': searched from {tmp_path}; give the path of a file"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "'': the file is empty (line 1 column 1); run `accelerate config` or copy a preset"),
        (b"# nothing\n", "'': the file is empty (line 1 column 1); run `accelerate config` or copy a preset"),
        (b"- a\n", "['a']: expected a mapping of keys at line 1 column 1, got list; write key: value"),
        (b"NO\n", "False: expected a mapping of keys at line 1 column 1, got boolean; write key: value"),
        (b"null\n", "None: expected a mapping of keys at line 1 column 1, got null; write key: value"),
        (b"# a\n\n  3\n", "3: expected a mapping of keys at line 3 column 3, got integer; write key: value"),
        (
            b"a: 1\nb: \x00\n",
            "'unreadable': character 0x0000 has no place in YAML, at line 2 column 4; "
            "correct it, or run `accelerate config`",
        ),
        (
            b"a: 1\nb: [1\n",
            "'unreadable': not YAML: expected ',' or ']', but got '<stream end>' at line 3 column 1; "
            "correct it, or run `accelerate config`",
        ),
        (
            b"a: 1\n\tb: 2\n",
            "'unreadable': not YAML: found character '\\t' that cannot start any token at line 2 column 1; "
            "correct it, or run `accelerate config`",
        ),
        (
            b"a: 1\n---\nb: 2\n",
            "'unreadable': not YAML: but found another document at line 2 column 1; "
            "correct it, or run `accelerate config`",
        ),
        (b"a: \xff\xfe\n", "'not text': unreadable: byte 0xff at line 1 column 4 is not UTF-8; save it as UTF-8 text"),
        (b"a: &x {b: *x}\n", "'*x': aliases are not taken; write the values out"),
        (
            b"a: " + b"[" * 50_000 + b"]" * 50_000,
            "'unreadable': nested too deep; correct it, or run `accelerate config`",
        ),
    ],
)
def test_a_file_that_holds_no_keys_is_refused(tmp_path, content, line):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    assert read_yaml(str(path)).faults == [f"{path}: {line}"]


def test_a_folder_is_refused(tmp_path):
    assert read_yaml(str(tmp_path)).faults == [
        f"{tmp_path}: 'no file': unreadable: a folder; give the path of a readable file"
    ]


def test_keys_that_stand_twice_are_all_told(write):
    text = MULTI + "num_processes: 4\ndeepspeed_config:\n  zero_stage: 2\n  zero_stage: 3\n"
    found = refused(write, text)
    assert found == [
        "a.yaml: num_processes: '4': stands twice, at lines 2 and 3; keep one",
        "a.yaml: deepspeed_config.zero_stage: '3': stands twice, at lines 5 and 6; keep one",
    ]
    assert [(line.where.key, line.where.line) for line in found] == [
        ("num_processes", 3),
        ("deepspeed_config.zero_stage", 6),
    ]


def test_a_byte_order_mark_passes_as_in_accelerate(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MULTI.encode())
    assert read_yaml(str(path)).settings == {"distributed_type": "MULTI_GPU", "num_processes": 2}


def test_a_json_file_is_read_as_accelerate_does(write):
    content = {"distributed_type": "DEEPSPEED", "num_processes": 2, "deepspeed_config": {"zero_stage": 3}}
    file = read_yaml(write("a.json", json.dumps(content, indent=1)))
    assert (file.settings, file.faults) == (content, [])
    assert file.where("deepspeed_config.zero_stage").line == 5
    (line,) = read_yaml(write("b.json", '{"distributed_type": "NO" /* one */}')).faults
    assert line.startswith("b.json: 'not strict': Accelerate reads JSON without comments: Expecting ',' delimiter: ")
    assert line.endswith("; write it as YAML")


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("mixed_precison", "did you mean mixed_precision?"),
        ("num_proceses", "did you mean num_processes?"),
        ("Num_Machines", "did you mean num_machines?"),
        ("zero_stage", "zero_stage belongs under deepspeed_config"),
        ("deepspeed_config_file", "deepspeed_config_file belongs under deepspeed_config"),
        ("gradient_clipping", "gradient_clipping belongs under deepspeed_config"),
        ("fsdp_version", "fsdp_version belongs under fsdp_config"),
        (
            "train_batch_size",
            "train_batch_size belongs in DeepSpeed's JSON, which deepspeed_config.deepspeed_config_file names",
        ),
        ("num_cpu_threads_per_process", "give accelerate launch --num_cpu_threads_per_process"),
        ("ipex_config", "remove it, Accelerate 1.15.0 has it no more"),
        ("_note", "remove it"),
        ("1", "remove it"),
    ],
)
def test_an_unknown_key_is_refused_as_accelerate_does(write, key, remedy):
    (line,) = refused(write, f"{MULTI}{key}: 3\n")
    assert line == f"a.yaml: {key}: 3: unknown key, Accelerate refuses the file; {remedy}"
    assert (line.where.key, line.where.line) == (key, 3)


@pytest.mark.parametrize(
    ("section", "key", "remedy"),
    [
        ("deepspeed_config", "zero_stagee", "did you mean zero_stage?"),
        ("deepspeed_config", "gradient_acumulation_steps", "did you mean gradient_accumulation_steps?"),
        ("deepspeed_config", "num_processes", "num_processes belongs at the top level"),
        ("deepspeed_config", "mixed_precision", "mixed_precision belongs at the top level"),
        ("deepspeed_config", "fsdp_version", "fsdp_version belongs under fsdp_config"),
        (
            "deepspeed_config",
            "train_batch_size",
            "train_batch_size belongs in DeepSpeed's JSON, which deepspeed_config.deepspeed_config_file names",
        ),
        ("dynamo_config", "dynamo_backed", "did you mean dynamo_backend?"),
        ("mpirun_config", "mpirun_ccl", "remove it, Accelerate 1.15.0 has it no more"),
        ("fsdp_config", "fsdp_ofload_params", "did you mean fsdp_offload_params?"),
    ],
)
def test_an_unknown_key_in_a_section_is_refused(write, section, key, remedy):
    assert refused(write, f"{ZERO}{section}:\n  _note: 1\n  {key}: false\n") == [
        f"a.yaml: {section}.{key}: False: unknown key, Accelerate ignores it; {remedy}"
    ]


# --- what passes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("distributed_type: NO\nnum_processes: 1", {"distributed_type": "NO", "num_processes": 1}),
        ("distributed_type: 'NO'\nmixed_precision: BF16", {"distributed_type": "NO", "mixed_precision": "BF16"}),
        ("distributed_type: DEEPSPEED\ndynamo_backend: NO", {"dynamo_config": {"dynamo_backend": "NO"}}),
        ("distributed_type: 'NO'\ndynamo_backend: 'NO'", {"dynamo_config": {"dynamo_backend": "NO"}}),
        ("distributed_type: 'NO'\ndynamo_backend:", {"distributed_type": "NO"}),
        (
            ZERO + "fsdp_config: {}\nmegatron_lm_config: {}\nmain_process_ip: null\ngpu_ids: all\ndowncast_bf16: 'no'\n"
            "tpu_env: []\ntpu_use_cluster: false\ncommands:\nrdzv_backend: static\nsame_network: true\ndebug: no\n",
            {"gpu_ids": "all", "fsdp_config": {}, "debug": False, "main_process_ip": None},
        ),
        (
            ZERO + "deepspeed_config:\n  zero_stage:\n  gradient_accumulation_steps: auto\n  gradient_clipping: auto\n"
            "  offload_optimizer_device: none\n  zero3_save_16bit_model: true\n",
            {
                "deepspeed_config": {
                    "zero_stage": None,
                    "gradient_accumulation_steps": "auto",
                    "gradient_clipping": "auto",
                    "offload_optimizer_device": "none",
                    "zero3_save_16bit_model": True,
                }
            },
        ),
        (MULTI + "fsdp_config: {offload_params: false}\n", {"fsdp_config": {"offload_params": False}}),
    ],
)
def test_what_accelerate_takes_passes(write, text, settings):
    file = read_yaml(write("a.yaml", text))
    assert (file.faults, file.notes) == ([], [])
    assert {name: file.settings[name] for name in settings} == settings


def test_the_old_fp16_is_mixed_precision_with_a_note(write):
    file = read_yaml(write("a.yaml", MULTI + "fp16: true\n"))
    assert file.settings["mixed_precision"] == "fp16"
    assert file.notes == ["a.yaml: fp16 true: an older name, taken as mixed_precision: fp16"]
    assert (file.where("mixed_precision"), file.where("mixed_precision").line) == ("a.yaml: fp16", 3)
    file = read_yaml(write("a.yaml", MULTI + "fp16: false\nmixed_precision: bf16\n"))
    assert (file.settings["mixed_precision"], file.faults) == ("bf16", [])
    assert file.notes == ["a.yaml: fp16 false: an older name, nothing is switched on"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "fp16: true\nmixed_precision: bf16",
            "fp16: True: a.yaml: mixed_precision says 'bf16', and Accelerate takes one of the two; "
            "keep mixed_precision",
        ),
        (
            "dynamo_backend: EAGER\ndynamo_config: {}",
            "dynamo_backend: 'EAGER': a.yaml: dynamo_config says {}, and Accelerate takes one of the two; "
            "keep dynamo_config",
        ),
    ],
)
def test_both_spellings_at_once_are_refused(write, text, line):
    assert refused(write, f"{MULTI}{text}\n") == [f"a.yaml: {line}"]


def test_a_field_without_an_effect_is_told(write):
    file = read_yaml(write("a.yaml", ZERO + "deepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: true\n"))
    assert file.notes == [
        "a.yaml: deepspeed_config.zero3_init_flag true is not used: the script's model is built whole, then sharded"
    ]


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("", "NO"),
        ("dynamo_backend: eager", "EAGER"),
        ("dynamo_config: {backend: inductor}", "INDUCTOR"),
        ("dynamo_config: {dynamo_backend: 'NO', dynamo_mode: default}", "NO"),
        ("dynamo_config:", "NO"),
    ],
)
def test_the_compiler_is_found_under_each_of_its_names(write, text, backend):
    assert read_yaml(write("a.yaml", f"{MULTI}{text}\n")).dynamo_backend == backend


@pytest.mark.parametrize("text", [MULTI, "distributed_type: 'NO'\n", ZERO + "num_machines: 2\nuse_cpu: false\n"])
def test_what_is_absent_is_what_accelerate_takes(write, text):
    path = write("a.yaml", text)
    file, theirs = read_yaml(path), ClusterConfig.from_yaml_file(path)
    names = ("num_processes", "num_machines", "machine_rank", "same_network", "rdzv_backend", "gpu_ids")
    assert {name: file.get(name) for name in names} == {name: getattr(theirs, name) for name in names}
