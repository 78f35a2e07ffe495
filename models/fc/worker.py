"""A worker's process: it meets the others, then executes the requests of the process that measures.

A module `models.fc.native.<backend>` has a function `join`, which connects a worker process to the others and returns
its worker: one rank of a `WorkerGroup`, with the method `watched`, of which `Ranks.communication` takes the means.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from keras_matrix.models.fc.meeting import Meeting, NotMet, enter
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.models.process import end_with_parent, keep_float64, settle, started

MEETING_LIMIT_S = 60.0
# What a worker sends: the answer of a method, its error, or its message for all workers while they connect.
ANSWER, FAILED, MEET = "answer", "failed", "meet"


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The arguments of a worker process. They can be pickled, since a new interpreter shares no memory with this one.

    `copied` says whether the process is a copy of the one that started it, or a new interpreter. `meeting` is a file
    for all workers of one machine.
    """

    order: WorkerSpec
    rank: int
    meeting: str | None
    timeout_s: float
    copied: bool
    backend: str = "torch"

    @property
    def far(self) -> bool:
        """Whether the process is on another machine than the one that measures."""
        return self.order.rendezvous is not None and not self.order.rendezvous.measures


def started_worker(start: WorkerStart, requests: Connection, not_its: list[Connection]) -> BaseProcess:
    """Start a worker's process, which has this end of its pipe; `not_its` are open here and those of others."""
    return started(_live, start, requests, not_its, "fork" if start.copied else "spawn")


def _live(start: WorkerStart, requests: Connection, not_mine: list[Connection]) -> NoReturn:
    """Run a worker: connect to the others, then execute requests until the pipe is closed."""
    end_with_parent()
    for pipe in not_mine:
        pipe.close()
    try:
        worker = None
        while True:
            method, arguments = requests.recv()
            worker = worker or _arrive(start, requests)
            requests.send((ANSWER, _answer(start, worker, method, arguments)))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        pass
    except Exception as error:  # noqa: BLE001 - the process boundary: it is raised again by the requesting process
        traceback.print_exc()
        requests.send((FAILED, f"{type(error).__name__}: {error}"))
        requests.poll(None)  # stays alive until it is ended, so that its end is not mistaken for the cause
    finally:
        sys.stderr.flush()
        os._exit(0)


def _arrive(start: WorkerStart, requests: Connection) -> Any:
    """Enter this worker's network namespace, if any, and connect to the other workers."""
    order = start.order
    if order.namespaces:
        enter(order.namespaces[start.rank])

    native = importlib.import_module(f"keras_matrix.models.fc.native.{start.backend}")
    if not start.copied:
        _configure(order)
    exchanged = partial(_exchanged, start, requests)
    worker = native.join(Meeting(order, start.rank, start.timeout_s, start.meeting, exchanged))
    settle()
    return worker


def _exchanged(start: WorkerStart, requests: Connection, message: str) -> list[str]:
    """Return the messages of all workers, which the process that measures collects. Raises `NotMet`."""
    requests.send((MEET, message))
    if not requests.poll(start.timeout_s):
        worker_count = start.order.problem.workers
        raise NotMet(f"the {worker_count} workers did not all connect within {start.timeout_s:g} s")
    messages: list[str] = requests.recv()
    return messages


def _configure(order: WorkerSpec) -> None:
    """Apply in a new interpreter the settings that a copy inherits from the process that started it."""
    if order.configure is not None:
        order.configure()
    if order.problem.precision == "float64":
        keep_float64()


def _answer(start: WorkerStart, worker: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    """Return the answer of the worker; from another machine the files of a trace, by name."""
    if not (method == "traced" and start.far):
        return getattr(worker, method)(*arguments)
    (request,) = arguments
    with tempfile.TemporaryDirectory() as folder:
        worker.traced(replace(request, folder=folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
