"""What commands print, as one text: each command, its output, its errors and its exit code. For the golden files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import pytest

from keras_matrix.runner.cli.main import main


def transcript(capsys: pytest.CaptureFixture[str], commands: Iterable[str]) -> str:
    """Call `runner` with each command line, and return what a terminal would show."""
    capsys.readouterr()
    return "\n".join(_shown(capsys, command) for command in commands)


def _shown(capsys: pytest.CaptureFixture[str], command: str) -> str:
    code = main(shlex.split(command))
    printed = capsys.readouterr()
    return f"$ runner {command}\n{printed.out}{printed.err}exit code {code}\n"
