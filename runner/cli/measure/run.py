"""Measure the cells of a matrix and print the table.

The same command continues the newest unfinished run of the same plan: its pending cells and those that failed because
of the infrastructure. If that run is finished, a new one starts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from keras_matrix.analysis.comparison.table import Row
from keras_matrix.records.backends import BACKENDS
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, run_request
from keras_matrix.runner.cli.render import exported, findings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.run import Finished, measured_matrix
from keras_matrix.runner.service.upload import Upload, after_run, check
from keras_matrix.uploader.cli import push
from keras_matrix.uploader.cli.options import options_of
from keras_matrix.uploader.opening import PushChoices

UPLOAD = "upload"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser, workload=True)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")
    add_upload_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and upload. Returns the exit code."""
    request, upload = run_request(args), upload_of(args)
    display = TerminalDisplay(args.json)
    finished_run = measured_matrix(request, display)
    code = conclude(finished_run, display, in_service=args.in_service)
    if upload is not None:
        after_run(upload, request.results, display.warn)
    return code


def conclude(finished_run: Finished, display: TerminalDisplay, *, in_service: bool) -> int:
    """Print the table of a finished run, and return the exit code; `in_service` is whether a compose service ran it."""
    if display.quiet:
        print(exported.as_json(finished_run.run, finished_run.found, finished_run.exit_code))
    else:
        findings.print_table(finished_run.found, display.known_problems)
        if advice := merge_advice(finished_run.found.rows, in_service=in_service):
            print(advice)
        # The path through the link `latest` is shorter.
        latest = finished_run.run.folder.parent / "latest"
        folder = latest if latest.resolve() == finished_run.run.folder.resolve() else finished_run.run.folder
        print(f"\nreport: {folder / 'report.html'}   records: {finished_run.run.folder / 'records'}")
    return finished_run.exit_code


def merge_advice(rows: Sequence[Row], *, in_service: bool) -> str | None:
    """Return how to compare the only backend of this run with those of other runs; None if there are several."""
    backends = {backend for row in rows for backend in row.cells}
    if len(backends) != 1 or not backends <= set(BACKENDS):
        return None
    command = "docker compose run --rm report" if in_service else "runner report --merge"
    return f"{backends.pop()} alone was measured; for one table with the newest runs of the other backends: {command}"


def add_upload_options(parser: argparse.ArgumentParser) -> None:
    """Add --upload and, as --upload-NAME, every option of `uploader push`."""
    group = parser.add_argument_group("upload after the run, with the options of uploader push")
    group.add_argument(
        f"--{UPLOAD}", metavar="ADDRESS", help="push to local or bigquery://PROJECT.DATASET; see uploader push --help"
    )
    push.forwarded(UPLOAD).add_to(group)


def upload_of(args: argparse.Namespace) -> Upload | None:
    """Return the upload that the flags request, else None. Raises `UsageError` that names the flag."""
    forwarded_flags = push.forwarded(UPLOAD)
    words = forwarded_flags.given(args)
    if args.upload is not None:
        check(args.upload)
        values = forwarded_flags.values(args)
        choices = PushChoices(bool(values["retry_dead"]), bool(values["repair"]))
        return Upload(args.upload, options_of(values), choices, words)
    if words:
        raise UsageError(f"--{UPLOAD}-{words[0].removeprefix('--').partition('=')[0]}: needs --{UPLOAD} ADDRESS")
    return None
