"""What commands print, as one text: each command, its output, its errors and its exit code. For the golden files.

    # what has changed before the next command
    $ runner history --last 0
    ! runner: --last: must be at least 1, got 0
    exit code 2

A line of the errors begins with `! `, so that a refusal which goes to the output is another text. Commands run in this
process and in an empty folder. What would differ from one call to the next is fixed or replaced here, nowhere else.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_matrix.records.schema import Machine
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.machine import machine
from keras_matrix.runner.measure import scheduler
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan import session
from keras_matrix.uploader import errors
from keras_matrix.uploader.cli import main as uploader

# The runs of these commands begin after those of tests/sessions.py.
BEGINS = datetime(2026, 6, 1, 12, tzinfo=UTC)
MACHINE = Machine(host_id="0" * 16, cpu_model="a CPU", logical_cpus=2, memory_bytes=8 << 30, kernel="6.1", os="Linux")
# Of a message of argparse the usage is left out: it changes with every flag, and is in docs.
USAGE = re.compile(r"(?ms)^usage: .*?(?=^(?:runner|uploader))")
PROGRESS = re.compile(r"^ +(\d+(/\d+)? .*#\d+: |calibrating )")
REPLACED = (
    (re.compile(r"\(\d[\w ]* left\)"), "(... left)"),  # by the time that the test took
    (re.compile(r"(?m)^(.* in five processes each) \(about [\w ]+\):$"), r"\1 (about ...):"),  # likewise
    (re.compile(r"(of [\d,]+ candidates) in [\w ]+$", re.MULTILINE), r"\1 in ..."),  # likewise
    (re.compile(rf"\b{re.escape(platform.python_version())}\b"), "3.x"),
    (re.compile(re.escape(sys.executable)), "PYTHON"),
    (re.compile(r"(?m)(are not on this machine, which has) [\d,-]+$"), r"\1 ..."),
    (re.compile(r"[\d.]+ GiB are free"), "... are free"),
    (re.compile(r'"picture_svg": ".*"'), '"picture_svg": "..."'),  # tests of charts have it
    (re.compile(r"\b[0-9a-f]{64}\b"), "SHA256"),  # of content that has versions
    (re.compile(r"\b(outbox/local-[\w-]+)-[0-9a-f]{8}\b"), r"\1-12345678"),  # by the path of the test's folder
    (re.compile(rf"\bprocess {os.getpid()} on {re.escape(platform.node())}\b"), "process 1234 on HOST"),
)


class Transcript:
    """Commands and what they print, one after the other, in the current folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._parts, self._note = capsys, list[str](), ""

    def note(self, text: str) -> None:
        """Begin the next command with a comment: what is different for it."""
        self._note += f"# {text}\n"

    def run(self, *commands: str, seams: Seams | None = None, brief: bool = False) -> None:
        """Call `runner` with each command line; of the progress, `brief` keeps the first line."""
        for command in commands:
            self._add("runner", command, lambda words: main(words, seams), brief=brief)

    def upload(self, *commands: str) -> None:
        """Call `uploader` with each command line."""
        for command in commands:
            self._add("uploader", command, uploader.main)

    @property
    def text(self) -> str:
        """The text for a golden file."""
        return "\n".join(self._parts)

    def _add(self, program: str, command: str, call: Callable[[list[str]], int], *, brief: bool = False) -> None:
        self._capsys.readouterr()
        code = _called(call, shlex.split(command))
        printed = self._capsys.readouterr()
        problems = USAGE.sub("usage: ...\n", printed.err).splitlines(keepends=True)
        out = _brief(printed.out) if brief else printed.out
        text = _fixed(out + "".join(f"! {line}" for line in problems))
        self._parts.append(f"{self._note}{f'$ {program} {command}'.rstrip()}\n{text}exit code {code}\n")
        self._note = ""


def begin(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Transcript:
    """Return a transcript in a folder. Ids of runs, orders and labels of time follow from the commands alone."""
    monkeypatch.chdir(folder)
    seconds, numbers = itertools.count(), itertools.count(1)
    clock = SimpleNamespace(now=lambda zone: BEGINS + timedelta(seconds=next(seconds)))
    monkeypatch.setattr(scheduler, "datetime", clock)
    monkeypatch.setattr(session, "os", SimpleNamespace(urandom=partial(_numbered, numbers)))
    monkeypatch.setattr(machine, "detect", lambda: MACHINE)
    monkeypatch.setattr(errors, "in_container", lambda: False)
    return Transcript(capsys)


def _numbered(numbers: Iterator[int], size: int) -> bytes:
    return next(numbers).to_bytes(size)


def _called(call: Callable[[list[str]], int], words: list[str]) -> int | str | None:
    try:
        return call(words)
    except SystemExit as ended:  # of argparse, or of a program that replaces this one
        return ended.code


def _brief(text: str) -> str:
    """Return a text with the first line of each part of the progress."""
    groups = itertools.groupby(text.splitlines(keepends=True), key=lambda line: bool(PROGRESS.match(line)))
    lines = [(is_progress, list(group)) for is_progress, group in groups]
    return "".join(
        line
        for is_progress, group in lines
        for line in (group if not is_progress or len(group) < 2 else [group[0], "   ...\n"])
    )


def _fixed(text: str) -> str:
    text = text.replace(str(Path.cwd()), "/FOLDER")
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    return text
