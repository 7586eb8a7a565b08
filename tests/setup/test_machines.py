"""Machines and ranks in Accelerate's file: what its launchers need, what they drop, and that Accelerate does so."""

import pytest
from accelerate.commands import launch
from accelerate.utils import constants
from accelerate.utils import launch as prepare
from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry

from toolkit.setup.accelerate_file import read_yaml
from toolkit.setup.accelerate_keys import DEFAULTS
from toolkit.setup.machines import BACKENDS, LAUNCHERS, OPTION_ALONE

MULTI = "distributed_type: MULTI_GPU\nnum_processes: 4\n"
ZERO = "distributed_type: DEEPSPEED\nnum_processes: 4\n"
TWO = "num_machines: 2\nmachine_rank: 0\n"
STANDARD = "deepspeed_config: {deepspeed_multinode_launcher: standard}\n"
NO_ADDRESS = (
    "a.yaml: num_machines: 2: Accelerate needs main_process_ip with it, and searches for it for ever; "
    "write main_process_ip, the address of the machine of rank 0"
)
NO_HOSTFILE = (
    "a.yaml: num_machines: 2: the launcher {} needs deepspeed_hostfile with it, without it deepspeed starts on this "
    "machine alone; name the hostfile, or write deepspeed_multinode_launcher: standard and main_process_ip"
)


@pytest.fixture
def read(write):
    def read_text(text, **options):
        file = read_yaml(write("a.yaml", text), options)
        return file.faults, file.notes

    return read_text


@pytest.fixture
def accelerate(write):
    """The arguments with which Accelerate's own launchers start after reading the file."""

    def settled(text, *options):
        parser = launch.launch_command_parser()
        return launch._validate_launch_command(
            parser.parse_args(["--config_file", write("a.yaml", text), *options, "train.py"])
        )[0]

    return settled


# --- several machines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (MULTI + TWO, NO_ADDRESS),
        (MULTI + TWO + "main_process_ip:\n", NO_ADDRESS),
        (MULTI + TWO + "main_process_ip: ''\nrdzv_backend: static\nsame_network: true\n", NO_ADDRESS),
        (ZERO + TWO + STANDARD, NO_ADDRESS),
        (ZERO + TWO, NO_HOSTFILE.format("pdsh")),
        (ZERO + TWO + "main_process_ip: 10.0.0.1\n", NO_HOSTFILE.format("pdsh")),
        (ZERO + TWO + "deepspeed_config: {deepspeed_multinode_launcher: slurm}\n", NO_HOSTFILE.format("slurm")),
        (
            MULTI + TWO + "main_process_ip: 10.0.0.1\nmain_process_port: 0\n",
            "a.yaml: main_process_port: 0: each machine would find a port of its own; "
            "write the number of one, 29500 where left out",
        ),
        (
            MULTI + TWO + "main_process_ip: 10.0.0.1\nrdzv_backend: c10d\n",
            "a.yaml: rdzv_backend: 'c10d': Accelerate 1.15.0 does not take it from the file, and meets by static; "
            "remove it, or give accelerate launch --rdzv_backend c10d",
        ),
        (
            "distributed_type: 'NO'\nnum_machines: 2\n",
            "a.yaml: num_machines: 2: NO starts one process on each, which know nothing of each other; "
            "write 1, or distributed_type: MULTI_GPU",
        ),
        # What has a line already has no second one.
        (
            MULTI + TWO + "main_process_ip: 10\n",
            "a.yaml: main_process_ip: 10: expected string, got integer 10; write '10' in quotes",
        ),
        (
            MULTI + "num_machines: '2'\nmain_process_ip: a\n",
            "a.yaml: num_machines: '2': expected integer of 1 or more, got string \"2\"; write 2, without quotes",
        ),
    ],
)
def test_what_several_machines_need_is_refused_where_it_is_missing(read, text, line):
    assert read(text) == ([line], [])


@pytest.mark.parametrize("kind", [MULTI, ZERO + STANDARD])
def test_an_address_is_enough_for_torchruns_agent(read, kind):
    assert read(kind + TWO + "main_process_ip: 10.0.0.1\n") == ([], [])
    assert read(kind + TWO, main_process_ip="10.0.0.1") == ([], [])
    missing = "a.yaml: machine_rank is missing: 0 here, give --machine_rank on each of the other machines"
    text = kind + "num_machines: 2\nmain_process_ip: 10.0.0.1\n"
    assert (read(text), read(text, machine_rank="1")) == (([], [missing]), ([], []))
    assert read(text, rdzv_backend="c10d") == ([], [])


