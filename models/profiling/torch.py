"""PyTorch's profiler (Kineto), with the shapes of the operators' inputs.

The file joins two of that profiler: a first step with the shapes of its operators, and further ones without. Where
shapes are recorded, the profiler retains small blocks of memory between those of the tensors, so that glibc cannot use
these again: a convolutional network on a CPU requested 40 MB of new memory in each step, and took 13 % longer (without
shapes 4 %). Where all steps of a trace have equal shapes, one step is enough.
"""

from __future__ import annotations

import json
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import profiler

from keras_matrix.records.traces import kineto
from keras_matrix.records.traces.programs import ProgramSummary, counted
from keras_matrix.records.traces.request import STEP, TraceError

SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
IDS = ("External id", "Ev Idx", "Record function id")
BASE = "baseTimeNanoseconds"
POOL = "gloo:"

Event = dict[str, Any]


class Profiler:
    """PyTorch's profiler, for the CPU and a GPU if available.

    On a CPU, shapes are recorded in the first marked step only, and copied to the further ones (`shapes`), unless the
    steps may differ.
    """

    ending = ".json"
    marks_name_layers = False
    steps_are_python = True

    def __init__(self) -> None:
        self.steps_are_equal = True
        self._recording: Any = None
        self._first: Any = None
        self._steps = 0
        self._loss: Any = None

    def start(self) -> None:
        if not torch.autograd.kineto_available():
            raise TraceError("profiler_unavailable: torch: this build has no Kineto; install one that has it")
        self._first, self._steps = None, 0
        self._start(record_shapes=True)

    def stop(self, path: Path) -> None:
        recording, self._recording = self._recording, None
        recording.stop()
        if self._first is None:
            recording.export_chrome_trace(str(path))
            return
        with tempfile.TemporaryDirectory(prefix="profiler-") as folder:
            first_path, rest_path = Path(folder) / f"first{self.ending}", Path(folder) / f"rest{self.ending}"
            self._first.export_chrome_trace(str(first_path))
            recording.export_chrome_trace(str(rest_path))
            join(first_path, rest_path, path)

    def mark(self, name: str) -> AbstractContextManager[Any]:
        mark: AbstractContextManager[Any] = profiler.record_function(name)
        return mark

    def step(self, number: int) -> AbstractContextManager[Any]:
        # Marks may be of another object than the one that records.
        recording, self._steps = self._recording, self._steps + 1
        if recording is not None and self._steps == 2 and self.steps_are_equal and not torch.cuda.is_available():
            recording.stop()
            self._first = recording
            self._start(record_shapes=False)
        return self.mark(f"{STEP}{number}")

    def scope(self, name: str) -> AbstractContextManager[Any]:
        return self.mark(name)  # every step is Python

    def note_loss(self, loss: Any) -> None:
        self._loss = loss  # its graph remains after the backward pass, without the tensors that it had saved

    def graph(self) -> ProgramSummary | None:
        """Return what torch.compile has compiled, or else the autograd graph of the noted loss."""
        # Importing it takes seconds; a process that has compiled something has done so.
        compiler = sys.modules.get("torch._dynamo.utils")
        stats = compiler.counters["stats"] if compiler else {}
        if calls := stats.get("calls_captured"):
            return ProgramSummary("torch.compile", stats["unique_graphs"], {"calls captured": calls})
        loss, self._loss = self._loss, None
        if getattr(loss, "grad_fn", None) is None:
            return None
        return ProgramSummary("autograd graph", 1, counted(_nodes(loss.grad_fn)))

    def _start(self, *, record_shapes: bool) -> None:
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._recording = profiler.profile(activities=activities, record_shapes=record_shapes)
        self._recording.start()


def _nodes(root: Any) -> Iterator[str]:
    """Yield the kind of each node of an autograd graph."""
    waiting_nodes, visited = [root], {root}
    while waiting_nodes:
        node = waiting_nodes.pop()
        yield type(node).__name__
        following = {
            following_node for following_node, _ in node.next_functions if following_node is not None
        } - visited
        visited |= following
        waiting_nodes += following


class OperatorCall(NamedTuple):
    """The operator of an event: its thread, or the pool of those that run collectives, and its name."""

    thread: Any
    name: str


