"""The `oneloop` command."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from toolkit import compare
from toolkit.errors import PREFIX, UserError, fault
from toolkit.version import __version__


def main() -> None:
    """Entry point; exits 0, 1 where a comparison differs, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(prog="oneloop", description="One training loop, every setup, proven equal.")
    parser.add_argument("--version", action="version", version=f"oneloop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    parity = commands.add_parser(
        "parity",
        help="train every setup on the same global batches and compare losses and weights with one process",
    )
    parity.add_argument("--model", nargs="+", choices=compare.MODELS, default=["cnn", "bert"], help="what is trained")
    parity.add_argument("--full", action="store_true", help="all eight variants, not the four that hold each pair")
    parity.add_argument("--output_dir", type=Path, help="keep the runs there; a temporary folder where left out")
    arguments = parser.parse_args()
    try:
        sys.exit(_parity(arguments))
    except UserError as error:
        print("\n".join(PREFIX + line for line in error.lines), file=sys.stderr)
        sys.exit(2)


def _parity(arguments: argparse.Namespace) -> int:
    folder = arguments.output_dir
    if folder is not None and folder.exists() and os.listdir(folder):
        raise UserError(fault("--output_dir", str(folder), "is not empty", "name a new folder"))
    from toolkit import report

    variants = [variant for model in arguments.model for variant in compare.variants(model, arguments.full)]
    with tempfile.TemporaryDirectory() as temporary:
        results = compare.run(variants, folder or Path(temporary))
    report.show(results)
    return 0 if all(result.same for result in results) else 1


if __name__ == "__main__":
    main()
