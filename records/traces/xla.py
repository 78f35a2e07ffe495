"""From JAX's and TensorFlow's own file to the neutral trace.

What computes: instructions of XLA's programs (events with `hlo_op`), TensorFlow's operations (`node:Type`), and what
ran on a device's streams. XLA's CPU client may leave an instruction to other threads: it ends where the event `end: `
with its number says, and lies on a track apart, since its thread went on meanwhile. Phase and layer come from where an
instruction or a node is from (names.py): the programs beside the events tell it of instructions, its path of a node.

A step's instructions are those of the runs that it called: of a program that ran as often as there are steps, or a
multiple of it, the first runs are the first step's. TensorFlow's operations end within the step that calls them. Of
what fits neither no step is told.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from records.traces import hlo, xplane
from records.traces.asked import CLOCK, MARK, PHASE, STEP, WORKER_SCOPE, Names, TraceError
from records.traces.hlo import Instruction
from records.traces.names import Scopes
from records.traces.neutral import Flow, Kind, Phase, Span, Track
from records.traces.xplane import Event, Plane

DEVICE_PLANE = "/device:"
END = "end: "
MARKED = re.compile(rf"{MARK}(?!{CLOCK.removeprefix(MARK)})")
# A node's path, a colon, the type of its operation.
NODE = re.compile(r"^([\w./>=-]+):(_?[A-Z]\w*)$")
NUMBER = re.compile(r"(\.\d+)+$")
COLLECTIVE = re.compile(
    r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-|ragged-all-to-all|Collective|Nccl)"
)
# TensorFlow does not tell a node's logical device; where several of a process work, scopes are named after them, as
# MirroredStrategy names its replicas but the first.
WORKER = re.compile(rf"(?:^|/)(?:{WORKER_SCOPE}|replica_)(\d+)/")
# What stands for a collective in a traced step of the FC modes (models.fc.native.tensorflow).
COLLECTIVE_SCOPE = re.compile(r"(?:^|/)collective_of_\d+")
INPUT = re.compile(r"^(Iterator\w*GetNext\w*|IteratorV2|MultiDeviceIteratorGetNextFromShard)$")
# What fetches a batch within TensorFlow's step: an operation that goes on elsewhere, of which no node is told.
FETCH = re.compile(r"^IteratorGetNext\w*Op::DoCompute$")
# Lines of a device that tools derive from its streams: the same time again.
DERIVED = ("Steps", "XLA ", "TensorFlow ", "Framework ", "Source code", "Async XLA")

Place = tuple[str, int]


class Worked(NamedTuple):
    """An operation: on which line, when, what it is called, its kind, where it comes from, on which device, which run.

    `context` is the number by which its end is told, `apart` whether it ended later than its line went on.
    """

    place: Place
    start_ns: int
    end_ns: int
    name: str
    op: str
    origin: str
    device: int = 0
    run: tuple[str, int] | None = None
    context: int | None = None
    apart: bool = False


class Marked(NamedTuple):
    """A mark, or anything else that the program's own thread did."""

    place: Place
    start_ns: int
    end_ns: int
    name: str


@dataclass(slots=True)
class Recording:
    """What is kept of a file. Times in nanoseconds of the profiler's clock."""

    worked: list[Worked] = field(default_factory=list)
    marks: list[Marked] = field(default_factory=list)
    fetches: list[Marked] = field(default_factory=list)
    clocks: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    device: str = "cpu"


def read(path: Path) -> Recording:
    """Read a file. Raises `TraceError`."""
    try:
        planes = list(xplane.planes(path.read_bytes()))
        programs = Programs(planes)
        found = Recording()
        for plane in planes:
            if plane.name.startswith(DEVICE_PLANE):
                _read_device(found, plane, programs)
            elif plane.name != xplane.METADATA_PLANE:
                _Host(found, plane, programs).read()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (LookupError, TypeError, ValueError) as error:
        raise TraceError(f"{path}: is no whole profile of JAX or TensorFlow: {error}; record it again") from error
    found.worked = [_whole(worked, found.ends) for worked in found.worked]
    return found


class Known(NamedTuple):
    """An instruction, as its program tells of it; `program` has its number in brackets."""

    name: str
    op: str
    origin: str
    program: str


class Programs:
    """The programs that stand beside the events. An instruction of one runs again and again, and is looked up once."""

    def __init__(self, planes: Iterable[Plane]) -> None:
        self._instructions: dict[str, dict[str, Instruction]] = {}
        self._known: dict[tuple[Any, ...], Known] = {}
        for plane in planes:
            if plane.name == xplane.METADATA_PLANE:
                for name, told in plane.own_stats():
                    if isinstance(program := told.get(hlo.STAT), memoryview):
                        found = hlo.instructions(program)
                        self._instructions[name] = self._instructions[name.partition("(")[0]] = found

    def instruction(self, told: dict[str, Any]) -> Known:
        """Return the instruction that an event was."""
        key = told["hlo_op"], told.get("hlo_module", ""), told.get("program_id")
        return self._known.get(key) or self._found(*key)

    def _found(self, name: str, module: str, number: int | None) -> Known:
        program = f"{module}({number})"
        own = self._instructions.get(program) or self._instructions.get(module, {})
        found = own.get(name) or Instruction(NUMBER.sub("", name), "")
        self._known[name, module, number] = known = Known(name, _op_of(found), found.origin, program)
        return known


