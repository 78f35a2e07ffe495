"""A proxy in front of the service that kills its client before or after a request."""

from __future__ import annotations

import subprocess
import threading
from http.server import BaseHTTPRequestHandler

from tests.uploader.faulty import Proxy


class KillingProxy(Proxy):
    """Forwards the requests of one process.

    Boundary 2 * N is before the service gets request number N, and 2 * N + 1 is before the client gets its answer.
    """

    def __init__(self, target: str, boundary: int | None = None) -> None:
        """Kill at `boundary`, or never."""
        super().__init__(target, lambda number, method, path: None)
        self._boundary = boundary
        self.process: subprocess.Popen[str] | None = None
        self.began = threading.Event()

    @property
    def boundaries(self) -> int:
        """The number of boundaries."""
        return 2 * len(self.seen)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Forward one request and its response, unless the client is killed before or in between."""
        body = self.body(request)
        number = self.count(request)
        self.began.set()
        if self._killed(request, number, after=False):
            return
        answer = self.forward(request, body)
        if not self._killed(request, number, after=True):
            self.answer(request, answer)

    def _killed(self, request: BaseHTTPRequestHandler, number: int | None, *, after: bool) -> bool:
        if number is None or self._boundary != 2 * number + after or self.process is None:
            return False
        self.process.kill()
        request.close_connection = True
        return True
