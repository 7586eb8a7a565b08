"""The process group every launcher's ranks meet in, and the native ops they need, built once."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from toolkit import watch
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.setup import Setup, choose_device

OP_POLL_SECONDS = 0.5
STALE_LOCK_SECONDS = 30.0


def start(setup: Setup) -> None:
    """Meet the other ranks (gloo on CPU, NCCL on GPUs), once a process, and build native ops before they are used.

    Libraries that find a group use it, so neither Accelerate's nor DeepSpeed's own choice of backend can leave ranks
    alone: on a CPU-only machine both can make every rank believe that it is rank 0 of 1.

    Raises:
        UserError: the ranks that met are not as many as the setup asks for; more local ranks than GPUs.
    """
    _, index, backend = choose_device(
        setup.local_rank, torch.cuda.device_count(), setup.use_cpu, setup.local_world_size
    )
    if index is not None:
        torch.cuda.set_device(index)
        # On by default for convolutions alone: 10 bits of mantissa under the name of fp32, rounded by batch shape.
        torch.backends.cudnn.allow_tf32 = False
    elif not user_set("OMP_NUM_THREADS", setup.launcher):
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // setup.local_world_size))
    if (setup.world_size > 1 or setup.deepspeed_config is not None) and not dist.is_initialized():
        timeout = timedelta(seconds=setup.timeout)
        # Groups that DeepSpeed makes later take this default, 30 minutes, and not the first group's.
        dist.distributed_c10d.default_pg_timeout = dist.distributed_c10d.default_pg_nccl_timeout = timeout
        try:
            dist.init_process_group(backend, timeout=timeout, **_store_of_attempt(setup))
        except dist.DistNetworkError as error:
            if "EADDRINUSE" not in str(error):
                raise
            remedy = "give the launcher another: --master_port, or accelerate's --main_process_port"
            raise UserError(fault("MASTER_PORT", os.environ["MASTER_PORT"], "is in use", remedy)) from None
        watch.start(setup.rank, setup.world_size, setup.timeout)
    met = dist.get_world_size() if dist.is_initialized() else 1
    if met != setup.world_size:
        raise UserError(fault("WORLD_SIZE", setup.world_size, f"{met} ranks met", "start them with one launcher"))
    if setup.deepspeed_config is not None:
        _start_deepspeed(setup, backend)


def _store_of_attempt(setup: Setup) -> dict[str, Any]:
    """Arguments of init_process_group for ranks that torchrun has started again.

    Its store still has the addresses of the ranks before, which the new ones would call for ever
    (pytorch/pytorch#135712).
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    timeout = timedelta(seconds=setup.timeout)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timeout)
    prefixed = dist.PrefixStore(f"oneloop/attempt-{attempt}", store)
    return {"store": prefixed, "rank": setup.rank, "world_size": setup.world_size}


def user_set(name: str, launcher: str) -> bool:
    """Whether the user gave the environment variable, and not the launcher.

    On CPU `accelerate launch` and torchrun set OMP_NUM_THREADS to 1, one rank on many cores included, and `deepspeed`
    sets nothing, so that every rank takes every core. What the user's shell had is in the launcher's first environment.
    """
    if launcher == "python":
        return name in os.environ
    try:
        given = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return name in os.environ
    return any(item.startswith(f"{name}=".encode()) for item in given)


def on_cpu(setup: Setup) -> bool:
    """Whether the ranks compute on the CPU: asked for, or no GPU here."""
    return _device(setup)[0] == "cpu"


def device(setup: Setup) -> torch.device:
    """Where this rank computes."""
    kind, index, _ = _device(setup)
    return torch.device(kind, index) if index is not None else torch.device(kind)


def _device(setup: Setup) -> tuple[str, int | None, str]:
    return choose_device(setup.local_rank, torch.cuda.device_count(), setup.use_cpu, setup.local_world_size)


def _start_deepspeed(setup: Setup, backend: str) -> None:
    # The accelerator decides where DeepSpeed puts tensors; set, it is not probed with a warning from every rank.
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if on_cpu(setup) else "cuda")
    import deepspeed

    if not setup.verbose:
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # its import has set WARNING
    with quiet(setup.verbose):
        _build_once(setup)
        deepspeed.init_distributed(backend, auto_mpi_discovery=False, timeout=timedelta(seconds=setup.timeout))
    if on_cpu(setup):
        _unlink_shared_memory()
    if on_cpu(setup) and setup.weight_dtype == "float16":
        _allow_fp16()


def _build_once(setup: Setup) -> None:
    """Compile the native ops that this run needs on one rank of each node while the others wait.

    Built on first use (40 s to minutes on 2 cores). Two ranks building at once can fail, and a build that was killed
    leaves a lock file on which the next one waits for ever without a word.
    """
    store = dist.distributed_c10d._get_default_store()
    for builder in filter(lambda each: each.is_compatible(verbose=False), _ops(setup)):
        key = f"oneloop/{builder.name}/{os.environ.get('GROUP_RANK', os.environ.get('CROSS_RANK', '0'))}"
        if setup.local_rank == 0:
            from torch.utils.cpp_extension import _get_build_directory

            folder = Path(_get_build_directory(builder.name, False))
            clear_stale_lock(folder)
            if not list(folder.glob("*.so")):
                say(f"building DeepSpeed's {builder.name} once for this machine, about a minute")
            builder.load(verbose=False)
            store.set(key, "built")
        while not store.check([key]):
            time.sleep(OP_POLL_SECONDS)


def _ops(setup: Setup) -> list[Any]:
    """Builders of the shared-memory collectives, and of the Adam that steps on the host."""
    from deepspeed.ops.op_builder import CPUAdamBuilder
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    adam = setup.offloads_optimizer and setup.optimizer != "sgd"
    return ([ShareMemCommBuilder()] if on_cpu(setup) else []) + ([CPUAdamBuilder()] if adam else [])


def _allow_fp16() -> None:
    """DeepSpeed asks oneDNN for fp16 instructions and refuses a CPU without them; torch computes in fp16 there too."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    if not accelerator.is_fp16_supported():
        say("this CPU has no fp16 instructions: torch does without, slowly")
        accelerator.is_fp16_supported = lambda: True


def _unlink_shared_memory() -> None:
    """Take away the names of DeepSpeed's buffers once every rank has mapped them: 69 MB a rank stay in memory until
    the next boot else, also after a normal end."""
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    dist.barrier()
    for path in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_*"):
        path.unlink(missing_ok=True)


def clear_stale_lock(folder: Path) -> None:
    """Remove the lock of a build that is gone: older than 30 s, and no process works in the folder."""
    lock = folder / "lock"
    while lock.exists():
        with contextlib.suppress(FileNotFoundError):
            age = time.time() - lock.stat().st_mtime
            if age > STALE_LOCK_SECONDS and not _busy(folder):
                say(f"{lock} is left over from a build that was killed {age:.0f} s ago: removed")
                lock.unlink()
                return
        time.sleep(OP_POLL_SECONDS)


def _busy(folder: Path) -> bool:
    """Whether a process of this machine has the folder as its working directory, as ninja and the compiler do."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.resolve() == folder.resolve():
                return True
    return False


@contextlib.contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Hold back what libraries print to stdout while they start; `--verbose` lets it through."""
    with contextlib.nullcontext() if verbose else contextlib.redirect_stdout(io.StringIO()):
        yield
