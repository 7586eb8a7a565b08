"""The `deepspeed` launcher's hostfile: a host a line, with its slots, by DeepSpeed's rules."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.errors import Place, UserError, fault

_LINE = re.compile(r"(\S+)\s+slots=([0-9]{1,9})\s*(#.*)?")


@dataclass(frozen=True)
class Hosts:
    """`slots` are the ranks of each host, in the file's order; `lines` says where each host stands."""

    path: str
    slots: Mapping[str, int]
    lines: Mapping[str, int]

    @property
    def total(self) -> int:
        """Ranks over all hosts."""
        return sum(self.slots.values())


def read_hostfile(path: str) -> Hosts:
    """Reads "NAME slots=N" lines; blank lines and those that begin with # are skipped.

    Raises:
        UserError: one line for each that is not of that form, stands twice, or has no slot; no host at all.
    """
    if not os.path.isfile(path):
        raise UserError(fault(path, "no such file", f"searched from {os.getcwd()}", "give the path of a hostfile"))
    try:
        with open(path, encoding="utf-8") as file:
            rows = file.read().split("\n")  # no other character ends a line for DeepSpeed
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(fault(path, "unreadable", str(error), "save it as UTF-8 text")) from None
    slots: dict[str, int] = {}
    lines: dict[str, int] = {}
    faults: list[str] = []
    for number, row in enumerate(map(str.strip, rows), 1):
        if not row or row.startswith("#"):
            continue
        where, parts = Place(path, f"line {number}", number), _LINE.fullmatch(row)
        if row.startswith("\ufeff"):
            reason = "the byte-order mark would be part of the host's name"
            faults.append(fault(where, row, reason, "save it without one"))
        elif parts is None:
            # DeepSpeed drops what follows the number without a word.
            faults.append(fault(where, row, "not of the form NAME slots=N", "write worker-0 slots=8"))
        elif (name := parts[1]) in slots:
            faults.append(fault(where, name, f"stands twice, at lines {lines[name]} and {number}", "keep one"))
        elif not int(parts[2]):
            faults.append(fault(where, row, "a host has 1 or more slots", "give its ranks, or remove the line"))
        else:
            slots[name], lines[name] = int(parts[2]), number
    if not slots and not faults:
        faults.append(fault(path, "", "no host stands in it", "write a line for each: worker-0 slots=8"))
    if faults:
        raise UserError(*faults)
    return Hosts(path, slots, lines)
