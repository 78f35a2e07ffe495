"""Fine-tune an image classifier on a folder of images, and measure each backend with its input pipeline.

The options are those of "Analyzing Input Pipeline Stalls of Fine-tuning Workload in TensorFlow", in either spelling
(--dataset_path, --dataset-path), and all parameters of the workload `finetune`: docs/inputs.md. One epoch more than
asked for is run first and discarded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_matrix.records.backends import BACKENDS
from keras_matrix.runner.cli.measure.run import conclude
from keras_matrix.runner.cli.options import add_measuring_options, log_folder, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.errors import UsageError, made_from_values
from keras_matrix.runner.machine.data_folders import DataFolders
from keras_matrix.runner.machine.mounts import import_roots
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import DEFAULTS, LIMITS, MAX_TEXT, Rule
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.measure.experiment import Experiment, dataset_dir, measured
from keras_matrix.runner.measure.request import CellChoice, check_backends
from keras_matrix.runner.service.run import finished

WORKLOAD = "finetune"
COMMAND = "runner finetune"
DATASET_PATH, CHECKPOINT_PATH, BASE_MODEL = "dataset_path", "checkpoint_path", "base_model"
# Of the document; the other defaults are the workload's.
IMAGES = "images"
STAND_IN = "timed_wait"
# Of the time limit. Preparing and training on a sample takes 0.01 to 0.15 s on two CPUs, by its network.
START_S, SAMPLE_S = 600.0, 0.2
_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    group = parser.add_argument_group("what is trained, and how its input is read (also spelled with _)")
    for name, rule in _params().items():
        default = IMAGES if name == DATASET_PATH else rule.default
        shown = f"; default: {default}" if default != "" else ""
        kind = _KINDS[rule.kind] if rule.kind else str
        _add(group, name, kind, f"{_as_help(rule)}{shown}")
    _add(group, "batch_size", int, "samples of a batch; default: 32")
    _add(group, "epochs", int, "passes over the data set that are measured; default: 1")
    _add(group, "log_path", Path, "folder for TensorBoard's files with a profile; default: none, nothing is profiled")
    group.add_argument("--backend", action="append", default=[], metavar="NAME", help="only this; may be repeated")
    group.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="default: cpu")
    group.add_argument("--repeats", type=int, default=1, metavar="N", help="processes per backend; default: 1")
    limit = (
        f"seconds one process may take; default: {START_S:.0f}, and {SAMPLE_S:g} for each sample of --dataset-size in "
        "each epoch, with the delays given for it"
    )
    group.add_argument("--timeout", type=float, metavar="SECONDS", help=limit)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")


def run(args: argparse.Namespace) -> int:
    """Measure a cell for each backend and print the table."""
    check_backends(args.backend)
    if args.log_path is not None:
        if args.log_dir is not None:
            raise UsageError("--log-path, --log-dir: name the same folder; give one of them")
        args.log_dir = log_folder(str(args.log_path))
    params = _given(args)
    request = run_request(args, CellChoice(Path(COMMAND), Overrides()))  # the cells come from the flags
    if args.executor in ("process", "docker"):  # both look for it on this machine
        roots = [str(root) for root in import_roots(request.choice.matrix.resolve().parent)]
        params[DATASET_PATH] = _found(params[DATASET_PATH], DataFolders(dataset_dir(request), roots))
    text = json.dumps(_matrix(args, params), indent=1)
    with made_from_values():
        cells = expand(parse(Path(COMMAND), text.encode()))
    display = TerminalDisplay(args.json)
    experiment = Experiment(cells, {"matrix_path": COMMAND, "matrix_text": text})
    return conclude(request, finished(measured(request, experiment, display)), display)


def _params() -> Mapping[str, Rule]:
    return catalog.load().workloads[WORKLOAD].params


def _add(group: argparse._ArgumentGroup, name: str, kind: Callable[[str], Any], meaning: str) -> None:
    """Add a flag in both spellings; help shows only the usual one."""
    usual = f"--{name.replace('_', '-')}"
    metavar = {int: "N", float: "X"}.get(kind, "VALUE")  # type: ignore[call-overload]
    group.add_argument(usual, dest=name, type=kind, metavar=metavar, help=meaning.replace("%", "%%"))
    if "_" in name:
        group.add_argument(f"--{name}", dest=name, type=kind, help=argparse.SUPPRESS)


def _as_help(rule: Rule) -> str:
    meaning = rule.meaning.rstrip(".")
    if meaning[1:2].islower():
        meaning = meaning[:1].lower() + meaning[1:]
    return f"{meaning} ({', '.join(map(str, rule.choices))})" if rule.choices else meaning


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of the workload that were given, with absolute paths. Raises `UsageError`."""
    rules = _params()
    params = {name: value for name in rules if (value := getattr(args, name)) is not None}
    params.setdefault(DATASET_PATH, IMAGES)
    if CHECKPOINT_PATH in params:
        params[CHECKPOINT_PATH] = str(Path(params[CHECKPOINT_PATH]).expanduser().resolve())
    own = {"batch_size": args.batch_size, "epochs": args.epochs, "repeats": args.repeats, "timeout": args.timeout}
    settings = {name: value for name, value in own.items() if value is not None}
    for name, value in {**params, **settings}.items():
        if problem := {**DEFAULTS, **rules, "timeout": LIMITS["timeout_s"]}[name].problem(value):
            raise UsageError(f"--{name.replace('_', '-')}: {problem}")
    return params


