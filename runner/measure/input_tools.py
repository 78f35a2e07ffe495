"""Child processes that probe or convert a data set: the host side imports neither decoders nor their packages.

`InputTools` is the interface that tests replace; `ChildProcesses` starts the modules of `models.inputs`, which end
with this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from keras_matrix.records.codec import CodecError, decode, loads, to_json
from keras_matrix.records.instruments.input_use import InputProbe
from keras_matrix.records.settings import Settings
from keras_matrix.runner.machine.mounts import DataFolders

PROBE = "keras_matrix.models.inputs.probe"
CONVERT = "keras_matrix.models.inputs.stored.convert"
PROBE_TIMEOUT_S = 120.0
RECORD_FILE_BYTES = 50 << 20


class InputTools(Protocol):
    """Probes and converts data sets."""

    def probe(self, settings: Settings, folders: DataFolders) -> InputProbe:
        """Return the probe of a cell's data set; `problem` says why it has no figures."""

    def convert(self, source: Path, target: Path, to: str) -> str | None:
        """Convert a data set into record files; return what is wrong, or None. What is already there is kept."""


class ChildProcesses:
    """The tools, as child processes under this Python."""

    def probe(self, settings: Settings, folders: DataFolders) -> InputProbe:
        """Run the probe, at most two minutes."""
        request: dict[str, object] = {
            "params": to_json(settings.params),
            "batch_size": settings.batch_size,
            "dataset_dir": folders.dataset_dir,
            "folders": list(folders.import_roots),
        }
        try:
            completed = _run(PROBE, request, PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return InputProbe(0, problem=f"the probe took longer than {PROBE_TIMEOUT_S:.0f} s")
        if completed.returncode:
            return InputProbe(0, problem=_last_line(completed.stderr))
        try:
            return decode(InputProbe, loads(completed.stdout), "probe")
        except CodecError as error:
            return InputProbe(0, problem=f"the probe's result cannot be read: {error}")

    def convert(self, source: Path, target: Path, to: str) -> str | None:
        """Run the conversion of `runner convert`."""
        request: dict[str, object] = {
            "dataset_path": str(source),
            "output_path": str(target),
            "size_per_record_bytes": RECORD_FILE_BYTES,
            "to": to,
            "seed": 0,
            "workers": None,
        }
        completed = _run(CONVERT, request, None)
        return _last_line(completed.stderr) if completed.returncode else None


def _run(module: str, request: dict[str, object], timeout_s: float | None) -> subprocess.CompletedProcess[str]:
    # On small arrays threads of the numerical library would only compete for the CPUs.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", module, json.dumps({**request, "parent": os.getpid()})]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("runner: ") if lines else "it ended without a message"
