"""What the host asks of a cell's process, as one JSON file in the cell's own scratch folder.

The host writes it, the cell reads it; both sides import this module, which imports no backend.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from records.codec import canonical, decode, dumps, loads
from records.schema import CellResult
from records.settings import Settings

RESULT_LIMIT_BYTES = 1 << 20


class Purpose(StrEnum):
    """Why the process runs."""

    MEASURE = "measure"
    CALIBRATE = "calibrate"


@dataclass(frozen=True, slots=True)
class Job:
    """One process's work.

    `steps` is the steps per epoch to use; None when calibrating. `folder` is scratch: home, temporary files and the
    result. `import_roots` are appended to `sys.path` for a user's own workload. `compile_cache_dir` is None for a cold
    start.
    """

    purpose: Purpose
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

    @property
    def path(self) -> Path:
        """Where the job itself lies."""
        return Path(self.folder) / "job.json"

    @property
    def result_path(self) -> Path:
        """Where the result is expected."""
        return Path(self.folder) / "result.json"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a fork server knows of itself and its children should report."""

    import_time_s: float
    mapped_file_bytes: int


def write_job(job: Job) -> None:
    """Write the job where its process will look."""
    job.path.write_text(canonical(job), encoding="utf-8")


def read_job(path: Path) -> Job:
    """Read a job. Raises `CodecError` when it is not one."""
    return decode(Job, loads(path.read_bytes()), "job")


def write_result(job: Job, result: CellResult) -> None:
    """Write the result whole or not at all."""
    aside = job.result_path.with_suffix(".tmp")
    with aside.open("w", encoding="utf-8") as handle:
        handle.write(dumps(result))
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(job.result_path)


def make_home(job: Job) -> dict[str, str]:
    """Make the cell's own home and temporary folder; return the variables that point there."""
    home, temporary = Path(job.folder) / "home", Path(job.folder) / "tmp"
    for folder in (home, temporary):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
    return {"HOME": str(home), "TMPDIR": str(temporary), "KERAS_HOME": str(home / ".keras")}
