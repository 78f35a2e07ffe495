"""Send the records, measurements and findings of every run in the results folder that the warehouse does not have yet.

Rows are first written to results/outbox; batches that an earlier push left pending are sent too. Sending rows twice has
no effect. With --repair, the warehouse is compared with the records, and rows that it has lost are sent again.
"""

from __future__ import annotations

import argparse

from keras_matrix.uploader.cli import flags, options

OWN = (
    flags.DEADLINE,
    flags.Flag("retry-dead", "retry the rows that were set aside"),
    flags.Flag(
        "repair",
        "also compare the warehouse with the records and send missing rows again; damaged files of the local warehouse "
        "are set aside",
    ),
)


def forwarded(prefix: str) -> flags.Forwarded:
    """Return the options of a push, for another command that pushes at its end."""
    return flags.Forwarded(prefix, (*flags.BIGQUERY, *OWN))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    flags.add(parser, OWN)
    parser.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="RUN",
        help="first remove the rows of a run from the outbox, also those that wait or were set aside; the run is sent "
        "again if it is in the results folder. Rows that have arrived stay in the warehouse",
    )
    parser.add_argument("--quiet", action="store_true", help="print only problems")


def run(args: argparse.Namespace) -> int:
    """Push and print a summary."""
    from keras_matrix.uploader import push
    from keras_matrix.uploader.opening import PushChoices, require_results

    require_results(args.results)
    target = options.target(args)
    for run_id in args.forget:
        outbox = target.outbox()
        with outbox.locked():
            print(f"run {run_id}: {outbox.forget(run_id):,} items are removed from the outbox")
    choices = PushChoices(args.retry_dead, args.repair)
    return 0 if push.push_to(target, choices, push.say_nothing if args.quiet else print, print) else 1
