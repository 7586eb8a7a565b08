"""What `oneloop check` must say of each file in wild/: verdicts.txt, read."""

from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "wild"
SCRIPT = "../../../scripts/train_cnn.py"


@dataclass
class Verdict:
    """`passes` is the setup in a line, "" where the file is refused with `error` lines; `launched`: for 2 steps too."""

    name: str
    launched: bool
    passes: str = ""
    note: list[str] = field(default_factory=list)
    error: list[str] = field(default_factory=list)

    @property
    def options(self) -> tuple[str, ...]:
        """A YAML as accelerate launch takes it, a JSON as deepspeed with two ranks."""
        yaml = self.name.endswith(".yaml")
        return ("--config_file", self.name) if yaml else ("--deepspeed_config", self.name, "--num_processes", "2")


def read_verdicts() -> list[Verdict]:
    verdicts: list[Verdict] = []
    for line in (Path(__file__).parent / "verdicts.txt").read_text(encoding="utf-8").splitlines():
        what, _, text = line.strip().partition(": ")
        if line and not line.startswith((" ", "#")):
            name, *launched = line.split()
            verdicts.append(Verdict(name, launched == ["launched"]))
        elif what == "passes":
            verdicts[-1].passes = text
        elif what in ("note", "error"):
            getattr(verdicts[-1], what).append(text)
    return verdicts
