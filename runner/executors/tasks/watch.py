"""Watches an external command from its start to its end, as an executor's `Running`.

The command is not interleaved: it runs from start to end while no other cell of the run does. Its output goes directly
to a file; its reports on the pipe are stored. Both files are read as they were opened before its start: it could put
a link or a pipe in their place. The memory of its full process tree is sampled ten times a second. After the time limit
its processes get SIGTERM, and are killed if they do not end.

Metrics of a command that has ended are read in a process that is killed if a pattern takes too long: a bad pattern
affects only its own metric, and takes no longer than its time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, loads, to_json
from keras_matrix.records.files import naming
from keras_matrix.records.host.platform import PLATFORM, Facility
from keras_matrix.records.task import UPTIME, Compute, Goal, Metric, MetricSpec, Task, TaskRun
from keras_matrix.records.text import bytes_text, printable
from keras_matrix.records.trees import walk
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome, TaskObservation, WaitingCell
from keras_matrix.runner.executors.supervise.environment import allowed_cpus
from keras_matrix.runner.executors.supervise.epochs import Alive
from keras_matrix.runner.executors.supervise.watch import (
    HEAD_BYTES,
    MESSAGE_BYTES,
    TAIL_BYTES,
    CappedOutput,
    Parent,
    ProcessWatch,
    sampling_of,
)
from keras_matrix.runner.executors.tasks.start import Command, DeviceMissing, NotStarted, TooFewDevices, task_of
from keras_matrix.runner.machine import tree_memory
from keras_matrix.runner.machine.gpus.readings import open_gpu, readable

GRACE_S = 5.0
LOG_LIMIT_BYTES = 16 << 30
LEAST_FREE_BYTES = 1 << 30
REPORT_LIMIT_BYTES = 64 << 20
MOST_FILES = 100
START_LIMIT_S = 30.0
# A tenth of the speed of a simple pattern.
SLOWEST_BYTES_PER_S = 20e6
ANSWER_BYTES = 1 << 16
PROBLEM_CHARACTERS = 300
FAILED = "match_failed: the matching process ended, usually out of memory; match less in each line"
TOO_LONG = (
    "time_limit: the pattern was not matched within {:g} s, usually because of backtracking; avoid nested repetitions, "
    "as in (a+)+"
)


class TaskWatch(ProcessWatch):
    """A started external command."""

    def __init__(self, parent: Parent, job: Job, command: Command, timeout_s: float) -> None:
        """Start the command through its parent. Raises `ServerGone`."""
        gpus = readable([open_gpu(name) for name in command.gpus])
        super().__init__(parent, job, timeout_s)
        self._stopped: str | None = None
        self._kill_at_s: float | None = None
        self._reported_bytes = 0
        os.mkfifo(job.report_path, 0o600)
        self._report = os.open(job.report_path, os.O_RDWR | os.O_NONBLOCK)
        self._stored, self._log = _created(job.reported_path), _created(job.log_path)
        self._meter.on()
        try:
            order = {"job": str(job.path), "argv": command.argv, "env": command.environment, "folder": command.folder}
            self._pid = parent.begin(order | {"cpus": allowed_cpus(job.settings)}, self._log.fileno())
        except BaseException:
            self._close()
            self._close_files()
            raise
        self._use = sampling_of(parent, self._pid, gpus)
        self._begun_s = time.perf_counter()
        self._epochs.begin(Alive(self._pid, parent.root or self._pid))
        self._use.begin(self._meter.worked_s())

    def calibrated(self) -> float | None:
        """Return None: a command is not calibrated."""
        return None

    def resume(self, steps: int) -> None:
        """Do nothing: a command has no steps."""

    def root(self) -> int | None:
        """Return None: a command never waits."""
        return None

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Run the command to its end."""
        if not self._over:
            try:
                self._wait()
            except BaseException:
                self._close_files()
                raise
        return False

    def resident_bytes(self) -> int:
        """Return the peak of its memory, or 0 after its end."""
        if self._over:
            return 0
        self._use.sample(self._meter.worked_s())
        return self._use.peak_resident_bytes or 0

    def finish(self) -> Outcome:
        """Return the outcome of the command with its metrics."""
        self.turn()
        with self._log, self._stored:
            if self._ended is None:
                return Outcome(infrastructure=f"server: {self._gone}", wall_time_s=self._meter.wall_s)
            return replace(
                self._outcome(self._ended),
                output_tail=_ends_of(self._log),
                task=self._observation(task_of(self._job), self._ended.get("outlived", 0)),
            )

    def abandon(self) -> None:
        """Kill the command and wait for its end."""
        self._parent.kill(self._pid)
        self.turn()
        self._close_files()

    # While it runs.

    def _wait(self) -> None:
        deadline_s = self._begun_s + self._left_s
        try:
            while not self._over:
                self._look(self.pace.wait_s(time.perf_counter()))
                now_s = time.perf_counter()
                if self._ended is None and self.pace.due(now_s):
                    self._sample()
                    self._stop_in_time(now_s, deadline_s)
        except BaseException:
            self._parent.kill(self._pid)
            raise
        finally:
            self._use.end(self._meter.worked_s())
            self._meter.off()
            self._epochs.end()
            self._take_reports()
            self._close()
            self._use.close()
            self._parent.release()

    def _look(self, wait_s: float) -> None:
        """Store its reports, and notice its end."""
        readable, _, _ = select.select([self._parent.connection, self._report], [], [], wait_s)
        if self._report in readable:
            self._take_reports()
        if self._parent.connection in readable:
            self._receive()

    def _take_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._report, MESSAGE_BYTES)
            self._reported_bytes += len(data)
            if self._reported_bytes <= REPORT_LIMIT_BYTES:  # reading continues, so that the command is not blocked
                self._stored.write(data)

    def _sample(self) -> None:
        self._use.sample(self._meter.worked_s())
        log_bytes = os.fstat(self._log.fileno()).st_size
        if log_bytes > LOG_LIMIT_BYTES:
            self._ask_to_end(
                f"log_limit: the command printed more than {bytes_text(LOG_LIMIT_BYTES)}; reduce its output"
            )
        # With a short log, a disk that is almost full is not due to the command.
        elif free_bytes(self._log.fileno()) < min(log_bytes, LEAST_FREE_BYTES):
            text = f"the command printed {bytes_text(log_bytes)}, more than the free space of the disk"
            self._ask_to_end(f"disk_full: {text}; reduce its output, or choose another disk with --results")

    def _stop_in_time(self, now_s: float, deadline_s: float) -> None:
        if now_s > deadline_s and not self._deadline_exceeded and self._stopped is None:
            self._deadline_exceeded = True
            self._ask_to_end(None)
        if self._kill_at_s is not None and now_s > self._kill_at_s:
            self._parent.kill(self._pid)

    def _ask_to_end(self, why: str | None) -> None:
        if self._kill_at_s is None:
            self._stopped = why
            self._kill_at_s = time.perf_counter() + GRACE_S
            if self._pid > 0:  # an ended container has no process
                tree_memory.signal_tree(self._pid, signal.SIGTERM)

    def _close(self) -> None:
        os.close(self._report)
        self._epochs.close()

    def _close_files(self) -> None:
        self._stored.close()
        self._log.close()

    # Once it has ended.

    def _observation(self, task: Task, outlived: int | None) -> TaskObservation:
        metrics, caveat = metrics_of(task, Written(_opened(self._log), _opened(self._stored)))
        cut_text = (
            f"reports: the pipe had more than {bytes_text(REPORT_LIMIT_BYTES)}, the rest was ignored; report less"
        )
        log_bytes, files = os.fstat(self._log.fileno()).st_size, _left_in(self._job.outputs_dir)
        metrics = [*metrics, uptime(self._meter.wall_s)]
        run = TaskRun(task.name, words(task), task.primary, metrics, log_bytes, outlived, files=files)
        caveats = [caveat, cut_text if self._reported_bytes > REPORT_LIMIT_BYTES else None]
        return TaskObservation(run, stopped=self._stopped, caveats=tuple(filter(None, caveats)))