def _found(given: str, folders: DataFolders) -> str:
    """Return the path of a data set as a cell on this machine finds it. Raises `UsageError` if there is none."""
    path = Path(given).expanduser()
    found = folders.found(given)
    if found is None:
        places = [Path(folder) / path for folder in (folders.dataset_dir, *folders.import_roots) if folder]
        looked = " or ".join(dict.fromkeys(map(str, places)))
        raise UsageError(
            f"--dataset-path: must be a folder of images or record files, but there is no {looked}; write one with: "
            f"runner make-images --output-path {given}"
        )
    if not path.is_absolute() and ".." not in path.parts:
        return given
    if len(resolved := str(found.resolve())) > MAX_TEXT:
        raise UsageError(f"--dataset-path: must have at most {MAX_TEXT} characters, got {len(resolved)}: {resolved}")
    return resolved


def _limit_s(args: argparse.Namespace, params: Mapping[str, Any]) -> float:
    """Return the time limit of a process: far above what it takes, but a worker that died does not hang for a day."""
    rules = _params()

    def value(name: str) -> float:
        return float(params.get(name, rules[name].default))

    delays_ms = value("fetch_delay_ms") + value("prepare_spin_ms")
    if params.get("base") == STAND_IN:
        delays_ms += value("step_time_ms")  # of a step: more than enough for each of its samples
    sample_s = SAMPLE_S + delays_ms / 1e3
    passes = 1 + (1 if args.epochs is None else args.epochs)
    return min(float(LIMITS["timeout_s"].maximum or 0), START_S + passes * value("dataset_size") * sample_s)


def _matrix(args: argparse.Namespace, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the matrix that the flags describe: epochs of one pass, after a discarded one."""
    settings = {} if args.batch_size is None else {"batch_size": args.batch_size}
    defaults = {
        "epochs": (1 if args.epochs is None else args.epochs) + 1,
        "discard": 1,
        "steps_per_epoch": "seed",
        "repeats": args.repeats,
        "device": args.device,
        "timeout_s": _limit_s(args, params) if args.timeout is None else args.timeout,
    }
    return {
        "version": 1,
        "defaults": defaults,
        "backends": args.backend or list(BACKENDS),
        "cells": [{"workload": WORKLOAD, **settings, "params": dict(params)}],
    }
