"""Lines of the core and of all of toolkit/ beside their targets. To raise a target, say why in the commit."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

TARGETS = {"core": 8640, "toolkit": 12740}
CORE = {"setup", "engines", "loop.py", "data", "models", "checkpoint", "output.py", "metrics.py", "monitor.py"}
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count(path: Path) -> tuple[int, int]:
    """(all lines, lines of code: without blank ones, comments and docstrings)."""
    text = path.read_text(encoding="utf-8")
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(text.splitlines()), len(code)


def main() -> None:
    totals = {name: [0, 0] for name in TARGETS}
    root = Path("toolkit")
    for path in sorted(root.rglob("*.py")):
        for name in ("core", "toolkit") if path.relative_to(root).parts[0] in CORE else ("toolkit",):
            totals[name] = [had + more for had, more in zip(totals[name], count(path), strict=True)]
    for name, (everything, code) in totals.items():
        over = f", over by {code - TARGETS[name]:,}" if code > TARGETS[name] else ""
        print(f"lines of {name}: {code:,} of code ({everything:,} with comments), target {TARGETS[name]:,}{over}")


if __name__ == "__main__":
    main()