def free_bytes(descriptor: int) -> int:
    """Return the free space of the file system of an open file."""
    disk = os.fstatvfs(descriptor)
    return disk.f_bavail * disk.f_frsize


def uptime(seconds: float) -> Metric:
    """Return the metric of every command: how long it ran."""
    return Metric(UPTIME, seconds, "s", Compute.LAST, Goal.LOWER, 1)


def words(task: Task) -> list[str]:
    """Return a command for its record, with the placeholders for paths of this machine unfilled."""
    return [*task.wrap, *task.command]


def never(job: Job, why: NotStarted) -> TaskObservation:
    """Return the observation of a command that cannot be started."""
    task = task_of(job)
    run = TaskRun(task.name, words(task), task.primary, [])
    if isinstance(why, DeviceMissing):
        return TaskObservation(run, no_device=str(why))
    has_too_few = isinstance(why, TooFewDevices)
    return TaskObservation(run, too_few_devices=str(why)) if has_too_few else TaskObservation(run, never=str(why))


def _created(path: Path) -> FileIO:
    """Create a file of which the end is written and any part is read."""
    return FileIO(path, "ab+", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600))


def _opened(file: FileIO) -> Path:
    """Return the path under which another process finds this open file, whatever its own name leads to by now."""
    if PLATFORM.lacks(Facility.PROC):
        return Path(file.name)
    return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")


