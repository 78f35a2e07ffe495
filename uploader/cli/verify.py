"""Compare the warehouse with the records: row counts, duplicate keys and checksums, per run."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from keras_matrix.records.text import plural
from keras_matrix.uploader.cli import options

if TYPE_CHECKING:
    from keras_matrix.uploader.opening import Target


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    parser.add_argument("--values", action="store_true", help="also compare every measurement")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return 1 if rows differ."""
    from keras_matrix.records.store import Results
    from keras_matrix.uploader import verify as verifying
    from keras_matrix.uploader.opening import require_results

    target = options.target(args)
    require_results(target.results)
    with target.opened() as warehouse:
        summary = verifying.verify(Results(args.results), warehouse, values=args.values)
    if summary.runs:
        actual_text = f"{summary.found:,} in the warehouse, {summary.foreign:,} from other records"
        print(f"{summary.expected:,} rows expected from the records, {actual_text}")
    else:
        print(f"no run to compare in {args.results}")
    for problem in summary.problems:
        print(f"  {problem}")
    if summary.expired:
        print(f"not compared: {summary.expired} runs that are older than the warehouse's retention")
    if summary.runs or summary.problems:
        print(f"{len(summary.problems)} differences" if summary.problems else "0 lost, 0 duplicated")
    for line in _advice(target, summary.missing):
        print(line)
    return 1 if summary.problems else 0


def _advice(target: Target, missing_count: int) -> list[str]:
    """Return how to send missing rows again."""
    if not missing_count:
        return []
    flags = [] if target.address == "local" else ["--to", target.address]
    flags += [] if str(target.results) == "results" else ["--results", str(target.results)]
    command = shlex.join(["uploader", "push", "--repair", *flags])
    dead_count = len(target.outbox().dead())
    lines = (
        [f"{plural(dead_count, 'row')} refused and set aside: uploader status lists the reasons"] if dead_count else []
    )
    return [*lines, f"at least {missing_count:,} rows are missing; send them again from the records with: {command}"]
