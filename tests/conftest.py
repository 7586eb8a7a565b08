from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def prepared_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared data of the tests, also of the processes that they start, lie beside their other files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONELOOP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
