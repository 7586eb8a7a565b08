"""How a script starts and ends: quiet libraries, one line for a user's mistake, the cause of a failure on top."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn

from toolkit import stop
from toolkit.errors import PREFIX, UserError

OTHERS_FIRST_SECONDS = 6.0


def run(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main` and exit: 0; 2 for a user's mistake; 1 for a failure; 130 for Ctrl-C, 143 for SIGTERM and
    SIGUSR1, 3 for a last checkpoint that could not be saved.
    """
    quiet_libraries("--verbose" in sys.argv)
    try:
        code = _code(main)
        _end_well()
    except UserError as error:
        _end_user_error(error)
    except KeyboardInterrupt:
        if _rank() == 0:
            if "toolkit.monitor" in sys.modules:
                sys.modules["toolkit.monitor"].record_end("interrupted")
            print("oneloop: interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    except Exception as error:
        _end_failure(error)
    sys.exit(code)


def _code(main: Callable[[], None]) -> int:
    try:
        main()
    except stop.Ended as end:
        return int(end.code or 0)
    return 0


def say(text: str) -> None:
    """A line for the user, from rank 0 alone, past whatever holds the libraries' own output back."""
    if _rank() == 0:
        print(f"oneloop: {text}", file=sys.__stderr__, flush=True)


def quiet_libraries(verbose: bool) -> None:
    """Keep banners and deprecation lines of every rank from drowning the output. Errors still show."""
    if verbose:
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("DS_LOG_LEVEL", "error")
    for category in (FutureWarning, DeprecationWarning, UserWarning):
        warnings.simplefilter("ignore", category)
    for name in ("DeepSpeed", "accelerate", "datasets", "evaluate", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _end_user_error(error: UserError) -> NoReturn:
    monitor = sys.modules.get("toolkit.monitor")
    if monitor is not None and _rank() == 0:
        monitor.record_end(error.lines[0])  # where a run has begun
    watch = _watch()
    if watch is not None and watch.current is not None:
        watch.current.fail(error)
    if _rank() != 0:
        # Every rank finds the same mistake and rank 0 tells it; after this it was this rank's alone.
        time.sleep(OTHERS_FIRST_SECONDS)
    print("\n".join(PREFIX + line for line in error.lines), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(2)


def _end_failure(error: Exception) -> NoReturn:
    watch = _watch()
    if watch is not None and watch.current is not None:
        watch.current.fail(error)
    from toolkit import monitor

    traceback.print_exception(error)
    monitor.record_failure(error)
    sys.stderr.flush()
    os._exit(1)


def _end_well() -> None:
    """Part together: a rank that leaves early takes the store with it."""
    stop.ignore()  # the launcher ends the others as soon as the first has gone with another code than 0
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return
    watch = _watch()
    torch.distributed.barrier()
    if watch is not None:
        watch.stop()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _watch():  # type: ignore[no-untyped-def]
    """toolkit.watch where a group was started; it imports torch, which a refused run need not."""
    return sys.modules.get("toolkit.watch")


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
