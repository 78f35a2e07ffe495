"""What commands print, as one text: each command, its output, its errors and its exit code. For the golden files.

    # what has changed before the next command
    $ uploader status
    ! uploader: --results: must be a folder, got results; measure with: runner --matrix matrix.yaml
    exit code 2

A line of the errors begins with `! `, so that a refusal which goes to the output is another text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import main
from keras_matrix.uploader.cli import main as uploader

# What differs without another text: the hash of content with versions.
SHA256 = re.compile(r"\b[0-9a-f]{64}\b")


class Transcript:
    """Commands and what they print, one after the other, in the current folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._parts, self._note = capsys, list[str](), ""

    def note(self, text: str) -> None:
        """Begin the next command with a comment: what is different for it."""
        self._note += f"# {text}\n"

    def run(self, *commands: str) -> None:
        """Call `runner` with each command line."""
        for command in commands:
            self._add("runner", command, main)

    def upload(self, *commands: str) -> None:
        """Call `uploader` with each command line."""
        for command in commands:
            self._add("uploader", command, uploader.main)

    @property
    def text(self) -> str:
        """The text for a golden file."""
        return "\n".join(self._parts)

    def _add(self, program: str, command: str, call: Callable[[Sequence[str]], int]) -> None:
        self._capsys.readouterr()
        code = _called(call, shlex.split(command))
        printed = self._capsys.readouterr()
        errors = "".join(f"! {line}" for line in printed.err.splitlines(keepends=True))
        text = SHA256.sub("SHA256", (printed.out + errors).replace(str(Path.cwd()), "/FOLDER"))
        self._parts.append(f"{self._note}$ {program} {command}\n{text}exit code {code}\n")
        self._note = ""


def transcript(capsys: pytest.CaptureFixture[str], commands: Iterable[str]) -> str:
    """Call `runner` with each command line, and return what it prints."""
    shown = Transcript(capsys)
    shown.run(*commands)
    return shown.text


def _called(call: Callable[[Sequence[str]], int], words: Sequence[str]) -> int | str | None:
    try:
        return call(words)
    except SystemExit as ended:  # of argparse
        return ended.code
