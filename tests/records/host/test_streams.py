"""The standard streams of a command: closed, on a terminal of few characters, and with a reader that went away."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TextIO, cast

import pytest

from keras_matrix.records.host.streams import PrintableStream, standard_streams

ROOT = Path(__file__).parents[3]
MATRIX = "version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n"


class Terminal(io.StringIO):
    """A terminal's stream."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_what_is_written_is_printable_and_reports_the_length_it_had() -> None:
    stream = io.StringIO()
    assert PrintableStream(stream).write("a\ud800\x1b[31m\u202eb\r\n") == 11
    assert stream.getvalue() == "a\\ud800\\u202eb\n"


def test_terminal_gets_colours_and_movements_but_no_other_control() -> None:
    stream = Terminal()
    PrintableStream(stream).writelines(["\r\x1b[K\x1b[1;32m1 of 2\x1b[0m", "\x1b]0;title\x07 \ud800\x00\n"])
    assert stream.getvalue() == "\r\x1b[K\x1b[1;32m1 of 2\x1b[0m \\ud800\\u0000\n"


def test_stream_of_few_characters_gets_an_escape_sequence() -> None:
    raw = io.BytesIO()
    stream = PrintableStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("5 µs ━\n")
    stream.flush()
    assert raw.getvalue() == b"5 \\xb5s \\u2501\n"


def test_reader_that_went_away_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with standard_streams(own_process=False):
            print("one line")
            print("another one", flush=True)


def test_closed_streams_are_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with standard_streams(own_process=False):
        print("nobody reads this", file=sys.stderr)
        assert (sys.stdout.isatty(), sys.stdin.read(), sys.stderr.encoding) == (False, "", "utf-8")
    assert cast(TextIO | None, sys.stdout) is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("runner --matrix matrix.yaml", ">&-"),
        ("runner --matrix matrix.yaml", "2>&-"),
        ("runner --matrix matrix.yaml", "<&-"),
        ("runner --matrix matrix.yaml", ">&- 2>&- <&-"),
        ("runner plan", ">&- 2>&-"),
        ("uploader push", ">&- 2>&- <&-"),
    ],
)
def test_commands_with_closed_streams_end_as_with_open_ones(tmp_path: Path, command: str, closed: str) -> None:
    assert ended(command, closed, tmp_path) == ended_with_open_streams(command)


@cache
def ended_with_open_streams(command: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return ended(command, "", Path(folder))


def ended(command: str, closed: str, folder: Path) -> int:
    """Run a command in a folder and return its exit code."""
    (folder / "matrix.yaml").write_text(MATRIX)
    module, _, arguments = command.partition(" ")
    fake = "from tests.fakes.executor import FakeExecutor; from keras_matrix.runner.measure.seams import Seams; "
    seams = "seams=Seams(executor=FakeExecutor())" if module == "runner" else ""
    program = (
        f"{fake}import sys; import keras_matrix.{module}.cli.main as m; "
        f"sys.argv[1:] = {arguments.split()!r}; sys.exit(m.main({seams}))"
    )
    done = subprocess.run(
        ["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode
