"""The influence of a machine's other devices on a cell, from `runner selftest --parallel-devices`.

    results/influence/<host_id>.json     the newest measurement of each cell and number of devices

Limit: the other devices repeat epochs of the same cell; other work may disturb more or less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.files import read_json
from keras_matrix.records.identity import CELL_ID, file_name
from keras_matrix.records.store import put

FOLDER = "influence"


@dataclass(frozen=True, slots=True)
class Influence:
    """The step time of a cell while other devices work, divided by that while they rest."""

    host_id: str = about("hash of the machine's own identity")
    device: str = about("cpu, for sets of CPUs, or gpu")
    devices: int = about("devices, or groups of them, that work at the same time, the cell's own included")
    cell_id: str = about("the cell")
    backend: str = about("its backend")
    workload: str = about("its workload")
    ratio: float = about("geometric mean over blocks; over 1: slower while others work")
    low: float | None = about("lower end of its 95 % interval; null for too few blocks", default=None)
    high: float | None = about("upper end likewise", default=None)
    blocks: int = about("pairs of processes", default=0)
    run_id: str = about("the run of the processes without other work", default="")


@dataclass(frozen=True, slots=True)
class Influences:
    """The measurements on one machine."""

    measured: list[Influence] = field(default_factory=list)


def load(results: Iterable[Path]) -> tuple[Influence, ...]:
    """Return the measurements in these results folders; files that cannot be read are left out."""
    return tuple(influence for folder in results for influence in load_with_problems(folder)[0])


def load_with_problems(results: Path) -> tuple[tuple[Influence, ...], list[str]]:
    """Return the measurements in a results folder, and a line for each file that cannot be read."""
    influences: list[Influence] = []
    problems = []
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            influences += decode(Influences, read_json(path, root=results), "influences").measured
        except (OSError, CodecError) as error:
            problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
    return tuple(influences), problems


def keep(results: Path, new_influences: Sequence[Influence]) -> None:
    """Store measurements, each in place of an older one of its cell. Raises `StoreFailure`."""
    for host_id in dict.fromkeys(influence.host_id for influence in new_influences):
        # A node of a cluster reports its own.
        name = host_id if CELL_ID.fullmatch(host_id) else file_name("host", host_id)
        path = results / FOLDER / f"{name}.json"
        influence_by_cell = {
            (influence.cell_id, influence.devices): influence
            for influence in (*_read(path), *new_influences)
            if influence.host_id == host_id
        }
        put(path, dumps(Influences([*influence_by_cell.values()])))


def _read(path: Path) -> list[Influence]:
    try:
        return decode(Influences, read_json(path.absolute(), root=path.absolute().parent.parent), "influences").measured
    except (OSError, CodecError):
        return []