def _op_of(instruction: Instruction) -> str:
    """Return the kind of an instruction; of what only holds others, also what it was made for."""
    last = instruction.origin.rpartition("/")[2]
    return f"{instruction.opcode} ({last})" if last and instruction.opcode in HOLDERS else instruction.opcode


NO_RUN = -1  # any other number is one, negative ones too
HOLDERS = frozenset({"fusion", "call", "custom-call"})


def _whole(worked: Worked, ends: dict[int, int]) -> Worked:
    """Return an operation with the end that was told apart, where that is later."""
    end_ns = ends.get(worked.context, 0) if worked.context is not None else 0
    return worked._replace(end_ns=end_ns, apart=True) if end_ns > worked.end_ns else worked


class _Host:
    """Reads the plane of a host. What events of one name are is found out once."""

    def __init__(self, found: Recording, plane: Plane, programs: Programs) -> None:
        self._found, self._plane, self._programs = found, plane, programs
        self._readers: dict[int, Callable[[Place, Event], None]] = {}
        self._others: set[int] = set()
        self._marked = False

    def read(self) -> None:
        marks = {kind for kind, name in self._plane.event_names.items() if MARKED.match(name)}
        for line in self._plane.lines:
            place = (self._plane.name, line.number)
            # What the thread that is marked does besides is what the program does; other threads' is passed over.
            self._marked = bool(marks) and line.holds(marks)
            for event in line.events(() if self._marked else self._others):
                reader = self._readers.get(event.kind) or self._reader(event)
                reader(place, event)

    def _reader(self, event: Event) -> Callable[[Place, Event], None]:
        """Return what reads events of this one's name."""
        name = event.name
        if name.startswith(MARK):
            reader = self._mark
        elif name.startswith(END):
            reader = self._end
        elif NODE.match(name):
            reader = self._node
        elif FETCH.match(name):
            reader = self._fetch
        elif "hlo_op" in self._plane.stats(event):
            reader = self._instruction
        else:
            self._others.add(event.kind)
            reader = self._other
        self._readers[event.kind] = reader
        return reader

    def _other(self, place: Place, event: Event) -> None:
        if self._marked:
            self._found.marks.append(_marked(place, event))

    def _mark(self, place: Place, event: Event) -> None:
        if event.name.startswith(CLOCK):
            self._found.clocks.append((round(event.start_ns), int(event.name.removeprefix(CLOCK))))
        else:
            self._found.marks.append(_marked(place, event))

    def _end(self, place: Place, event: Event) -> None:
        context = self._plane.stat(event, "_c")
        if context is not None:
            self._found.ends[context] = round(event.start_ns + event.duration_ns)

    def _fetch(self, place: Place, event: Event) -> None:
        self._found.fetches.append(_marked(place, event)._replace(name=f"{PHASE}{Phase.INPUT}"))

    def _node(self, place: Place, event: Event) -> None:
        node, _, kind = event.name.rpartition(":")
        span = _marked(place, event)
        worker = WORKER.search(node)
        device = int(worker[1]) if worker else 0
        self._found.worked.append(Worked(place, span.start_ns, span.end_ns, node, kind, node, device))

    def _instruction(self, place: Place, event: Event) -> None:
        told = self._plane.stats(event)
        found, run = self._programs.instruction(told), told.get("run_id", NO_RUN)
        self._found.worked.append(
            Worked(
                place,
                round(event.start_ns),
                round(event.start_ns + event.duration_ns),
                found.name,
                found.op,
                found.origin,
                max(0, told.get("device_ordinal", 0)),
                None if run == NO_RUN else (found.program, run),
                told.get("_p"),
            )
        )


def _marked(place: Place, event: Event) -> Marked:
    return Marked(place, round(event.start_ns), round(event.start_ns + event.duration_ns), event.name)


def _read_device(found: Recording, plane: Plane, programs: Programs) -> None:
    """Read the streams of a device; each event is a kernel or a copy."""
    number = plane.name.rpartition(":")[2]
    device = int(number) if number.isdecimal() else 0
    found.device = "gpu" if "GPU" in plane.name else plane.name.removeprefix(DEVICE_PLANE).partition(":")[0].lower()
    for line in plane.lines:
        if line.name.startswith(DERIVED):
            continue
        place = (plane.name, line.number)
        for event in line.events():
            told = plane.stats(event)
            op, origin = event.name, ""
            if "hlo_op" in told:
                _, op, origin, _ = programs.instruction(told)
            elif node := NODE.match(str(told.get("tf_op", ""))):
                origin, op = node[1], node[2]
            found.worked.append(Worked(*_marked(place, event)[:3], event.name, op, origin, device))