@pytest.mark.parametrize("options", [{"num_machines": "2"}, {"num_machines": "1"}])
def test_an_option_of_the_launch_wins_over_the_file(read, options):
    one = options["num_machines"] == "1"
    assert read(MULTI + TWO, **options)[0] == ([] if one else ["accelerate launch --" + NO_ADDRESS[8:]])
    rank = "accelerate launch --machine_rank: 2: not one of 2 machines; give 0 to 1"
    assert read(MULTI + TWO + "main_process_ip: a\n", machine_rank="2") == ([rank], [])


@pytest.mark.parametrize(
    ("hosts", "fields", "line"),
    [
        ("a slots=2\nb slots=2\n", "", None),
        (
            "a slots=2\n",
            "",
            "deepspeed_config.deepspeed_hostfile: 'hosts': a.yaml: num_machines is 2, and 1 stand there; "
            "write num_machines: 1, or change the hosts",
        ),
        ("a slots=2\nb slots=2\nc slots=2\n", "deepspeed_exclusion_filter: c", None),
        (
            "a slots=2\nb slots=2\n",
            "deepspeed_inclusion_filter: 'a:0', deepspeed_exclusion_filter: b",
            "deepspeed_config.deepspeed_inclusion_filter: 'a:0': Accelerate hands on deepspeed_exclusion_filter alone; "
            "keep one of the two",
        ),
        (
            None,
            "",
            "deepspeed_config.deepspeed_hostfile: 'hosts': no such file, searched from {}, without it deepspeed starts "
            "on this machine alone; give the path of a hostfile",
        ),
        ("a 2\n", "", "hosts: line 1: 'a 2': not of the form NAME slots=N; write worker-0 slots=8"),
    ],
)
def test_the_hostfile_holds_the_machines(read, write, tmp_path, hosts, fields, line):
    if hosts is not None:
        write("hosts", hosts)
    faults, notes = read(ZERO + TWO + f"deepspeed_config: {{deepspeed_hostfile: hosts, {fields}}}\n")
    line = line if line is None or line.startswith("hosts") else f"a.yaml: {line.format(tmp_path)}"
    assert (faults, notes) == ([] if line is None else [line], [])


# --- names and fields without an effect ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rdzv_backend: c10\n", "rdzv_backend: 'c10': unknown; did you mean c10d?"),
        ("rdzv_backend: mpi\n", "rdzv_backend: 'mpi': unknown; one of static, c10d, etcd, etcd-v2"),
        (
            "deepspeed_config: {deepspeed_multinode_launcher: PDSH}\n",
            "deepspeed_config.deepspeed_multinode_launcher: 'PDSH': unknown; did you mean pdsh?",
        ),
    ],
)
def test_an_unknown_name_is_refused_on_one_machine_too(read, text, line):
    assert read(ZERO + text) == ([f"a.yaml: {line}"], [])


