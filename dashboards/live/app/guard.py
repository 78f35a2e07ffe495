"""Refuses requests under unknown host names and requests that do more than read, before they reach the dashboard.

The application receives only GET and HEAD, under a host name that `ListenAddress` accepts. HEAD is answered with the
headers of GET and no body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_matrix.dashboards.live.app.hosts import ListenAddress

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Wsgi = Callable[[Mapping[str, Any], StartResponse], Iterable[bytes]]
READING = ("GET", "HEAD")
PLAIN = (
    ("Content-Type", "text/plain; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A WSGI application that forwards permitted requests."""

    application: Wsgi
    place: ListenAddress

    def __call__(self, environ: Mapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, or refuse it."""
        host, method = str(environ.get("HTTP_HOST") or ""), str(environ.get("REQUEST_METHOD") or "GET")
        if not self.place.accepts(host):
            text = (
                f"This dashboard does not answer under the host name {host[:253]!r}: open it by its own address, or "
                "start it with --public NAME for each further name."
            )
            return _refused(start_response, "421 Misdirected Request", text)
        if method not in READING:
            text = f"This dashboard only reads: use GET or HEAD, got {method[:20]!r}."
            return _refused(start_response, "405 Method Not Allowed", text, ("Allow", ", ".join(READING)))
        body = self.application(environ, start_response)
        return [] if method == "HEAD" else body


def _refused(start_response: StartResponse, status: str, text: str, *more: tuple[str, str]) -> Iterable[bytes]:
    body = f"{text}\n".encode("utf-8", "replace")
    start_response(status, [*PLAIN, ("Content-Length", str(len(body))), *more])
    return [body]
