"""The environment of a run: its machines, versions, resolved settings, and the other load of the machines."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from keras_matrix.analysis.comparison.table import in_order
from keras_matrix.dashboards.charts.figure_table import Grid, GridRow
from keras_matrix.records.schema import Machine, Record
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import (
    MILLISECOND,
    NOTHING,
    SECOND,
    bytes_text,
    integer,
    number,
    percentage,
    plural,
    quantity,
)

# Rows of the resolved settings: the name, and the field of the record or a function of it.
RESOLVED: tuple[tuple[str, str | Callable[[Record], object]], ...] = (
    ("device", lambda r: r.device and f"{r.device.name} ({r.device.model or r.device.platform})"),
    ("compiled step (jit)", "resolved.jit_compile"),
    ("precision", "resolved.precision"),
    ("TF32", "resolved.tf32"),
    ("TF32 in matrix products", "resolved.tf32_matmul"),
    ("TF32 in convolutions", "resolved.tf32_convolution"),
    ("TF32 in recurrent layers", "resolved.tf32_rnn"),
    ("threads of one operation", "resolved.intra_op_threads"),
    ("CPUs allowed", "resolved.cpus"),
    ("image data format", "resolved.image_data_format"),
    ("process start", "resolved.start"),
    ("container image", lambda r: r.container and f"{r.container.image}, {r.container.image_id[:19]}"),
    ("compile cache", "settings.compile_cache"),
    ("steps per execution", "settings.steps_per_execution"),
    ("eager", "settings.eager"),
    ("feed", "settings.feed"),
    ("data", "settings.data"),
    ("league", "settings.league"),
)


_seconds, _milliseconds = partial(quantity, unit=SECOND), partial(quantity, unit=MILLISECOND)
# Rows of the surroundings: the name, the field of the record, and its format.
SURROUNDINGS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("load before", "surroundings.load_before", number),
    ("load after", "surroundings.load_after", number),
    ("CPU time stolen by the hypervisor", "surroundings.steal_share", percentage),
    ("CPU time of other processes", "surroundings.other_cpu_share", percentage),
    ("import of the backend", "times.import_time_s", _seconds),
    ("start of a process", "harness.start_time_s", _milliseconds),
    ("full process", "harness.wall_time_s", _seconds),
    ("runner’s CPU time meanwhile", "harness.parent_cpu_time_s", _milliseconds),
)


def machine_line(records: Sequence[Record]) -> str:
    """Return the machine in one line; of several machines, their number."""
    distinct_machines = _machines(records)
    if len(distinct_machines) != 1:
        return f"{len(distinct_machines)} machines" if distinct_machines else "no machine recorded"
    [machine] = distinct_machines
    gpus = " + ".join(f"{n} × {name}" for name, n in Counter(machine.gpus).items()) or "no GPU"
    memory = [] if machine.memory_bytes is None else [bytes_text(machine.memory_bytes)]
    return " · ".join([machine.cpu_model, plural(machine.logical_cpus, "CPU"), *memory, gpus])


def run_facts(about: Mapping[str, object]) -> list[GridRow]:
    """Return what was run and when, from `run.json`; missing facts are left out."""
    command, versions = about.get("command"), about.get("versions")
    words = [str(word) for word in command] if isinstance(command, (list, tuple)) else [str(command or "")]
    packages = versions.items() if isinstance(versions, Mapping) else ()
    return _facts(
        ("command", " ".join(words)),
        ("run", about.get("run_id")),
        ("matrix", about.get("matrix_path")),
        ("planned", about.get("planned")),
        ("seed of the order", about.get("order_seed")),
        ("processes started by", about.get("start")),
        ("runner’s versions", ", ".join(f"{name} {version}" for name, version in sorted(packages))),
    )


def machines(records: Sequence[Record]) -> list[list[GridRow]]:
    """Return the facts of each machine."""
    return [_machine_facts(machine) for machine in _machines(records)]


def grids(records: Sequence[Record]) -> list[Grid]:
    """Return the tables of versions, resolved settings and surroundings, with a column per backend."""
    columns = in_order(record.settings.backend for record in records)
    groups = [[record for record in records if record.settings.backend == column] for column in columns]
    packages = sorted({name for record in records for name in record.versions})
    return [
        Grid(
            "Versions",
            columns,
            [GridRow(name, [_distinct(r.versions.get(name) for r in group) for group in groups]) for name in packages],
        ),
        Grid(
            "Resolved settings",
            columns,
            [
                GridRow(name, [_distinct(_value(r, source) for r in group) for group in groups])
                for name, source in RESOLVED
            ],
        ),
        Grid(
            "Surroundings and cost",
            columns,
            [GridRow(name, [_summary(group, source, show) for group in groups]) for name, source, show in SURROUNDINGS],
            "The median over the attempts, then the largest value.",
        ),
    ]


def _machines(records: Sequence[Record]) -> list[Machine]:
    return list({record.machine.host_id: record.machine for record in latest_attempts(records)}.values())


def _machine_facts(machine: Machine) -> list[GridRow]:
    return _facts(
        ("CPU", machine.cpu_model),
        ("CPUs the runner may use", integer(machine.logical_cpus)),
        ("physical cores", integer(machine.physical_cores)),
        ("memory", bytes_text(machine.memory_bytes)),
        ("operating system", machine.os or NOTHING),
        ("kernel", machine.kernel or NOTHING),
        ("machine type", machine.machine_type),
        ("container", machine.container or "none"),
        ("GPUs", ", ".join(machine.gpus) or "none"),
        ("GPU driver", (machine.gpu_driver or NOTHING) if machine.gpus else None),
        ("host", machine.host_id),
    )


def _facts(*facts: tuple[str, object]) -> list[GridRow]:
    return [GridRow(name, [str(value)]) for name, value in facts if value not in (None, "")]


def _value(record: Record, source: str | Callable[[Record], object]) -> object:
    """Return a field of a record, None if its group is missing."""
    if callable(source):
        return source(record)
    group, _, name = source.partition(".")
    recorded: object = getattr(getattr(record, group), name, None)
    return recorded


def _distinct(values: Iterable[object]) -> str:
    words = {True: "yes", False: "no"}
    texts = {words[value] if isinstance(value, bool) else str(value) for value in values if value is not None}
    return ", ".join(sorted(texts)) or NOTHING


def _summary(records: Sequence[Record], source: str, show: Callable[[float | None], str]) -> str:
    """Return the median and the largest value of a field."""
    figures = [figure for record in records if isinstance(figure := _value(record, source), int | float)]
    return f"{show(statistics.median(figures))}, at most {show(max(figures))}" if figures else NOTHING
