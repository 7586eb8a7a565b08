"""Work that the ranks wait for, however long: on the data, before the engine is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from toolkit.errors import UserError

T = TypeVar("T")
LONGEST_PAUSE = 1.0  # seconds between two looks at whether all ranks have come
_calls = count()  # the waits are collective: every rank counts alike


def wait_for_all(setup: Any | None, work: Callable[[], T]) -> T:
    """What `work` returns on this rank, once it has ended on every rank. Collective; no timeout bounds the wait.

    Raises:
        UserError: that of whichever rank raised one first, on every rank of every node.
    """
    if setup is None or setup.world_size == 1:
        return work()
    from toolkit import watch
    from toolkit.engines import group

    group.start(setup)
    store, key, result = watch.store(), f"oneloop/waited/{next(_calls)}/", None
    try:
        result = work()
        over = store.add(key + "ranks", 1) == setup.world_size
    except UserError as error:
        store.compare_set(key + "fault", "", json.dumps(error.lines))
        over = True
    if over:
        store.set(key + "over", "")
    pause = 0.01
    while not store.check([key + "over"]):
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    if store.check([key + "fault"]):
        raise UserError(*json.loads(store.get(key + "fault")))
    return result  # type: ignore[return-value]  # no rank has raised, so work has returned


def once_per_node(setup: Any | None, work: Callable[[], T]) -> T | None:
    """Run `work` on the first rank of each node, which gets its result, while all other ranks wait. Collective.

    Raises:
        UserError: that of `work`, on every rank of every node.
    """
    return wait_for_all(setup, work if setup is None or setup.local_rank == 0 else lambda: None)
