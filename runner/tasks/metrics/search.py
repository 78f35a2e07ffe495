"""The metrics of a command that has ended: asked of a process that is ended itself where a pattern takes too long.

Promise: one bad pattern costs its own metric and no other, and no more than its time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import CodecError, loads, to_json
from keras_matrix.records.task import Compute, Metric, MetricSpec, Task
from keras_matrix.runner.executors.supervise.output import printable

START_LIMIT_S = 30.0
# What a simple pattern reads in a second is ten times as much.
SLOWEST_BYTES_PER_S = 20e6
ANSWER_BYTES = 1 << 16
PROBLEM_CHARACTERS = 300
FAILED = "match_failed: the process that matches ended; as a rule for want of memory: match less in each line"


@dataclass(frozen=True, slots=True)
class Written:
    """What a command left to be read: its log, and what it reported itself."""

    log: Path
    reported: Path

    @property
    def limit_s(self) -> float:
        """Return how long one metric may take."""
        size = self.log.stat().st_size if self.log.exists() else 0
        return START_LIMIT_S + size / SLOWEST_BYTES_PER_S


def metrics_of(task: Task, written: Written, limit_s: float | None = None) -> tuple[list[Metric], str | None]:
    """Return a task's metrics in its order, then those it reported unasked; and what is doubtful about its reports."""
    limit_s = written.limit_s if limit_s is None else limit_s
    found: list[dict[str, Any]] = []
    asked = list(task.metrics)
    while True:
        answers = list(_answers(asked, written, task.workers, limit_s))
        found += answers
        told = sum(not answer.get("unasked") and "name" in answer for answer in answers)
        if told == len(asked):
            break
        problem = FAILED if any("ended" in answer for answer in answers) else _too_long(limit_s)
        found.append({"name": asked[told].name, "value": None, "matches": 0, "problem": problem})
        asked = asked[told + 1 :]
    bad = sum(answer["bad_lines"] for answer in found if "bad_lines" in answer)
    caveat = f"reports: {bad} lines on the pipe are not {{metric, value, unit}} in JSON; look at what writes them"
    return _metrics(task, [answer for answer in found if "name" in answer]), caveat if bad else None


def _metrics(task: Task, found: Sequence[dict[str, Any]]) -> list[Metric]:
    by_name = {one.name: one for one in task.metrics}
    return [_metric(by_name.get(answer["name"]), answer) for answer in found]


def _metric(asked: MetricSpec | None, answer: dict[str, Any]) -> Metric:
    problem = answer["problem"]
    unit = answer.get("unit") or None
    read = Metric(
        name=answer["name"],
        value=answer["value"],
        unit=unit,
        matches=answer["matches"],
        problem=None if problem is None else printable(problem)[:PROBLEM_CHARACTERS],
    )
    if asked is None:
        return replace(read, compute=Compute.LAST)
    return replace(read, unit=asked.unit or unit, compute=asked.compute, goal=asked.goal)


def _answers(asked: Sequence[MetricSpec], written: Written, workers: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield what the matching process says until it has ended, or has said nothing for too long."""
    order = {
        "log": str(written.log),
        "reported": str(written.reported),
        "metrics": to_json(list(asked)),
        "workers": workers,
        "unasked": True,
    }
    command = [sys.executable, "-P", "-m", "keras_matrix.runner.tasks.metrics.match"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended already, which what follows will tell
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


def _too_long(limit_s: float) -> str:
    return (
        f"time_limit: the pattern was not matched within {limit_s:g} s; such patterns backtrack without end: avoid "
        "repetitions within repetitions, as in (a+)+"
    )
