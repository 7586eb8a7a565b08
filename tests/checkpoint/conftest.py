from __future__ import annotations

import pytest
from fitting import Run, fit


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The uninterrupted run: 16 steps, a checkpoint every 4. Not to be changed: `fitting.copied`."""
    return fit(tmp_path_factory.mktemp("whole") / "run", "--checkpointing_steps", "4")
