"""The GPUs of an attempt in a session that used several GPUs of a machine at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.records.codec import about

JOIN = "+"
# Between the machine and its GPUs in `Record.place`.
SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The GPUs that the runner gave to an attempt, and what worked on the machine's other GPUs meanwhile."""

    gpus: list[str] = about("their UUIDs, or indices if the driver reports no UUIDs")
    alongside: list[str] = about(
        "cells of the run that worked on other GPUs during a part of the attempt, with their GPUs",
        default_factory=list,
    )


def place_of_gpus(host_id: str, gpus: Sequence[str]) -> str:
    """Return the place of these GPUs of a machine, as in `Record.place`."""
    return f"{host_id}{SEPARATOR}{JOIN.join(gpus)}"


def host_of_place(place: str) -> str:
    """Return the machine of a place, without its GPUs."""
    return place.partition(SEPARATOR)[0]


def gpus_of_place(place: str) -> list[str]:
    """Return the GPUs of a place; empty if it is a machine."""
    gpus = place.partition(SEPARATOR)[2]
    return gpus.split(JOIN) if gpus else []
