"""Send what the warehouse does not have yet: records, measurements and findings of every run in the results folder.

Rows are sealed in results/outbox first; the same command sends what an earlier one left pending. Sending anything twice
changes nothing. With --repair, what the warehouse has decides: rows that it lost since they arrived are sent again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from uploader import process
from uploader.cli import flags, options, repairs

if TYPE_CHECKING:
    from uploader.push import Pushed
    from uploader.warehouse import Warehouse

NAME = "push"
HELP = "send what the warehouse does not have yet"
OWN = (
    flags.DEADLINE,
    flags.Flag("retry-dead", "try the rows again that were set aside"),
    flags.Flag(
        "repair",
        "also compare the warehouse with the records and send again what is missing there; a damaged file of the local "
        "warehouse is set aside",
    ),
)


def forwarded(prefix: str) -> flags.Forwarded:
    """Return every option of this command that says how to push, for a command that pushes at its end."""
    return flags.Forwarded(prefix, (*flags.BIGQUERY, *OWN))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    options.add_warehouse_options(parser)
    flags.add(parser, OWN)
    parser.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")


def run(args: argparse.Namespace) -> int:
    """Push, and say what arrived."""
    options.require_results(args.results)
    return push(options.target(args), retry_dead=args.retry_dead, repair=args.repair, quiet=args.quiet)


def push(target: options.Target, *, retry_dead: bool, repair: bool, quiet: bool) -> int:
    """Push a results folder; return 1 where something was set aside, left out, or still differs after a repair."""
    from records.store import Results
    from uploader import push as pushing
    from uploader import repair as repairing

    outbox, results = options.outbox(target), Results(target.results)
    say = (lambda text: None) if quiet else print
    with options.warehouse(target) as warehouse:
        if repair:
            _repair_files(warehouse)
        options.make_ready(warehouse, target.address)
        lost = options.notice_emptied(results, warehouse, outbox)
        if retry_dead or repair:
            with outbox.locked():
                say(f"{outbox.revive()} rows set aside are tried again")
        done = pushing.push(results, warehouse, outbox, say)
        repaired = repairing.repair(results, warehouse, outbox, done, say) if repair else None
        _check_files(warehouse)
    say(f"{done.new:,} new rows, {done.known:,} were there")
    for line in [*_wrong(done), *(repairs.lines(repaired, target.address) if repaired else [])]:
        print(line)
    return 1 if done.dead or done.left_out or lost or (repaired and repairs.differs(repaired)) else 0


def _repair_files(warehouse: Warehouse) -> None:
    """Set damaged files of a local warehouse aside, and say which."""
    from uploader.local import LocalWarehouse

    if isinstance(warehouse, LocalWarehouse):
        for line in warehouse.repair():
            print(line)


def _check_files(warehouse: Warehouse) -> None:
    """Raise `FileDamaged` if a local warehouse has lost a file, which a push without new rows does not open."""
    from uploader.local import LocalWarehouse

    if isinstance(warehouse, LocalWarehouse):
        warehouse.check_files()


def _wrong(done: Pushed) -> list[str]:
    """Return what a person should know of, in lines."""
    lines = [f"left out: {line}" for line in done.left_out]
    if done.dead:
        lines.append(f"{done.dead} rows are set aside: uploader status says why")
    if done.expired:
        lines.append(f"not sent: {len(done.expired)} runs from before the first day that the warehouse keeps")
    if done.without_findings:
        lines.append(_findings_advice(done.without_findings))
    return lines


def _findings_advice(runs: Sequence[str]) -> str:
    """Return how the findings of these runs are made: of an unfinished run at its end, of another by its report."""
    subject = f"run {runs[0]} has" if len(runs) == 1 else f"{len(runs)} runs, the newest {max(runs)}, have"
    report = "docker compose run --rm jax-cpu report" if process.in_container() else "runner report"
    return f"{subject} no findings: finish the run, or {report} --run {max(runs)}; then push again"
