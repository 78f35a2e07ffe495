"""List a cell's value in every stored session and its change points; note what is known about a change; notify.

    runner history                                   one line per cell and machine
    runner history jax:mnist_mlp                     every session of a cell, with its changes
    runner history 'mnist*' --out history.html       the same as a page with charts
    runner history annotate 'jax:*' --run RUN --note "upgraded to keras 3.16"       an intended change
    runner history ack jax:lstm --run RUN --reason "wait for jax 0.13"              a known one: nobody is notified
    runner history --notify github:OWNER/REPO        one issue per change for the worse (docs/history.md)
    runner history --calibrate                       false alarms and delays of the rule for change points

Without a cell: all cells that have records in the results folder. docs/history.md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.history import replay
from keras_matrix.analysis.history.change_points import THRESHOLDS
from keras_matrix.analysis.history.replay import (
    LEAST_STORED,
    Delay,
    Figures,
    Replays,
    RunLength,
    measure,
    residuals,
)
from keras_matrix.dashboards.report import history_page
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.appended import checked_note
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import DEFAULT_RESULTS, Results
from keras_matrix.records.text import interval, number, percentage
from keras_matrix.runner.cli.options import folder
from keras_matrix.runner.cli.render import history_lines as lines
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.notify.places import (
    FORMS,
    TOKEN_VARIABLE,
    GitHub,
    check_site,
    owners_of,
    place_of,
    token_of,
)
from keras_matrix.runner.service import histories
from keras_matrix.runner.service.histories import USES, Note, read, write
from keras_matrix.runner.service.notify import NotifyRequest, send

RUN_LENGTHS = (300, 1000, 3000)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[annotate|ack] CELL",
        help="a cell id or its beginning, a workload or backend:workload, or a pattern of these; default: all",
    )
    results_help = "folder of results; may be repeated; default: results"
    parser.add_argument("--results", type=folder, action="append", metavar="FOLDER", help=results_help)
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
    configure_notes(parser)
    configure_notify(parser)
    measuring = parser.add_argument_group("measuring the rule")
    measuring.add_argument("--calibrate", action="store_true", help="replay steady and shifted histories (minutes)")
    measuring.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the replays; default: 0")
    measuring.add_argument("--replays", type=int, default=200, metavar="N", help="histories per figure; default: 200")


def run(args: argparse.Namespace) -> int:
    """List, note, notify or measure."""
    results_folders, note = args.results or [DEFAULT_RESULTS], requested_note(args)
    cell = _cell(args.words[1:] if note else args.words)
    notification = requested_notification(args, alone=note is None and not args.calibrate)
    for flag, value, least in (("--last", args.last, 1), ("--replays", args.replays, 1), ("--seed", args.seed, 0)):
        check_range(flag, value, least)
    if note is not None:
        print(write(results_folders, cell or "", note, args.false_alarm_every))
        return 0
    if args.calibrate:
        replays = Replays(count=args.replays, seed=args.seed)
        return _calibrate(results_folders, cell, replays, args.false_alarm_every, as_json=args.json)
    if notification is not None:
        send(results_folders, cell, notification, args.false_alarm_every, print)
        return 0
    return _list(results_folders, cell, _Listing(args.last, args.false_alarm_every, args.out, args.json))


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


def _list(results_folders: Sequence[Path], pattern: str | None, listing: _Listing) -> int:
    past, problems = read(results_folders, pattern)
    views = histories.views(histories.assessed_histories(past, results_folders, listing.run_length))
    remarks = lines.remarks(views, past.caveats, problems)
    if listing.page is not None:
        report.write(listing.page, history_page.render(views, remarks))
    if listing.as_json:
        print(lines.as_json(views, past.caveats, problems))
        return 1 if problems else 0
    print("\n".join(lines.listing(views, listing.last) if pattern else lines.overview(views)))
    if remarks:
        print("\n" + "\n".join(remarks))
    if listing.page is not None:
        print(f"\npage: {listing.page}")
    return 1 if problems else 0


def _calibrate(
    results_folders: Sequence[Path], pattern: str | None, replays: Replays, run_length: int, *, as_json: bool
) -> int:
    has_runs = any(Results(root).runs() for root in results_folders)
    scaled_residuals = (
        residuals(histories.assessed_histories(read(results_folders, pattern)[0], results_folders)) if has_runs else []
    )
    figures = measure(scaled_residuals, replays, run_length)
    print(rule_json(figures) if as_json else "\n".join(rule_lines(figures)))
    return 0


def configure_notes(parser: argparse.ArgumentParser) -> None:
    """Add the flags of annotate and ack."""
    group = parser.add_argument_group("with annotate and ack")
    group.add_argument("--run", metavar="RUN", help="the first run with the change")
    group.add_argument("--note", metavar="TEXT", help="annotate: what was changed on purpose")
    group.add_argument("--reason", metavar="TEXT", help="ack: why the change is accepted")
    group.add_argument("--withdraw", action="store_true", help="remove the note of this run")


def requested_note(args: argparse.Namespace) -> Note | None:
    """Return the note that is asked for, if any. Raises `UsageError` for flags that do not go together."""
    use = args.words[0] if args.words[:1] and args.words[0] in USES else None
    texts = {"--note": args.note, "--reason": args.reason}
    flags = {"--run": args.run, **texts, "--withdraw": args.withdraw or None}
    for flag in (flag for flag, value in flags.items() if value is not None):
        users = [name for name, (_, text, _) in USES.items() if flag not in texts or flag == text]
        if use not in users:
            usages_text = " or ".join(f"runner history {name} CELL --run RUN {USES[name][1]} TEXT" for name in users)
            raise UsageError(f"{flag}: belongs to: {usages_text}")
    if use is None:
        return None
    text = texts[USES[use][1]]
    if not (args.words[1:] and args.run and (text is None) == args.withdraw):
        raise UsageError(f"{use}: needs CELL, --run RUN, and one of {USES[use][1]} TEXT and --withdraw")
    try:
        return Note(use, args.run, None if text is None else checked_note(text))
    except ValueError as error:
        raise UsageError(f"{USES[use][1]}: {error}") from error


def configure_notify(parser: argparse.ArgumentParser) -> None:
    """Add the flags of notifying."""
    group = parser.add_argument_group("notifying (docs/history.md)")
    group.add_argument("--notify", metavar="PLACE", help=f"notify of each change for the worse once: {FORMS}")
    group.add_argument("--dry-run", action="store_true", help="print what --notify would send, and send nothing")
    group.add_argument(
        "--owner",
        action="append",
        metavar="[PATTERN=]@NAME",
        help="who is named in notifications about these cells; may be repeated, the last that fits counts",
    )
    group.add_argument("--site", metavar="URL", help="address of the site of `runner report --publish`, to link to")
    group.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"file with the token; default: {TOKEN_VARIABLE}"
    )


def requested_notification(args: argparse.Namespace, *, alone: bool) -> NotifyRequest | None:
    """Return what is asked for, None without `--notify`; `alone` without another use of the command.

    Raises `UsageError`.
    """
    flags = {"--dry-run": args.dry_run, "--owner": args.owner, "--site": args.site, "--token-file": args.token_file}
    for flag, value in flags.items():
        if value and args.notify is None:
            raise UsageError(f"{flag}: belongs to: runner history --notify PLACE")
    if args.notify is None:
        return None
    if not alone or args.out is not None or args.json:
        raise UsageError("--notify: cannot be combined with annotate, ack, --calibrate, --json or --out")
    place = place_of(args.notify)
    check_site(args.site)
    if args.token_file is not None and not isinstance(place, GitHub):
        raise UsageError("--token-file: belongs to: runner history --notify github:OWNER/REPO")
    token = token_of(args.token_file) if isinstance(place, GitHub) else None
    if isinstance(place, GitHub) and token is None and not args.dry_run:
        raise UsageError(
            f"--notify: {place} needs a token that may write issues: set {TOKEN_VARIABLE}, or name a file with "
            "--token-file; --dry-run needs none"
        )
    return NotifyRequest(place, token, owners_of(args.owner or ()), args.site, args.dry_run)


def rule_lines(figures: Figures) -> list[str]:
    """Return the tables for the terminal."""
    replays = figures.replays
    head = ["false alarms: steady history", *(f"{length} (threshold {h})" for length, h in THRESHOLDS.items())]
    alarms = [head, *([name, *map(_run_length, run_lengths)] for name, run_lengths in figures.false_alarms.items())]
    head = [
        "delay: shift after " + f"{replays.baseline} sessions",
        *(percentage(shift) for shift in replay.SHIFTS),
    ]
    # The document names them without a space.
    delays = [head, *([name.replace("%", " %"), *map(_delay, delays)] for name, delays in figures.delays.items())]
    stored_count = figures.stored_sessions
    missing_text = f"stored history: {stored_count} sessions in levels long enough, {LEAST_STORED} needed"
    return [
        f"{replays.count} replays of {replays.sessions} sessions, seed {replays.seed}",
        "",
        *columns(alarms),
        "sessions to a false alarm on average, 95 % interval",
        "",
        *columns(delays),
        f"sessions until it is found: median, 90th percentile; share found within {replays.watched_after}; "
        f"threshold {THRESHOLDS[figures.run_length]}",
        *([missing_text] if stored_count < LEAST_STORED else []),
    ]


def rule_json(figures: Figures) -> str:
    """Return the figures as a JSON document."""
    fields = {
        "replays": to_json(figures.replays),
        "thresholds": {str(length): threshold for length, threshold in THRESHOLDS.items()},
        "delays_at_run_length": figures.run_length,
        "shifts": list(replay.SHIFTS),
        "stored_sessions": figures.stored_sessions,
        "false_alarms": {
            name: [to_json(figure) for figure in run_lengths] for name, run_lengths in figures.false_alarms.items()
        },
        "delays": {name: [to_json(figure) for figure in delays] for name, delays in figures.delays.items()},
    }
    return document(fields)


def _run_length(run_length: RunLength) -> str:
    if run_length.mean is None or run_length.high is None:
        return f"above {number(run_length.low)}"
    return f"{number(run_length.mean)} {interval(run_length.low, run_length.high, run_length.mean)}"


def _delay(delay: Delay) -> str:
    median, p90 = ("later" if sessions is None else str(sessions) for sessions in (delay.median, delay.p90))
    return f"{median}, {p90}; {percentage(delay.share_found)}"
