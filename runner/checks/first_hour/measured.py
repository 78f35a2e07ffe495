"""Measures the cells of a first hour with the command `runner`, as users do, and reads their records."""

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
EXIT_CODES = (0, 1)  # all cells ok, or some failed: both write records
WORKLOADS = "keras_matrix.runner.cell.checks.workloads"


class NotMeasured(Exception):
    """A cell has no figures. The message says how it ended."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code of a command and its output."""

    code: int
    lines: Sequence[str]

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        return self.lines[-1] if self.lines else "no output"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run and the latest record of each repeat."""

    run: Run
    records: Sequence[Record]

    def only(self) -> Record:
        """Return the record of a run with one process. Raises `NotMeasured` unless it has figures."""
        (record,) = self.records
        if record.status not in MEASURED:
            raise NotMeasured(f"{record.settings.workload}: {record.status}: {record.reason}")
        return record


@dataclass(frozen=True, slots=True)
class HourTarget:
    """The backend, the device and the results folder for the measurements."""

    backend: str
    device: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def measure(self, cell: Mapping[str, Any], *options: str, **changes: str) -> MeasuredRun:
        """Measure cells, one process each; `changes` are of the environment. Raises `NotMeasured` without a record."""
        results = self.folder / "results"
        path = self.folder / "matrix.yaml"
        path.write_text(json.dumps(self._matrix(cell)), encoding="utf-8")
        command = ("run", "--matrix", str(path), "--results", str(results), "--new", *options)
        ended = self.command(*command, **changes)
        newest = Results(results).latest()
        if ended.code not in EXIT_CODES or newest is None:
            raise NotMeasured(f"the command exited with {ended.code}: {ended.last_line}")
        return MeasuredRun(newest, latest_attempts(newest.load()[0]))

    def command(self, *arguments: str, **changes: str) -> CommandResult:
        """Run a command of `runner` and return how it ended."""
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
        return CommandResult(child.returncode, [line for line in printed.splitlines() if line.strip()])

    def _matrix(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"device": self.device, "repeats": 1, "epochs": 4}
        return {"version": 1, "defaults": defaults, "backends": [self.backend], "cells": [dict(cell)]}
