"""Notifications as JSON documents posted to an address, and the file that says which were sent.

    RESULTS/notified.jsonl     a line per delivery, in the results folder that contains the run of the change

The file is opened alone from reading what was sent until the last delivery, so that two runners of one results folder
send an event once. A line is appended after the delivery: if the runner is killed in between, the next one sends that
event again, with the same `id` and `event`. Guarantee: neither the address nor its secret is stored or shown.
"""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib import error as url_errors
from urllib import request as url_requests

from keras_matrix.dashboards.report import history_page
from keras_matrix.records import appended
from keras_matrix.records.appended import Lines
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Problem
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import printable_values
from keras_matrix.runner.notify.notice import CLOSING, Event, Notice, Thread, commands, history_key, summary
from keras_matrix.runner.notify.places import NotifyError, Webhook

FILE = "notified.jsonl"
VERSION = DOCUMENT_VERSION = 1
TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that a place was notified of. `place` is a hash of the address."""

    place: str
    history: str
    run_id: str
    slower_by: float
    event: Event
    version: int = VERSION


class Deliveries:
    """The deliveries to one address, opened alone; `roots` are results folders by run."""

    def __init__(self, place: Webhook, roots: Mapping[str, Path], opened: Mapping[Path, Lines]) -> None:
        """Use files that are opened; without any, nothing can be sent."""
        self.place, self._roots, self._opened = place, roots, opened
        self._found_in: dict[tuple[str, str], Path] = {}
        self._key = hashlib.sha256(place.url.encode(errors="surrogatepass")).hexdigest()[:16]

    def threads(self) -> list[Thread]:
        """Return what was sent to this address. Raises `StoreFailure` for a file that cannot be read."""
        thread_by_key: dict[tuple[str, str], Thread] = {}
        for root in sorted(set(self._roots.values())):
            lines, problems = appended.load_lines(root / FILE, Delivery, VERSION)
            _check(problems)
            for delivery in (line for line in lines if line.place == self._key):
                key = delivery.history, delivery.run_id
                known_thread = thread_by_key.get(key)
                self._found_in[key] = root
                number, event_count = (
                    (known_thread.number, known_thread.events + 1) if known_thread else (len(thread_by_key) + 1, 1)
                )
                is_open = delivery.event not in CLOSING
                thread_by_key[key] = Thread(number, *key, delivery.slower_by, delivery.event, event_count, is_open)
        return list(thread_by_key.values())

    def send(self, notice: Notice) -> str:
        """Send an event and note it; return what was sent. Raises `NotifyError`, `StoreFailure`."""
        _post(self.place, json.dumps(printable_values(document(notice)), allow_nan=False).encode("ascii"))
        key = history_key(notice.history), notice.run_id
        line = Delivery(self._key, *key, round(notice.due.slower_by, 4), notice.due.event)
        # The run that names a thread may have been removed since.
        self._opened[self._found_in.get(key) or self._roots[notice.run_id]].append(line)
        return f"{line.history}-{line.run_id}"


@contextmanager
def opened(place: Webhook, roots: Mapping[str, Path]) -> Iterator[Deliveries]:
    """Open the files of these results folders alone, in one order, so that two runners cannot wait for each other."""
    with ExitStack() as stack:
        files = {
            root: stack.enter_context(appended.opened_lines(root / FILE, "the delivery"))
            for root in sorted(set(roots.values()))
        }
        yield Deliveries(place, roots, files)


def document(notice: Notice) -> dict[str, Any]:
    """Return the JSON document of an event; docs/commands.md#events-of-a-webhook describes its fields."""
    history, due = notice.history, notice.due
    names = {name: history.settings.get(name) for name in ("workload", "backend")}
    fields: dict[str, Any] = {
        "version": DOCUMENT_VERSION,
        "text": summary(notice),
        "event": str(due.event),
        "id": f"{history_key(history)}-{notice.run_id}",
        "cell": {"id": history.cell_id, "title": notice.view.title, **names},
        "machine": {"host_id": history.host_id, "device": list(history.device) if history.device else None},
        "owner": notice.about.owner,
        "page": notice.about.page,
        "change": None,
    }
    if due.change is None:
        return fields
    before, after = notice.sides
    return fields | {
        "change": {
            "run_id": due.change.run_id,
            "figure": to_json(history.figure),
            "ratio": due.change.ratio,
            "slower_by": due.slower_by - 1,
            "before": {"value": before.centre, "sessions": before.count},
            "after": {"value": after.centre, "sessions": after.count},
            "changed": [to_json(version) for version in due.change.versions],
            "who_may_know": notice.likely,
            "intended": due.change.note,
            "repaired": due.change.repaired,
        },
        "reproduce": commands(notice),
        "traces": None if notice.about.shifts is None else [to_json(shift) for shift in notice.about.shifts],
        "picture_svg": history_page.svg(notice.view),
    }


class _NoRedirects(url_requests.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its document."""

    def redirect_request(self, *_: object) -> None:
        return None


def _post(place: Webhook, data: bytes) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "keras-matrix"}
    request = url_requests.Request(place.url, data, headers, method="POST")  # noqa: S310 - only http and https, checked in `places`
    try:
        with url_requests.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1)
    except url_errors.HTTPError as error:
        error.close()
        raise NotifyError(f"{place}: answered HTTP {error.code}{_advice(error)}") from None
    except url_errors.URLError as error:
        raise NotifyError(f"{place}: cannot be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise NotifyError(f"{place}: cannot be reached: {type(error).__name__}") from None


def _advice(error: url_errors.HTTPError) -> str:
    if 300 <= error.code < 400:
        return "; redirects are not followed: name the address that it redirects to"
    wait = error.headers.get("Retry-After", "")
    return f"; it accepts requests again in {wait} s" if wait.isdigit() else ""


def _check(problems: Iterable[Problem]) -> None:
    for problem in problems:
        raise StoreFailure(
            f"{problem.path}: {problem.reason}; nothing was sent, because what was sent before is not known: correct "
            "or remove that line"
        )


def texts(notices: Sequence[Notice]) -> list[str]:
    """Return the documents that would be posted, for a dry run."""
    return [json.dumps(printable_values(document(notice)), indent=2) for notice in notices]
