"""Reads the metrics of a command that has ended, in a process that is killed if a pattern takes too long.

Promise: a bad pattern affects only its own metric, and takes no longer than its time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, loads, to_json
from keras_matrix.records.task import Compute, Metric, MetricSpec, Task
from keras_matrix.records.text import printable

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


@dataclass(frozen=True, slots=True)
class Written:
    """The output of a command: its log, and its own reports."""

    log: Path
    reported: Path

    @property
    def limit_s(self) -> float:
        """The time limit of a metric."""
        size = self.log.stat().st_size if self.log.exists() else 0
        return START_LIMIT_S + size / SLOWEST_BYTES_PER_S


def metrics_of(task: Task, written: Written, limit_s: float | None = None) -> tuple[list[Metric], str | None]:
    """Return a task's metrics in its order, then its other reported metrics; and a caveat about its reports, if any."""
    if not task.metrics and not (written.reported.exists() and written.reported.stat().st_size):
        return [], None
    limit_s = written.limit_s if limit_s is None else limit_s
    found: list[dict[str, Any]] = []
    open_metrics = list(task.metrics)
    while True:
        answers = list(_answers(open_metrics, written, task.workers, limit_s))
        found += answers
        done = sum(not answer.get("unrequested") and "name" in answer for answer in answers)
        if done == len(open_metrics):
            break
        problem = FAILED if any("ended" in answer for answer in answers) else TOO_LONG.format(limit_s)
        found.append({"name": open_metrics[done].name, "value": None, "matches": 0, "problem": problem})
        open_metrics = open_metrics[done + 1 :]
    bad = sum(answer["bad_lines"] for answer in found if "bad_lines" in answer)
    caveat = f"reports: {bad} lines on the pipe are not {{metric, value, unit}} in JSON; fix what writes them"
    specs = {one.name: one for one in task.metrics}
    metrics = [_metric(specs.get(answer["name"]), answer) for answer in found if "name" in answer]
    return metrics, caveat if bad else None


def _metric(spec: MetricSpec | None, answer: dict[str, Any]) -> Metric:
    spec = spec or MetricSpec(answer["name"], compute=Compute.LAST)
    problem = None if answer["problem"] is None else printable(answer["problem"])[:PROBLEM_CHARACTERS]
    unit = spec.unit or answer.get("unit") or None
    return Metric(spec.name, answer["value"], unit, spec.compute, spec.goal, answer["matches"], problem)


def _answers(metrics: Sequence[MetricSpec], written: Written, workers: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield the lines of the matching process until it ends, or is silent for too long."""
    order = {"log": str(written.log), "reported": str(written.reported), "workers": workers, "unrequested": True}
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
    pending = b""
    while select.select([descriptor], [], [], limit_s)[0]:
        data = os.read(descriptor, ANSWER_BYTES)
        if not data:
            yield {"ended": True}
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                yield loads(line)
            except CodecError:
                return
