"""Parity twins as processes: what each is asked, several at a time, and what it gave back.

Promise: twins are untimed, so that as many run at once as there are lanes, each lane held to one CPU and its twins to
one thread; what a twin prints counts for nothing, and its trace only with its host's nonce. It compares nothing: that
is `analysis.parity.deviations`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.codec import CodecError, decode, loads
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.parity import ParityOutput
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.runner.cell.job import ARRAYS_NAME, Job, Twin
from keras_matrix.runner.executors import Executor, Running
from keras_matrix.runner.measure.judge import ResultRefused, judge
from keras_matrix.runner.measure.record_builder import read_bounded, read_result

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRACE_LIMIT_BYTES = 16 << 20
# What float64 is asked, gradients of step 1 and updates of step 2, needs no more, and XLA's convolutions take minutes.
FLOAT64_STEPS = 3
# A nudged twin is asked the gradients of step 1 and the updates of step 2.
NUDGED_STEPS = 2


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compared: a workload with its parameters, and how it is trained."""

    workload: str
    params: Mapping[str, Scalar]
    batch_size: int
    steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Key:
    """Which twin of a subject."""

    backend: str
    precision: str
    threads: int = 1
    nudge: int | None = None
    corrected: bool = False

    def __str__(self) -> str:
        return f"{self.backend} {self.precision}{', corrected' if self.corrected else ''}"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a twin gave: a trace, or a status and its reason. Its arrays lie in `folder`."""

    folder: Path
    trace: ParityOutput | None = None
    status: Status = Status.OK
    reason: str = ""

    def arrays(self) -> Callable[[str, int], NDArray[Any]]:
        """Return a reader of the twin's arrays, one at a time; nothing that executes is ever loaded."""
        import numpy as np

        def read(kind: str, i: int) -> NDArray[Any]:
            with np.load(self.folder / ARRAYS_NAME, allow_pickle=False) as stored:
                array: NDArray[Any] = stored[f"{kind}.{i}"]
            return array

        return read


@dataclass(frozen=True, slots=True)
class Lane:
    """Where one twin runs at a time: an executor, and the CPU its processes are held to; None for any."""

    executor: Executor
    cpu: int | None = None

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start a twin on this lane; one of several threads is held to no CPU."""
        with _held_to(self.cpu if job.settings.threads == 1 else None):
            return self.executor.start(job, timeout_s)


def lanes(executor: Callable[[], Executor], most: int) -> list[Lane]:
    """Return a lane for each CPU this process may use, `most` at most."""
    return [Lane(executor(), cpu) for cpu in sorted(os.sched_getaffinity(0))[:most]]


@dataclass(frozen=True, slots=True)
class MeasurementContext:
    """What every comparison shares. `work` is scratch; `weights` is where initial weights stay, None for nowhere."""

    lanes: Sequence[Lane]
    backends: Sequence[str]
    precisions: Sequence[str]
    work: Path
    import_roots: Sequence[str]
    started_at: str
    timeout_s: float = 600.0
    weights: Path | None = None

    def run(self, subject: Subject, asked: Sequence[tuple[Key, Twin]]) -> list[Reply]:
        """Run these twins, as many at once as there are lanes, and return their replies in order."""
        free = deque(self.lanes)
        running: deque[tuple[Lane, Job, Running]] = deque()
        replies = []
        try:
            for key, twin in asked:
                if not free:
                    replies.append(_finish(running, free))
                lane, job = free.popleft(), self._job(subject, key, twin)
                running.append((lane, job, lane.start(job, self.timeout_s)))
            while running:
                replies.append(_finish(running, free))
        finally:
            for _, _, process in running:
                process.abandon()
        return replies

    def _job(self, subject: Subject, key: Key, twin: Twin) -> Job:
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
            twin=twin,
        )


def settings_of(subject: Subject, key: Key) -> Settings:
    """Return the settings of a twin: those of a timed cell at their defaults, but for its size and threads. Pure."""
    most = FLOAT64_STEPS if key.precision == "float64" else subject.steps if key.nudge is None else NUDGED_STEPS
    steps = min(subject.steps, most)
    return Settings(
        backend=key.backend,
        workload=subject.workload,
        params=dict(subject.params),
        batch_size=subject.batch_size,
        samples=subject.batch_size * steps,
        phase="fit",
        epochs=1,
        discard=0,
        steps_per_epoch=steps,
        data="synthetic",
        seed=subject.seed,
        device="cpu",
        precision=key.precision,
        jit="auto",
        eager=False,
        steps_per_execution=1,
        feed="host_fed",
        threads=key.threads,
        compile_cache="cold",
        league="as_shipped",
    )


def _finish(running: deque[tuple[Lane, Job, Running]], free: deque[Lane]) -> Reply:
    """Wait for the oldest twin, and judge it."""
    lane, job, process = running[0]
    outcome = process.finish()
    running.popleft()
    free.append(lane)
    trace, problem = _read_trace(job)
    if trace is not None and outcome.exit_code == 0 and not outcome.deadline_exceeded:
        return Reply(Path(job.folder), trace)
    result, refused = read_result(job)
    verdict = judge(job, outcome, result, problem or refused)
    status = Status.ERROR if verdict.status is Status.OK else verdict.status
    return Reply(Path(job.folder), None, status, f"{status}: {verdict.reason or problem}")


def _read_trace(job: Job) -> tuple[ParityOutput | None, str | None]:
    """Return what a twin told, or why it counts for nothing."""
    try:
        raw = read_bounded(job.trace_path, TRACE_LIMIT_BYTES)
        if raw is None:
            return None, "no_trace: the process wrote none"
        trace = decode(ParityOutput, loads(raw), "trace")
    except (ResultRefused, CodecError) as error:
        return None, f"bad_trace: {error}"
    return (trace, None) if trace.nonce == job.nonce else (None, "bad_trace: it is that of another process")


@contextlib.contextmanager
def _held_to(cpu: int | None) -> Iterator[None]:
    """Within, this process is held to one CPU, and so is what it starts."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
