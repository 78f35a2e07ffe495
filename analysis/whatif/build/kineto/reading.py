"""Reads a Kineto file: its events by thread and stream, and what it says about its rank.

Of an event a few numbers are stored. What an operator's arguments say is shared by all events with equal ones, so that
memory stays well below the size of the file. An error names the file and the event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from keras_matrix.analysis.whatif.build.kineto.shapes import NOTHING, Operands, operands_of
from keras_matrix.records.traces import kineto
from keras_matrix.records.traces.request import CLOCK, TraceError
from keras_matrix.records.traces.torch import ANNOTATIONS, BACKWARD, DEVICE, OPERATORS

RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
SYNC = frozenset({"cuda_sync"})
ON_DEVICE = DEVICE | SYNC
ON_HOST = OPERATORS | ANNOTATIONS | RUNTIME
CATEGORIES = ON_HOST | ON_DEVICE
NO_NUMBER = -1
AGAIN = "record it again"

Place = tuple[Any, Any]  # a process and a thread, or a device and a stream


class Message(NamedTuple):
    """What an event says about a collective: elements before and after, dtype, process group and its ranks."""

    operation: str
    elements_in: int
    elements_out: int
    dtype: str
    group: str
    ranks: tuple[int, ...]


class Wait(NamedTuple):
    """What a synchronisation waits for: a stream (None: all) up to the record of an event (-1: all that was issued)."""

    stream: int | None
    record: int


class Event(NamedTuple):
    """An event. Times in nanoseconds; sequence number, correlation and external id are -1 if missing."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    sequence: int
    correlation: int
    external: int
    operands: Operands
    message: Message | None = None
    wait: Wait | None = None
    peer: int = NO_NUMBER


@dataclass(slots=True)
class Recording:
    """The content of a file. `groups` are the ranks of each process group, by its name."""

    path: Path
    threads: dict[Place, list[Event]] = field(default_factory=dict)
    streams: dict[Place, list[Event]] = field(default_factory=dict)
    clocks: list[tuple[int, int]] = field(default_factory=list)
    gone_back: set[int] = field(default_factory=set)
    base_ns: int = 0
    host: str | None = None
    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    library: str | None = None
    devices: list[str] = field(default_factory=list)
    events: int = 0


def read(path: Path) -> Recording:
    """Read a file. Raises `TraceError`."""
    found = Recording(path)
    taking = _Taking(found)
    last = None
    try:
        for member, value in kineto.members(path):
            if member == kineto.EVENTS:
                found.events += 1
                last = value
                taking.take(value)
            else:
                _take_member(found, member, value)
    except TraceError as error:
        raise TraceError(f"{error}{_after(found.events, last)}") from error
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        name = last.get("name") if isinstance(last, dict) else last
        raise TraceError(f"{path}: event {found.events} ({name!r}): {_problem(error)}; {AGAIN}") from error
    if not found.threads and not found.streams:
        raise TraceError(
            f"{path}: contains no operation of a profiler among its {found.events} events; name a file that"
            " torch.profiler's export_chrome_trace wrote"
        )
    return found


def _after(events: int, last: Any) -> str:
    name = last.get("name") if isinstance(last, dict) else last
    return f" (after event {events}, {name!r})" if events else ""


def _problem(error: Exception) -> str:
    return f"has no {error}" if isinstance(error, KeyError) else str(error)


def _take_member(found: Recording, member: str, value: Any) -> None:
    if member == "baseTimeNanoseconds":
        found.base_ns = int(value)
    elif member == "host_name":
        found.host = str(value)
    elif member == "deviceProperties" and isinstance(value, list):
        found.devices = [str(one["name"]) for one in value if isinstance(one, dict) and "name" in one]
    elif member == "distributedInfo" and isinstance(value, dict):
        found.rank, found.world_size = value.get("rank"), value.get("world_size")
        found.library = value.get("backend")
        for group in value.get("pg_config") or []:
            found.groups[str(group.get("pg_name"))] = tuple(group.get("ranks") or ())


