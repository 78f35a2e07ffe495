"""A cell's output: read as it arrives, stored as a head and a tail, shown without control characters."""

from __future__ import annotations

import os

from keras_matrix.records.text import printable

HEAD_BYTES = 8 << 10
TAIL_BYTES = 24 << 10
READ_BYTES = 1 << 20


class CappedOutput:
    """Stores the first and the last bytes of a stream of any length."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        rest = self._tail + data[room:] if room > 0 else self._tail + data
        self._dropped += max(0, len(rest) - TAIL_BYTES)
        self._tail = rest[-TAIL_BYTES:]

    def skip(self, count: int) -> None:
        """Count bytes of the stream that were left out here."""
        self._dropped += count

    def drain(self, descriptor: int) -> bool:
        """Read what is available from a non-blocking descriptor; False at its end."""
        while True:
            try:
                data = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.add(data)
            if len(data) < READ_BYTES:
                return True

    def text(self) -> str:
        """Return the stored output as text: invalid bytes replaced, the rest `printable`."""
        gap = f"\n[... {self._dropped} bytes left out ...]\n".encode() if self._dropped else b""
        return printable((self._head + gap + self._tail).decode("utf-8", errors="replace"))
