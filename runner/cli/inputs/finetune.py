"""Fine-tune an image classifier on a folder of images, and measure each backend with its input pipeline.

The options are those of "Analyzing Input Pipeline Stalls of Fine-tuning Workload in TensorFlow", in either spelling
(--dataset_path, --dataset-path), and all parameters of the workload `finetune`: docs/inputs.md. One epoch more than
asked for is run first and discarded."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.runner.cli.measure.run import conclude
from keras_matrix.runner.cli.options import add_measuring_options, log_folder, run_request
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import DEFAULTS, LIMITS, ValueRule
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.measure.request import CellChoice, check_backends
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.finetune import (
    CHECKPOINT_PATH,
    COMMAND,
    DATASET_PATH,
    SAMPLE_S,
    START_S,
    FineTuning,
    measured_fine_tuning,
    params_of_workload,
)

# Of the document; the other defaults are the workload's.
IMAGES = "images"
_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    group = parser.add_argument_group("what is trained, and how its input is read (also spelled with _)")
    for name, rule in params_of_workload().items():
        default = IMAGES if name == DATASET_PATH else rule.default
        default_text = f"; default: {default}" if default != "" else ""
        kind = _KINDS[rule.kind] if rule.kind else str
        _add(group, name, kind, f"{_as_help(rule)}{default_text}")
    _add(group, "batch_size", int, "samples of a batch; default: 32")
    _add(group, "epochs", int, "passes over the data set that are measured; default: 1")
    _add(group, "log_path", Path, "folder for TensorBoard's files with a profile; default: none, nothing is profiled")
    group.add_argument("--backend", action="append", default=[], metavar="NAME", help="only this; may be repeated")
    group.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="default: cpu")
    group.add_argument("--repeats", type=int, default=1, metavar="N", help="processes per backend; default: 1")
    limit_help = (
        f"seconds one process may take; default: {START_S:.0f}, and {SAMPLE_S:g} for each sample of --dataset-size in "
        "each epoch, with the delays given for it"
    )
    group.add_argument("--timeout", type=float, metavar="SECONDS", help=limit_help)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")


def run(args: argparse.Namespace) -> int:
    """Measure a cell for each backend and print the table."""
    check_backends(args.backend, TRAINING_BACKENDS)
    if args.log_path is not None:
        if args.log_dir is not None:
            raise UsageError("--log-path, --log-dir: name the same folder; give one of them")
        args.log_dir = log_folder(str(args.log_path))
    tuning = _tuning(args)
    request = run_request(args, CellChoice(Path(COMMAND), Overrides()))  # the cells come from the flags
    display = TerminalDisplay(args.json)
    return conclude(measured_fine_tuning(request, tuning, display), display, in_service=args.in_service)


def _tuning(args: argparse.Namespace) -> FineTuning:
    options = (args.backend, args.device, args.repeats, args.epochs, args.batch_size, args.timeout)
    return FineTuning(_given(args), *options)


def _add(group: argparse._ArgumentGroup, name: str, kind: Callable[[str], Any], meaning: str) -> None:
    """Add a flag in both spellings; help shows only the usual one."""
    usual_flag = f"--{name.replace('_', '-')}"
    metavar = {int: "N", float: "X"}.get(kind, "VALUE")  # type: ignore[call-overload]
    group.add_argument(usual_flag, dest=name, type=kind, metavar=metavar, help=meaning.replace("%", "%%"))
    if "_" in name:
        group.add_argument(f"--{name}", dest=name, type=kind, help=argparse.SUPPRESS)


def _as_help(rule: ValueRule) -> str:
    meaning = rule.meaning.rstrip(".")
    if meaning[1:2].islower():
        meaning = meaning[:1].lower() + meaning[1:]
    return f"{meaning} ({', '.join(map(str, rule.choices))})" if rule.choices else meaning


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of the workload that were given, with absolute paths. Raises `UsageError`."""
    rules = params_of_workload()
    params = {name: value for name in rules if (value := getattr(args, name)) is not None}
    params.setdefault(DATASET_PATH, IMAGES)
    if CHECKPOINT_PATH in params:
        params[CHECKPOINT_PATH] = str(Path(params[CHECKPOINT_PATH]).expanduser().resolve())
    options = {"batch_size": args.batch_size, "epochs": args.epochs, "repeats": args.repeats, "timeout": args.timeout}
    settings = {name: value for name, value in options.items() if value is not None}
    for name, value in {**params, **settings}.items():
        if problem := {**DEFAULTS, **rules, "timeout": LIMITS["timeout_s"]}[name].problem(value):
            raise UsageError(f"--{name.replace('_', '-')}: {problem}")
    return params