ONE, OWN = "there is one machine", "Accelerate 1.15.0 takes it from the command line alone"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (MULTI + "main_process_ip: 10.0.0.1\n", f'main_process_ip "10.0.0.1" is not used: {ONE}'),
        (MULTI + "rdzv_backend: c10d\n", f'rdzv_backend "c10d" is not used: {OWN}'),
        (MULTI + "enable_cpu_affinity: true\n", f"enable_cpu_affinity true is not used: {OWN}"),
        (MULTI + "main_training_function: train\n", 'main_training_function "train" is not used: TPUs alone call it'),
        (
            MULTI + "debug: true\n",
            "debug true is not used: it checks operations of Accelerate's that no engine here calls",
        ),
        (MULTI + "use_cpu: true\ngpu_ids: '0,1'\n", 'gpu_ids "0,1" is not used: use_cpu is true'),
        (
            "distributed_type: 'NO'\nmain_process_port: 29501\n",
            "main_process_port 29501 is not used: there is one process",
        ),
        (
            MULTI + "dynamo_config: {dynamo_backend: 'NO', dynamo_mode: max-autotune}\n",
            'dynamo_config.dynamo_mode "max-autotune" is not used: no backend is named',
        ),
        *(
            (ZERO + f"deepspeed_config: {{{name}: {value}}}\n", f'deepspeed_config.{name} "{value}" is not used: {why}')
            for name, value, why in (
                ("deepspeed_hostfile", "nowhere", ONE),
                ("deepspeed_inclusion_filter", "localhost", ONE),
                ("deepspeed_exclusion_filter", "localhost", ONE),
                ("deepspeed_multinode_launcher", "slurm", ONE),
                ("deepspeed_moe_layer_cls_names", "Block", "leaf modules are not part of this version"),
            )
        ),
        (
            ZERO + TWO + "main_process_ip: a\n"
            "deepspeed_config: {deepspeed_multinode_launcher: standard, deepspeed_hostfile: nowhere}\n",
            'deepspeed_config.deepspeed_hostfile "nowhere" is not used: the launcher standard reads none',
        ),
    ],
)
def test_a_field_without_an_effect_is_told(read, text, note):
    assert read(text) == ([], [f"a.yaml: {note}"])


@pytest.mark.parametrize("kind", ["'NO'", "MULTI_GPU", "DEEPSPEED"])
def test_what_accelerate_config_writes_is_not_worth_a_word(read, kind):
    text = (
        f"compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: {kind}\ndowncast_bf16: 'no'\n"
        "enable_cpu_affinity: false\ngpu_ids: all\nmachine_rank: 0\nmain_training_function: main\n"
        "mixed_precision: 'no'\nnum_machines: 1\nnum_processes: 2\nrdzv_backend: static\nsame_network: true\n"
        "tpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: false\n"
    )
    assert read(text) == ([], [])
    if kind == "DEEPSPEED":
        assert read(text + STANDARD) == ([], [])


@pytest.mark.parametrize("mixed_precision", ["no", "bf16"])
def test_the_file_of_accelerate_config_default_is_not_worth_a_word(tmp_path, mixed_precision):
    from accelerate.commands.config.default import write_basic_config

    write_basic_config(mixed_precision, str(tmp_path / "default.yaml"))
    file = read_yaml(str(tmp_path / "default.yaml"))
    assert (file.faults, file.notes) == ([], [])


# --- what Accelerate does --------------------------------------------------------------------------------------------


def test_the_names_are_those_of_torch_and_accelerate():
    assert set(BACKENDS) == set(rendezvous_handler_registry._registry)
    assert set(LAUNCHERS) == set(constants.DEEPSPEED_MULTINODE_LAUNCHERS)
    assert (LAUNCHERS[0], constants.DEEPSPEED_MULTINODE_LAUNCHERS[:2]) == ("pdsh", ["pdsh", "standard"])


def test_accelerate_drops_three_fields_of_the_file(accelerate):
    parsed = launch.launch_command_parser().parse_args(["train.py"])
    own = {name for name in DEFAULTS if getattr(parsed, name, None) is not None}
    assert own == {
        *OPTION_ALONE,
        "tpu_use_cluster",
        "downcast_bf16",
        "tpu_use_sudo",
    }  # the others are TPUs'
    assert accelerate(MULTI + "debug: true\n").debug is True
    text = MULTI + "rdzv_backend: c10d\nsame_network: true\nenable_cpu_affinity: true\nmain_process_ip: a\n"
    got = accelerate(text)
    assert (got.rdzv_backend, got.same_network, got.enable_cpu_affinity) == ("static", False, False)
    assert got.main_process_ip == "a"
    assert accelerate(text, "--rdzv_backend", "c10d").rdzv_backend == "c10d"


def test_accelerate_searches_a_machine_called_none(accelerate, monkeypatch):
    monkeypatch.setattr(prepare, "is_port_in_use", lambda port: False)
    got = accelerate(MULTI + TWO)
    prepare.prepare_multi_gpu_env(got)
    assert (got.rdzv_endpoint, got.node_rank) == ("None:29500", 0)
    got = accelerate(ZERO + TWO)
    got.deepspeed_fields_from_accelerate_config = ""
    command, _ = prepare.prepare_deepspeed_cmd_env(got)
    assert command[:3] == ["deepspeed", "--hostfile", "None"]
