"""Attribution of CPU use during a cell's measurement to waiting cells of the run, or to other processes. Pure.

A waiting cell blocks in a read and uses no CPU, unless its workload left threads or processes running. Their use
belongs to the run, so the block is not disturbed from outside and is not measured again: the next attempt would have
the same neighbour. It is reported instead, on the records of the cells that were slowed down and of the cell that
caused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.surroundings.disturbance import (
    MIN_CPU_S,
    OTHER_CPU_LIMIT,
    Cause,
    Disturbed,
    MeasuredStretch,
)
from keras_matrix.records.schema import Surroundings
from keras_matrix.records.text import percentage

NEIGHBOUR_LIMIT = OTHER_CPU_LIMIT


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A waiting cell, and the share of all CPU time that it used."""

    name: str
    cpu_share: float

    def __str__(self) -> str:
        return f"{self.name} ({percentage(self.cpu_share)} of the CPUs)"


def neighbours(watched: Iterable[MeasuredStretch]) -> tuple[Neighbour, ...]:
    """Return the cells that waited during these stretches, busiest first; those of unknown use are left out.

    Cells with less than `MIN_CPU_S` of CPU time in total are left out too: ticks do not resolve a share of it.
    """
    used_s: dict[str, float] = {}
    total_s: dict[str, float] = {}
    for one in watched:
        for cell in one.waiting:
            if cell.cpu_s is not None and one.stretch.cpu_total_s is not None:
                used_s[cell.name] = used_s.get(cell.name, 0.0) + cell.cpu_s
                total_s[cell.name] = total_s.get(cell.name, 0.0) + one.stretch.cpu_total_s
    found = [Neighbour(name, used_s[name] / total_s[name]) for name in used_s if total_s[name] >= MIN_CPU_S]
    return tuple(sorted(found, key=lambda one: (-one.cpu_share, one.name)))


def busy_neighbours(watched: Iterable[MeasuredStretch]) -> tuple[Neighbour, ...]:
    """Return those that used more than `NEIGHBOUR_LIMIT` of all CPU time, busiest first."""
    return tuple(one for one in neighbours(watched) if one.cpu_share > NEIGHBOUR_LIMIT)


def share_while_waiting(name: str, watched: Iterable[MeasuredStretch]) -> float | None:
    """Return the share of all CPU time that this cell used during others' stretches; None if unknown."""
    return next((one.cpu_share for one in neighbours(watched) if one.name == name), None)


def cause_of(reason: Disturbed, around: Sequence[Surroundings]) -> str:
    """Return the text of a disturbance; if its cause is others' CPU use, with the busiest process outside the run.

    `around` are the surroundings of the block's attempts; the most disturbed attempt names the process.
    """
    found = max(around, key=lambda one: one.other_cpu_share or 0.0, default=Surroundings()).busiest_process
    return f"{reason}; busiest: {found}" if reason.cause is Cause.OTHER_CPU and found else str(reason)


def neighbour_warnings(around: Surroundings) -> list[str]:
    """Return the warnings of an attempt that neighbours slowed down, or that slowed its neighbours down."""
    found = []
    if around.busy_neighbours:
        found.append(
            f"busy_neighbour: {', '.join(around.busy_neighbours)} computed while waiting for its turn, so this cell's "
            "times are too long, and measuring again would not change that; end what that workload leaves running "
            "between its epochs, or measure without it (--backend, --filter)"
        )
    if (around.waiting_cpu_share or 0) > NEIGHBOUR_LIMIT:
        found.append(
            f"busy_while_waiting: this cell used {percentage(around.waiting_cpu_share or 0)} of the CPUs while it "
            "waited for its turn, and slowed down the others of its block, and itself while it works; end the threads "
            "and processes that its workload leaves running between its epochs"
        )
    return found


def busy_text(around: Surroundings) -> str:
    """Return the warning that processes outside the run took CPU time, with the busiest of them if known."""
    busiest = f" (busiest: {around.busiest_process})" if around.busiest_process else ""
    return (
        f"busy: processes outside the run used {percentage(around.other_cpu_share or 0)} of the "
        f"CPUs{busiest}; stop them"
    )
