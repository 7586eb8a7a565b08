"""Files of a test, written into a folder of its own that it works in."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_file(name, content):
        Path(name).write_text(content if isinstance(content, str) else json.dumps(content))
        return name

    return write_file
