"""Values in Accelerate's file: those that Accelerate fails on, takes otherwise than meant, or that oneloop has not."""

import pytest

from toolkit.setup.accelerate_file import read_yaml

MULTI = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
ZERO = "distributed_type: DEEPSPEED\nnum_processes: 2\n"
_ONE_OF = "write one of 'NO', MULTI_GPU, DEEPSPEED"
_POSITIVE, _WHOLE, _SWITCH = "expected integer of 1 or more", "expected integer of 0 or more", "expected true or false"
_NUMBER, _LATER = "expected number of 0 or more", "not supported yet; remove the section, or leave it {}"


def refused(write, text):
    return read_yaml(write("a.yaml", text)).faults


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "num_processes: '2'",
            f"num_processes: '2': {_POSITIVE}, got string \"2\"; write 2, without quotes",
        ),
        ("num_processes: 2.0", f"num_processes: 2.0: {_POSITIVE}, got number 2.0; write 2"),
        ("num_processes: 0", f"num_processes: 0: {_POSITIVE}, got integer 0; correct the value"),
        (
            "num_processes: yes",
            f"num_processes: True: {_POSITIVE}, got boolean true; correct the value",
        ),
        ("num_processes:", f"num_processes: None: {_POSITIVE}, got null; correct the value"),
        (
            "num_machines: two",
            f"num_machines: 'two': {_POSITIVE}, got string \"two\"; correct the value",
        ),
        ("machine_rank: -1", f"machine_rank: -1: {_WHOLE}, got integer -1; correct the value"),
        ("machine_rank: 1", "machine_rank: 1: not one of 1 machines; give 0 to 0"),
        (
            "main_process_port: '29500'",
            f"main_process_port: '29500': {_WHOLE}, got string \"29500\"; write 29500, without quotes",
        ),
        (
            "main_process_port: 70000",
            "main_process_port: 70000: ports end at 65535; write a smaller number, 0 finds a free one",
        ),
        (
            "use_cpu: 'false'",
            f"use_cpu: 'false': {_SWITCH}, got string \"false\"; write false, without quotes",
        ),
        ("debug: 1", f"debug: 1: {_SWITCH}, got integer 1; correct the value"),
        ("gpu_ids: 0", "gpu_ids: 0: expected string, got integer 0; write '0' in quotes"),
        ("gpu_ids: '0'", "gpu_ids: '0': Accelerate wants two or more for MULTI_GPU; write all, or two or more ids"),
        (
            "mixed_precision: no",
            "mixed_precision: False: YAML reads no without quotes as false, and Accelerate fails on that; "
            "write 'no' in quotes",
        ),
        ("mixed_precision: yes", "mixed_precision: True: expected string, got boolean true; correct the value"),
        (
            "dynamo_backend: NO",
            "dynamo_backend: False: YAML reads NO without quotes as false, and Accelerate fails on that; "
            "write 'NO' in quotes",
        ),
        (
            "deepspeed_config: [a]",
            "deepspeed_config: ['a']: expected mapping of keys, got list [\"a\"]; correct the value",
        ),
        (
            "deepspeed_config: 3",
            "deepspeed_config: 3: expected mapping of keys, got integer 3; "
            "write `deepspeed_config:` with `zero_stage: 3` under it",
        ),
        (
            "deepspeed_config: z2.json",
            "deepspeed_config: 'z2.json': expected mapping of keys, got string \"z2.json\"; "
            "write `deepspeed_config:` with `deepspeed_config_file: z2.json` under it",
        ),
        ("deepspeed_config: ''", "deepspeed_config: '': expected mapping of keys, got string \"\"; remove it"),
        (
            "dynamo_config: inductor",
            "dynamo_config: 'inductor': expected mapping of keys, got string \"inductor\"; "
            "write `dynamo_config:` with `dynamo_backend: inductor` under it",
        ),
        (
            "fsdp_config: 2",
            "fsdp_config: 2: expected mapping of keys, got integer 2; remove it, not supported yet",
        ),
        (
            "num_machines: {2020-01-01: 1}",
            f"num_machines: {{datetime.date(2020, 1, 1): 1}}: {_POSITIVE}, "
            "got object {datetime.date(2020, 1, 1): 1}; correct the value",
        ),
        (
            "compute_environment: AMAZON_SAGEMAKER",
            "compute_environment: 'AMAZON_SAGEMAKER': not supported yet; write LOCAL_MACHINE",
        ),
        ("compute_environment: MY_MACHINE", "compute_environment: 'MY_MACHINE': unknown; write LOCAL_MACHINE"),
        (
            "fsdp_config: {fsdp_version: 2}",
            f"fsdp_config: {{'fsdp_version': 2}}: {_LATER}",
        ),
        (
            "fp8_config: {backend: TE}",
            f"fp8_config: {{'backend': 'TE'}}: {_LATER}",
        ),
        (
            "megatron_lm_config: {a: 1}",
            f"megatron_lm_config: {{'a': 1}}: {_LATER}",
        ),
        (
            "parallelism_config: {parallelism_config_tp_size: 2}",
            f"parallelism_config: {{'parallelism_config_tp_size': 2}}: {_LATER}",
        ),
        ("tpu_name: mine", "tpu_name: 'mine': TPUs are not supported yet; remove it"),
        ("tpu_use_cluster: true", "tpu_use_cluster: True: TPUs are not supported yet; remove it"),
        ("downcast_bf16: true", "downcast_bf16: True: it acts on TPUs alone; remove it"),
        (
            "mpirun_config: {mpirun_hostfile: hosts}",
            "mpirun_config.mpirun_hostfile: 'hosts': mpirun is not supported yet; "
            "remove it, and start with torchrun on each machine",
        ),
        ("fp16: 'yes'", f"fp16: 'yes': {_SWITCH}, got string \"yes\"; write mixed_precision: fp16"),
    ],
)
def test_a_value_that_accelerate_or_oneloop_does_not_take_is_refused(write, text, line):
    kind = MULTI if not text.startswith("num_processes") else "distributed_type: MULTI_GPU\n"
    assert refused(write, f"{kind}{text}\n") == [f"a.yaml: {line}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "zero_stage: '2'",
            f"zero_stage: '2': {_WHOLE}, got string \"2\"; write 2, without quotes",
        ),
        ("zero_stage: 2.0", f"zero_stage: 2.0: {_WHOLE}, got number 2.0; write 2"),
        (
            "zero_stage: auto",
            f"zero_stage: 'auto': {_WHOLE}, got string \"auto\"; correct the value",
        ),
        (
            "gradient_clipping: '1.0'",
            f"gradient_clipping: '1.0': {_NUMBER}, got string \"1.0\"; write 1.0, without quotes",
        ),
        (
            "gradient_clipping: 1e-1",
            f"gradient_clipping: '1e-1': {_NUMBER}, got string \"1e-1\"; write 0.1, without quotes",
        ),
        (
            "gradient_accumulation_steps: 0",
            f"gradient_accumulation_steps: 0: {_POSITIVE}, got integer 0; correct the value",
        ),
        (
            "zero3_init_flag: 'true'",
            f"zero3_init_flag: 'true': {_SWITCH}, got string \"true\"; write true, without quotes",
        ),
        (
            "zero3_save_16bit_model: 1",
            f"zero3_save_16bit_model: 1: {_SWITCH}, got integer 1; correct the value",
        ),
        (
            "offload_optimizer_device: no",
            "offload_optimizer_device: False: expected string, got boolean false; correct the value",
        ),
    ],
)
def test_a_field_of_another_type_is_refused(write, text, line):
    assert refused(write, f"{ZERO}deepspeed_config:\n  {text}\n") == [f"a.yaml: deepspeed_config.{line}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("num_processes: 2", f"None: missing, Accelerate refuses a file without it; {_ONE_OF}"),
        (
            "distributed_type: FSDP",
            "'FSDP': not supported yet; write DEEPSPEED and zero_stage: 3 in deepspeed_config, which shards the same",
        ),
        (
            "distributed_type: MEGATRON_LM",
            "'MEGATRON_LM': not supported yet; write DEEPSPEED, and a pipeline section in its JSON",
        ),
        ("distributed_type: XLA\ntpu_name: a\ntpu_use_cluster: true", f"'XLA': not supported yet; {_ONE_OF}"),
        ("distributed_type: TPU", f"'TPU': not supported yet; {_ONE_OF}"),
        ("distributed_type: MULTI_NPU", f"'MULTI_NPU': not supported yet; {_ONE_OF}"),
        ("distributed_type: DEEPSPED", "'DEEPSPED': unknown, Accelerate refuses it; did you mean DEEPSPEED?"),
        ("distributed_type: multi_gpu", "'multi_gpu': unknown, Accelerate refuses it; did you mean MULTI_GPU?"),
        ("distributed_type: ddp", f"'ddp': unknown, Accelerate refuses it; {_ONE_OF}"),
        (
            "distributed_type: NO",
            "False: YAML reads NO without quotes as false, and Accelerate then wants num_processes; "
            "write 'NO' in quotes",
        ),
        ("distributed_type: 3", "3: expected string, got integer 3; write '3' in quotes"),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}",
            "'FSDP': not supported yet; write DEEPSPEED and zero_stage: 3 in deepspeed_config, which shards the same",
        ),
    ],
)
def test_a_type_that_is_not_taken_is_refused_once(write, text, line):
    file = read_yaml(write("a.yaml", text))
    assert file.faults == [f"a.yaml: distributed_type: {line}"]
    assert "distributed_type" not in file.settings


