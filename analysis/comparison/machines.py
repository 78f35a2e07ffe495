"""The machines of a cell's records: whether their hardware and system are equal, and values by machine.

Records of one cell come from several machines if a cluster spreads the blocks of a comparison (`across_nodes`), or if a
machine was lost. The GPUs of one machine count as such (`across_gpus`). Equal machines are a level of the statistics
(`analysis.stats.sequential`); others are not compared.

Guarantee: pure. Machines are equal only if they are known to be: a record without its machine's memory equals none.
Limit: two machines with equal facts may still differ in speed, for example by cooling or firmware; the level removes
that from intervals, and the F test of a ratio detects if it favours a backend.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from keras_matrix.analysis.stats.sequential import Levels, grouped, levels
from keras_matrix.records.instruments.gpu_place import JOIN, gpus_of_place, host_of_place
from keras_matrix.records.schema import Machine, Record
from keras_matrix.records.text import bytes_text

# The kernel and firmware reserve a part of the memory, which varies a little between equal machines.
MEMORY_TOLERANCE = 0.03
SHOWN_CHARACTERS = 8
SHOWN_OF_UUID = 12
MACHINES, GPUS, PLACES = "machines", "GPUs", "places of one machine"
FACTS: Mapping[str, Callable[[Machine], object]] = {
    "CPUs": lambda machine: f"{machine.logical_cpus} x {machine.cpu_model}",
    "physical cores": lambda machine: machine.physical_cores,
    "GPUs": lambda machine: ", ".join(sorted(machine.gpus)) or "none",
    "GPU drivers": lambda machine: machine.gpu_driver,
    "machine types": lambda machine: machine.machine_type,
    "kernels": lambda machine: machine.kernel,
    "operating systems": lambda machine: machine.os,
    "containers": lambda machine: machine.container,
}


def hosts(records: Sequence[Record]) -> tuple[str, ...]:
    """Return where these records were measured, sorted: the machines by `host_id`, or groups of machines."""
    return tuple(sorted({record.place for record in records}))


def short(place: str) -> str:
    """Return a machine's name in texts: records name machines by a hash only. Of GPUs of one machine, their UUIDs'."""
    gpus = gpus_of_place(place)
    return JOIN.join(gpu[:SHOWN_OF_UUID] for gpu in gpus) if gpus else place[:SHOWN_CHARACTERS]


def noun(places: Sequence[str]) -> str:
    """Return what these places are in texts: machines, GPUs of one machine, or such and the machine itself.

    The last are of a run that was continued with or without `parallel_devices`: a part of its records names no GPU.
    """
    if len({host_of_place(place) for place in places}) != 1:
        return MACHINES
    of_gpus = [bool(gpus_of_place(place)) for place in places]
    return GPUS if all(of_gpus) else PLACES if any(of_gpus) else MACHINES


def difference(records: Sequence[Record]) -> str | None:
    """Return how the machines of one cell's records differ; None if there is one, or if all are equal."""
    host_count = len(hosts(records))
    if host_count < 2 or (inequality := _unequal([record.machine for record in records])) is None:
        return None
    return f"machines differ ({'; '.join(filter(None, (f'{host_count} hosts', inequality)))})"


def equal(machine: Machine, other: Machine) -> bool:
    """Return whether two machines are known to be equal."""
    return _unequal([machine, other]) is None


def _unequal(machines: Sequence[Machine]) -> str | None:
    """Return how machines differ, empty if that is not known; None if they are equal."""
    for name, fact in FACTS.items():
        if len(values := {str(fact(machine)) for machine in machines}) > 1:
            return f"{name}: {', '.join(sorted(values))}"
    known_memories = [machine.memory_bytes for machine in machines if machine.memory_bytes is not None]
    if len(known_memories) < len(machines):
        return ""
    if min(known_memories) < (1 - MEMORY_TOLERANCE) * max(known_memories):
        return f"memory: {bytes_text(min(known_memories))} to {bytes_text(max(known_memories))}"
    return None


def log_levels(records: Sequence[Record], values: Sequence[float]) -> Levels | None:
    """Return the levels of the logarithms of these values, one a record; None if they are not of several machines.

    The machines must be equal; of different ones there is no level.
    """
    if len(hosts(records)) < 2 or difference(records) is not None:
        return None
    return levels(grouped(list(map(math.log, values)), [record.place for record in records]))


def without_levels(records: Sequence[Record], values: Sequence[float]) -> list[float]:
    """Return the positive values, one a record, without the differences in speed between their machines.

    Their geometric mean stays; values of one machine stay as they are.
    """
    if len(hosts(records)) < 2:
        return list(values)
    logs_by_machine = grouped(list(map(math.log, values)), [record.place for record in records])
    means = {machine: statistics.fmean(logs) for machine, logs in logs_by_machine.items()}
    common = statistics.fmean(map(math.log, values))
    return [value * math.exp(common - means[record.place]) for record, value in zip(records, values, strict=True)]
