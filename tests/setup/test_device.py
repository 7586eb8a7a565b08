"""One device a rank, chosen with a faked count of GPUs."""

import pytest

from toolkit.errors import UserError
from toolkit.setup import choose_device


@pytest.mark.parametrize(
    ("local_rank", "count", "use_cpu", "local_ranks", "expected"),
    [
        (0, 0, False, 1, ("cpu", None, "gloo")),
        (1, 0, False, 2, ("cpu", None, "gloo")),
        (0, 8, False, 8, ("cuda", 0, "nccl")),
        (7, 8, False, 8, ("cuda", 7, "nccl")),
        (1, 8, True, 2, ("cpu", None, "gloo")),
        (0, 1, False, 1, ("cuda", 0, "nccl")),
    ],
)
def test_one_device_a_rank(local_rank, count, use_cpu, local_ranks, expected):
    assert choose_device(local_rank, count, use_cpu, local_ranks) == expected


@pytest.mark.parametrize(("local_rank", "local_ranks"), [(1, 1), (0, 2)])
def test_more_ranks_than_gpus_are_refused_on_every_rank(local_rank, local_ranks):
    with pytest.raises(UserError, match="2: a rank needs a GPU of its own, 1 here; start at most 1 processes"):
        choose_device(local_rank, 1, False, local_ranks)
