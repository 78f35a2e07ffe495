"""Notifications as issues of a GitHub repository, through PyGithub, which is imported only here and only when needed.

All state is in GitHub: an issue is found by its label and by the marker in its text, so several runners share it and no
file can be lost. An event is first commented and then marked; a comment that is already there is not written again, so
that a run that ended in between is completed by the next one. `ApiCall`s are what is sent and what a dry run prints.

Guarantee: the token is sent to the API only, and appears in no message. Not known: what GitHub's list of issues lacks
for some seconds after another runner opened one; the next run closes such a duplicate.

The marker is an HTML comment, which GitHub does not show. Names, versions and reasons come from records and files, so
they appear as code, in which GitHub interprets no markup, mention or reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from keras_matrix.analysis.history.change_points import VersionChange
from keras_matrix.analysis.traces import OperationShift
from keras_matrix.records.codec import CodecError, canonical, decode, loads
from keras_matrix.records.identity import RUN_ID
from keras_matrix.records.text import plural, printable, quantity, seconds
from keras_matrix.runner.errors import UsageError, system_reason
from keras_matrix.runner.notify.notice import (
    CLOSING,
    Event,
    Notice,
    Thread,
    commands,
    history_key,
    machine_changes,
    summary,
)
from keras_matrix.runner.notify.places import TOKEN_VARIABLE, GitHub, NotifyError

PER_PAGE = 100
TIMEOUT_S = 30
# GitHub asks for at least a second between requests that write.
BETWEEN_WRITES_S = 1.0
MOST_REASON = 200
BODY = "body"  # the field with the text
LABEL = "benchmark-regression"
MARKER = re.compile(r"<!-- keras-matrix (\{[^\n]*\}) -->")
TITLE_LIMIT = 200  # GitHub accepts 256 characters
SESSIONS_BEFORE, SESSIONS_DRAWN = 20, 60
FOOT = (
    "Written by `runner history --notify`. It comments here when the change grows, and closes this issue when the cell "
    "recovers. An issue that you close is not opened again for the same change. To keep the reason with the history:"
)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request that changes something: its method, its path below the API's address, and its JSON body."""

    method: str
    path: str
    body: Mapping[str, Any]

    def text(self, api: str) -> str:
        """Return the request as text, its Markdown as it is."""
        other_fields = {name: value for name, value in self.body.items() if name != BODY}
        lines = [f"{self.method} {api}{self.path}"]
        lines += [json.dumps(other_fields, indent=2, ensure_ascii=False)] if other_fields else []
        lines += [f"{BODY}:", self.body[BODY]] if BODY in self.body else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue with a marker: its thread, its text and its address."""

    thread: Thread
    body: str
    url: str


class Issues:
    """The issues of a repository that were opened by these notifications."""

    def __init__(self, place: GitHub, token: str | None) -> None:
        """Prepare the client; without a token only public issues can be read. Raises `UsageError`."""
        try:
            from github import Auth, Github
        except ImportError as error:
            raise UsageError(
                f"--notify: {place} needs PyGithub, which is not installed ({error}); install it with: "
                "pip install 'keras-matrix[notify]'. webhook:URL does not need it"
            ) from error
        self.place, self._token = place, token
        self._requester = Github(
            base_url=place.api,
            auth=Auth.Token(token) if token else None,
            timeout=TIMEOUT_S,
            retry=None,
            seconds_between_requests=None,
            seconds_between_writes=BETWEEN_WRITES_S,
            user_agent="keras-matrix",
        ).requester
        self._issues: dict[int, Issue] = {}

    def threads(self) -> list[Thread]:
        """Return the thread of every issue with the label and a marker, open or closed. Raises `NotifyError`."""
        self._issues = {
            issue.thread.number: issue for issue in map(_issue, self._all(self._path(), _LABELLED)) if issue
        }
        return [issue.thread for issue in self._issues.values()]

    def calls(self, notice: Notice) -> list[ApiCall]:
        """Return the requests that notify of an event."""
        thread = notice.due.thread
        if thread is None:
            text = {"title": issue_title(notice), "body": issue_body(notice), "labels": [LABEL]}
            return [ApiCall("POST", self._path(), text)]
        issue_path = self._path(f"/{thread.number}")
        marked_body = with_marker(self._issues[thread.number].body, marker_after(notice))
        state = {"state": "open"} if notice.due.event is Event.REOPENED else {}
        if notice.due.event in CLOSING:
            reason = "completed" if notice.due.event is Event.RECOVERED else "not_planned"
            state = {"state": "closed", "state_reason": reason}
        return [
            ApiCall("POST", f"{issue_path}/comments", {"body": issue_comment(notice)}),
            ApiCall("PATCH", issue_path, {"body": marked_body, **state}),
        ]

    def send(self, notice: Notice) -> str:
        """Send an event; return the issue's address. Raises `NotifyError`."""
        calls, thread = self.calls(notice), notice.due.thread
        if thread is None:
            return self._open(calls[0])
        mark = comment_mark(thread.events + 1)
        is_sent = any(
            mark in str(comment.get("body")) for comment in self._all(f"{self._path(f'/{thread.number}')}/comments", {})
        )
        for call in calls[1:] if is_sent else calls:
            self._request(call.method, call.path, body=call.body)
        return self._issues[thread.number].url

    def _open(self, call: ApiCall) -> str:
        created = self._request(call.method, call.path, body=call.body)[1]
        if LABEL not in _labels(created):
            # GitHub silently drops the label if the token may not set it; then no run would find the issue again.
            self._request("PATCH", self._path(f"/{created['number']}"), body={"state": "closed"})
            raise NotifyError(
                f"{self.place}: GitHub did not set the label {LABEL!r}: the token of {TOKEN_VARIABLE} may "
                "open issues but not label them. Give it write access to issues. The issue was closed again"
            )
        return str(created.get("html_url", ""))

    def _path(self, suffix: str = "") -> str:
        return f"/repos/{self.place.repository}/issues{suffix}"

    def _all(self, path: str, parameters: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the items of all pages of a list."""
        page, has_next = 1, True
        while has_next:
            headers, items = self._request("GET", path, {**parameters, "per_page": PER_PAGE, "page": page})
            if not isinstance(items, list):
                raise NotifyError(f"{self.place}: {self.place.api} did not answer with a list: is it GitHub's API?")
            yield from (item for item in items if isinstance(item, dict))
            has_next = 'rel="next"' in str(headers.get("link", ""))
            page += 1

    def _request(
        self, method: str, path: str, parameters: dict[str, Any] | None = None, body: Mapping[str, Any] | None = None
    ) -> tuple[Mapping[str, Any], Any]:
        from github import GithubException
        from requests import RequestException

        try:
            headers, data = self._requester.requestJsonAndCheck(method, path, parameters=parameters, input=body)
        except GithubException as error:
            raise NotifyError(self._hidden(_refused(self.place, error))) from None
        except (RequestException, OSError, ValueError, RuntimeError, AssertionError) as error:
            reason = self._hidden(system_reason(str(error)) or f"{type(error).__name__}: {error}")
            if len(reason) > MOST_REASON:  # its cause is at its end
                reason = f"{reason[: MOST_REASON // 2]} ... {reason[-MOST_REASON // 2 :]}"
            raise NotifyError(f"{self.place}: cannot reach {self.place.api}: {reason}") from None
        if method != "GET" and not (isinstance(data, dict) and ("id" in data or "number" in data)):
            raise NotifyError(f"{self.place}: {self.place.api} did not answer as GitHub's API does")
        return headers, data

    def _hidden(self, message: str) -> str:
        return message.replace(self._token, "***") if self._token else message


_LABELLED = {"labels": LABEL, "state": "all"}


def _issue(data: Mapping[str, Any]) -> Issue | None:
    body = str(data.get("body") or "")
    marker = None if "pull_request" in data else marker_of(body)
    if marker is None:
        return None
    number, is_open = int(data["number"]), data.get("state") == "open"
    thread = Thread(number, marker.history, marker.run_id, marker.slower_by, marker.last, marker.events, is_open)
    return Issue(thread, body, str(data.get("html_url", "")))


def _labels(data: Mapping[str, Any]) -> Iterable[str]:
    return [str(label.get("name") if isinstance(label, dict) else label) for label in data.get("labels") or []]


def _refused(place: GitHub, error: Any) -> str:
    """Return why GitHub refused a request, and what to do. `error` is a GithubException."""
    status, headers = error.status, {str(name).lower(): value for name, value in (error.headers or {}).items()}
    message = str(error.data.get("message", "") if isinstance(error.data, dict) else error.data or "")[:MOST_REASON]
    is_limit = status == 429 or "retry-after" in headers or headers.get("x-ratelimit-remaining") == "0"
    if status in (403, 429) and (is_limit or "rate limit" in message.lower()):
        return f"{place}: GitHub's rate limit is reached (HTTP {status}){_until(headers)}"
    advice = next((text for statuses, text in _ADVICE if status in statuses), "")
    answer_text = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    return f"{place}: {advice.format(variable=TOKEN_VARIABLE) or 'GitHub refused the request'} ({answer_text})"


_ADVICE: list[tuple[range | tuple[int, ...], str]] = [
    ((401,), "the token of {variable} is not valid or has expired; create another"),
    ((403,), "the token of {variable} may not do this; give it the permission to write issues of this repository"),
    ((404,), "there is no such repository, or the token of {variable} may not read its issues"),
    ((410,), "issues are switched off in this repository; switch them on in its settings"),
    ((422,), "GitHub does not accept the content of the request; please report this as a defect of the runner"),
    (range(500, 600), "GitHub failed"),
]


def _until(headers: Mapping[str, Any]) -> str:
    """Return when requests are accepted again, from what GitHub's documentation says about both headers."""
    wait, reset = str(headers.get("retry-after", "")), str(headers.get("x-ratelimit-reset", ""))
    if wait.isdigit():
        return f"; it accepts requests again in {wait} s"
    if reset.isdigit() and len(reset) < 12:
        return f"; it accepts requests again at {datetime.fromtimestamp(int(reset), UTC):%Y-%m-%d %H:%M:%S} UTC"
    return "; try again in some minutes"


@dataclass(frozen=True, slots=True)
class Marker:
    """The state of an issue: the fields of its `Thread` that GitHub does not know itself."""

    history: str
    run_id: str
    slower_by: float
    last: Event
    events: int


def marker_of(body: str) -> Marker | None:
    """Return the marker in the text of an issue, None without a valid one."""
    match = MARKER.search(body)
    if match is None:
        return None
    try:
        marker = decode(Marker, loads(match[1]), "marker")
    except CodecError:
        return None
    return marker if RUN_ID.fullmatch(marker.run_id) and marker.slower_by > 0 else None


def marker_after(notice: Notice) -> Marker:
    """Return the marker of the issue once this notification is sent."""
    thread: Thread | None = notice.due.thread
    event_count = thread.events + 1 if thread else 1
    key = history_key(notice.history)
    return Marker(key, notice.run_id, round(notice.due.slower_by, 4), notice.due.event, event_count)


def with_marker(body: str, marker: Marker) -> str:
    """Return the text of an issue with another marker and no other change."""
    return MARKER.sub(lambda _: _hidden(marker), body, count=1)


def comment_mark(event_count: int) -> str:
    """Return the hidden mark of the comment that is an issue's event of this number."""
    return f"<!-- keras-matrix event {event_count} -->"


def issue_title(notice: Notice) -> str:
    """Return the title of an issue."""
    text = printable(f"{notice.view.title}: {notice.size} since {notice.change.run_id}")
    return text if len(text) <= TITLE_LIMIT else text[: TITLE_LIMIT - 1] + "…"


def issue_body(notice: Notice) -> str:
    """Return the text of a new issue."""
    body_lines = [_hidden(marker_after(notice)), *_facts(notice), *_causes(notice), *_picture(notice), *_how(notice)]
    return printable("\n".join(body_lines))


def issue_comment(notice: Notice) -> str:
    """Return the text of a comment about a later event; a growth has its picture."""
    lines = [comment_mark(marker_after(notice).events), code(summary(notice))]
    if notice.due.event is Event.DUPLICATE and notice.due.original:
        lines[-1] = f"Duplicate of #{notice.due.original.number}: two runners opened an issue at the same time."
    lines += _picture(notice) if notice.due.event in (Event.GROWN, Event.REOPENED) else []
    return printable("\n".join(lines))


def code(text: str) -> str:
    """Return a text that others wrote as code in a line."""
    return f"`{printable(text).replace('`', chr(39)).replace(chr(10), ' ') or ' '}`"


def _hidden(marker: Marker) -> str:
    return f"<!-- keras-matrix {canonical(marker)} -->"


def _facts(notice: Notice) -> list[str]:
    history, (before, after) = notice.history, notice.sides
    place = f"host {history.host_id}, {' '.join(history.device or ('device not known',))}"
    owner = notice.about.owner or "nobody named: `--owner`"
    return [
        f"**{notice.size}** since session {code(notice.change.run_id)}: {quantity(before.centre, notice.unit)} → "
        f"{quantity(after.centre, notice.unit)}, means of {plural(before.count, 'session')} and {after.count}.",
        "",
        "| | |",
        "|---|---|",
        f"| cell | {_cell(notice.view.title)}, {code(history.cell_id)} |",
        f"| machine | {_cell(place)} |",
        f"| owner | {owner} |",
        f"| who may know | {_cell(notice.likely)} |",
    ]


def _causes(notice: Notice) -> list[str]:
    change_lines = [f"- {_version(change)}" for change in notice.change.versions] or [
        "- no version or setting on record"
    ]
    return [
        "",
        "### What changed there",
        *change_lines,
        "",
        "That they changed together does not prove that one caused the other.",
    ]


def _picture(notice: Notice) -> list[str]:
    """Return a chart that GitHub draws from text: an issue cannot be given a picture through the API."""
    sessions, unit = notice.history.valued, notice.unit
    first = max(0, min(notice.change.index - SESSIONS_BEFORE, len(sessions) - SESSIONS_DRAWN))
    last = min(first + SESSIONS_DRAWN, len(sessions))
    values = [session.step_time.centre / unit.size for session in sessions[first:last] if session.step_time]
    levels = {
        index: level.step_time.centre / unit.size
        for level in notice.view.assessed.levels
        for index in range(level.first, level.last + 1)
    }
    shown_levels = [levels[index] for index in range(first, last)]
    low, high = min(*values, *shown_levels), max(*values, *shown_levels)
    room = (high - low) / 10 or high / 10
    name = f"{notice.history.figure.name}, {unit.name}".removesuffix(", ").replace('"', "'")
    page = [f"[All sessions of this cell]({notice.about.page})", ""] if notice.about.page else []
    return [
        "",
        "```mermaid",
        "xychart-beta",
        f'  x-axis "session" {first + 1} --> {last}',
        f'  y-axis "{printable(name)}" {low - room:.4g} --> {high + room:.4g}',
        f"  line [{', '.join(f'{value:.4g}' for value in values)}]",
        f"  line [{', '.join(f'{value:.4g}' for value in shown_levels)}]",
        "```",
        f"Sessions {first + 1} to {last} of {len(sessions)}, and the levels between changes.",
        "",
        *page,
    ]


def _how(notice: Notice) -> list[str]:
    command_lines = commands(notice)
    lines = ["### Reproduce", "```sh", *command_lines, "```"]
    if len(command_lines) > 1 and (other_changes := machine_changes(notice)):
        names_text = ", ".join(code(change.name) for change in other_changes)
        lines += [f"Two environments on one machine do not show the share of {names_text}."]
    cell_id, run_id = notice.history.cell_id, notice.change.run_id
    silence_command = f"`runner history ack {cell_id} --run {run_id} --reason TEXT`."
    return [*lines, "", "### Traces", *_traces(notice), "", "---", f"{FOOT} {silence_command}"]


def _traces(notice: Notice) -> list[str]:
    shifts = notice.about.shifts
    if shifts is None:
        new = code(f"runner trace {notice.history.cell_id} --new")
        return [f"No session on both sides of the change has a trace; record one with {new}."]
    return [f"- {_shift(shift)}" for shift in shifts] or ["The operations take the same time in both traces."]


def _shift(shift: OperationShift) -> str:
    return f"{code(shift.name or 'no operation')}: {seconds(shift.before_s)} → {seconds(shift.after_s)} per step"


def _version(change: VersionChange) -> str:
    distance = abs(change.sessions_off)
    place = f" ({plural(distance, 'session')} {'later' if change.sessions_off > 0 else 'before'})" if distance else ""
    return f"{code(change.name)} {code(change.before or 'absent')} → {code(change.after or 'absent')}{place}"


def _cell(text: str) -> str:
    """Return a text as code in a table, where a bar would end the cell."""
    return code(text.replace("|", "/"))
