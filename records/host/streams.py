"""The standard streams of a command: a closed one is no stream, and what is written can always be shown.

A shell closes a stream with `>&-`: Python then has None in its place, and the next file that is opened, or one of a
child, would get its number, and whatever a library prints. `standard_streams` opens the null device there instead. A
stream whose reader has closed its pipe, as `| head` does, is discarded from then on: the exit code stays the command's.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from keras_matrix.records.text import printable

STANDARD = (0, 1, 2)
# What our own progress writes to a terminal: colours and the movement of its cursor.
_MOVES = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r)")


class PrintableStream:
    """A text stream that writes every text printable; the sequences that colour a terminal pass to one.

    The last line of defence: the makers of texts call `printable` themselves, also for what they escape.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of fewer characters, such as LANG=C

    def write(self, text: str) -> int:
        """Write a text; return the number of characters it had."""
        text_pieces = _MOVES.split(text) if self._stream.isatty() else [text]
        printable_text = "".join(piece if index % 2 else printable(piece) for index, piece in enumerate(text_pieces))
        try:
            self._stream.write(printable_text)
        except BrokenPipeError:
            discard(self._stream)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def standard_streams(own_process: bool) -> Iterator[None]:
    """Within, stdout and stderr are printable streams; with `own_process`, closed descriptors are the null device."""
    if own_process:
        _open_closed_descriptors()
    previous_streams = sys.stdin, sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open("r+", encoding="utf-8"))
        sys.stdin = previous_streams[0] or nothing
        sys.stdout, sys.stderr = (cast(TextIO, PrintableStream(stream or nothing)) for stream in previous_streams[1:])
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(ValueError):  # somebody has closed it
                    stream.flush()
            sys.stdin, sys.stdout, sys.stderr = previous_streams


def discard(stream: TextIO) -> None:
    """Send what is still written to a stream to the null device: its reader has closed the pipe."""
    handle = os.open(os.devnull, os.O_WRONLY)
    os.dup2(handle, stream.fileno())
    os.close(handle)


def _open_closed_descriptors() -> None:
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
