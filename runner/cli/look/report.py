"""Write a run's report, an HTML page without external files, and print its table.

With --merge, one table and one page of several runs: the newest run of each backend on the same machine and the same
matrix as the newest run. Runs that do not fit are left out, with the reason; cells of separate sessions have an
interval only if the stored history has the spread between sessions.

With --publish, write a site instead: the dashboard over all stored runs, a page per cell and a page per run, as static
files for GitHub Pages or any folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_matrix.records.text import plural, printable
from keras_matrix.runner.cli.options import add_results_option, check_output
from keras_matrix.runner.cli.render.findings import as_json, print_table
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.merge import MergeRequest
from keras_matrix.runner.service.stored import (
    chosen_run,
    unread_runs,
    write_report,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
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
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    parser.add_argument("--publish", type=Path, metavar="DIR", help="write a site of all runs into this folder")
    parser.add_argument(
        "--last", type=int, default=50, metavar="N", help="with --publish: pages of the newest N runs; default: 50"
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and print the table, of one run or of several, or write the site."""
    if args.merge:
        from keras_matrix.runner.cli.look import merged

        return merged.show(_merge_request(args), as_json=args.json)
    if args.runs:
        raise UsageError(f"RUN: name one run with --run {args.runs[0]}, or merge several with --merge")
    if args.publish is not None:
        return _publish(args.results, args.publish, args.last)
    store = chosen_run(args.results, args.run)
    page = args.output or store.folder / "report.html"
    found = write_report(store, page)
    stray = unread_runs(args.results, args.run)
    code = 1 if found.run_context.unread or stray else 0
    if args.json:
        print(as_json(store, found, code, stray))
    else:
        print_table(found, stray=stray)
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
    return MergeRequest(args.results, args.runs, args.run, args.output)


def _publish(folder: Path, site_folder: Path, last: int) -> int:
    """Write the site of all runs."""
    from keras_matrix.runner.service.site import publish  # slow: the live dashboard, and the warehouse

    pages, problems = publish(folder, site_folder, last)
    print(f"{plural(pages, 'page')}: {site_folder / 'index.html'}")
    for problem in problems:
        print(f"left out: {printable(problem, ' ')}")
    return 1 if problems else 0