def join(first_path: Path, rest_path: Path, path: Path) -> None:
    """Write all events of both files to `path`; `rest_path`'s get the shapes of the equal operators of `first_path`.

    A step of `rest_path` in which an operator's number of calls differs has no shapes of this operator. Raises
    `TraceError`.
    """
    events, base_ns = _read_all(first_path)
    later_part = _Later.read(rest_path)
    shapes = dict(later_part.shaped(_shapes(events)))
    shift_us = (base_ns - later_part.base_ns) / 1000
    offset = 1 + max((tensor_id for event in events for tensor_id in _ids(event)), default=0)
    with path.open("w", encoding="utf-8") as file:
        file.write("{" + "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in later_part.members))
        file.write(f"{json.dumps(kineto.EVENTS)}: [\n")
        event_texts = (json.dumps(event) for event in _joined(events, shift_us, rest_path, shapes, offset))
        file.write(next(event_texts, ""))
        for line in event_texts:
            file.write(f",\n{line}")
        file.write("\n]}\n")


def _read_all(path: Path) -> tuple[list[Event], int]:
    events: list[Event] = []
    base_ns = 0
    for member, value in kineto.members(path):
        if member == kineto.EVENTS:
            events.append(value)
        elif member == BASE:
            base_ns = int(value)
    return events, base_ns


def _joined(
    events: Iterable[Event], shift_us: float, rest_path: Path, shapes: dict[int, dict[str, Any]], offset: int
) -> Iterator[Event]:
    for event in events:
        yield event | {"ts": round(event["ts"] + shift_us, 3)} if "ts" in event and shift_us else event
    for number, event in enumerate(_events(rest_path)):
        _renumber(event, offset)
        if number in shapes:
            event["args"] = event.get("args", {}) | shapes[number]
        yield event


def _events(path: Path) -> Iterator[Event]:
    return (value for member, value in kineto.members(path) if member == kineto.EVENTS)


def _ids(event: Event) -> Iterator[int]:
    """Yield the numbers that connect events within one file."""
    args = event.get("args")
    values = [event.get("id"), *(args.get(name) for name in IDS)] if isinstance(args, dict) else [event.get("id")]
    return (value for value in values if isinstance(value, int))


def _renumber(event: Event, offset: int) -> None:
    """Make the numbers that connect events differ from those of the other file."""
    for owner, names in ((event, ("id",)), (event.get("args") or {}, IDS)):
        for name in names:
            if isinstance(owner.get(name), int):
                owner[name] += offset


def _step(event: Event) -> bool:
    return event.get("ph") == "X" and str(event.get("name")).startswith(STEP)


def _pools(calls: Iterable[OperatorCall]) -> set[Any]:
    """Return the threads that run collectives: which of them runs one changes from step to step."""
    return {call.thread for call in calls if call.name.startswith(POOL)}


def _shapes(events: Sequence[Event]) -> dict[OperatorCall, list[dict[str, Any]]]:
    """Return the shapes of each operator's calls within the marked step, in order of time."""
    steps = [event for event in events if _step(event)]
    begin_us, end_us = (steps[0]["ts"], steps[0]["ts"] + steps[0]["dur"]) if steps else (0, 0)
    events_inside = [event for event in events if event.get("ph") == "X" and begin_us <= event["ts"] < end_us]
    pools = _pools(OperatorCall(event["tid"], event["name"]) for event in events_inside)
    shapes: dict[OperatorCall, list[dict[str, Any]]] = {}
    for event in sorted(events_inside, key=lambda event: float(event["ts"])):
        args = event.get("args") or {}
        call = _call(event["tid"], event["name"], pools)
        shapes.setdefault(call, []).append({name: args[name] for name in SHAPES if name in args})
    return shapes


def _call(thread: Any, name: str, pools: set[Any]) -> OperatorCall:
    return OperatorCall(POOL if thread in pools else thread, name)


@dataclass(slots=True)
class _Later:
    """The events of a file without their arguments: number, time in microseconds and call; and its other members."""

    seen: list[tuple[int, float, OperatorCall]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    members: list[tuple[str, Any]] = field(default_factory=list)
    base_ns: int = 0

    @classmethod
    def read(cls, path: Path) -> _Later:
        later_part = cls()
        names: dict[str, str] = {}
        number = -1
        for member, value in kineto.members(path):
            if member != kineto.EVENTS:
                later_part.members.append((member, value))
                later_part.base_ns = int(value) if member == BASE else later_part.base_ns
                continue
            number += 1
            if value.get("ph") != "X":
                continue
            if _step(value):
                later_part.steps.append((value["ts"], value["ts"] + value["dur"]))
            name = names.setdefault(value["name"], value["name"])
            later_part.seen.append((number, value["ts"], OperatorCall(value["tid"], name)))
        later_part.steps.sort()
        return later_part

    def shaped(self, shapes: Mapping[OperatorCall, Sequence[dict[str, Any]]]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each event with known shapes, and these."""
        pools = _pools(call for _, _, call in self.seen)
        calls: dict[tuple[int, OperatorCall], list[tuple[float, int]]] = {}
        for number, at_us, (thread, name) in self.seen:
            step = bisect_right(self.steps, at_us, key=lambda step_entry: step_entry[0]) - 1
            if step >= 0 and at_us < self.steps[step][1]:
                calls.setdefault((step, _call(thread, name, pools)), []).append((at_us, number))
        for (_, call), occurrences in calls.items():
            known_shapes = shapes.get(call, ())
            if len(known_shapes) == len(occurrences):
                yield from (
                    (number, shape)
                    for (_, number), shape in zip(sorted(occurrences), known_shapes, strict=True)
                    if shape
                )
