"""A first hour on Google's BigQuery, or on an emulator, as one command.

It creates a dataset, pushes into it with killed and with concurrent processes, checks with Google's own client that
each row is stored once, runs the dashboards' queries, writes a report to attach to an issue, and removes the dataset,
also after a failure or Ctrl-C.

    ci/bigquery --project PROJECT --dataset first_hour --location EU
    ci/emulator run -- ci/bigquery --project emulated-project --dataset first_hour
"""

from __future__ import annotations

import argparse
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from ci.first_hour import results, service
from ci.first_hour.report import Report
from ci.first_hour.results import Folders
from ci.first_hour.service import Service, as_upload_errors
from ci.first_hour.steps import Hour, steps
from ci.first_hour.uploading import ROOT, Uploader
from keras_matrix.runner.checks.first_hour_steps import CheckStep, Done, StepOutcome, StepResult, exit_code
from keras_matrix.uploader.cli import flags, options
from keras_matrix.uploader.errors import BadInput, UploadError
from keras_matrix.uploader.warehouse import Options, is_local

EPILOG = """exit codes: 0 all as expected, 1 some expectation failed, 2 bad input, 3 not reachable or not allowed,
130 interrupted"""
REPORT = ROOT / "build" / "first-hour.md"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The validated arguments of the command line."""

    project: str
    dataset: str
    report: Path
    keep: bool


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    top = argparse.ArgumentParser(
        "ci/bigquery", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--project", required=True, metavar="P")
    top.add_argument("--dataset", required=True, metavar="D", help="must not exist; D_staging is created, too")
    top.add_argument(
        "--results", type=Path, metavar="FOLDER", help="push a copy of these results first; default: synthetic ones"
    )
    top.add_argument("--report", type=Path, default=REPORT, metavar="FILE.md", help=f"default: {REPORT}")
    top.add_argument("--keep", action="store_true", help="do not remove the dataset at the end")
    flags.add(top.add_argument_group("BigQuery"), flags.BIGQUERY)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _run(args, Path(folder))
    except UploadError as error:
        print(f"ci/bigquery: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ci/bigquery: stopped", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace, folder: Path) -> int:
    arguments = checked(args)
    warehouse_service = _unused(arguments, options.warehouse_options(args))
    hour = Hour(
        warehouse_service,
        Uploader(
            f"bigquery://{warehouse_service.dataset}", _given(args, flags.IMPERSONATE, flags.MAXIMUM_BYTES_BILLED)
        ),
        Folders(folder, datetime.now(UTC)),
        _given(args, flags.LOCATION, flags.APPEND_ONLY),
        args.results,
    )
    done_steps, interrupted = all_steps(steps(hour), teardown(warehouse_service, keep=arguments.keep))
    _write(Report("BigQuery", _about(warehouse_service, hour), done_steps, arguments.project), arguments.report)
    return 130 if interrupted else exit_code(done_steps)


def _unused(arguments: Arguments, reached: Options) -> Service:
    """Return the service at a dataset that does not exist. Raises `UploadError`."""
    with as_upload_errors("look for the dataset"):
        warehouse_service = service.opened(arguments.project, arguments.dataset, reached)
        if datasets := service.require_unused(warehouse_service):
            print(f"removing datasets of an interrupted run of this command: {', '.join(datasets)}")
            warehouse_service.drop()
    return warehouse_service


def checked(args: argparse.Namespace) -> Arguments:
    """Validate the arguments. Raises `BadInput` before anything is created."""
    is_local(f"bigquery://{args.project}.{args.dataset}", "--project, --dataset")
    if args.results is not None and not results.has_runs(args.results):
        raise BadInput(f"--results: must be a folder with runs, got {args.results}")
    if not args.report.parent.is_dir() or args.report.is_dir() or args.report.suffix == ".json":
        raise BadInput(f"--report: must be a file such as report.md in a folder that exists, got {args.report}")
    return Arguments(args.project, args.dataset, args.report, args.keep)


def all_steps(check_steps: Iterable[CheckStep], last: CheckStep) -> tuple[list[Done], bool]:
    """Run the steps, and the last one in any case; return their results, and whether Ctrl-C interrupted them."""
    done_steps: list[Done] = []
    interrupted = False
    for step in check_steps:
        try:
            done_steps.append(run(step))
        except KeyboardInterrupt:
            interrupted = True
            done_steps.append(Done(step.name, step.expected, StepResult(StepOutcome.NOT_RUN, "interrupted"), 0.0))
        if interrupted or (step.essential and done_steps[-1].found.outcome is StepOutcome.FAILED):
            break
    with _uninterrupted():
        done_steps.append(run(last))
    return done_steps, interrupted


def run(step: CheckStep) -> Done:
    """Run one step and print a line on it. An exception is reported as a failure of the step."""
    print(f"{step.name} ...", end="", flush=True)
    began, code = time.monotonic(), 1
    try:
        with as_upload_errors(step.name):
            step_result = step.run()
    except UploadError as error:
        step_result = StepResult(StepOutcome.FAILED, str(error))
    except Exception as error:  # noqa: BLE001 - datasets must be removed and the report written
        step_result = StepResult(StepOutcome.FAILED, f"{type(error).__name__}: {error}")
    if step.essential:
        code = int(step_result.figures.get("code", 1))
    done_step = Done(step.name, step.expected, step_result, time.monotonic() - began, code if code in (2, 3) else 1)
    print(f" {step_result.outcome}, {done_step.duration_s:.1f} s: {step_result.summary}", flush=True)
    return done_step


def teardown(warehouse_service: Service, *, keep: bool) -> CheckStep:
    """Return the step that removes both datasets, or leaves them with --keep."""

    def remove() -> StepResult:
        if keep:
            warehouse_service.mark(made_here=False)
            commands = " && ".join(f"bq rm -r -f -d {name.replace('.', ':')}" for name in warehouse_service.datasets)
            return StepResult(StepOutcome.OK, f"not removed (--keep); remove them with: {commands}")
        remaining = warehouse_service.drop()
        return StepResult(
            StepOutcome.FAILED if remaining else StepOutcome.OK,
            f"still there: {', '.join(remaining)}" if remaining else "removed",
        )

    return CheckStep("teardown", "both datasets are removed, or left in place with --keep", remove)


def _write(report: Report, path: Path) -> None:
    path.write_text(report.markdown(), encoding="utf-8")
    path.with_suffix(".json").write_text(report.json(), encoding="utf-8")
    print(f"{report.title}\nreport: {path} and {path.with_suffix('.json')}")


def _about(warehouse_service: Service, hour: Hour) -> dict[str, str]:
    """Return the environment for the report: service, dataset, options and versions."""
    names = ("keras-matrix", "google-cloud-bigquery", "google-api-core", "google-auth")
    return {
        "service": f"emulator at {warehouse_service.emulator}" if warehouse_service.emulator else "Google's BigQuery",
        "date": f"{hour.folders.began:%Y-%m-%d %H:%M} UTC",
        "dataset": warehouse_service.dataset,
        "options": " ".join((*hour.init_options, *hour.uploader.options)),
        "results": "synthetic" if hour.own_results is None else "the user's own, and synthetic ones",
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in names),
        "Python": platform.python_version(),
    }


def _given(args: argparse.Namespace, *forwarded: flags.Flag) -> tuple[str, ...]:
    """Return the given options of `forwarded`, as arguments for `uploader`."""
    words: list[str] = []
    for flag in forwarded:
        value = getattr(args, flag.key)
        if value is True:
            words.append(f"--{flag.name}")
        elif value not in (None, False, flag.default):
            words.append(f"--{flag.name}={value}")
    return tuple(words)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM within the block."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
