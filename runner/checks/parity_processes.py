"""Parity processes: starts several at a time, and reads the output of each.

Promise: the processes are untimed, so one runs in each process slot, pinned to one CPU and limited to one thread. What
a process prints is ignored, and its output is accepted only with the nonce of its job. Comparing the outputs is the
task of `analysis.parity`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.codec import CodecError, decode, loads
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.parity import ParityOutput
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import DATA, Scalar, Settings
from keras_matrix.runner.cell.job import ARRAYS_NAME, Job, ParityWorker
from keras_matrix.runner.executors import Executor, Running
from keras_matrix.runner.executors.probe import probe_settings
from keras_matrix.runner.measure.judge import ResultRefused, judge
from keras_matrix.runner.measure.record_builder import read_bounded, read_result

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRACE_LIMIT_BYTES = 16 << 20
# Enough for the float64 results, gradients of step 1 and updates of step 2; XLA's convolutions take minutes.
FLOAT64_STEPS = 3
# Enough for the results with nudged weights: gradients of step 1 and updates of step 2.
NUDGED_STEPS = 2


@dataclass(frozen=True, slots=True)
class ParitySubject:
    """The subject of a comparison: a workload with its parameters, and how it is trained."""

    workload: str
    params: Mapping[str, Scalar]
    batch_size: int
    steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a process of a subject."""

    backend: str
    precision: str
    threads: int = 1
    nudge: int | None = None
    corrected: bool = False
    devices: int = 1
    distribution: str = DATA

    def __str__(self) -> str:
        several = f" on {self.devices} devices" if self.devices > 1 else ""
        return f"{self.backend} {self.precision}{several}{', corrected' if self.corrected else ''}"


@dataclass(frozen=True, slots=True)
class Reply:
    """The output of a process: a trace, or a status and its reason. Its arrays are in `folder`."""

    folder: Path
    trace: ParityOutput | None = None
    status: Status = Status.OK
    reason: str = ""

    def arrays(self) -> Callable[[str, int], NDArray[Any]]:
        """Return a reader of single arrays of the process, which never loads executable content."""
        import numpy as np

        def read(kind: str, i: int) -> NDArray[Any]:
            with np.load(self.folder / ARRAYS_NAME, allow_pickle=False) as stored:
                array: NDArray[Any] = stored[f"{kind}.{i}"]
            return array

        return read


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """Runs a process at a time: an executor, and the CPU that its processes are pinned to; None for any."""

    executor: Executor
    cpu: int | None = None

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start a process, pinned to the CPU unless it has several threads."""
        with _pinned_to(self.cpu if job.settings.threads == 1 else None):
            return self.executor.start(job, timeout_s)


def process_slots(executor: Callable[[], Executor], most: int) -> list[ProcessSlot]:
    """Return a slot for each CPU that this process may use, at most `most`."""
    return [ProcessSlot(executor(), cpu) for cpu in sorted(os.sched_getaffinity(0))[:most]]


@dataclass(frozen=True, slots=True)
class ParityContext:
    """The context of all comparisons. `work` is a scratch folder; `weights` stores initial weights, None to discard.

    `machine` is the summary of the machine for the records.
    """

    process_slots: Sequence[ProcessSlot]
    backends: Sequence[str]
    precisions: Sequence[str]
    work: Path
    import_roots: Sequence[str]
    started_at: str
    machine: str | None = None
    timeout_s: float = 600.0
    weights: Path | None = None

    def run(self, subject: ParitySubject, orders: Sequence[tuple[Key, ParityWorker]]) -> list[Reply]:
        """Run these processes, one per slot at a time, and return their replies in order."""
        free = deque(self.process_slots)
        running: deque[tuple[ProcessSlot, Job, Running]] = deque()
        replies = []
        try:
            for key, worker in orders:
                if not free:
                    replies.append(_finish(running, free))
                slot, job = free.popleft(), self._job(subject, key, worker)
                running.append((slot, job, slot.start(job, self.timeout_s)))
            while running:
                replies.append(_finish(running, free))
        finally:
            for _, _, process in running:
                process.abandon()
        return replies

    def _job(self, subject: ParitySubject, key: Key, worker: ParityWorker) -> Job:
        settings = settings_of(subject, key)
        steps = int(settings.steps_per_epoch)
        folder = self.work / secrets.token_hex(8)
        folder.mkdir(parents=True)
        return Job(
            nonce=secrets.token_hex(16),
            cell_id=cell_id(settings),
            repeat=0,
            attempt=0,
            settings=settings,
            steps=steps,
            folder=str(folder.absolute()),
            import_roots=list(self.import_roots),
            dataset_dir=None,
            compile_cache_dir=None,
            parity=worker,
        )


def settings_of(subject: ParitySubject, key: Key) -> Settings:
    """Return the settings of a process: defaults except for its size, precision, threads and feed. Pure."""
    most = FLOAT64_STEPS if key.precision == "float64" else subject.steps if key.nudge is None else NUDGED_STEPS
    steps = min(subject.steps, most)
    return replace(
        probe_settings(key.backend, threads=key.threads),
        workload=subject.workload,
        params=dict(subject.params),
        batch_size=subject.batch_size,
        samples=subject.batch_size * steps,
        epochs=1,
        discard=0,
        steps_per_epoch=steps,
        seed=subject.seed,
        precision=key.precision,
        feed="host_fed",
        devices=key.devices,
        distribution=key.distribution,
    )


def _finish(running: deque[tuple[ProcessSlot, Job, Running]], free: deque[ProcessSlot]) -> Reply:
    """Wait for the oldest process, and judge it."""
    slot, job, process = running[0]
    outcome = process.finish()
    running.popleft()
    free.append(slot)
    trace, problem = _read_trace(job)
    if trace is not None and outcome.exit_code == 0 and not outcome.deadline_exceeded:
        return Reply(Path(job.folder), trace)
    result, refused = read_result(job)
    verdict = judge(job, outcome, result, problem or refused)
    status = Status.ERROR if verdict.status is Status.OK else verdict.status
    return Reply(Path(job.folder), None, status, f"{status}: {verdict.reason or problem}")


def _read_trace(job: Job) -> tuple[ParityOutput | None, str | None]:
    """Return the trace that a process wrote, or why it is refused."""
    try:
        raw = read_bounded(job.trace_path, TRACE_LIMIT_BYTES)
        if raw is None:
            return None, "no_trace: the process did not write one"
        trace = decode(ParityOutput, loads(raw), "trace")
    except (ResultRefused, CodecError) as error:
        return None, f"bad_trace: {error}"
    return (trace, None) if trace.nonce == job.nonce else (None, "bad_trace: the trace belongs to another process")


@contextlib.contextmanager
def _pinned_to(cpu: int | None) -> Iterator[None]:
    """Pin this process, and the processes that it starts within, to one CPU."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
