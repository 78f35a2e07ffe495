"""List a cell's value in every stored session and its change points; note what is known about a change; notify.

    runner history                                   one line per cell and machine
    runner history jax:mnist_mlp                     every session of a cell, with its changes
    runner history 'mnist*' --out history.html       the same as a page with charts
    runner history annotate 'jax:*' --run RUN --note "upgraded to keras 3.16"       an intended change
    runner history ack jax:lstm --run RUN --reason "wait for jax 0.13"              a known one: nobody is notified
    runner history --notify github:OWNER/REPO        one issue per change for the worse (docs/notify.md)
    runner history --calibrate                       false alarms and delays of the rule for change points

Without a cell: all cells that have records in the results folder. docs/history.md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.history.replay import Replays, residuals
from keras_matrix.dashboards.report import history_page
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.store import DEFAULT_RESULTS, Results
from keras_matrix.runner.cli.history import notes, notify, rule
from keras_matrix.runner.cli.options import folder
from keras_matrix.runner.cli.render import history_lines as lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.service import histories
from keras_matrix.runner.service.change_rule import measure
from keras_matrix.runner.service.histories import read
from keras_matrix.runner.service.notes import write
from keras_matrix.runner.service.notify import send

RUN_LENGTHS = (300, 1000, 3000)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[annotate|ack] CELL",
        help="a cell id or its beginning, a workload or backend:workload, or a pattern of these; default: all",
    )
    results = "folder of results; may be repeated; default: results"
    parser.add_argument("--results", type=folder, action="append", metavar="FOLDER", help=results)
    parser.add_argument("--last", type=int, metavar="N", default=60, help="list the newest N sessions; default: 60")
    parser.add_argument(
        "--false-alarm-every",
        type=int,
        choices=RUN_LENGTHS,
        default=1000,
        metavar="SESSIONS",
        help="average sessions to a false alarm on a steady cell: 300, 1000 (default) or 3000",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a page with charts, without external files")
    notes.configure(parser)
    notify.configure(parser)
    measuring = parser.add_argument_group("measuring the rule")
    measuring.add_argument("--calibrate", action="store_true", help="replay steady and shifted histories (minutes)")
    measuring.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the replays; default: 0")
    measuring.add_argument("--replays", type=int, default=200, metavar="N", help="histories per figure; default: 200")


def run(args: argparse.Namespace) -> int:
    """List, note, notify or measure."""
    roots, note = args.results or [DEFAULT_RESULTS], notes.asked(args)
    cell = _cell(args.words[1:] if note else args.words)
    notification = notify.asked(args, alone=note is None and not args.calibrate)
    for flag, value, least in (("--last", args.last, 1), ("--replays", args.replays, 1), ("--seed", args.seed, 0)):
        check_range(flag, value, least)
    if note is not None:
        print(write(roots, cell or "", note, args.false_alarm_every))
        return 0
    if args.calibrate:
        replays = Replays(count=args.replays, seed=args.seed)
        return _calibrate(roots, cell, replays, args.false_alarm_every, as_json=args.json)
    if notification is not None:
        send(roots, cell, notification, args.false_alarm_every, print)
        return 0
    return _list(roots, cell, _Listing(args.last, args.false_alarm_every, args.out, args.json))


def _cell(words: Sequence[str]) -> str | None:
    """Return the cell or pattern. Raises `UsageError` for several."""
    if len(words) > 1:
        raise UsageError(f"CELL: name one cell or pattern, got {len(words)}: {' '.join(words)}")
    return words[0] if words else None


@dataclass(frozen=True, slots=True)
class _Listing:
    """How histories are listed: the newest `last` sessions, the run length of the rule, the page, the format."""

    last: int
    run_length: int
    page: Path | None
    as_json: bool


def _list(roots: Sequence[Path], cell: str | None, listing: _Listing) -> int:
    past, problems = read(roots, cell)
    views = histories.views(histories.assessed(past, roots, listing.run_length))
    remarks = lines.remarks(views, past.caveats, problems)
    if listing.page is not None:
        report.write(listing.page, history_page.render(views, remarks))
    if listing.as_json:
        print(lines.as_json(views, past.caveats, problems))
        return 1 if problems else 0
    print("\n".join(lines.listing(views, listing.last) if cell else lines.overview(views)))
    if remarks:
        print("\n" + "\n".join(remarks))
    if listing.page is not None:
        print(f"\npage: {listing.page}")
    return 1 if problems else 0


def _calibrate(roots: Sequence[Path], cell: str | None, replays: Replays, run_length: int, *, as_json: bool) -> int:
    there = any(Results(root).runs() for root in roots)
    found = residuals(histories.assessed(read(roots, cell)[0], roots)) if there else []
    figures = measure(found, replays, run_length)
    print(rule.as_json(figures) if as_json else "\n".join(rule.lines(figures)))
    return 0
