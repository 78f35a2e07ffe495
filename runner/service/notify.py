"""Notifies of changes for the worse, each once: what is due for the histories, and where it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keras_matrix.analysis.history.change_points import Assessment
from keras_matrix.analysis.views.history_view import HistoryView
from keras_matrix.records.history_reader import Past
from keras_matrix.records.text import printable
from keras_matrix.runner.notify import webhook
from keras_matrix.runner.notify.github_issues import Issues
from keras_matrix.runner.notify.notice import (
    CLOSING,
    About,
    Due,
    Event,
    Notice,
    Thread,
    due,
    duplicates,
    shifts_of,
    summary,
)
from keras_matrix.runner.notify.places import (
    TOKEN_VARIABLE,
    GitHub,
    NotifyError,
    Owner,
    Place,
    owner_of,
)
from keras_matrix.runner.service import histories
from keras_matrix.runner.service.histories import read


class Channel(Protocol):
    """Where notifications go: what was sent, and a way to send another one."""

    def threads(self) -> list[Thread]:
        """Return what was sent."""

    def send(self, notice: Notice) -> str:
        """Send an event; return its address or id."""


@dataclass(frozen=True, slots=True)
class NotifyRequest:
    """What `--notify` and the flags with it ask for."""

    place: Place
    token: str | None
    owners: tuple[Owner, ...]
    site: str | None
    is_dry_run: bool


Say = Callable[[str], None]


def send(
    results_folders: Sequence[Path], pattern: str | None, request: NotifyRequest, run_length: int, say: Say
) -> None:
    """Send what is due for these cells and say so; in a dry run only say what would be sent. Raises `NotifyError`."""
    past, _ = read(results_folders, pattern)
    assessed = _Found(past, histories.views(histories.assessed_histories(past, results_folders, run_length)), request)
    if isinstance(request.place, GitHub):
        _to_github(assessed, Issues(request.place, request.token), request, request.place.api, say)
        return
    runs = {run.run_id: run.root for run in past.runs}
    if request.is_dry_run:
        notices = assessed.notices(webhook.Deliveries(request.place, runs, {}).threads())
        _show(request, [f"POST {request.place}\n{text}" for text in webhook.texts(notices)], say)
        return
    with webhook.opened(request.place, runs) as deliveries:
        _send(assessed, deliveries, say)


@dataclass(frozen=True, slots=True)
class _Found:
    """The histories, and what is due for them."""

    past: Past
    views: Sequence[HistoryView]
    request: NotifyRequest

    def notices(
        self, threads: Sequence[Thread], select: Callable[[Assessment, Sequence[Thread]], Iterable[Due]] = due
    ) -> list[Notice]:
        """Return what is due, with all that is known about it."""
        return [
            Notice(event, view, self._about(event)) for view in self.views for event in select(view.assessed, threads)
        ]

    def _about(self, due_event: Due) -> About:
        assessment, site = due_event.assessed, self.request.site
        workload, backend = (str(assessment.history.settings.get(name, "")) for name in ("workload", "backend"))
        return About(
            histories.filters(assessment.history),
            owner_of(self.request.owners, workload, backend),
            f"{site.rstrip('/')}/cells/{assessment.history.cell_id}.html" if site else None,
            shifts_of(self.past, assessment, due_event.change)
            if due_event.change and due_event.event not in CLOSING
            else None,
        )


def _to_github(assessed: _Found, issues: Issues, request: NotifyRequest, api: str, say: Say) -> None:
    if not request.is_dry_run:
        _send(assessed, issues, say)
        return
    threads = issues.threads() if request.token else []
    calls = [call for notice in assessed.notices(threads) for call in issues.calls(notice)]
    _show(request, [call.text(api) for call in calls], say)


def _send(assessed: _Found, channel: Channel, say: Say) -> None:
    """Send what is due, then what a runner at the same time made a duplicate. Raises `NotifyError`."""
    due_now = assessed.notices(channel.threads())
    _send_all(due_now, channel, say)
    if any(notice.due.event is Event.OPENED for notice in due_now):
        _send_all(assessed.notices(channel.threads(), duplicates), channel, say)
    if not due_now:
        say("nothing to send: every change for the worse was sent before, or is acknowledged or repaired")


def _send_all(notices: Sequence[Notice], channel: Channel, say: Say) -> None:
    for number, notice in enumerate(notices):
        try:
            sent_to = channel.send(notice)
        except NotifyError as error:
            raise NotifyError(f"{error.args[0]}; {number} of {len(notices)} sent") from None
        say(printable(f"{notice.due.event}: {sent_to}: {summary(notice)}"))


def _show(request: NotifyRequest, texts: Sequence[str], say: Say) -> None:
    if isinstance(request.place, GitHub) and request.token is None:
        say(f"{TOKEN_VARIABLE} is not set: printed as if nothing had been sent before\n")
    say("\n\n".join(map(printable, texts)) or "nothing to send")
