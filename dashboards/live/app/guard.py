"""Refuses requests under unknown host names, of other sites' pages, and those that do more than read.

The application receives only GET and HEAD, under a host name that `ListenAddress` accepts. HEAD is answered with the
headers of GET and no body. A page of another site, or of another port of this machine, may link to the dashboard;
it may neither embed it nor request it by a script: browsers mark such requests (Fetch Metadata Request Headers, W3C).
A program that is no browser sends no such marks and is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_matrix.dashboards.live.app.hosts import ListenAddress

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Wsgi = Callable[[Mapping[str, Any], StartResponse], Iterable[bytes]]
READING = ("GET", "HEAD")
OTHER_SITES = ("cross-site", "same-site")
# Of every answer. What a page loads is limited by the policy in the page itself.
SAFE_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "frame-ancestors 'none'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
PLAIN = ("Content-Type", "text/plain; charset=utf-8")


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
        if _is_of_another_site(environ, host):
            text = "This dashboard does not answer requests by pages of other sites: open it in a window of its own."
            return _refused(start_response, "403 Forbidden", text)
        if method not in READING:
            text = f"This dashboard only reads: use GET or HEAD, got {method[:20]!r}."
            return _refused(start_response, "405 Method Not Allowed", text, ("Allow", ", ".join(READING)))
        body = self.application(environ, start_response)
        return [] if method == "HEAD" else body


def _is_of_another_site(environ: Mapping[str, Any], host: str) -> bool:
    """Return whether a browser marks the request as that of another site's page, other than a link to the dashboard."""
    origin = environ.get("HTTP_ORIGIN")
    if origin is not None:
        return str(origin).partition("://")[2].lower() != host.lower()
    if environ.get("HTTP_SEC_FETCH_SITE") not in OTHER_SITES:
        return False
    return (environ.get("HTTP_SEC_FETCH_MODE"), environ.get("HTTP_SEC_FETCH_DEST")) != ("navigate", "document")


def _refused(start_response: StartResponse, status: str, text: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    body = f"{text}\n".encode("utf-8", "replace")
    start_response(status, [PLAIN, *SAFE_HEADERS, ("Content-Length", str(len(body))), *headers])
    return [body]
