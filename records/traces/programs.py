"""What ran in a traced step, as its backend compiled or recorded it: counts of operations, not the program itself.

XLA's programs are in the profiler's own file (`of_xla`). TensorFlow's graph and PyTorch's autograd graph, which are in
no file, are counted in the cell (`models.profiling`). Promise: a summary has at most `MOST_KINDS` kinds of operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from keras_matrix.records.codec import CodecError, decode, dumps
from keras_matrix.records.files import read_json
from keras_matrix.records.traces.request import NATIVE_NAME
from keras_matrix.records.traces.xspace import hlo_program
from keras_matrix.records.traces.xspace.hlo_program import HloOperation, HloProgram

T = TypeVar("T")

PROGRAMS_NAME = "programs.json"
GRAPH_NAME = "graph.json"
MOST_KINDS = 60
OTHERS = "others"
# They name or bundle values and do nothing.
_NO_WORK = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"})
_ENTERED = frozenset({"while", "call", "conditional", "async-start"})


@dataclass(frozen=True, slots=True)
class ProgramSummary:
    """So many programs of a `source`: their operations by kind, those inside fusions too, and the bytes they write.

    `bytes_written` are those of all results, None where the program has no shapes.
    """

    source: str
    programs: int
    operations: dict[str, int] = field(default_factory=dict)
    fused: dict[str, int] = field(default_factory=dict)
    bytes_written: int | None = None

    @property
    def total(self) -> int:
        """The number of operations."""
        return sum(self.operations.values())


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a cell notes of its traced steps: the graph, and the page faults of a step with the profiler on."""

    graph: ProgramSummary | None = None
    page_faults_per_step: float | None = None


def counted(kinds: Iterable[str]) -> dict[str, int]:
    """Return the counts of the most frequent kinds, and of the others together."""
    counts = Counter(kinds)
    common = dict(counts.most_common(MOST_KINDS))
    remainder = counts.total() - sum(common.values())
    return common | ({OTHERS: remainder} if remainder else {})


def of_xla(programs: Mapping[str, bytes]) -> ProgramSummary | None:
    """Return the summary of the stored programs of a file; None without any that can be read."""
    kinds: list[str] = []
    fused: list[str] = []
    written_bytes, read_count = 0, 0
    for data in programs.values():
        try:
            program = hlo_program.read(memoryview(data))
        except (LookupError, ValueError):
            continue
        operations = list(_run(program))
        kinds += [operation.opcode for operation in operations]
        fused += [
            operation.opcode
            for outer in operations
            if outer.opcode == "fusion"
            for operation in _inside(program, outer)
        ]
        written_bytes += sum(operation.shape.bytes for operation in operations)
        read_count += 1
    return ProgramSummary("XLA", read_count, counted(kinds), counted(fused), written_bytes) if read_count else None


def stored_programs(folder: Path) -> tuple[ProgramSummary | None, GraphFacts]:
    """Return the summary and the facts in a trace's folder; what is missing, damaged or of another version is empty."""
    facts = _stored(folder / NATIVE_NAME / GRAPH_NAME, GraphFacts) or GraphFacts()
    return _stored(folder / PROGRAMS_NAME, ProgramSummary) or facts.graph, facts


def write(path: Path, value: ProgramSummary | GraphFacts) -> None:
    """Write a summary or facts. Raises OSError."""
    path.write_text(dumps(value), encoding="utf-8")


def _stored(path: Path, kind: type[T]) -> T | None:
    try:
        return decode(kind, read_json(path), path.name)
    except (OSError, CodecError):
        return None


def _run(program: HloProgram) -> Iterable[HloOperation]:
    """Yield the operations of a program that run by themselves, those of loops once."""
    waiting_names, entered = [program.entry], set()
    while waiting_names:
        name = waiting_names.pop()
        if name in entered:
            continue
        entered.add(name)
        for operation in program.computations.get(name, ()):
            if operation.opcode in _ENTERED:
                waiting_names += operation.called
            elif operation.opcode not in _NO_WORK:
                yield operation


def _inside(program: HloProgram, fusion: HloOperation) -> Iterable[HloOperation]:
    for name in fusion.called:
        for operation in program.computations.get(name, ()):
            if operation.opcode == "fusion":
                yield from _inside(program, operation)
            elif operation.opcode not in _NO_WORK:
                yield operation
