"""Run one external command as a cell, and write its figures to dlbenchmark_result.json.

The task is an entry of `tasks` in a matrix file, or a section of a `.cfg` file of the deeplearning-benchmark driver,
which runs unchanged. docs/tasks.md lists the differences from that driver."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from keras_matrix.runner.cli.measure.run import conclude
from keras_matrix.runner.cli.options import add_measuring_options, check_output, count_or_auto, run_request
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.tasks import result_file
from keras_matrix.runner.matrix.cfg import Filled
from keras_matrix.runner.matrix.grammar import MATRIX
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Matrix
from keras_matrix.runner.matrix.service_selection import command_backends
from keras_matrix.runner.measure.request import CellChoice, check_range
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.task import matrix_of_cfg, matrix_of_task, measured_task

CONFIGS = ("task_config_template.cfg", "task_config.cfg")
CFG_ONLY = ("epochs", "kvstore", "dtype", "metrics_policy", "command_to_execute")
WORKERS_VARIABLE = "DEEPLEARNING_WORKERS_COUNT"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    group = parser.add_argument_group("which task")
    group.add_argument("--task-name", metavar="NAME", help="which task; optional if the file has only one")
    group.add_argument("--config", type=Path, metavar="FILE", help=f"a .cfg file; default: {CONFIGS[0]}, if it exists")
    group.add_argument("--matrix", type=Path, metavar="FILE", help="otherwise a matrix file; default: matrix.yaml")
    group.add_argument("--num-gpus", type=int, metavar="N", help="number of GPUs, over the file")
    group.add_argument("--repeats", type=count_or_auto, default=1, metavar="N", help="processes; default: 1")
    fields = parser.add_argument_group("fields of a .cfg file's template")
    fields.add_argument("--epochs", type=int, metavar="N", help="in place of the number after --epochs")
    fields.add_argument("--kvstore", metavar="NAME", help="in place of device after --kvstore")
    fields.add_argument("--dtype", metavar="NAME", help="in place of float32 after --dtype")
    fields.add_argument("--metrics-policy", metavar="SECTION", help="use this section's metrics for another command")
    fields.add_argument("--command-to-execute", metavar="TEXT", help="that command")
    names = parser.add_argument_group("names of the figures")
    names.add_argument("--framework", default="", metavar="NAME", help="put before each key")
    names.add_argument("--metrics-suffix", default="", metavar="NAME", help="put after each key")
    result_help = "default: dlbenchmark_result.json; in a service, in its results folder"
    names.add_argument("--result", type=Path, metavar="FILE", help=result_help)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the task, and write its result file."""
    path, matrix = _matrix(args)
    service = args.service
    if service is not None and not command_backends(matrix.entries[0]):
        # A task is chosen by its name, so it need not name the backend of the service that runs it.
        service = replace(service, backends=())
    request = run_request(args, CellChoice(path, Overrides(repeats=args.repeats), service, parsed=[matrix]))
    # In a service only the results folder is writable, and the engine has created it.
    output: Path = args.result or (request.results if service else Path()) / result_file.NAME
    if args.result is not None or not service:
        check_output("--result", output)
    labels = result_file.Labels(args.framework, args.metrics_suffix)
    display = TerminalDisplay(args.json)
    finished_run, has_figures = measured_task(request, matrix, labels, output, display)
    code = conclude(finished_run, display, in_service=args.in_service)
    no_result_text = f"no result: nothing was measured, and {output} was not written"
    display.say(f"result: {output}" if has_figures else no_result_text)
    return code


def _matrix(args: argparse.Namespace) -> tuple[Path, Matrix]:
    """Return the file of the named task, and its matrix. Raises `InputError`."""
    if args.config is not None and args.matrix is not None:
        raise UsageError("--config, --matrix: name one file, not both")
    config_files = (Path(name) for name in CONFIGS if Path(name).is_file())
    if config := args.config or (None if args.matrix else next(config_files, None)):
        return config, matrix_of_cfg(config, args.task_name, _filled(args), TerminalDisplay(args.json).warn)
    flags = [f"--{name.replace('_', '-')}" for name in CFG_ONLY if getattr(args, name) is not None]
    if flags:
        raise UsageError(f"{', '.join(flags)}: belongs to a .cfg file; a matrix file has params in their place")
    path: Path = args.matrix or MATRIX
    return path, matrix_of_task(path, args.task_name, args.num_gpus)


def _filled(args: argparse.Namespace) -> Filled:
    if (args.metrics_policy is None) != (args.command_to_execute is None):
        raise UsageError("--metrics-policy, --command-to-execute: give both or neither")
    for flag in ("num_gpus", "epochs"):
        check_range(f"--{flag.replace('_', '-')}", getattr(args, flag) or 0, 0)
    workers = os.environ.get(WORKERS_VARIABLE, "0")
    if not (workers.isascii() and workers.isdecimal()):
        raise UsageError(f"{WORKERS_VARIABLE}: must be a whole number, got {workers!r}")
    fields = (args.num_gpus, args.epochs, args.kvstore, args.dtype, args.metrics_policy, args.command_to_execute)
    return Filled(*fields, workers=max(1, int(workers)))
