"""Send the records, measurements and findings of every run in the results folder that the warehouse does not have yet.

Rows are first written to results/outbox; batches that an earlier push left pending are sent too. Sending rows twice has
no effect. With --repair, the warehouse is compared with the records, and rows that it has lost are sent again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_matrix.records.text import plural
from keras_matrix.uploader import errors
from keras_matrix.uploader.cli import flags, options

if TYPE_CHECKING:
    from keras_matrix.uploader.push import PushSummary
    from keras_matrix.uploader.repair import RepairSummary

OWN = (
    flags.DEADLINE,
    flags.Flag("retry-dead", "retry the rows that were set aside"),
    flags.Flag(
        "repair",
        "also compare the warehouse with the records and send missing rows again; damaged files of the local warehouse "
        "are set aside",
    ),
)
MOST_LISTED = 20
REPLACE_LOCAL = (
    "duplicate and altered rows are not changed: to replace them, move the Parquet files of their table elsewhere and "
    "run the same command again, which sends the rows that have a record"
)
REPLACE_BIGQUERY = (
    "duplicate and altered rows are not changed: to replace them, delete the rows of their run from the table (by day "
    "and run_id) and run the same command again"
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
    options.require_results(args.results)
    target = options.target(args)
    for run_id in args.forget:
        outbox = options.outbox(target)
        with outbox.locked():
            print(f"run {run_id}: {outbox.forget(run_id):,} items are removed from the outbox")
    return push(target, retry_dead=args.retry_dead, repair=args.repair, quiet=args.quiet)


def push(target: options.Target, *, retry_dead: bool, repair: bool, quiet: bool) -> int:
    """Push; return 1 if rows were set aside, skipped, lost or not compared, or still differ after a repair."""
    from keras_matrix.records.store import Results
    from keras_matrix.uploader import push as pushing
    from keras_matrix.uploader.local.warehouse import LocalWarehouse

    outbox, results = options.outbox(target), Results(target.results)
    say = (lambda text: None) if quiet else print
    with options.warehouse(target) as warehouse:
        if repair and isinstance(warehouse, LocalWarehouse):
            for line in warehouse.repair():
                print(line)
        options.prepare(warehouse, target.address)
        lost = options.resend_if_emptied(results, warehouse, outbox)
        if retry_dead or repair:
            with outbox.locked():
                say(f"tried again: {plural(outbox.requeue_dead_letters(), 'row')} that had been set aside")
        summary = pushing.push(results, warehouse, outbox, say)
        repaired = None
        if repair:
            from keras_matrix.uploader import repair as repairing

            repaired = repairing.repair(results, warehouse, outbox, summary, say)
        if isinstance(warehouse, LocalWarehouse):
            warehouse.check_files()  # a push without new rows does not open the files
    say(f"{summary.new:,} new rows, {summary.known:,} already present")
    for line in [*_problems(summary), *(repair_lines(repaired, target.address) if repaired else [])]:
        print(line)
    failed = summary.dead or summary.left_out or summary.uncompared or lost
    return 1 if failed or (repaired and differs(repaired)) else 0


def _problems(summary: PushSummary) -> list[str]:
    """Return a line for each problem of a push."""
    lines = [f"skipped: {line}" for line in summary.left_out] + summary.conflicts + summary.uncompared
    if summary.dead:
        lines.append(f"{plural(summary.dead, 'row')} set aside: uploader status lists the reasons")
    if summary.expired:
        lines.append(f"not sent: {plural(len(summary.expired), 'run')} older than the warehouse's retention")
    if summary.without_findings:
        lines.append(_findings_advice(summary.without_findings))
    return lines


def _findings_advice(runs: Sequence[str]) -> str:
    """Return how to create the findings of these runs: by finishing a run, or by its report."""
    subject = f"run {runs[0]} has" if len(runs) == 1 else f"{len(runs)} runs, the newest {max(runs)}, have"
    report_command = "docker compose run --rm jax-cpu report" if errors.in_container() else "runner report"
    return f"{subject} no findings: finish the run, or {report_command} --run {max(runs)}; then push again"


def repair_lines(repaired: RepairSummary, address: str) -> list[str]:
    """Return lines on restored rows, remaining differences and what to do."""
    from keras_matrix.uploader import verify
    from keras_matrix.uploader.warehouse import is_local

    texts = [str(restored_rows) for restored_rows in repaired.restored[:MOST_LISTED]]
    if (unlisted := len(repaired.restored) - MOST_LISTED) > 0:
        texts.append(f"rows of {unlisted} more runs were missing")
    texts += [*verify.listed(list(repaired.remaining)), *repaired.doubled, *repaired.unread]
    if repaired.doubled or any(not difference.missing for difference in repaired.remaining):
        texts.append(REPLACE_LOCAL if is_local(address) else REPLACE_BIGQUERY)
    if repaired.expired:
        texts.append(f"not compared: {plural(repaired.expired, 'run')} older than the warehouse's retention")
    if repaired.lost:
        texts.append(f"{repaired.lost:,} attempts are missing and have no record here: repeat their import")
    missing = sum(restored_rows.missing for restored_rows in repaired.restored)
    restored = sum(restored_rows.restored for restored_rows in repaired.restored)
    remaining_text = f"{_remaining(repaired)} differences remain"
    return [*texts, f"repair: {missing:,} rows were missing, {restored:,} are restored, {remaining_text}"]


def differs(repaired: RepairSummary) -> bool:
    """Return whether rows still differ, are lost, or could not be compared."""
    return bool(_remaining(repaired) or repaired.unread or repaired.lost)


def _remaining(repaired: RepairSummary) -> int:
    return len(repaired.remaining) + len(repaired.doubled)
