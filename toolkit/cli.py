"""The `oneloop` command. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from toolkit import kinds, parity
from toolkit.errors import PREFIX, UserError, fault
from toolkit.launch import quiet_libraries
from toolkit.version import __version__


def main() -> None:
    """Entry point; exits 0, 1 where a comparison differs, 2 for a user's mistake and for what is not whole."""
    quiet_libraries(verbose=False)
    options, script = _before_script(sys.argv[1:])
    try:
        arguments = _parser().parse_args(options)
        arguments.script = script
        sys.exit(arguments.run(arguments))
    except UserError as error:
        if options[:1] == ["check"] and "--json" in options:
            from toolkit.check import Report

            print(Report({}, error.lines, ()).as_json())
        else:
            print("\n".join(PREFIX + line for line in error.lines), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("oneloop: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `| head` has read enough; Python's own last flush must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.filename is not None:  # of a file, which its command names
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        line = fault("stdout", "-", f"cannot be written ({error.strerror})", "make room, or name a file")
        print(PREFIX + line, file=sys.stderr)
        sys.exit(2)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if of_value := re.fullmatch(r"argument ([^:]+): ('.*?'): (.+)", message, re.S):
            raise UserError(fault(of_value[1], ast.literal_eval(of_value[2]), of_value[3], "see --help"))
        raise UserError(fault(self.prog, " ".join(sys.argv[1:]), message, "see --help"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="oneloop", description="One training loop, every setup, proven equal.")
    parser.add_argument("--version", action="version", version=f"oneloop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    check = commands.add_parser(
        "check",
        help="settle a command's files and arguments as its run would, and start nothing",
        usage="oneloop check [options] [SCRIPT [its arguments]]",
    )
    check.add_argument("--config_file", type=_text, metavar="FILE", help="Accelerate YAML: as accelerate launch")
    check.add_argument("--deepspeed_config", type=_text, metavar="FILE", help="DeepSpeed JSON")
    check.add_argument("--hostfile", type=_text, metavar="FILE", help="hosts and their slots, for deepspeed")
    check.add_argument("--num_processes", type=_at_least_1, metavar="N", help="ranks over all machines")
    check.add_argument("--json", action="store_true", help="setup, errors and warnings as one JSON object")
    check.add_argument("--explain", type=_text, metavar="KEY", help="what a key means, who may set it, which wins")
    check.set_defaults(run=_check)

    init = commands.add_parser("init", help="write a matched Accelerate YAML and DeepSpeed JSON for this machine")
    init.add_argument("setup", type=_text, metavar="SETUP", help="single, ddp, zero2, pipeline, ...")
    init.add_argument("--output_dir", type=_text, default=".", metavar="FOLDER", help="where they go (.)")
    init.add_argument("--num_processes", type=_at_least_1, metavar="N", help="ranks; this machine's where left out")
    init.set_defaults(run=_init)

    beside = commands.add_parser(
        "compare",
        help="train a script under several setups, and show whether they train alike and what each costs",
        usage="oneloop compare SCRIPT --setups SETUP... [options] [-- the script's arguments]\n"
        "       oneloop compare --runs FOLDER... [--output_dir FOLDER]",
    )
    beside.add_argument("started", nargs="?", type=_text, metavar="SCRIPT", help="a script on toolkit")
    beside.add_argument(
        "--setups", nargs="+", action="extend", type=_text, metavar="SETUP", help="ddp, zero2, my.json, my.yaml, ..."
    )
    beside.add_argument(
        "--num_processes", nargs="+", action="extend", type=_at_least_1, default=[], metavar="N", help="ranks of each"
    )
    beside.add_argument("--steps", type=_at_least_1, metavar="N", help="optimizer steps of each run (50)")
    beside.add_argument("--runs", nargs="+", type=_path, metavar="FOLDER", help="finished runs, in place of a script")
    beside.add_argument("--output_dir", type=_path, metavar="FOLDER", help="new; runs/compare-... where left out")
    beside.set_defaults(run=_compare)

    proof = commands.add_parser(
        "parity",
        help="train every setup on the same global batches and compare losses and weights with one process",
    )
    proof.add_argument("--model", nargs="+", choices=parity.MODELS, default=["cnn", "bert"], help="what is trained")
    proof.add_argument("--full", action="store_true", help="all variants, not the few that hold each pair")
    proof.add_argument("--mixed_precision", choices=tuple(parity.BOUNDS), default="no", help="no is fp32")
    proof.add_argument("--output_dir", type=_path, help="keep the runs there; a temporary folder where left out")
    proof.set_defaults(run=_parity)

    verify = commands.add_parser("verify", help="read whole checkpoints: one line for each says what is wrong")
    verify.add_argument("path", nargs="+", type=_path, help="a checkpoint, or a run's folder: all of its")
    verify.add_argument(
        "--model", type=_path, metavar="FOLDER", help="compare names and shapes with this model or checkpoint"
    )
    verify.set_defaults(run=_verify)

    export = commands.add_parser("export", help="write a checkpoint's weights as a folder that from_pretrained loads")
    export.add_argument("checkpoint", type=_path, help="a checkpoint, or a run's folder: its newest whole one")
    export.add_argument("out", type=_path, help="a new folder")
    export.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="of floating-point tensors")
    export.set_defaults(run=_export)

    predict = commands.add_parser("predict", help="label and probabilities for each row of a file, as csv or jsonl")
    predict.add_argument("model", type=_path, help="an export, a checkpoint, a run's folder, or a text classifier's")
    predict.add_argument(
        "file", type=_text, help="csv, tsv, json, jsonl, parquet, txt (a text a line), an image or a folder of them"
    )
    predict.add_argument("--batch_size", type=_at_least_1, default=32, metavar="ROWS", help="rows at a time (32)")
    predict.add_argument("--output", metavar="FILE", help="a new .csv or .jsonl; csv to stdout where left out")
    for kind in ("text", "text_pair", "image"):
        predict.add_argument(f"--{kind}_column_name", metavar="NAME", help="training's own where left out")
    predict.add_argument("--encoding", type=_encoding, metavar="NAME", help="of a text file; utf-8 where left out")
    predict.set_defaults(run=_predict)

    brought = commands.add_parser("import", help="make a checkpoint of one that Accelerate or DeepSpeed wrote")
    brought.add_argument("source", type=_path, help="the folder that save_state or save_checkpoint wrote")
    brought.add_argument("out", type=_path, help="a new folder")
    brought.set_defaults(run=_import)
    return parser


def _before_script(argv: list[str]) -> tuple[list[str], list[str]]:
    """(our own words, the script of `check` with its arguments, which may look like ours; those of `compare`)."""
    if argv[:1] == ["compare"] and "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    at = 1
    while argv[:1] == ["check"] and at < len(argv):
        if not argv[at].startswith("-"):
            return argv[:at], argv[at:]
        at += 1 if "=" in argv[at] or argv[at] in ("--json", "-h", "--help") else 2
    return argv, []


def _check(arguments: argparse.Namespace) -> int:
    if arguments.explain is not None:
        from toolkit.setup.explain import explain

        if len(sys.argv) > 4 - ("=" in sys.argv[2]):
            raise UserError(fault("--explain", arguments.explain, "goes without other options", "give it alone"))
        print(explain(arguments.explain))
        return 0
    from toolkit.check import check

    script, *script_arguments = arguments.script or [None]
    report = check(
        os.environ,
        config_file=arguments.config_file,
        deepspeed_config=arguments.deepspeed_config,
        hostfile=arguments.hostfile,
        num_processes=arguments.num_processes,
        script=script,
        script_arguments=script_arguments,
    )
    if arguments.json:
        print(report.as_json())
        return 2 if report.errors else 0
    if report.errors:
        raise UserError(*report.errors)
    print(report.table())
    for note in report.warnings:
        print(f"note: {note}")
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from toolkit.setup.templates import write_setup

    for path in write_setup(arguments.setup, arguments.output_dir, arguments.num_processes):
        print(path)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from toolkit.compare import command

    if arguments.runs is not None:
        given = {"SCRIPT": arguments.started, "--setups": arguments.setups, "--steps": arguments.steps}
        given |= {"--num_processes": arguments.num_processes, "--": arguments.script}
        faults = [fault(name, value, "goes with runs that are started", "leave it out beside --runs")
                  for name, value in given.items() if value]  # fmt: skip
        if faults:
            raise UserError(*faults)
        return command.compare_runs(arguments.runs, arguments.output_dir)
    if arguments.started is None or not arguments.setups:
        missing = "SCRIPT" if arguments.started is None else "--setups"
        raise UserError(fault(missing, None, "missing", "oneloop compare SCRIPT --setups ddp zero2"))
    return command.compare_setups(
        arguments.started,
        arguments.setups,
        arguments.num_processes,
        arguments.steps or 50,
        arguments.output_dir,
        arguments.script,
    )


def _parity(arguments: argparse.Namespace) -> int:
    folder = arguments.output_dir
    if folder is not None and folder.exists() and os.listdir(folder):
        raise UserError(fault("--output_dir", str(folder), "is not empty", "name a new folder"))
    from toolkit import parity_table

    variants = [
        variant
        for model in arguments.model
        for variant in parity.variants(model, arguments.full, arguments.mixed_precision)
    ]
    with tempfile.TemporaryDirectory() as temporary:
        results = parity.run(variants, folder or Path(temporary))
    parity_table.show(results)
    return 0 if all(result.same for result in results) else 1


def _verify(arguments: argparse.Namespace) -> int:
    from toolkit.export import verify

    well = True
    for whole, line in verify(arguments.path, arguments.model):
        print(line, flush=True)
        well = well and whole
    return 0 if well else 2


def _export(arguments: argparse.Namespace) -> int:
    from toolkit.export import export

    print(export(arguments.checkpoint, arguments.out, arguments.dtype))
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    from toolkit import predict

    predict.check_output(arguments.output)
    predictions = predict.predict(
        arguments.model,
        arguments.file,
        batch_size=arguments.batch_size,
        text_column_name=arguments.text_column_name,
        text_pair_column_name=arguments.text_pair_column_name,
        image_column_name=arguments.image_column_name,
        encoding=arguments.encoding,
    )
    predict.write(predictions, arguments.output)
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from toolkit.foreign import main_import

    print(main_import(arguments.source, arguments.out))
    return 0


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("'': expected a path")
    return text


def _path(text: str) -> Path:
    return Path(_text(text))


def _encoding(text: str) -> str:
    try:
        return kinds.encoding(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _at_least_1(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of 1 or more, of 18 digits at most")
    return int(text)


if __name__ == "__main__":
    main()
