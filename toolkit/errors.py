"""A user's mistake, told in one line each: what came, the rule, what to edit and where."""

PREFIX = "oneloop: error: "


class UserError(Exception):
    """One or more mistakes in the user's input; `lines` holds one text each, without the prefix.

    `toolkit.run` prints them on rank 0 and ends every rank with exit code 2.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def fault(where: str, value: object, reason: str, remedy: str) -> str:
    """The one form of an error line: `where` is a file with a key, or an argument.

    >>> fault("--max_grad_norm", -1, "must be 0 or more", "0 turns clipping off")
    '--max_grad_norm: -1: must be 0 or more; 0 turns clipping off'
    """
    return f"{where}: {value!r}: {reason}; {remedy}"
