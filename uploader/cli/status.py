"""Print how many attempts are unsealed, pending and sent, and the rows that were set aside with their reasons.

Reads only the outbox; `uploader verify` finds rows that the warehouse has lost."""

from __future__ import annotations

import argparse
import json

from keras_matrix.uploader.cli import options

SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the state of the outbox; return 1 if rows are set aside."""
    from keras_matrix.records.store import Results
    from keras_matrix.uploader.opening import require_results
    from keras_matrix.uploader.push import unsealed

    require_results(args.results)
    outbox = options.target(args).outbox()
    pending, dead, waiting = outbox.pending(), outbox.dead(), unsealed(Results(args.results), outbox)
    if args.json:
        letters = [{"table": letter.table, "item": letter.item, "reason": letter.reason} for letter in dead]
        status = {"unsealed": waiting, "pending": [b.name for b in pending], "done": outbox.done(), "dead": letters}
        print(json.dumps(status, indent=1))
        return 1 if dead else 0
    print(f"{len(pending)} batches pending, {outbox.done()} arrived, {len(dead)} rows set aside: {outbox.folder}")
    if waiting:
        print(f"  not sealed yet: {waiting:,} attempts; uploader push seals and sends them")
    for batch in pending:
        print(f"  pending: {batch.table.name}, {batch.contents().rows:,} rows")
    for letter in dead[:SHOWN]:
        print(f"  {letter.table}, {letter.item}: {letter.reason}\n    {letter.path}")
    if len(dead) > SHOWN:
        print(f"  and {len(dead) - SHOWN} more")
    if dead:
        print("retry them with: uploader push --retry-dead")
    return 1 if dead else 0
