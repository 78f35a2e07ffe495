"""Where a run was measured: the machine, the versions, what the settings became, and what else was going on."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.table import in_order
from keras_matrix.dashboards.charts.format import DASH, MILLISECOND, SECOND, integer, memory, number, quantity, share
from keras_matrix.records.schema import Machine, Record
from keras_matrix.records.store import latest_attempts


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value over one or several columns."""

    name: str
    values: list[str]


@dataclass(frozen=True, slots=True)
class Grid:
    """Facts by column, a column a backend."""

    columns: list[str]
    facts: list[Fact]


def machine_line(records: Sequence[Record]) -> str:
    """Return the machine in one line; several machines are counted."""
    found = _machines(records)
    if not found:
        return "no machine recorded"
    if len(found) > 1:
        return f"{len(found)} machines"
    machine = found[0]
    told = [machine.cpu_model, f"{machine.logical_cpus} CPUs"]
    if machine.memory_bytes is not None:
        told.append(memory(machine.memory_bytes))
    told.append(" + ".join(f"{n} × {name}" for name, n in Counter(machine.gpus).items()) or "no GPU")
    return " · ".join(told)


def run_facts(about: Mapping[str, object]) -> list[Fact]:
    """Return what was run and when, as far as `run.json` tells."""
    command = about.get("command")
    words = [str(word) for word in command] if isinstance(command, (list, tuple)) else [str(command or "")]
    versions = about.get("versions")
    told = versions.items() if isinstance(versions, Mapping) else ()
    facts = [
        ("command", " ".join(words)),
        ("run", about.get("run_id")),
        ("matrix", about.get("matrix_path")),
        ("planned", about.get("planned")),
        ("order drawn with seed", about.get("order_seed")),
        ("processes started by", about.get("start")),
        ("runner’s versions", ", ".join(f"{name} {version}" for name, version in sorted(told))),
    ]
    return [Fact(name, [str(value)]) for name, value in facts if value not in (None, "")]


def machines(records: Sequence[Record]) -> list[list[Fact]]:
    """Return what is known of each machine."""
    return [_machine_facts(machine) for machine in _machines(records)]


def versions(records: Sequence[Record]) -> Grid:
    """Return the version of each package that any backend's cells reported."""
    names = sorted({name for record in records for name in record.versions})
    return _grid(records, [(name, lambda r, name=name: r.versions.get(name)) for name in names])  # type: ignore[misc]


def resolved(records: Sequence[Record]) -> Grid:
    """Return what the settings became, per backend; several values where the cells differ."""
    facts: list[tuple[str, Callable[[Record], object]]] = [
        ("device", lambda r: r.device and f"{r.device.name} ({r.device.model or r.device.platform})"),
        ("compiled step (jit)", lambda r: r.resolved and r.resolved.jit_compile),
        ("precision", lambda r: r.resolved and r.resolved.precision),
        ("TF32", lambda r: r.resolved and r.resolved.tf32),
        ("TF32 in matrix products", lambda r: r.resolved and r.resolved.tf32_matmul),
        ("TF32 in convolutions", lambda r: r.resolved and r.resolved.tf32_convolution),
        ("TF32 in recurrent layers", lambda r: r.resolved and r.resolved.tf32_rnn),
        ("threads of one operation", lambda r: r.resolved and r.resolved.intra_op_threads),
        ("CPUs allowed", lambda r: r.resolved and r.resolved.cpus),
        ("image data format", lambda r: r.resolved and r.resolved.image_data_format),
        ("process start", lambda r: r.resolved and r.resolved.start),
        ("image of its container", lambda r: r.container and f"{r.container.image}, {r.container.image_id[:19]}"),
        ("compile cache", lambda r: r.settings.compile_cache),
        ("steps per execution", lambda r: r.settings.steps_per_execution),
        ("eager", lambda r: r.settings.eager),
        ("feed", lambda r: r.settings.feed),
        ("data", lambda r: r.settings.data),
        ("league", lambda r: r.settings.league),
    ]
    return _grid(records, facts)


def surroundings(records: Sequence[Record]) -> Grid:
    """Return what else the machine did and what measuring cost: the median, then the largest, over the attempts."""
    columns = _columns(records)
    told: list[tuple[str, Callable[[Record], float | None], Callable[[float | None], str]]] = [
        ("load before", lambda r: r.surroundings.load_before, number),
        ("load after", lambda r: r.surroundings.load_after, number),
        ("CPU time stolen by the hypervisor", lambda r: r.surroundings.steal_share, share),
        ("CPU time of other processes", lambda r: r.surroundings.other_cpu_share, share),
        ("import of the backend", lambda r: r.times.import_time_s, lambda v: quantity(v, SECOND)),
        ("start of a process", lambda r: r.harness.start_time_s, lambda v: quantity(v, MILLISECOND)),
        ("whole process", lambda r: r.harness.wall_time_s, lambda v: quantity(v, SECOND)),
        ("runner’s CPU time meanwhile", lambda r: r.harness.parent_cpu_time_s, lambda v: quantity(v, MILLISECOND)),
    ]
    facts = [Fact(n, [_median_and_most(_of(records, c), value, show) for c in columns]) for n, value, show in told]
    return Grid(columns, facts)


def grids(records: Sequence[Record]) -> list[tuple[str, Grid]]:
    """Return each table of what cells ran with, and its title."""
    return [
        ("Versions", versions(records)),
        ("Resolved settings", resolved(records)),
        ("Surroundings and cost", surroundings(records)),
    ]


def _machines(records: Sequence[Record]) -> list[Machine]:
    return list({record.machine.host_id: record.machine for record in latest_attempts(records)}.values())


def _machine_facts(machine: Machine) -> list[Fact]:
    facts = [
        ("CPU", machine.cpu_model),
        ("CPUs the runner may use", integer(machine.logical_cpus)),
        ("physical cores", integer(machine.physical_cores)),
        ("memory", memory(machine.memory_bytes)),
        ("operating system", machine.os or DASH),
        ("kernel", machine.kernel or DASH),
        ("machine type", machine.machine_type),
        ("container", machine.container or "none"),
        ("GPUs", ", ".join(machine.gpus) or "none"),
        ("GPU driver", (machine.gpu_driver or DASH) if machine.gpus else None),
        ("host", machine.host_id),
    ]
    return [Fact(name, [value]) for name, value in facts if value is not None]


def _columns(records: Sequence[Record]) -> list[str]:
    return in_order(record.settings.backend for record in records)


def _of(records: Sequence[Record], backend: str) -> list[Record]:
    return [record for record in records if record.settings.backend == backend]


def _grid(records: Sequence[Record], facts: Sequence[tuple[str, Callable[[Record], object]]]) -> Grid:
    columns = _columns(records)
    return Grid(columns, [Fact(n, [_distinct(map(fact, _of(records, c))) for c in columns]) for n, fact in facts])


def _distinct(values: Iterable[object]) -> str:
    found = sorted({_word(value) for value in values if value is not None})
    return ", ".join(found) or DASH


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _median_and_most(
    records: Sequence[Record], value: Callable[[Record], float | None], show: Callable[[float | None], str]
) -> str:
    found = [figure for record in records if (figure := value(record)) is not None]
    return f"{show(statistics.median(found))}, at most {show(max(found))}" if found else DASH
