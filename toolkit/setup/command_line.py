"""What only the command line of `accelerate launch` tells: its options, and the file of `accelerate config`."""

import os
from collections.abc import Mapping, Sequence


def parent_command() -> list[str]:
    """The parent's command line; empty where /proc does not have it."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", encoding="utf-8") as file:
            return file.read().rstrip("\0").split("\0")
    except OSError:
        return []


def launch_options(parent: Sequence[str], script: str) -> dict[str, str] | None:
    """The options of `accelerate launch` before the script; None where the parent is something else."""
    names = [os.path.basename(token) for token in parent]
    starts = [n for n, name in enumerate(names) if name in ("accelerate-launch", "accelerate.commands.launch")]
    starts += [n for n, name in enumerate(names) if n > 0 and name == "launch" and "accelerate" in names[n - 1]]
    if not starts:
        return None
    tokens = list(parent[starts[0] + 1 :])
    modules = [n + 1 for n, token in enumerate(tokens[:-1]) if token in ("-m", "--module")]
    scripts = [n for n, token in enumerate(tokens) if token == script or token == os.path.basename(script)]
    tokens = tokens[: min([*modules, *scripts], default=len(tokens))]
    options: dict[str, str] = {}
    for token, following in zip(tokens, [*tokens[1:], "--"], strict=False):
        if token.startswith("--"):
            name, has_value, value = token[2:].partition("=")
            options[name.replace("-", "_")] = value if has_value else "" if following.startswith("--") else following
    return options


def default_file(environ: Mapping[str, str], options: Mapping[str, str]) -> str:
    """The file of `accelerate config`, which counts as given, unless --cpu."""
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.path.expanduser(environ.get("HF_HOME", os.path.join(cache, "huggingface")))
    path = os.path.join(home, "accelerate", "default_config.yaml")
    return path if os.path.isfile(path) and "cpu" not in options else ""
