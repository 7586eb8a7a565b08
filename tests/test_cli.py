"""The `oneloop` command as it is typed."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import written

from toolkit import cli

ONELOOP = str(Path(sysconfig.get_path("scripts")) / "oneloop")
Typed = Any


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs a command line in this process: (exit code, lines of stdout, lines of stderr)."""

    def run(*words: object) -> tuple[Any, list[str], list[str]]:
        monkeypatch.setattr(sys, "argv", ["oneloop", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code, out.splitlines(), err.splitlines()

    return run


def command(*words: object, **options: Any) -> Any:
    return subprocess.run([ONELOOP, *map(str, words)], capture_output=True, text=True, timeout=100, **options)


def test_a_run_is_verified_exported_and_used(tmp_path: Path) -> None:
    run = tmp_path / "run"
    written.write(run / "checkpoints" / "step-000009", written.cnn())
    newest = written.write(run / "checkpoints" / "step-000010", written.cnn())
    done = command("verify", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(": whole (16 tensors")[0] for line in done.stdout.splitlines()] == [
        str(run / "checkpoints" / name) for name in ("step-000009", "step-000010")
    ]
    out = tmp_path / "out"
    done = command("export", run, out, "--dtype", "bf16")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{out}: the weights of {newest}: 16 tensors, bf16")

    from PIL import Image

    (tmp_path / "images").mkdir()
    for number in range(3):
        Image.new("L", (6, 8), 100 * number).save(tmp_path / "images" / f"{number}.png")
    done = command("predict", out, tmp_path / "images", "--batch_size", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["file"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["0.png", "1.png", "2.png"]
    done = command("predict", out, tmp_path / "images", "--output", tmp_path / "rows.jsonl")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3


def test_nothing_but_the_table_goes_to_stdout(tmp_path: Path) -> None:
    """What transformers says while it loads must not stand among the rows, nor a bar among the lines."""
    written.write(tmp_path / "step-000001", written.bert())
    (tmp_path / "rows.txt").write_text("a\nfilm\n")
    done = command("predict", tmp_path / "step-000001", tmp_path / "rows.txt")
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = done.stdout.splitlines()
    assert (header, len(rows)) == ("label,probability,probability_bad,probability_fair,probability_good", 2)


def test_exit_codes(typed: Typed, tmp_path: Path) -> None:
    good = written.write(tmp_path / "step-000001", written.cnn())
    bad = written.write(tmp_path / "step-000002", written.cnn())
    (bad / written.SHARD).unlink()
    assert typed("verify", good)[0] == 0
    code, out, err = typed("verify", good, bad, tmp_path / "none")
    assert (code, len(out), err) == (2, 3, [])
    code, out, err = typed("verify", good, "--model", bad)
    assert (code, out) == (2, [])
    assert len(err) == 1 and err[0].startswith("oneloop: error: ")
    for words in (("export", bad, tmp_path / "out"), ("predict", tmp_path / "none", "rows.csv")):
        code, out, err = typed(*words)
        assert (code, out, len(err)) == (2, [], 1)
        assert err[0].startswith("oneloop: error: ")
    code, _, err = typed("predict", good, "rows.csv", "--batch_size", 0)
    assert code == 2
    assert "--batch_size: '0': must be a whole number of 1 or more, of 18 digits" in err[-1]
    code, _, err = typed("predict", good, "rows.csv", "--output", "rows.xml")
    assert (code, err) == (2, ["oneloop: error: --output: 'rows.xml': unknown kind of file; use one of .csv, .jsonl"])
    assert not (tmp_path / "out").exists()


def test_import_hands_over(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit import foreign

    monkeypatch.setattr(foreign, "main_import", lambda source, out: f"{source} -> {out}")
    assert typed("import", tmp_path, "new") == (0, [f"{tmp_path} -> new"], [])


def test_an_interruption_is_one_line(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    from toolkit import export

    monkeypatch.setattr(export, "export", interrupted)
    assert typed("export", tmp_path, "out") == (130, [], ["oneloop: interrupted"])


def test_a_reader_that_has_enough_is_no_failure(tmp_path: Path) -> None:
    model = written.write(tmp_path / "step-000001", written.cnn())
    (tmp_path / "images").mkdir()

    from PIL import Image

    Image.new("L", (6, 8)).save(tmp_path / "images" / "first.png")
    for number in range(3000):  # more than a pipe holds
        (tmp_path / "images" / f"{number:05d}-{'x' * 40}.png").symlink_to(tmp_path / "images" / "first.png")
    line = f"{ONELOOP} predict {model} {tmp_path / 'images'} | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1].startswith(f"00000-{'x' * 40}.png,")
    assert done.stdout.splitlines()[2] == "141"


@pytest.mark.parametrize("name", ["verify", "predict"])
def test_a_full_disk_under_stdout_is_one_line(tmp_path: Path, name: str) -> None:
    from PIL import Image

    model = written.write(tmp_path / "step-000001", written.cnn())
    Image.new("L", (6, 8)).save(tmp_path / "image.png")
    words = [name, str(model)] + [str(tmp_path / "image.png")] * (name == "predict")
    with open("/dev/full", "w") as full:
        done = subprocess.run([ONELOOP, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    line = "stdout: '-': cannot be written (No space left on device); make room, or name a file"
    assert (done.returncode, done.stderr) == (2, f"oneloop: error: {line}\n")


def test_commands_are_quick_to_say_what_they_take() -> None:
    program = "import sys, toolkit.cli; print({'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["export", "", "x"], "checkpoint: '': expected a path; see --help"),
        (["predict", "", "x"], "model: '': expected a path; see --help"),
        (["predict", "x", ""], "file: '': expected a path; see --help"),
        (["verify"], "oneloop verify: 'verify': the following arguments are required: path; see --help"),
        (["unknown"], "oneloop: 'unknown': argument command: invalid choice: 'unknown' (choose from "),
    ],
)
def test_a_wrong_command_line_is_one_line(typed: Typed, argv: list[str], line: str) -> None:
    code, _, err = typed(*argv)
    assert code == 2
    assert len(err) == 1
    assert err[0].startswith(f"oneloop: error: {line}")