class _Taking:
    """Adds events to a recording."""

    def __init__(self, found: Recording) -> None:
        self._found = found
        self._names: dict[str, str] = {}
        self._operands: dict[tuple[str, str], Operands] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Add an event, if it is of a known category. Raises KeyError, TypeError or ValueError."""
        if event.get("ph") != "X" or (category := event.get("cat")) not in CATEGORIES:
            return
        name = self._names.setdefault(event["name"], event["name"])
        args = event.get("args") or {}
        start, duration = event["ts"], event["dur"]
        if not (isfinite(start) and isfinite(duration)):
            raise ValueError(f"begins at {start!r} and lasts {duration!r}")
        start_ns = round(start * 1000)
        if name.startswith(CLOCK):
            self._found.clocks.append((start_ns, int(name.removeprefix(CLOCK))))
            return
        end_ns = round((start + duration) * 1000)
        if end_ns < start_ns:
            if category not in ON_DEVICE:
                raise ValueError(f"lasts {duration!r} us: the clock ran backwards")
            end_ns = start_ns  # a device's clock is converted to the host's, with a small error
        sequence = args.get("Sequence number", NO_NUMBER)
        if name.startswith(BACKWARD):
            self._found.gone_back.add(sequence)
        places = self._found.streams if category in ON_DEVICE else self._found.threads
        made = Event(
            *(start_ns, end_ns, name, category, sequence),
            *(args.get("correlation", NO_NUMBER), args.get("External id", NO_NUMBER)),
            *self._details(name, category, args),
        )
        places.setdefault((event["pid"], event["tid"]), []).append(made)

    def _details(
        self, name: str, category: str, args: Mapping[str, Any]
    ) -> tuple[Operands, Message | None, Wait | None, int]:
        if category in SYNC:
            return NOTHING, None, _wait(args), NO_NUMBER
        if category in DEVICE:
            size = args.get("bytes")
            return Operands(size) if type(size) is int else NOTHING, _message(args), None, NO_NUMBER
        if category in RUNTIME or not args:
            return NOTHING, None, None, NO_NUMBER
        return self._inputs(name, args), _message(args), None, _peer(name, args)

    def _inputs(self, name: str, args: Mapping[str, Any]) -> Operands:
        if "Input Dims" not in args:
            return NOTHING
        # The text of the shapes is a key; it is much cheaper than to compute from them for each event.
        key = name, f"{args['Input Dims']}{args.get('Input type')}{args.get('Concrete Inputs')}"
        found = self._operands.get(key)
        if found is None:
            self._operands[key] = found = operands_of(name, args)
        return found


def _wait(args: Mapping[str, Any]) -> Wait:
    kind = args.get("cuda_sync_kind")
    if kind == "Context Sync":
        return Wait(None, NO_NUMBER)
    stream = args.get("wait_on_stream", args.get("stream"))
    return Wait(stream, args.get("wait_on_cuda_event_record_corr_id", NO_NUMBER))


def _message(args: Mapping[str, Any]) -> Message | None:
    name = args.get("Collective name")
    if name is None:
        return None
    ranks = str(args.get("Process Group Ranks", "")).strip("[]")
    numbers = tuple(int(one) for one in ranks.split(",") if one.strip().isdigit())
    counts = (int(args.get(key) or 0) for key in ("In msg nelems", "Out msg nelems"))
    return Message(str(name), *counts, str(args.get("dtype", "")), str(args.get("Process Group Name", "")), numbers)


def _peer(name: str, args: Mapping[str, Any]) -> int:
    """Return the other rank of a transfer between two, the third argument of its operator."""
    if not name.startswith(("c10d::send", "c10d::recv")):
        return NO_NUMBER
    values = args.get("Concrete Inputs")
    return int(values[2]) if isinstance(values, list) and len(values) > 2 and str(values[2]).isdigit() else NO_NUMBER
