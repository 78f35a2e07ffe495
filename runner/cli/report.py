"""Write a run's report: one HTML page that needs nothing else. Prints the table too."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.options import add_results_option

NAME = "report"
HELP = "write a run's HTML report again, and print its table"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest")
    parser.add_argument(
        "--out", "--output", dest="output", type=Path, metavar="FILE", help="default: report.html in the run's folder"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Write the page and print the table."""
    from runner.cli.present import as_json, print_table
    from runner.cli.stored import chosen_run, write_report

    store = chosen_run(args)
    found = write_report(store, args.output or store.folder / "report.html")
    if args.json:
        print(as_json(store, found, 0))
    else:
        print_table(found)
        print(f"\nreport: {args.output or store.folder / 'report.html'}")
    return 0