def _ends_of(log: FileIO) -> str:
    """Return the beginning and the end of a log of any size as readable text."""
    ends = CappedOutput()
    with naming(Path(log.name)):
        ends.add(os.pread(log.fileno(), HEAD_BYTES, 0))
        log_bytes = os.fstat(log.fileno()).st_size
        tail = max(HEAD_BYTES, log_bytes - TAIL_BYTES)
        ends.skip(tail - HEAD_BYTES)
        ends.add(os.pread(log.fileno(), TAIL_BYTES, tail))
    return ends.text()


def _left_in(folder: str | None) -> list[str]:
    """Return the files of an outputs folder; remove an empty folder."""
    if folder is None:
        return []
    files = sorted(str(path.relative_to(folder)) for path in walk(folder) if path.is_file())
    if not files:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return files[:MOST_FILES]


@dataclass(frozen=True, slots=True)
class Written:
    """The output of a command: its log, and its own reports."""

    log: Path
    reported: Path

    @property
    def limit_s(self) -> float:
        """The time limit of a metric."""
        log_bytes = self.log.stat().st_size if self.log.exists() else 0
        return START_LIMIT_S + log_bytes / SLOWEST_BYTES_PER_S


def metrics_of(task: Task, written_files: Written, limit_s: float | None = None) -> tuple[list[Metric], str | None]:
    """Return a task's metrics in its order, then its other reported metrics; and a caveat about its reports, if any."""
    if not task.metrics and not (written_files.reported.exists() and written_files.reported.stat().st_size):
        return [], None
    limit_s = written_files.limit_s if limit_s is None else limit_s
    all_answers: list[dict[str, Any]] = []
    open_metrics = list(task.metrics)
    while True:
        answers = list(_answers(open_metrics, written_files, task.workers, limit_s))
        all_answers += answers
        answered = sum(not answer.get("unrequested") and "name" in answer for answer in answers)
        if answered == len(open_metrics):
            break
        problem = FAILED if any("ended" in answer for answer in answers) else TOO_LONG.format(limit_s)
        all_answers.append({"name": open_metrics[answered].name, "value": None, "matches": 0, "problem": problem})
        open_metrics = open_metrics[answered + 1 :]
    bad_lines = sum(answer["bad_lines"] for answer in all_answers if "bad_lines" in answer)
    caveat = f"reports: {bad_lines} lines on the pipe are not {{metric, value, unit}} in JSON; fix what writes them"
    specs = {metric.name: metric for metric in task.metrics}
    metrics = [_metric(specs.get(answer["name"]), answer) for answer in all_answers if "name" in answer]
    return metrics, caveat if bad_lines else None


def _metric(spec: MetricSpec | None, answer: dict[str, Any]) -> Metric:
    spec = spec or MetricSpec(answer["name"], compute=Compute.LAST)
    problem = None if answer["problem"] is None else printable(answer["problem"])[:PROBLEM_CHARACTERS]
    unit = spec.unit or answer.get("unit") or None
    return Metric(spec.name, answer["value"], unit, spec.compute, spec.goal, answer["matches"], problem)


def _answers(
    metrics: Sequence[MetricSpec], written_files: Written, workers: int, limit_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the lines of the matching process until it ends, or is silent for too long."""
    order = {
        "log": str(written_files.log),
        "reported": str(written_files.reported),
        "workers": workers,
        "unrequested": True,
    }
    order |= {"metrics": to_json(list(metrics))}
    command = [sys.executable, "-P", "-m", "keras_matrix.runner.executors.tasks.metric_match"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended already, which the next read reports
                child.stdin.write(json.dumps(order).encode())
                child.stdin.close()
            yield from _lines(child.stdout.fileno(), limit_s)
        finally:
            child.kill()


def _lines(descriptor: int, limit_s: float) -> Iterator[dict[str, Any]]:
    pending_data = b""
    while select.select([descriptor], [], [], limit_s)[0]:
        data = os.read(descriptor, ANSWER_BYTES)
        if not data:
            yield {"ended": True}
            return
        *lines, pending_data = (pending_data + data).split(b"\n")
        for line in lines:
            try:
                yield loads(line)
            except CodecError:
                return
