"""The host's request to a cell's process, as one JSON file in the cell's own scratch folder.

The host writes it, the cell reads it; both sides import this module, which imports no backend.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from keras_matrix.records import files
from keras_matrix.records.codec import canonical, decode, dumps, loads
from keras_matrix.records.fc.network import Rendezvous
from keras_matrix.records.host.device_lists import ANY_GPU, GpuChoice
from keras_matrix.records.instruments.parity import Operation
from keras_matrix.records.schema import SCHEMA_VERSION, CellResult
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import Task
from keras_matrix.records.traces.request import BEGUN, Trace, Traced

RESULT_LIMIT_BYTES = 1 << 20
# Files of parity workers, in the folder of their output.
WEIGHTS_NAME = "weights.npz"
ARRAYS_NAME = "arrays.npz"
REASON_CHARACTERS = 300
_IN_BOLD = re.compile(r"\x1b\[1m(.+?)(?:\n|\x1b\[0m)")
# Lines of a message that say only where it was written, and beginnings that say nothing of the model.
_NO_REASON = re.compile(r"(Check '.*|Exception from .*|FrontEnd API failed .*|Summary):")
_NO_BEGINNING = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .*? failed: ?|/\S+\.(?:cc|h):\d+ .*?\) (?=[A-Z])|^-- "
)


@dataclass(frozen=True, slots=True)
class ParityWorker:
    """What a process does for parity instead of measuring: see `runner.cell.parity`.

    `role` is weights (create them), train (compare steps), fit (the same by `fit`, on the cell's devices), predict
    (compare outputs) or forward (sketch the layers' outputs, in the cell's phase). `weights` is the file to load, None
    for the process that creates it. With `nudge`, a seed, each weight moves by one unit in its last place. The
    operations in `correct` are computed exactly, unlike by the backend: see `runner.cell.parity`.
    """

    role: str
    weights: str | None = None
    nudge: int | None = None
    correct: list[Operation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScoutedCall:
    """A call site of a program, as a scouting process saw it: its kind, `FILE:LINE`, and its place in their order.

    `number` counts all call sites in the order of their first calls, `nth` those of its kind; both from 1. `calls` is
    how often it was called, `epochs` the epochs that these calls asked for together, and `steps` those of all these
    epochs. Where Keras does not know the length of a source, `steps` counts what ran of it: then `is_exact` is False.
    `epoch_steps` are the steps of an epoch of the latest call, None if not known. `step_time_s` is the time of a step
    after the first one, and `end_time_s` the estimated time of an epoch's validation. With `is_running` the process
    was still in it.
    """

    kind: str
    place: str
    number: int
    nth: int
    calls: int = 0
    epochs: int = 0
    steps: int = 0
    is_exact: bool = True
    epoch_steps: int | None = None
    step_time_s: float | None = None
    end_time_s: float | None = None
    is_running: bool = False

    @property
    def name(self) -> str:
        """The choice that names it whichever line it is on, such as `fit:2`."""
        return f"{self.kind}:{self.nth}"


@dataclass(frozen=True, slots=True)
class Scouted:
    """What a scouting process has seen so far: the calls, and the files of the project that Python read.

    `has_ended` is whether the program ended by itself, `problem` the error with which it did.
    """

    nonce: str
    calls: list[ScoutedCall] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    has_ended: bool = False
    problem: str | None = None


class _InFolder:
    """The path of a name in a job's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, job: Job, kind: type[Job]) -> Path:
        return Path(job.folder) / self._name


@dataclass(frozen=True, slots=True)
class Job:
    """One process's work.

    `steps` is the steps per epoch; None if the process measures the time of a step, reports it, and receives the steps.
    `folder` is scratch: home, temporary files, the two pipes and the result. `import_roots` are searched for a user's
    own modules, and `host_roots` are their names in messages if a container has them elsewhere. `compile_cache_dir` is
    None for a cold start. `fault` is injected into the workload when the program tests itself
    (`models.injected_faults`). `autotune_dir` has the autotuning results of a cell's repeats, None if they do not share
    them. `cuda_cache_dir` is the driver's cache of kernels for a run's GPU cells, None on another device. `task` is the
    external command to run instead of a workload, and `outputs_dir` the folder for its output files. With `board` the
    process writes, after everything measured, files for TensorBoard, and `trace` is what to trace then. `steps_held` is
    the steps for which it prepares batches if its epochs use fewer, never more than one pass over the samples.
    With `counting` the process counts calls and programs instead of measuring time (`runner.cell.checks.counting`).
    With `scouts` the process lists the calls of its program instead of measuring one (`runner.cell.calls.Scout`).
    `rendezvous` is given to a cell whose workers are on several machines, each of which has a process of this job.
    `gpus` are the GPUs that may be made visible to it. `downloads` are the user's folders of what libraries download,
    by their place in the home of a program's process.
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
    rendezvous: Rendezvous | None = None
    gpus: GpuChoice = ANY_GPU
    scouts: bool = False
    counting: bool = False
    downloads: dict[str, str] = field(default_factory=dict)

    path = _InFolder("job.json")  # of the job itself
    result_path = _InFolder("result.json")
    resting_path = _InFolder("resting")  # the pipe on which the process reports that it rests
    orders_path = _InFolder("orders")  # the pipe on which the process receives that it may continue
    log_path = _InFolder("log")  # the file of a task's output
    report_path = _InFolder("report")  # the pipe on which a task may report metrics
    reported_path = _InFolder("reported.jsonl")  # stores what came over that pipe
    tuning_path = _InFolder("xla.textproto")  # XLA's autotuning results; the suffix selects text
    scouted_path = _InFolder("scouted.json")  # what a scouting process has seen so far
    trace_path = _InFolder("trace.json")  # a parity worker's output; its arrays are in the same folder
    traced_path = _InFolder("traced")  # the folder of the process's trace
    model_path = _InFolder("model.json")  # the model's description
    profile_dir = _InFolder("profile")  # the folder of the backend's profile
    undone_path = _InFolder("undone.txt")  # lists which of these the process could not write, one per line
    exported_path = _InFolder("exported.json")  # what the process of an exported model's runtime begins with
    artefact_dir = _InFolder("artefact")  # the folder of the exported model

    @property
    def goes_on(self) -> bool:
        """Whether the process continues once its figures are complete, to write a profile or a trace."""
        return self.board or self.trace is not None

    @property
    def tuned_path(self) -> Path:
        """The file to which the first finished repeat writes XLA's autotuning results."""
        return Path(self.autotune_dir or self.folder) / "xla.textproto"


def write_job(job: Job, seen_as: Job | None = None) -> None:
    """Write the job's file for its process, and create the pipes for interleaving.

    `seen_as` is the job with the process's own paths, if these differ.
    """
    job.path.write_text(canonical(seen_as or job), encoding="utf-8")
    for pipe in (job.resting_path, job.orders_path):
        os.mkfifo(pipe, 0o600)


def read_job(path: Path) -> Job:
    """Read a job. Raises `CodecError` for invalid content."""
    return decode(Job, loads(path.read_bytes()), "job")


@dataclass(frozen=True, slots=True)
class Resting:
    """A process's message that it rests: the CPU time it has used, and the seconds of a step if they were requested.

    It is valid only with the nonce of its job.
    """

    nonce: str
    cpu_s: float
    step_time_s: float | None = None


def result_of(job: Job) -> CellResult:
    """Return the result of this job's process, to be filled in."""
    return CellResult(SCHEMA_VERSION, job.nonce, job.cell_id, job.repeat, job.attempt)


def write_result(job: Job, result: CellResult) -> None:
    """Write the result atomically."""
    files.replace(job.result_path, dumps(result))


def publish_figures(job: Job, result: CellResult) -> None:
    """Write the complete result before the process continues, so that its figures are safe from later failures."""
    if job.goes_on:
        begun = Traced(job.trace.all_steps, problem=BEGUN) if job.trace else None
        write_result(job, replace(result, trace=begun))


def in_a_line(error: Exception) -> str:
    """Return an error as one line: its type, and the first line of its message."""
    message = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {message}"


def reason_line(error: Exception) -> str:
    """Return why a compiler, an exporter or a runtime refuses a model, as one line: its type, and the first reason.

    That is what Keras writes in bold within a traceback as text, else the first line that says something of the model.
    """
    text = str(error)
    if in_bold := _IN_BOLD.search(text):
        return f"{type(error).__name__}: {in_bold[1].strip()}"[:REASON_CHARACTERS]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if not _NO_REASON.fullmatch(line)] or lines or [""]
    is_announced = len(reasons) > 1 and reasons[1].startswith("-- ")
    reason = _NO_BEGINNING.sub("", reasons[1 if is_announced else 0])
    return f"{type(error).__name__}: {reason.rstrip('.')}"[:REASON_CHARACTERS]


def keep_tuning(job: Job) -> None:
    """Store XLA's autotuning results of this process for later repeats, unless an earlier one did."""
    if job.autotune_dir is not None and job.tuning_path.exists() and not job.tuned_path.exists():
        files.replace(job.tuned_path, job.tuning_path.read_text(encoding="utf-8"))


def make_home(job: Job) -> dict[str, str]:
    """Create the cell's own home and temporary folder; return the variables that point to them."""
    home, temporary = Path(job.folder) / "home", Path(job.folder) / "tmp"
    for folder in (home, temporary):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
    return {"HOME": str(home), "TMPDIR": str(temporary), "KERAS_HOME": str(keras_home(job))}


def keras_home(job: Job) -> Path:
    """Return the home of Keras in the cell, which may not exist."""
    return Path(job.folder) / "home" / ".keras"


def leave(code: int) -> NoReturn:
    """End the process at once, with what was printed flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # full, closed or replaced by the workload
            continue
    os._exit(code)
