"""Write a run's report, an HTML page without external files, and print its table.

With --merge, one table and one page of several runs: the newest run of each backend on the same machine and the same
matrix as the newest run. Runs that do not fit are left out, with the reason; cells of separate sessions have an
interval only if the stored history has the spread between sessions.

With --format, print the table for another program: Markdown, CSV, or the input of Bencher or github-action-benchmark.

With --publish, write a site instead: the dashboard over all stored runs, a page per cell and a page per run, as static
files for GitHub Pages or any folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.merge import Merge, MergeSummary
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Results
from keras_matrix.records.text import moment, plural, printable
from keras_matrix.runner.cli.options import add_prices_option, add_results_option, check_output, prices_of
from keras_matrix.runner.cli.render.exported import FORMATS, JSON, TABLE, as_document, as_json, print_exported
from keras_matrix.runner.cli.render.findings import print_table
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service import merge
from keras_matrix.runner.service.merge import MergeRequest
from keras_matrix.runner.service.stored import (
    chosen_run,
    unread_runs,
    write_report,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    add_prices_option(parser)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="with --merge: exactly these runs; all must fit")
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest")
    parser.add_argument("--merge", action="store_true", help="put the newest run of each backend into one table")
    parser.add_argument(
        "--out",
        "--output",
        dest="output",
        type=Path,
        metavar="FILE",
        help="default: report.html in the run's folder; with --merge: merged/report.html in the results folder",
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument(
        "--format",
        choices=(TABLE, JSON, *FORMATS),
        default=TABLE,
        help="what is printed: the table, or one document for another program; default: table",
    )
    formats.add_argument("--json", dest="format", action="store_const", const=JSON, help="the same as --format json")
    parser.add_argument("--publish", type=Path, metavar="DIR", help="write a site of all runs into this folder")
    parser.add_argument(
        "--last", type=int, default=50, metavar="N", help="with --publish: pages of the newest N runs; default: 50"
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and print the table, of one run or of several, or write the site."""
    if args.merge:
        return show_merged(_merge_request(args), args.format)
    if args.runs:
        raise UsageError(f"RUN: name one run with --run {args.runs[0]}, or merge several with --merge")
    if args.publish is not None:
        if args.prices is not None:
            raise UsageError(
                "--prices: a site shows stored findings; report each run with --prices, then --publish alone"
            )
        return _publish(args.results, args.publish, args.last)
    if args.output is not None:
        check_output("--out", args.output)
    store = chosen_run(args.results, args.run)
    page = args.output or store.folder / "report.html"
    run_findings = write_report(store, page, prices_of(args))
    stray = unread_runs(args.results, args.run)
    code = 1 if run_findings.run_context.unread or stray else 0
    if args.format == JSON:
        print(as_json(store, run_findings, code, stray))
    elif args.format != TABLE:
        print_exported(run_findings, args.format, stray)
    else:
        print_table(run_findings, stray=stray)
        print(f"\nreport: {page}")
    return code


def _merge_request(args: argparse.Namespace) -> MergeRequest:
    """Return the request to merge runs into one table. Raises `UsageError`."""
    if args.publish is not None:
        raise UsageError("--publish: a site contains all runs; leave out --merge")
    if args.run is not None and args.runs:
        raise UsageError(f"--run: name either the runs to merge or the reference, got {args.run} and RUN ...")
    if args.output is not None:
        check_output("--out", args.output)
    return MergeRequest(args.results, args.runs, args.run, args.output, prices_of(args))


def _publish(folder: Path, site_folder: Path, last_count: int) -> int:
    """Write the site of all runs."""
    from keras_matrix.runner.service.site import publish  # slow: the live dashboard, and the warehouse

    pages, problems = publish(folder, site_folder, last_count)
    print(f"{plural(pages, 'page')}: {site_folder / 'index.html'}")
    for problem in problems:
        print(f"left out: {printable(problem, ' ')}")
    return 1 if problems else 0


def show_merged(request: MergeRequest, form: str) -> int:
    """Choose the runs, print their table in a format of --format, write their page. Returns the exit code."""
    merged = merge.read(request, Results(request.results).runs())
    problem = merge.write(merged) if request.page or form == TABLE else None
    code = 1 if merged.found.run_context.unread else 0
    if form == JSON:
        print(as_document({"merge": _fields(merged.merge, merged.summary), "exit_code": code}, merged.found))
    elif form != TABLE:
        print_exported(merged.found, form)
    else:
        print(heading(merged.summary))
        print_table(merged.found)
        print("\n".join(["", *how_to_alternate(merged.summary)]), flush=True)
    if problem is not None:
        raise problem
    if form == TABLE:
        print(f"report: {merged.page}")
    return code


def heading(summary: MergeSummary) -> str:
    """Return the heading of a merged table."""
    rows = [
        [
            "+".join(merged_run.backends),
            merged_run.run_id,
            moment(merged_run.started_at),
            merged_run.versions,
            "; ".join(merged_run.images),
        ]
        for merged_run in summary.runs
    ]
    sessions_text = ", measured in separate sessions, not alternating" if summary.separate else ""
    lines = [f"merge of {plural(len(rows), 'run')} on one machine{sessions_text}"]
    lines += [f"  {line.rstrip()}" for line in columns(rows)]
    return "\n".join(map(printable, [*lines, *summary.lines]))


def how_to_alternate(summary: MergeSummary) -> list[str]:
    """Return how to measure all cells of a merged table in one session, as lines; none if there is no such command."""
    if summary.alternating is None:
        return []
    return [f"for intervals paired by block, measure the backends alternately: {printable(summary.alternating)}", ""]


def _fields(merge: Merge, summary: MergeSummary) -> dict[str, Any]:
    """Return the part of the JSON document on the runs of a merged table."""
    fields: dict[str, Any] = {**to_json(summary), "left_out": to_json(merge.left_out), "missing": list(merge.missing)}
    return fields
