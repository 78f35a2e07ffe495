"""Print how many attempts are unsealed, pending and sent, and the rows that were set aside with their reasons.

Reads only the outbox; `uploader verify` finds rows that the warehouse has lost."""

from __future__ import annotations

import argparse
import json

from keras_matrix.records.text import plural
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
    pending_batches, dead_batches, unsealed_count = (
        outbox.pending(),
        outbox.dead(),
        unsealed(Results(args.results), outbox),
    )
    if args.json:
        letters = [{"table": letter.table, "item": letter.item, "reason": letter.reason} for letter in dead_batches]
        status = {
            "unsealed": unsealed_count,
            "pending": [b.name for b in pending_batches],
            "done": outbox.done(),
            "dead": letters,
        }
        print(json.dumps(status, indent=1))
        return 1 if dead_batches else 0
    print(
        f"{plural(len(pending_batches), 'batch', 'batches')} pending, {outbox.done()} arrived, "
        f"{plural(len(dead_batches), 'row')} set aside: "
        f"{outbox.folder}"
    )
    if unsealed_count:
        print(f"  not sealed yet: {unsealed_count:,} attempts; uploader push seals and sends them")
    for batch in pending_batches:
        print(f"  pending: {batch.table.name}, {batch.contents().rows:,} rows")
    for letter in dead_batches[:SHOWN]:
        print(f"  {letter.table}, {letter.item}: {letter.reason}\n    {letter.path}")
    if len(dead_batches) > SHOWN:
        print(f"  and {len(dead_batches) - SHOWN} more")
    if dead_batches:
        print("retry them with: uploader push --retry-dead")
    return 1 if dead_batches else 0