def test_the_processes_of_an_mpirun_that_is_refused_are_not_counted(write):
    text = "distributed_type: MULTI_CPU\nnum_processes: 4\nmpirun_config: {mpirun_hostfile: hosts}\n"
    assert "num_processes" not in read_yaml(write("a.yaml", text)).settings


def test_machines_and_processes_must_fit(write):
    text = "distributed_type: MULTI_GPU\nnum_processes: 5\nnum_machines: 2\nmachine_rank: 2\nmain_process_ip: a\n"
    assert refused(write, text) == [
        "a.yaml: machine_rank: 2: not one of 2 machines; give 0 to 1",
        "a.yaml: num_processes: 5: 5 processes do not divide into 2 machines (a.yaml: num_machines); "
        "write a multiple of 2",
    ]


def test_all_mistakes_are_told_at_once_and_what_passes_is_kept(write):
    text = (
        ZERO + "use_cpu: 'no'\nmixed_precison: bf16\ndeepspeed_config:\n  zero_stage: '3'\n  gradient_clipping: 0.5\n"
    )
    file = read_yaml(write("a.yaml", text))
    assert [(line.where.key, line.where.line) for line in file.faults] == [
        ("use_cpu", 3),
        ("mixed_precison", 4),
        ("deepspeed_config.zero_stage", 6),
    ]
    assert file.settings == {
        "distributed_type": "DEEPSPEED",
        "num_processes": 2,
        "deepspeed_config": {"gradient_clipping": 0.5},
    }


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        ("9" * 5000, "9999999999... (5000 characters)"),
        ("0x" + "f" * 5000, "0xffffffff... (5002 characters)"),
        ("1" + ":59" * 20, "1:59:59:59... (61 characters)"),
        (str(2**63), "9223372036854775808"),
    ],
)
def test_a_number_of_more_than_64_bits_is_refused_with_its_place(tmp_path, number, shown):
    (tmp_path / "a.yaml").write_text(f"distributed_type: MULTI_GPU\nnum_processes: {number}\n")
    (line,) = read_yaml(str(tmp_path / "a.yaml")).faults
    assert (line.where.line, line.value) == (2, shown)
    assert line.reason == "is more than 64 bits hold at line 2 column 16"
