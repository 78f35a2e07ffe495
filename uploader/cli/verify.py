"""Compare the warehouse with the records: rows, doubled keys and checksums, run by run."""

from __future__ import annotations

import argparse

from uploader.cli import options

NAME = "verify"
HELP = "counts and checksums of the warehouse against the records"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    parser.add_argument("--values", action="store_true", help="also read every measurement back and compare it")


def run(args: argparse.Namespace) -> int:
    """Print what was compared; return 1 where something differs."""
    from records.store import Results
    from uploader import verify as verifying

    options.require_results(args)
    outbox = options.outbox(args)
    with options.warehouse(args) as warehouse:
        found = verifying.verify(Results(args.results), warehouse, values=args.values)
    print(
        f"{found.expected:,} rows by the records, {found.found:,} in the warehouse, {found.foreign:,} of other records"
    )
    for problem in found.problems:
        print(f"  {problem}")
    print(f"{len(found.problems)} differences" if found.problems else "0 lost, 0 doubled")
    if found.found < found.expected:
        print(f"uploader push sends what is missing; what it holds for sent, too, once {outbox.folder} is removed")
    return 1 if found.problems else 0
