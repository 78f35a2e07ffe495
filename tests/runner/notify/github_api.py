"""A fake of the part of GitHub's REST API that notifications use, on the loopback interface.

It follows https://docs.github.com/en/rest/issues: authentication, pagination with Link headers, labels, states,
validation with 422, and the documented answers to a bad token, a missing permission and both rate limits. Stricter than
GitHub: a request with an unknown key, parameter or header is refused with 400, which no
client expects. Not modelled: assignees, milestones, reactions, locking, conditional requests.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TOKEN = "ghp_0123456789abcdefSECRET"
REPOSITORY = "octo/bench.marks"
ISSUES = f"/api/v3/repos/{REPOSITORY}/issues"
ONE = re.compile(rf"{re.escape(ISSUES)}/(\d+)(/comments)?")
STATES = ("open", "closed", "all")
REASONS = (None, "completed", "not_planned", "duplicate", "reopened")
BODY_LIMIT, TITLE_LIMIT = 65536, 256

Answer = tuple[int, Any, dict[str, str]]


@dataclass
class GitHubApi:
    """One repository. `fails` is asked for an answer before each request; `may_label` is a right of the token."""

    may_label: bool = True
    fails: Callable[[str, str], Answer | None] = lambda method, path: None
    issues: list[dict[str, Any]] = field(default_factory=list)
    comments: dict[int, list[str]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return status, JSON and headers for a request."""
        path = urlsplit(target).path
        self.requests.append((method, path.removeprefix(ISSUES)))
        if failed := self.fails(method, path):
            return failed
        with self.lock:
            return self._answer(method, target, headers, body)

    def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        if problem := _header_problem(method, headers):
            return 400, {"message": problem}, {}
        if headers.get("Authorization") not in (f"token {TOKEN}", f"Bearer {TOKEN}"):
            return 401, {"message": "Bad credentials", "documentation_url": "https://docs.github.com/rest"}, {}
        data = json.loads(body) if body else {}
        one = ONE.fullmatch(path)
        if path == ISSUES:
            return self._list(query) if method == "GET" else self._create(data)
        if one is None or not 0 < int(one[1]) <= len(self.issues):
            return 404, {"message": "Not Found"}, {}
        if one[2]:
            return self._comments(method, int(one[1]), data, query)
        return self._edit(int(one[1]), data)

    def add(self, **values: Any) -> dict[str, Any]:
        """Add an issue as somebody else would; return it."""
        number = len(self.issues) + 1
        issue = {
            "id": 1000 + number,
            "number": number,
            "state": "open",
            "state_reason": None,
            "title": "",
            "body": None,
        }
        url = f"https://github.example/{REPOSITORY}/issues/{number}"
        self.issues.append({**issue, "labels": [], "html_url": url, **values})
        return self.issues[-1]

    def _list(self, query: Mapping[str, str]) -> Answer:
        if set(query) - {"labels", "state", "per_page", "page"}:
            return 400, {"message": f"unknown parameters: {query}"}, {}
        size, page, state = int(query.get("per_page", 30)), int(query.get("page", 1)), query.get("state", "open")
        if state not in STATES or not 0 < size <= 100:
            return _invalid("Issue", "state")
        wanted = set(query["labels"].split(",")) if "labels" in query else set()
        found = [
            one
            for one in reversed(self.issues)
            if wanted <= {label["name"] for label in one["labels"]} and state in ("all", one["state"])
        ]
        return _page(found, size, page)

    def _create(self, data: Mapping[str, Any]) -> Answer:
        if set(data) - {"title", "body", "labels"}:
            return 400, {"message": f"unknown keys: {sorted(data)}"}, {}
        title, body, labels = data.get("title"), data.get("body"), data.get("labels", [])
        if not isinstance(title, str) or not 0 < len(title) <= TITLE_LIMIT:
            return _invalid("Issue", "title")
        if not isinstance(body, str) or len(body) > BODY_LIMIT:
            return _invalid("Issue", "body")
        named = [{"id": 1, "name": name} for name in labels] if self.may_label else []
        return 201, self.add(title=title, body=body, labels=named), {}

    def _edit(self, number: int, data: Mapping[str, Any]) -> Answer:
        if set(data) - {"title", "body", "state", "state_reason"}:
            return 400, {"message": f"unknown keys: {sorted(data)}"}, {}
        if data.get("state", "open") not in STATES[:2] or data.get("state_reason") not in REASONS:
            return _invalid("Issue", "state")
        if len(data.get("body") or "") > BODY_LIMIT:
            return _invalid("Issue", "body")
        self.issues[number - 1].update(data)
        return 200, self.issues[number - 1], {}

    def _comments(self, method: str, number: int, data: Mapping[str, Any], query: Mapping[str, str]) -> Answer:
        written = self.comments.setdefault(number, [])
        if method == "GET":
            items = [{"id": at, "body": text} for at, text in enumerate(written)]
            return _page(items, int(query.get("per_page", 30)), int(query.get("page", 1)))
        if set(data) != {"body"} or not isinstance(data["body"], str) or not data["body"].strip():
            return _invalid("IssueComment", "body")
        written.append(data["body"])
        return 201, {"id": len(written), "body": data["body"]}, {}


def _header_problem(method: str, headers: Mapping[str, str]) -> str | None:
    if not headers.get("User-Agent"):
        return "Request forbidden by administrative rules. Please make sure your request has a User-Agent header"
    if method != "GET" and not headers.get("Content-Type", "").startswith("application/json"):
        return "a body must be application/json"
    return None


def _invalid(resource: str, name: str) -> Answer:
    errors = [{"resource": resource, "field": name, "code": "invalid"}]
    return 422, {"message": "Validation Failed", "errors": errors}, {}


def _page(items: list[dict[str, Any]], size: int, page: int) -> Answer:
    more = len(items) > page * size
    link = {"Link": f'<https://api.github.example/?page={page + 1}>; rel="next"'} if more else {}
    return 200, items[(page - 1) * size : page * size], link


class Serving:
    """Serves answers over HTTP on the loopback within a block, which gets the address."""

    def __init__(self, answer: Callable[[str, str, Mapping[str, str], bytes], Answer]) -> None:
        """Answer requests with this function of method, target, headers and body."""
        self._answer = answer

    def __enter__(self) -> str:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, data, headers = answer(self.command, self.path, self.headers, body)  # type: ignore[arg-type]
                self.send_response(status)
                text = data if isinstance(data, bytes) else json.dumps(data).encode()
                for name, value in {"Content-Length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_PATCH = do_GET  # noqa: N815 - names required by the base class

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *what: object) -> None:
        self._server.shutdown()
        self._server.server_close()
