"""Notify of changes for the worse: `runner history --notify`. Nothing is sent without that flag."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keras_matrix.analysis.history.change_points import Assessment
from keras_matrix.records.history_reader import Past
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.render import history_lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.notify import webhook
from keras_matrix.runner.notify.errors import NotifyError
from keras_matrix.runner.notify.events import CLOSING, Due, Event, Thread, due, duplicates
from keras_matrix.runner.notify.github_issues import Issues
from keras_matrix.runner.notify.notice import About, Notice, summary
from keras_matrix.runner.notify.places import (
    FORMS,
    TOKEN_VARIABLE,
    GitHub,
    Owner,
    Place,
    check_site,
    owner_of,
    owners_of,
    place_of,
    token_of,
)
from keras_matrix.runner.notify.traces import shifts_of
from keras_matrix.runner.service import histories
from keras_matrix.runner.service.histories import read


class Channel(Protocol):
    """Where notifications go: what was sent, and a way to send another one."""

    def threads(self) -> list[Thread]:
        """Return what was sent."""

    def send(self, notice: Notice) -> str:
        """Send an event; return its address or id."""


@dataclass(frozen=True, slots=True)
class Request:
    """What `--notify` and the flags with it ask for."""

    place: Place
    token: str | None
    owners: tuple[Owner, ...]
    site: str | None
    is_dry_run: bool


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of notifying."""
    group = parser.add_argument_group("notifying (docs/notify.md)")
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


def asked(args: argparse.Namespace, *, alone: bool) -> Request | None:
    """Return what is asked for, None without `--notify`; `alone` without another use of the command.

    Raises `UsageError`.
    """
    given = {"--dry-run": args.dry_run, "--owner": args.owner, "--site": args.site, "--token-file": args.token_file}
    for flag, value in given.items():
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
    return Request(place, token, owners_of(args.owner or ()), args.site, args.dry_run)


def send(roots: Sequence[Path], cell: str | None, request: Request, run_length: int) -> int:
    """Send what is due for these cells, or print it."""
    past, _ = read(roots, cell)
    found = _Found(past, histories.assessed(past, roots, run_length), request)
    if isinstance(request.place, GitHub):
        issues = Issues(request.place, request.token)
        if not request.is_dry_run:
            return _send(found, issues)
        threads = issues.threads() if request.token else []
        calls = [call for notice in found.notices(threads) for call in issues.calls(notice)]
        return _print(request, [call.text(request.place.api) for call in calls])
    runs = {run.run_id: run.root for run in past.runs}
    if request.is_dry_run:
        notices = found.notices(webhook.Deliveries(request.place, runs, {}).threads())
        return _print(request, [f"POST {request.place}\n{text}" for text in webhook.texts(notices)])
    with webhook.opened(request.place, runs) as deliveries:
        return _send(found, deliveries)


@dataclass(frozen=True, slots=True)
class _Found:
    """The histories, and what is due for them."""

    past: Past
    assessed: Sequence[Assessment]
    request: Request

    def notices(
        self, threads: Sequence[Thread], which: Callable[[Assessment, Sequence[Thread]], Iterable[Due]] = due
    ) -> list[Notice]:
        """Return what is due, with all that is known about it."""
        return [Notice(found, self._about(found)) for one in self.assessed for found in which(one, threads)]

    def _about(self, found: Due) -> About:
        one, site = found.assessed, self.request.site
        workload, backend = (str(one.history.settings.get(name, "")) for name in ("workload", "backend"))
        return About(
            history_lines.titles(self.assessed)[one.history.cell_id],
            history_lines.filters(one.history),
            owner_of(self.request.owners, workload, backend),
            f"{site.rstrip('/')}/cells/{one.history.cell_id}.html" if site else None,
            shifts_of(self.past, one, found.change) if found.change and found.event not in CLOSING else None,
        )


def _send(found: _Found, channel: Channel) -> int:
    """Send what is due, then what a runner at the same time made a duplicate. Raises `NotifyError`."""
    due_now = found.notices(channel.threads())
    _send_all(due_now, channel)
    if any(notice.due.event is Event.OPENED for notice in due_now):
        _send_all(found.notices(channel.threads(), duplicates), channel)
    if not due_now:
        print("nothing to send: every change for the worse was sent before, or is acknowledged or repaired")
    return 0


def _send_all(notices: Sequence[Notice], channel: Channel) -> None:
    for number, notice in enumerate(notices):
        try:
            where = channel.send(notice)
        except NotifyError as error:
            raise NotifyError(f"{error.args[0]}; {number} of {len(notices)} sent") from None
        print(printable(f"{notice.due.event}: {where}: {summary(notice)}"))


def _print(request: Request, texts: Sequence[str]) -> int:
    if isinstance(request.place, GitHub) and request.token is None:
        print(f"{TOKEN_VARIABLE} is not set: printed as if nothing had been sent before\n")
    print("\n\n".join(map(printable, texts)) or "nothing to send")
    return 0
