"""Print what is not sealed yet, pending or arrived, and which rows were set aside and why.

Reads the outbox only, not the warehouse: what was lost there since is found by `uploader verify`."""

from __future__ import annotations

import argparse
import json

from uploader.cli import options

NAME = "status"
HELP = "pending, arrived and dead letters with their reasons"
SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the outbox; return 1 where something is set aside."""
    from records.store import Results
    from uploader.push import unsealed

    options.require_results(args.results)
    outbox = options.outbox(options.target(args))
    pending, dead, waiting = outbox.pending(), outbox.dead(), unsealed(Results(args.results), outbox)
    if args.json:
        letters = [{"table": one.table, "item": one.item, "reason": one.reason} for one in dead]
        told = {"unsealed": waiting, "pending": [b.name for b in pending], "done": outbox.done(), "dead": letters}
        print(json.dumps(told, indent=1))
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
        print("try them again with: uploader push --retry-dead")
    return 1 if dead else 0
