"""Cells as processes of this machine: `--executor process`, the default."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_matrix.records.store import Run
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_versions
from keras_matrix.runner.executors.registry import Executors
from keras_matrix.runner.machine.tree_memory import end_leftovers
from keras_matrix.runner.matrix.reader import Cell


class InProcesses(Executors):
    """Cells are processes of this machine, started by `fork` or `fresh`; `starter` is the class that starts them."""

    starter: type[ProcessExecutor] = ProcessExecutor

    def software(self, cells: Sequence[Cell]) -> Mapping[str, str]:
        """Return the versions that are installed here."""
        return installed_versions()

    def end_leftovers(self, results: Path) -> None:
        """End the processes that a killed runner left."""
        end_leftovers(str(results.resolve()))

    def executor(self, run: Run, python: str | None) -> Executor:
        """Return the executor that starts processes, under `python` if it is given."""
        interpreter = Interpreter(python, foreign=python != sys.executable) if python else None
        mark, scratch = str(run.folder.parent.resolve()), run.work_folder.resolve()
        return self.starter(start=self.request.start, mark=mark, interpreter=interpreter, scratch=scratch)


make = InProcesses
