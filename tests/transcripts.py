"""What commands print, as one text: each command, its output, its errors and its exit code. For the golden files.

A line of the errors begins with `! `, so that a refusal which goes to the output is another text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import pytest

from keras_matrix.runner.cli.main import main


def transcript(capsys: pytest.CaptureFixture[str], commands: Iterable[str]) -> str:
    """Call `runner` with each command line, and return what it prints."""
    capsys.readouterr()
    return "\n".join(_shown(capsys, command) for command in commands)


def _shown(capsys: pytest.CaptureFixture[str], command: str) -> str:
    code = main(shlex.split(command))
    printed = capsys.readouterr()
    errors = "".join(f"! {line}" for line in printed.err.splitlines(keepends=True))
    return f"$ runner {command}\n{printed.out}{errors}exit code {code}\n"
