"""What the host asks of a cell's process, as one JSON file in the cell's own scratch folder.

The host writes it, the cell reads it; both sides import this module, which imports no backend.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.codec import canonical, decode, dumps, loads
from keras_matrix.records.instruments.parity import Operation
from keras_matrix.records.schema import CellResult
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import Task
from keras_matrix.records.traces.request import BEGUN, Trace, Traced

RESULT_LIMIT_BYTES = 1 << 20
# What parity twins leave beside their traces.
WEIGHTS_NAME = "weights.npz"
ARRAYS_NAME = "arrays.npz"


@dataclass(frozen=True, slots=True)
class ParityWorker:
    """What a process does in place of measuring, for parity: see `runner.cell.parity.worker`.

    `role` is weights (make them), train (compare steps) or forward (sketch the layers' outputs). `weights` is the file
    to load, None for the process that makes it. With `nudge`, a seed, each weight moves by one unit in its last place.
    The operations in `correct` are computed exactly where the backend does not: see `runner.cell.parity.causes`.
    """

    role: str
    weights: str | None = None
    nudge: int | None = None
    correct: list[Operation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Job:
    """One process's work.

    `steps` is the steps per epoch to use; None when the process is to find out how long a step takes, tell it, and be
    told. `folder` is scratch: home, temporary files, the two pipes and the result. `import_roots` are searched for
    a user's own modules, and `host_roots` are their names in messages where a container has them elsewhere.
    `compile_cache_dir` is None for a cold start. `fault` is planted in the workload where the program tests itself
    (`models.injected_faults`). `autotune_dir` is where the repeats of a cell keep what was tuned, None where each
    tunes for itself. `cuda_cache_dir` is where the GPU cells of a run keep the kernels that the driver compiled,
    None on another device. `task` is the external command to run in place of a workload, and `outputs_dir` where
    what it leaves is kept. With `board` the process leaves, after everything measured, what TensorBoard is to show
    of it, and `trace` is what to trace then. `steps_held` is for how many steps it holds batches where its epochs
    use fewer, never more than one pass over the samples.
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
    fault: str | None = None
    parity: ParityWorker | None = None
    autotune_dir: str | None = None
    task: Task | None = None
    outputs_dir: str | None = None
    trace: Trace | None = None
    board: bool = False
    cuda_cache_dir: str | None = None
    steps_held: int = 0
    host_roots: list[str] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether the process does more once its figures are complete: leave a profile, or trace."""
        return self.board or self.trace is not None

    @property
    def path(self) -> Path:
        """Where the job itself lies."""
        return Path(self.folder) / "job.json"

    @property
    def resting_path(self) -> Path:
        """The pipe on which the process says that it rests."""
        return Path(self.folder) / "resting"

    @property
    def orders_path(self) -> Path:
        """The pipe on which the process is told to go on."""
        return Path(self.folder) / "orders"

    @property
    def log_path(self) -> Path:
        """Where a task's output goes."""
        return Path(self.folder) / "log"

    @property
    def report_path(self) -> Path:
        """The pipe on which a task may report metrics."""
        return Path(self.folder) / "report"

    @property
    def reported_path(self) -> Path:
        """Where what came over that pipe is kept until it is read."""
        return Path(self.folder) / "reported.jsonl"

    @property
    def tuning_path(self) -> Path:
        """Where XLA writes what it tunes, text by its ending."""
        return Path(self.folder) / "xla.textproto"

    @property
    def tuned_path(self) -> Path:
        """Where the first repeat that has done its work leaves what XLA tuned."""
        return Path(self.autotune_dir or self.folder) / "xla.textproto"

    @property
    def trace_path(self) -> Path:
        """Where a parity twin's trace is expected; its arrays lie beside it."""
        return Path(self.folder) / "trace.json"

    @property
    def traced_path(self) -> Path:
        """Where the process leaves its trace: a folder."""
        return Path(self.folder) / "traced"

    @property
    def model_path(self) -> Path:
        """Where the process leaves the description of its model."""
        return Path(self.folder) / "model.json"

    @property
    def profile_dir(self) -> Path:
        """Where the process leaves what its backend's profiler wrote."""
        return Path(self.folder) / "profile"

    @property
    def undone_path(self) -> Path:
        """Where the process says what of these it could not leave, a line each."""
        return Path(self.folder) / "undone.txt"

    @property
    def result_path(self) -> Path:
        """Where the result is expected."""
        return Path(self.folder) / "result.json"


def write_job(job: Job, seen_as: Job | None = None) -> None:
    """Write the job where its process will look, with the pipes on which it takes turns.

    `seen_as` is the job with the paths under which its process finds everything, where these are other ones.
    """
    job.path.write_text(canonical(seen_as or job), encoding="utf-8")
    for pipe in (job.resting_path, job.orders_path):
        os.mkfifo(pipe, 0o600)


def read_job(path: Path) -> Job:
    """Read a job. Raises `CodecError` when it is not one."""
    return decode(Job, loads(path.read_bytes()), "job")


@dataclass(frozen=True, slots=True)
class Resting:
    """A process's word that it rests: the CPU time it has used, and the seconds of a step where it was asked for them.

    It counts only with the nonce of its job.
    """

    nonce: str
    cpu_s: float
    step_time_s: float | None = None


def write_result(job: Job, result: CellResult) -> None:
    """Write the result whole or not at all."""
    files.replace(job.result_path, dumps(result))


def publish_figures(job: Job, result: CellResult) -> None:
    """Write a result that is complete before the process goes on: its figures stay whatever becomes of the rest."""
    if job.goes_on:
        begun = Traced(job.trace.all_steps, problem=BEGUN) if job.trace else None
        write_result(job, replace(result, trace=begun))


def in_a_line(error: Exception) -> str:
    """Return what a job's result tells of an error: its kind, and the first line of what it says."""
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}"


def keep_tuning(job: Job) -> None:
    """Leave what XLA tuned in this process for the repeats to come, whole, if none did before."""
    if job.autotune_dir is not None and job.tuning_path.exists() and not job.tuned_path.exists():
        files.replace(job.tuned_path, job.tuning_path.read_text(encoding="utf-8"))


def make_home(job: Job) -> dict[str, str]:
    """Make the cell's own home and temporary folder; return the variables that point there."""
    home, temporary = Path(job.folder) / "home", Path(job.folder) / "tmp"
    for folder in (home, temporary):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
    return {"HOME": str(home), "TMPDIR": str(temporary), "KERAS_HOME": str(home / ".keras")}


def search_path(roots: Sequence[str], path: Sequence[str]) -> list[str]:
    """Return where modules are looked for: the standard library, the user's folders, installed packages.

    A user's `data` comes before an installed one; a user's `random` does not replace the standard one.
    """
    installed = [place for place, folder in enumerate(path) if folder.endswith(("site-packages", "dist-packages"))]
    place = min(installed, default=len(path))
    return [*path[:place], *roots, *path[place:]]