def spans(recording: Recording, worker: int, names: Names) -> tuple[list[Span], list[Flow]]:
    """Return the spans of a file, in the profiler's own clock; its devices are the workers from `worker` on."""
    scopes, steps = Scopes(names), _Steps(recording)
    lanes = _Lanes(worker)
    found = []
    for one in sorted(recording.worked, key=lambda one: (one.start_ns, -one.end_ns)):
        phase, layer = scopes.read(one.origin)
        collective = bool(COLLECTIVE.match(one.op) or COLLECTIVE_SCOPE.search(one.origin))
        if collective:
            phase = Phase.COMMUNICATION
        elif INPUT.match(one.op):
            phase = Phase.INPUT
        track = lanes.track(one, Kind.COMMUNICATION if collective else Kind.COMPUTE)
        step, duration_ns = steps.of(one), one.end_ns - one.start_ns
        found.append(Span(track, one.name, one.op, one.start_ns, duration_ns, phase, layer, step))
    return [*_marks(recording, worker), *found], []


def _marks(recording: Recording, worker: int) -> Iterator[Span]:
    places: dict[tuple[Place, Kind], int] = {}
    marks = [*recording.marks, *recording.fetches]
    for mark in sorted(marks, key=lambda one: (one.start_ns, -one.end_ns)):
        name, kind, step, phase = mark.name, Kind.HOST, None, None
        if name.startswith(STEP):
            name, kind, step = f"step {name.removeprefix(STEP)}", Kind.STEPS, int(name.removeprefix(STEP))
        elif name.startswith(PHASE):
            name = name.removeprefix(PHASE)
            kind, phase = (Kind.INPUT if name == Phase.INPUT else Kind.LAYERS), Phase(name)
        lane = places.setdefault((mark.place, kind), sum(other is kind for _, other in places))
        op = "step" if kind is Kind.STEPS else name
        track = Track(worker, kind, lane)
        yield Span(track, name, op, mark.start_ns, mark.end_ns - mark.start_ns, phase, None, step)


class _Lanes:
    """The tracks of operations: of a thread what nests, and of what ended apart those that follow one another."""

    def __init__(self, first_worker: int) -> None:
        self._first = first_worker
        self._tracks: dict[tuple[int, Kind, Any], Track] = {}
        self._counts: dict[tuple[int, Kind], int] = {}
        self._free_ns: dict[tuple[int, Kind], list[int]] = {}

    def track(self, worked: Worked, kind: Kind) -> Track:
        """Return the track of the next operation, of those in the order of their beginning."""
        worker = self._first + worked.device
        place: Any = self._apart(worker, kind, worked) if worked.apart else worked.place
        key = worker, kind, place
        if key not in self._tracks:
            lane = self._counts.get((worker, kind), 0)
            self._counts[worker, kind] = lane + 1
            self._tracks[key] = Track(worker, kind, lane)
        return self._tracks[key]

    def _apart(self, worker: int, kind: Kind, worked: Worked) -> int:
        """Return the number of the first track of such operations that is free."""
        free = self._free_ns.setdefault((worker, kind), [])
        for number, end_ns in enumerate(free):
            if end_ns <= worked.start_ns:
                free[number] = worked.end_ns
                return number
        free.append(worked.end_ns)
        return len(free) - 1


class _Steps:
    """To which step an operation belongs."""

    def __init__(self, recording: Recording) -> None:
        steps = sorted((one.start_ns, one.end_ns, one.name) for one in recording.marks if one.name.startswith(STEP))
        self._begins = [begin for begin, _, _ in steps]
        self._ends = [end for _, end, _ in steps]
        self._numbers = [int(name.removeprefix(STEP)) for _, _, name in steps]
        self._of_run = self._by_run(recording) if steps else {}
        self._timed = recording.device == "cpu"

    def of(self, worked: Worked) -> int | None:
        """Return the number of the step, None where it is not told."""
        if worked.run is not None:
            return self._of_run.get(worked.run)
        at = bisect_right(self._begins, worked.start_ns) - 1
        within = self._timed and at >= 0 and worked.end_ns <= self._ends[at]
        return self._numbers[at] if within else None

    def _by_run(self, recording: Recording) -> dict[tuple[str, int], int]:
        begins: dict[str, dict[int, int]] = {}
        for one in recording.worked:
            # What ran before the first step was called is no step's.
            if one.run is not None and one.start_ns >= self._begins[0]:
                runs = begins.setdefault(one.run[0], {})
                runs[one.run[1]] = min(one.start_ns, runs.get(one.run[1], one.start_ns))
        found: dict[tuple[str, int], int] = {}
        for program, runs in begins.items():
            each, rest = divmod(len(runs), len(self._numbers))
            if each and not rest:
                ordered = sorted(runs, key=runs.__getitem__)
                found |= {(program, run): self._numbers[at // each] for at, run in enumerate(ordered)}
        return found
