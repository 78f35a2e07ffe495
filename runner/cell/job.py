"""What the host asks of a cell's process, as one JSON file in the cell's own scratch folder.

The host writes it, the cell reads it; both sides import this module, which imports no backend.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from records.codec import canonical, decode, dumps, loads
from records.schema import CellResult
from records.settings import Settings

RESULT_LIMIT_BYTES = 1 << 20
# What parity twins leave beside their traces.
WEIGHTS_NAME = "weights.npz"
ARRAYS_NAME = "arrays.npz"


@dataclass(frozen=True, slots=True)
class Twin:
    """What a process does in place of measuring, for parity: see `runner.cell.twin`.

    `role` is weights (make them), train (compare steps) or forward (sketch the layers' outputs). `weights` is the file
    to load, None for the process that makes it.
    """

    role: str
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One process's work.

    `steps` is the steps per epoch to use; None when the process is to find out how long a step takes, tell it, and wait
    to be told. `folder` is scratch: home, temporary files and the
    result. `import_roots` are appended to `sys.path` for a user's own workload. `compile_cache_dir` is None for a cold
    start.
    """

    nonce: str
    cell_id: str
    repeat: int
    attempt: int
    settings: Settings
    steps: int | None
    folder: str
    import_roots: list[str]
    dataset_dir: str | None
    compile_cache_dir: str | None
    twin: Twin | None = None

    @property
    def path(self) -> Path:
        """Where the job itself lies."""
        return Path(self.folder) / "job.json"

    @property
    def calibration_path(self) -> Path:
        """Where the process tells how long a step takes."""
        return Path(self.folder) / "calibration.json"

    @property
    def steps_path(self) -> Path:
        """The pipe on which the process is told its steps per epoch."""
        return Path(self.folder) / "steps"

    @property
    def trace_path(self) -> Path:
        """Where a parity twin's trace is expected; its arrays lie beside it."""
        return Path(self.folder) / "trace.json"

    @property
    def result_path(self) -> Path:
        """Where the result is expected."""
        return Path(self.folder) / "result.json"


def write_job(job: Job) -> None:
    """Write the job where its process will look, with the pipe for its steps where it is to ask."""
    job.path.write_text(canonical(job), encoding="utf-8")
    if job.steps is None:
        os.mkfifo(job.steps_path, 0o600)


def read_job(path: Path) -> Job:
    """Read a job. Raises `CodecError` when it is not one."""
    return decode(Job, loads(path.read_bytes()), "job")


@dataclass(frozen=True, slots=True)
class Calibration:
    """How long a step takes, in seconds, as the process with this nonce found it."""

    nonce: str
    step_time_s: float


def agree_on_steps(job: Job, step_time_s: float) -> int:
    """Inside the cell: tell the step time, and wait until the host says how many steps an epoch has."""
    publish_text(job.calibration_path, dumps(Calibration(job.nonce, step_time_s)))
    return int(job.steps_path.read_text(encoding="ascii"))


def write_result(job: Job, result: CellResult) -> None:
    """Write the result whole or not at all."""
    publish_text(job.result_path, dumps(result))


def publish_text(path: Path, text: str) -> None:
    """Put a text at `path`, whole or not at all."""
    aside = path.with_suffix(".tmp")
    with aside.open("w", encoding="utf-8", errors="backslashreplace") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(path)


def make_home(job: Job) -> dict[str, str]:
    """Make the cell's own home and temporary folder; return the variables that point there."""
    home, temporary = Path(job.folder) / "home", Path(job.folder) / "tmp"
    for folder in (home, temporary):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
    return {"HOME": str(home), "TMPDIR": str(temporary), "KERAS_HOME": str(home / ".keras")}
