"""The table of costs has the columns that something is known for."""

from __future__ import annotations

import pytest

from toolkit.compare.output import show


def cells(text: str, title: str) -> list[list[str]]:
    """Head and rows of the table below `title`."""
    lines = text[text.index(title) :].splitlines()[1:]
    rows = [line.strip("┃│").replace("│", "┃").split("┃") for line in lines if line[:1] in "┃│" and line]
    return [[cell.strip() for cell in row] for row in rows]


def test_a_column_stands_where_one_setup_knows_it(compared, capsys: pytest.CaptureFixture[str]) -> None:
    losses = {"single": [2.0, 1.0], "zero2": [2.0, 1.0]}
    show(compared(losses))
    usual = ["setup", "samples/s", "(quartiles)", "first step", "memory", "checkpoint"]
    told = cells(capsys.readouterr().out, "what they cost")
    assert told[0] == usual
    assert told[1] == ["single", "400", "(370 to 410)", "8.8 s", "720 MiB", "18.7 MiB, 0.07 s"]
    show(compared(losses, measured={"zero2": {"communication_bytes": 3 << 19, "idle": 0.25}}))
    told = cells(capsys.readouterr().out, "what they cost")
    assert told[0] == [*usual[:-1], "communicated", "checkpoint", "idle"]
    assert [row[5] for row in told[1:]] == ["", "1.5 MiB"] and [row[-1] for row in told[1:]] == ["", "25%"]
