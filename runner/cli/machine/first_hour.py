"""Check that measurements on this machine's device can be trusted, and write a report.

Each check measures something whose answer is known: the time of twice the work, of work that a barrier waits for, the
memory of a known allocation, the precision of a product. It takes some minutes per backend; on a CPU the checks for
GPUs are skipped with a note. The report, in Markdown and JSON, can be attached to an issue. docs/gpu.md"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from keras_matrix.runner.checks.first_hour_steps import Report, exit_code, merged
from keras_matrix.runner.cli.options import add_results_option, check_output
from keras_matrix.runner.errors import Interrupted, UsageError
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.service.first_hour import RequestedChecks, backends_to_check, checked, read_report

REPORT = "first-hour.md"
DEVICES = ("cpu", "gpu", "tpu")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_several = partial(parser.add_argument, action="append", default=[], type=str)
    add_several("--backend", metavar="NAME", help="only this backend; may be repeated; default: all that are installed")
    parser.add_argument("--device", choices=DEVICES, help="default: the service's in a container, else gpu")
    add_several("--only", metavar="TEXT", help="only checks with this text in their name; may be repeated")
    report_help = "FILE.json is written next to it; default: first-hour.md in results"
    parser.add_argument("--report", type=Path, metavar="FILE.md", help=report_help)
    merged_help = "check nothing, write these reports as one"
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE.json", help=merged_help)
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the checks and write the report; exit code 1 if one failed, 130 after an interruption."""
    path = _report_path(args.report, args.results)
    if args.merge:
        if args.only or args.backend:
            raise UsageError("--merge: takes complete reports; leave out --only and --backend")
        return _write(merged({file.stem: read_report(file) for file in args.merge}), path)
    probe = args.seams.probe or ProcessProbe()
    requested = RequestedChecks(backends_to_check(args.backend, probe), args.device or "gpu", args.only, args.results)
    report, was_interrupted = checked(requested, probe, partial(print, end="", flush=True))
    code = _write(report, path)
    return Interrupted.exit_code if was_interrupted else code


def _report_path(path: Path | None, results: Path) -> Path:
    """Return the path of the report. Raises `UsageError` if it cannot be written."""
    if path is None:
        results.mkdir(parents=True, exist_ok=True)
        return results / REPORT
    if path.suffix != ".md":
        raise UsageError(f"--report: must be a file such as report.md, got {path}; the .json is named after it")
    check_output("--report", path)
    return path


def _write(report: Report, path: Path) -> int:
    path.write_text(report.markdown(), encoding="utf-8")
    path.with_suffix(".json").write_text(report.json(), encoding="utf-8")
    print(f"{report.title}\nreport: {path} and {path.with_suffix('.json')}", file=sys.stdout)
    return exit_code(report.done)
