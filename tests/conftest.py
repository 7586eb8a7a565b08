import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def prepared_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared data of the tests, also of the processes that they start, lie beside their other files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONELOOP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], str]:
    """Writes text, or anything else as JSON, into a file of the test's folder, and returns its path."""

    def write_file(name: str, content: Any) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    return write_file
