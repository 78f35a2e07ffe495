"""What else differs between two cells: settings, work, versions, the first epoch, memory, compiled programs.

Facts have no share: their effect on a step, if any, is in the differences. Those that scatter by themselves are listed
only if they differ by more than `SCATTER` of the larger value.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.comparison.same_work import differing
from keras_matrix.records.identity import named, value_as_text
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.traces.programs import ProgramSummary, stored_programs

SCATTER = {"page faults per step": 0.2, "memory": 0.05, "times": 0.2}
MOST_KINDS_SHOWN = 8
# Kinds of an XLA program of which a change is shown before that of others.
FIRST_KINDS = ("fusion", "copy", "transpose", "reduce")
Number = float | int | None
Values = Mapping[str, Callable[[Record], Number]]

TIMES: Values = {
    "import": lambda record: record.times.import_time_s,
    "build": lambda record: record.times.build_time_s,
    "trace": lambda record: record.times.trace_time_s,
    "compile": lambda record: record.times.compile_time_s,
    "first step": lambda record: record.times.first_step_time_s,
    "first epoch": lambda record: record.times.first_epoch_time_s,
}
MEMORY: Values = {
    "peak host memory": lambda record: record.memory.peak_host_memory_bytes,
    "peak device memory": lambda record: record.memory.peak_device_memory_bytes,
}
COUNTS: Values = {
    "recompilations in the measured epochs": lambda record: (
        record.resolved.recompiles_timed if record.resolved else None
    ),
    "graph breaks": lambda record: record.resolved.graph_breaks if record.resolved else None,
    "FLOPs of a forward pass": lambda record: record.resolved.forward_flops if record.resolved else None,
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that differs between base and new; `topic` is what it belongs to. None: not measured."""

    topic: str
    name: str
    base: str | float | None
    new: str | float | None


def differing_facts(
    base: Sequence[Record], new: Sequence[Record], folders: tuple[Path, Path] | None, operations: tuple[float, float]
) -> list[Fact]:
    """Return what differs between the records of two cells, and between their traces in these folders.

    `operations` are those of a traced step.
    """
    found = [*_settings(base[0], new[0]), *_versions(base, new), *_work(base, new)]
    found += _numbers("start and first epoch", TIMES, base, new, SCATTER["times"])
    found += _numbers("memory", MEMORY, base, new, SCATTER["memory"])
    found += _numbers("counts", COUNTS, base, new, 0.0)
    if folders is None:
        return found
    (base_program, base_facts), (new_program, new_facts) = map(stored_programs, folders)
    faults = base_facts.page_faults_per_step, new_facts.page_faults_per_step
    found += _number("allocations", "page faults per step", *faults, SCATTER["page faults per step"])
    found += _number("kernels", "operations in a traced step", *operations, 0.01)
    return found + _programs(base_program, new_program)


def _settings(base: Record, new: Record) -> list[Fact]:
    then, now = named(base.settings), named(new.settings)
    pairs = [(name, value_as_text(then.get(name)), value_as_text(now.get(name))) for name in {**then, **now}]
    return [Fact("settings", name, before, after) for name, before, after in pairs if before != after]


def _versions(base: Sequence[Record], new: Sequence[Record]) -> list[Fact]:
    then, now = base[0].versions, new[0].versions
    if base[0].settings.backend != new[0].settings.backend:
        return []
    names = sorted({*then, *now})
    return [Fact("versions", name, then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)]


def _work(base: Sequence[Record], new: Sequence[Record]) -> list[Fact]:
    """Return the difference in work, which prevents a comparison but not an explanation."""
    sides = {
        name: [record for record in records if record.status in MEASURED]
        for name, records in (("base", base), ("new", new))
    }
    text = differing(sides, apart=True)
    return [Fact("work", text, None, None)] if text else []


def _numbers(topic: str, named: Values, base: Sequence[Record], new: Sequence[Record], least: float) -> list[Fact]:
    return [
        fact
        for name, value in named.items()
        for fact in _number(topic, name, _median(map(value, base)), _median(map(value, new)), least)
    ]


def _number(topic: str, name: str, base: Number, new: Number, least: float) -> list[Fact]:
    if base == new or (base is not None and new is not None and abs(new - base) <= least * max(abs(base), abs(new))):
        return []
    return [Fact(topic, name, base, new)]


def _median(values: Iterable[Number]) -> Number:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _programs(base: ProgramSummary | None, new: ProgramSummary | None) -> list[Fact]:
    """Return the kinds of operations whose number differs between two programs of one source."""
    if base is None or new is None or base.source != new.source:
        return []
    topic = f"programs ({new.source})"
    found = _number(topic, "programs", base.programs, new.programs, 0.0)
    found += _number(topic, "operations", base.total, new.total, 0.0)
    found += _number(topic, "bytes written", base.bytes_written, new.bytes_written, 0.0)
    for label, then, now in (("", base.operations, new.operations), (" inside fusions", base.fused, new.fused)):
        kinds = [kind for kind in {**then, **now} if then.get(kind, 0) != now.get(kind, 0)]
        kinds.sort(key=lambda kind: (kind not in FIRST_KINDS, -abs(now.get(kind, 0) - then.get(kind, 0)), kind))
        found += [Fact(topic, kind + label, then.get(kind, 0), now.get(kind, 0)) for kind in kinds[:MOST_KINDS_SHOWN]]
    return found
