"""Prepares an array once per node. ONELOOP_PREPARE is "HOW FILE": each preparation adds its rank and time to FILE and
then is done after SECONDS, raises, raises a UserError, or is killed; FILE.RANK tells what a rank got.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

import toolkit
from toolkit.data.prepared import prepared

HOW, FILE = os.environ["ONELOOP_PREPARE"].split()
SECONDS = 8.0  # more than the --timeout of the test


def make() -> dict[str, np.ndarray]:
    with open(FILE, "a") as file:
        file.write(f"{os.environ['RANK']} {time.time()!r}\n")
    if HOW == "user":
        raise toolkit.UserError("data.csv: line 3: no text there", "data.csv: line 5: the label is missing")
    if HOW == "raise":
        raise ValueError("no such word")
    time.sleep(SECONDS if HOW == "done" else 1.0)
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"numbers": np.arange(1000, dtype=np.int32)}


def main() -> None:
    arguments = toolkit.parse_arguments(description=__doc__, defaults={})
    setup = toolkit.Setup.from_run(arguments)
    numbers = prepared("numbers", {"how": HOW}, make, setup)["numbers"]
    Path(f"{FILE}.{setup.rank}").write_text(f"{type(numbers).__name__} {int(numbers.sum())}")


if __name__ == "__main__":
    toolkit.run(main)
