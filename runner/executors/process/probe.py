"""Probes that run in a fresh interpreter on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, dumps
from keras_matrix.records.files import read_json
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import printable
from keras_matrix.records.trees import remove_tree, temporary_folder
from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES
from keras_matrix.runner.executors.probe import ProbeFailed
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.supervise.environment import ALLOWED, cell_environment, cuda_cache_in
from keras_matrix.runner.executors.supervise.visible_gpus import GpusUnavailable
from keras_matrix.runner.machine.tree_memory import kill_tree

TAIL_CHARACTERS = 2000


class ProcessProbe:
    """Runs probes in a fresh interpreter, with a scratch folder as its home.

    Interpreters on a GPU share the driver's cache of compiled kernels, which is removed with the probe.
    """

    def __init__(self, mark: str = "") -> None:
        self._mark = mark
        self._executor = ProcessExecutor()
        self._cuda_cache: str | None = None

    def missing(self, backend: str) -> str | None:
        """Return why this backend cannot run here, None when it can. Imports nothing."""
        return self._executor.missing(backend)

    def ask(self, module: str, order: object, settings: Settings, timeout_s: float) -> Any:
        """Return the child's answer, leaving no file or process behind."""
        with temporary_folder("runner-probe-") as folder:
            name = str(folder)
            (folder / "order.json").write_text(dumps(order), encoding="utf-8")
            log = folder / "log"
            command = [sys.executable, "-P", "-m", module, name]
            try:
                environment = _environment(settings, self._mark, name) | self._cache_of(settings)
            except GpusUnavailable as error:
                raise ProbeFailed(f"{module} on {settings.backend}: {error}") from error
            ending_text = _run(command, environment, log, timeout_s)
            if ending_text is not None:
                raise ProbeFailed(f"{module} on {settings.backend}: {ending_text}{_last_words(log)}")
            try:
                return read_json(folder / "answer.json", RESULT_LIMIT_BYTES)
            except (OSError, CodecError) as error:
                raise ProbeFailed(f"{module}: no valid answer: {error}") from error

    def _cache_of(self, settings: Settings) -> dict[str, str]:
        """Return the variables of the driver's cache, whose folder is created for the first interpreter on a GPU."""
        if settings.device != "gpu":
            return {}
        if self._cuda_cache is None:
            self._cuda_cache = tempfile.mkdtemp(prefix="runner-cuda-cache-")
            weakref.finalize(self, remove_tree, self._cuda_cache)
        return cuda_cache_in(self._cuda_cache)


def _environment(settings: Settings, mark: str, folder: str) -> dict[str, str]:
    if settings.backend == "numpy":
        environment = {name: os.environ[name] for name in ALLOWED if name in os.environ}
    else:
        environment = cell_environment(settings, mark)
    return environment | {"HOME": folder, "KERAS_HOME": folder, "TMPDIR": folder}


def _run(command: list[str], environment: dict[str, str], log: Path, timeout_s: float) -> str | None:
    """Run to the end; return how it failed, or None."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"took more than {timeout_s:g} s"
        finally:
            if child.poll() is None:
                kill_tree(child.pid)
                child.wait()
    return None if code == 0 else f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"


def _last_words(log: Path) -> str:
    lines = printable(log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:]).strip().splitlines()
    return f": {lines[-1]}" if lines else ""
