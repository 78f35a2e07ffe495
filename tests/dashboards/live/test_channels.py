"""Unfinished requests to the live dashboard keep out nobody else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from keras_matrix.dashboards.live.app import channels
from keras_matrix.dashboards.live.app.serve import port_of

pytestmark = pytest.mark.process
LOOPBACK = "127.0.0.1"
UNFINISHED = 600  # more than the server accepts at all
PATIENCE_S = 60


@pytest.fixture
def port() -> Iterator[int]:
    """A server that answers each request with `ok`."""

    def application(environ: object, start_response: object) -> list[bytes]:
        assert callable(start_response)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    server = channels.server_of(application, LOOPBACK, 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield port_of(server)
    server.task_dispatcher.shutdown()
    server.asyncore.close_all(server._map)
    thread.join(PATIENCE_S)


def answer(port: int, source: str = LOOPBACK) -> bytes:
    connection = HTTPConnection(LOOPBACK, port, PATIENCE_S, source_address=(source, 0))
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def unfinished(port: int) -> socket.socket:
    made = socket.create_connection((LOOPBACK, port), PATIENCE_S)
    made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    return made


@pytest.mark.parametrize("source", [LOOPBACK, "127.0.0.2"])
def test_visitor_is_served_during_unfinished_requests(port: int, source: str) -> None:
    """Mutation: `LimitedChannel` closes no other connection of its address."""
    assert answer(port, source) == b"ok"
    with ExitStack() as stack:
        for _ in range(UNFINISHED):
            stack.enter_context(unfinished(port))
        begun_s = time.monotonic()
        assert answer(port, source) == b"ok"
        assert time.monotonic() - begun_s < channels.REQUEST_S  # before any deadline


def closed(made: socket.socket) -> bool:
    """Wait until the server closes a connection, sending a byte of a header whenever it does not."""
    made.settimeout(0.2)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            made.sendall(b"a")
            if made.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_request_that_is_never_complete_ends(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `received` never looks at the time. Each byte is an activity, so that no other timeout ends it."""
    monkeypatch.setattr(channels, "REQUEST_S", 0.5)
    with unfinished(port) as made:
        assert closed(made)
