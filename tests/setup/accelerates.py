"""What Accelerate's own code hands to a script, without starting it."""

from accelerate.commands import launch as accelerate_launch
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)

from toolkit.setup.launcher import IN_ENVIRONMENT

# What oneloop reads of it.
READ = {*IN_ENVIRONMENT.values(), "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND"}
READ |= {"ACCELERATE_CONFIG_DS_FIELDS", "ACCELERATE_DEEPSPEED_CONFIG_FILE"}


def handed(monkeypatch, path, *options):
    """(environment, ranks on this machine) with which Accelerate's own code, and torchrun's agent, start rank 0."""
    got = {}

    def take(prepare, agent=True):
        def launcher(args):
            prepared = prepare(args)
            got["environ"] = dict(prepared[1] if isinstance(prepared, tuple) else prepared)
            got["ranks"] = args.num_processes // args.num_machines if agent else 1
            if agent:
                ranks = {"WORLD_SIZE": str(args.num_processes), "LOCAL_WORLD_SIZE": str(got["ranks"])}
                got["environ"] |= {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"} | ranks

        return launcher

    monkeypatch.setattr(accelerate_launch, "deepspeed_launcher", take(prepare_deepspeed_cmd_env))
    monkeypatch.setattr(accelerate_launch, "multi_gpu_launcher", take(prepare_multi_gpu_env))
    monkeypatch.setattr(accelerate_launch, "simple_launcher", take(prepare_simple_launcher_cmd_env, agent=False))
    parser = accelerate_launch.launch_command_parser()
    accelerate_launch.launch_command(parser.parse_args(["--config_file", str(path), *options, "train.py"]))
    return got["environ"], got["ranks"]
