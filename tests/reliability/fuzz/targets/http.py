"""Bytes sent to the live dashboard: each is answered with a proper status, and nothing is logged as an error.

The real server runs in a thread, on the loopback interface, and reads a real warehouse.
"""

from __future__ import annotations

import itertools
import logging
import select
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.channels import server_of
from keras_matrix.dashboards.live.app.guard import Guard
from keras_matrix.dashboards.live.app.hosts import ListenAddress
from keras_matrix.dashboards.live.app.serve import port_of
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.old_results import BEFORE, DATA
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import Check, Target

PROPER = {200, 100, 501, 505, *range(400, 432)}  # 501: a transfer encoding that the server does not have
REACHED = (200, 404)  # the dashboard itself has answered
FIRST_ANSWER_S, COMPLETE_S, INCOMPLETE_S = 30.0, 5.0, 0.02
HEALTH_EVERY = 100
TEXTS = (
    "mnist_mlp",
    "jax",
    "torch",
    "2026-01-01",
    "0000-00-00",
    "444c36e75ca20cb3",
    "",
    "%00",
    "%ff%fe",
    "%",
    "%zz",
    "%u0041",
)
NAMES = ("workload", "backend", "since", "id", "other", "%00", "")
PATHS = (
    "/",
    "/",
    "/cell",
    "/cell",
    "/health",
    "//",
    "/cell/",
    "/..%2f..%2fetc/passwd",
    "/%",
    "/é",
    "*",
    "http://a/",
    "",
)
HOSTS = (
    "localhost",
    "127.0.0.1:8080",
    "[::1]",
    "localhost.",
    "evil.example",
    "[::1",
    "",
    "a" * 70_000,
    "local\0host",
    "é",
)
METHODS = ("GET",) * 12 + ("HEAD", "HEAD", "POST", "OPTIONS", "get", "G\0T", "X" * 5000, "")
VERSIONS = ("HTTP/1.1",) * 8 + ("HTTP/1.0", "HTTP/0.9", "HTTP/9.9", "HTTP/", "", "X")
HEADERS = (
    *(
        "Origin: http://evil.example",
        "Accept: */*",
        "Connection: close",
        "Connection: keep-alive",
        "Expect: 100-continue",
    ),
    *(
        "Content-Length: 0",
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 9" + "9" * 30,
        "Content-Length: 1, 1",
    ),
    *(
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "X: " + "x" * 5000,
        ": no name",
        "no colon",
        " folded",
        "X : y",
    ),
    *(
        "Host: localhost",
        "Host: evil.example",
        "Range: bytes=9-1",
        "Cookie: \xff",
        "Upgrade: websocket",
        "X-Forwarded-Host: a",
    ),
)


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Return a query string."""
    pairs = draw(
        st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(TEXTS) | st.text("aé%&=+#/\0", max_size=4)))
    )
    return "&".join(f"{name}={value}" for name, value in pairs[:3]) + draw(
        st.sampled_from(["", "", "", "&" * 500, "=", "?"])
    )


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Return a request; most are valid requests of an existing page."""
    usual = draw(st.sampled_from((True,) * 4 + (False,)))
    method, version = (
        ("GET", "HTTP/1.1") if usual else (draw(st.sampled_from(METHODS)), draw(st.sampled_from(VERSIONS)))
    )
    host = "localhost" if usual else draw(st.sampled_from(HOSTS))
    address = draw(st.sampled_from(PATHS[:5] if usual else PATHS))
    if draw(st.booleans()):
        address += "?" + draw(queries())
    further = draw(st.lists(st.sampled_from(HEADERS[1:5] if usual else HEADERS), max_size=2))
    end = "\r\n" if usual else draw(st.sampled_from(["\r\n", "\r\n", "\n", "\r"]))
    text = end.join([f"{method} {address} {version}", f"Host: {host}", *further, "", ""])
    text = (
        text
        if usual
        else text + draw(st.sampled_from(["", "", "5\r\nhello\r\n0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\xff"]))
    )
    return draw(documents.damaged_bytes(text.encode("latin-1", "replace"), 0 if usual else 2))


class _Errors(logging.Handler):
    """Collects what the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


def answer(port: int, data: bytes, wait_s: float) -> int | None:
    """Send bytes and return the status of the first answer; None if the server waits for more, or closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=COMPLETE_S) as connection:
        connection.sendall(data)
        if not select.select([connection], [], [], wait_s)[0]:
            return None
        try:
            with connection.makefile("rb") as file:
                line = file.readline(1000)
        except ConnectionResetError:
            return None
    return int(line.split()[1]) if line.startswith(b"HTTP/1.") else None


def complete(data: bytes) -> bool:
    """Return whether bytes are a complete request without a body."""
    head, end, body = data.partition(b"\r\n\r\n")
    return bool(end) and not body and b"content-length" not in head.lower() and b"transfer-encoding" not in head.lower()


@contextmanager
def served(warehouse: Path) -> Iterator[int]:
    """Serve the dashboard of a warehouse as `runner dashboard` does; yield its port."""
    source = Live(LocalWarehouse(warehouse), clock=lambda: 0.0)  # answers are computed once for each choice
    application = Guard(Application(source), ListenAddress("127.0.0.1", 0))
    server = server_of(application, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield port_of(server)
    finally:
        server.trigger.pull_trigger(server.close)  # in its own thread, which may be waiting for these descriptors
        thread.join()
        server.task_dispatcher.shutdown()
        source.warehouse.close()


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    shutil.copytree(DATA / BEFORE / "warehouse", folder / "warehouse")
    errors, count = _Errors(), itertools.count(1)
    logging.getLogger().addHandler(errors)
    with served(folder / "warehouse") as port:

        def check(data: bytes) -> bool:
            status = answer(port, data, COMPLETE_S if complete(data) else INCOMPLETE_S)
            if next(count) % HEALTH_EVERY == 0:
                assert answer(port, b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n", COMPLETE_S) == 200
            assert errors.found == [], errors.found.clear()
            assert status is None or status in PROPER
            return status in REACHED

        assert answer(port, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n", FIRST_ANSWER_S) == 200
        yield check
    logging.getLogger().removeHandler(errors)


TARGET = Target(
    requests(), checking, share=15, modules=("dashboards/live/app/[!rns]*.py", "dashboards/live/questions.py")
)
