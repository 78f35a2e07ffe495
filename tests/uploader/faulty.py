"""A proxy on the loopback that forwards requests to an emulator and injects network faults."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

BODY = "application/json; charset=UTF-8"

Answer = tuple[int, list[tuple[str, str]], bytes]


class Server(ThreadingHTTPServer):
    """A server that ignores disconnected clients."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Report an error, unless the client ended the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Fault:
    """A fault of one request: another response, a reset or no response, before or after the emulator handled it."""

    status: int | None = None
    reason: str = ""
    message: str = "as if by the server"
    reset: bool = False
    after: bool = False
    half: bool = False
    silent: bool = False


@dataclass
class Proxy:
    """Injects faults: `plan` maps number, method and path of a request to a fault, or None."""

    target: str
    plan: Callable[[int, str, str], Fault | None]
    seen: list[tuple[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> str:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

            def __getattr__(self, name: str) -> Callable[[], None]:
                if not name.startswith("do_"):
                    raise AttributeError(name)
                return lambda: proxy.handle(self)

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *what: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Forward one request, or inject a fault."""
        body = self.body(request)
        number = self.count(request)
        fault = None if number is None else self.plan(number, request.command, request.path)
        if fault is not None and not fault.after:
            self._inject(request, fault)
            return
        answer = self.forward(request, body)
        if fault is not None:
            self._inject(request, fault)
            return
        self.answer(request, answer)

    def body(self, request: BaseHTTPRequestHandler) -> bytes:
        """Return the body of a request."""
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))

    def count(self, request: BaseHTTPRequestHandler) -> int | None:
        """Return the number of a request; None for the connection check, which is not counted."""
        if request.path == "/":
            return None
        with self._lock:
            self.seen.append((request.command, request.path))
            return len(self.seen) - 1

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> Answer:
        """Forward a request and return the emulator's response."""
        split = urlsplit(self.target)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        headers["Host"] = request.headers["Host"]
        # A target that ends while it answers raises here: the connection is closed even so.
        with closing(http.client.HTTPConnection(split.hostname or "", split.port, timeout=60)) as connection:
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def answer(self, request: BaseHTTPRequestHandler, answer: Answer) -> None:
        """Send a response."""
        status, headers, body = answer
        request.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                request.send_header(name, value.replace(self.target, f"http://{request.headers['Host']}"))
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _inject(self, request: BaseHTTPRequestHandler, fault: Fault) -> None:
        request.close_connection = True
        if fault.silent:
            self._ended.wait()
            return
        if fault.reset:
            # A linger of 0 makes closing a reset, as a balancer that forgets a connection does.
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.connection.close()
            return
        errors = [{"reason": fault.reason, "message": fault.message}]
        response = {"error": {"code": fault.status, "message": fault.message, "errors": errors}}
        body = json.dumps(response).encode()
        request.send_response(fault.status or 200)
        request.send_header("Content-Type", BODY)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2] if fault.half else body)
