"""Cells of a first hour: measured by `runner` itself, as its users do, and read from the records it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.store import Results, Run, latest_attempts

LIMIT_S = 900.0
EXIT_CODES = (0, 1)  # all cells ok, or some not: either way there are records
WORKLOADS = "keras_matrix.runner.cell.checks.workloads"


class NotMeasured(Exception):
    """A cell gave no figure. The message says how it ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and the end of what it printed."""

    code: int
    lines: Sequence[str]

    @property
    def last_line(self) -> str:
        """The last line it printed."""
        return self.lines[-1] if self.lines else "it printed nothing"


@dataclass(frozen=True, slots=True)
class Measured:
    """A run and its records, those that count."""

    run: Run
    records: Sequence[Record]

    def only(self) -> Record:
        """Return the record of a run of one process. Raises `NotMeasured` unless it has figures."""
        (record,) = self.records
        if record.status not in MEASURED:
            raise NotMeasured(f"{record.settings.workload}: {record.status}: {record.reason}")
        return record


@dataclass(frozen=True, slots=True)
class Place:
    """Where cells are measured: a backend, a device, a folder for results."""

    backend: str
    device: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def measure(self, cell: Mapping[str, Any], *options: str, **changes: str) -> Measured:
        """Measure the cells of one entry of a matrix, on one process each; `changes` are environment variables.

        Raises `NotMeasured` where the command left no record.
        """
        results = self.folder / "results"
        path = self.folder / "matrix.yaml"
        path.write_text(json.dumps(self._matrix(cell)), encoding="utf-8")
        command = ("run", "--matrix", str(path), "--results", str(results), "--new", *options)
        ended = self.command(*command, **changes)
        newest = Results(results).latest()
        if ended.code not in EXIT_CODES or newest is None:
            raise NotMeasured(f"the command ended with {ended.code}: {ended.last_line}")
        return Measured(newest, latest_attempts(newest.load()[0]))

    def command(self, *arguments: str, **changes: str) -> Ended:
        """Run a command of `runner` to its end."""
        command = [sys.executable, "-P", "-m", "keras_matrix.runner.cli.main", *arguments]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.environment, **changes},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child:
            try:
                printed, _ = child.communicate(timeout=LIMIT_S)
            except BaseException:
                child.terminate()  # it ends its own processes
                child.wait()
                raise
        return Ended(child.returncode, [line for line in printed.splitlines() if line.strip()])

    def _matrix(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"device": self.device, "repeats": 1, "epochs": 4}
        return {"version": 1, "defaults": defaults, "backends": [self.backend], "cells": [dict(cell)]}
