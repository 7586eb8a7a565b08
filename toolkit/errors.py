"""A user's mistake, told in one line each: what came, the rule, what to edit and where."""

from __future__ import annotations

from typing import Any

PREFIX = "oneloop: error: "
_LONGEST = 300  # characters of a value in a line


class UserError(Exception):
    """One or more mistakes in the user's input; `lines` holds one text each, without the prefix.

    `toolkit.run` prints them on rank 0 and ends every rank with exit code 2.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Place(str):
    """ "FILE: KEY" as it is shown, with its parts and the key's line in the file."""

    file: str
    key: str
    line: int | None

    def __new__(cls, file: str, key: str = "", line: int | None = None) -> Place:
        self = super().__new__(cls, f"{file}: {key}" if file and key else file or key)
        self.file, self.key, self.line = file, key, line
        return self


class Fault(str):
    """The text of one mistake, with the parts that it was made of."""

    where: str
    value: object
    reason: str
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        """`file`, `line` and `key` are null where there is none; an argument is a key without a file."""
        where = self.where
        file, key, line = (where.file, where.key, where.line) if isinstance(where, Place) else ("", where, None)
        parts = {"value": self.value, "reason": self.reason, "remedy": self.remedy}
        return {"file": file or None, "line": line, "key": key or None} | parts


def fault(where: str, value: object, reason: str, remedy: str) -> str:
    """The one form of an error line, a `Fault`; `where` is a `Place` in a file, or an argument.

    >>> fault("--max_grad_norm", -1, "must be 0 or more", "0 turns clipping off")
    '--max_grad_norm: -1: must be 0 or more; 0 turns clipping off'
    """
    try:
        shown = repr(value)
    except ValueError:  # Python shows no integer of more than 4,300 digits
        shown = "a number too long to show"
    if len(shown) > _LONGEST:  # a whole section, or a file
        shown = f"{shown[: _LONGEST - 3]}..."
    line = Fault(f"{where}: {shown}: {reason}; {remedy}")
    line.where, line.value, line.reason, line.remedy = where, value, reason, remedy
    return line
