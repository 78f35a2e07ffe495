"""Compares two machines over stored runs: finds what each of them measured, and hands it to the comparison.

A machine is named as in `runner compare --machines A B`: by a folder with runs of one machine, such as a copy of its
results; or, among the runs of the results folder, by its type, its CPU, a GPU of it, or the beginning of its id, which
`runner show` prints. Of each cell the newest run with figures counts; runs with an injected fault are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.between_machines import MachineComparison, StoredMachine, between_machines
from keras_matrix.analysis.comparison.machines import SHOWN_CHARACTERS
from keras_matrix.analysis.comparison.table import summarise
from keras_matrix.analysis.cost import Prices, names_of
from keras_matrix.analysis.stats.sessions import SpreadOf, session_value
from keras_matrix.records.history_reader import left_out
from keras_matrix.records.schema import MEASURED, Machine, Record
from keras_matrix.records.store import Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import near, plural, printable
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.settings_text import title_defaults
from keras_matrix.runner.service.histories import spread_stored, without_run

LOOKED_BACK = 400  # runs; what no newer one has measured is then not compared
LEAST_OF_ID = 4  # digits of an id that name a machine
MACHINES_NAMED = 5  # in a message


@dataclass(frozen=True, slots=True)
class MachinesRequest:
    """Which two machines are compared, the folder of their runs unless they name others, and prices."""

    results: Path
    first: str
    second: str
    prices: Prices | None = None


@dataclass(slots=True)
class _Measured:
    """What the runs of a folder measured: of each machine, by `host_id`, its facts and each cell's newest records."""

    root: Path
    machines: dict[str, Machine]
    cells: dict[str, dict[str, list[Record]]]
    problems: list[str]


def compare_machines(request: MachinesRequest) -> MachineComparison:
    """Return the comparison of two machines. Raises `UsageError` if a name is that of no machine or of several."""
    runs = Results(request.results).runs()
    stored = _read(request.results, runs) if runs else None
    sides = [_side(name, stored, request.results) for name in (request.first, request.second)]
    (first, first_host), (second, second_host) = sides
    if (first.root, first_host) == (second.root, second_host):
        raise UsageError(f"--machines: A and B are the same machine, {first_host[:SHOWN_CHARACTERS]}; name two")
    spread_of = _spread(sides)
    machines = (_machine(first, first_host, spread_of), _machine(second, second_host, spread_of))
    found = between_machines(machines, title_defaults(), request.prices)
    unread = dict.fromkeys(problem for measured, _ in sides for problem in measured.problems)
    return replace(found, notes=tuple(unread))


def _spread(sides: Sequence[tuple[_Measured, str]]) -> SpreadOf:
    """Return the spread between the other sessions of the cells, from all folders of both machines."""
    chosen = [records for measured, host in sides for records in measured.cells[host].values()]
    run_ids = {record.run_id for records in chosen for record in records}
    cell_ids = {records[0].cell_id for records in chosen}
    return spread_stored(sorted({measured.root for measured, _ in sides}), run_ids, cell_ids)


def _machine(measured: _Measured, host: str, spread_of: SpreadOf) -> StoredMachine:
    cells = {cell_id: summarise(records) for cell_id, records in measured.cells[host].items()}
    values = {
        cell_id: value
        for cell_id, cell in cells.items()
        if (value := session_value(cell.records[0].run_id, cell.records, spread_of)) is not None
    }
    return StoredMachine(measured.machines[host], cells, values)


def _side(name: str, stored: _Measured | None, results: Path) -> tuple[_Measured, str]:
    """Return the machine that a name stands for: what its folder has measured, and its id. Raises `UsageError`."""
    folder = Path(name)
    if (folder / "run.json").is_file():
        measured = _read(folder.resolve().parent, [Run(folder.resolve())])
        hosts = list(measured.machines)
    elif folder.is_dir() and (runs := Results(folder).runs()):
        measured = _read(folder.resolve(), runs)
        hosts = list(measured.machines)
    elif stored is None:
        raise UsageError(f"--machines: {without_run([results])}")
    else:
        measured, hosts = stored, [host for host, machine in stored.machines.items() if _is_named(name, machine)]
    if len(hosts) == 1:
        return measured, hosts[0]
    known = _listed(measured.machines)
    if not hosts:
        known_names = [known_name for machine in measured.machines.values() for known_name in names_of(machine)]
        advice = f"; it has runs of {known}{near(name, known_names)}" if measured.machines else ""
        raise UsageError(f"--machines: {measured.root} has no run of a machine named {name!r}{advice}")
    several = _listed({host: measured.machines[host] for host in hosts})
    raise UsageError(f"--machines: {name!r} is {plural(len(hosts), 'machine')}, name one by its id: {several}")


def _is_named(name: str, machine: Machine) -> bool:
    return name in names_of(machine) or (len(name) >= LEAST_OF_ID and machine.host_id.startswith(name))


def _listed(machines: Mapping[str, Machine]) -> str:
    """Return machines for a message: each by its id with its names."""
    texts = [
        f"{host[:SHOWN_CHARACTERS]} ({', '.join(name for name in names_of(machine) if name != host)})"
        for host, machine in machines.items()
    ]
    rest = len(texts) - MACHINES_NAMED
    return printable("; ".join([*texts[:MACHINES_NAMED], *([f"and {rest} more"] if rest > 0 else [])]), " ")


def _read(root: Path, runs: Sequence[Run]) -> _Measured:
    """Return what these runs measured, of each cell on a machine the newest run with figures."""
    measured = _Measured(root.resolve(), {}, {}, [])
    for run in sorted(runs, key=lambda run: run.run_id, reverse=True)[:LOOKED_BACK]:
        try:
            if left_out(run.about()):
                continue
            records, problems = run.load()
        except (StoreFailure, OSError) as error:
            measured.problems.append(f"skipped: {printable(str(error), ' ')}")
            continue
        measured.problems += [f"skipped: {problem.path}: {printable(problem.reason, ' ')}" for problem in problems]
        _add(measured, records)
    return measured


def _add(measured: _Measured, records: Sequence[Record]) -> None:
    """Add the cells of one run, unless a newer one had them; of workers on several machines there is no machine."""
    of_run: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if "+" not in record.place:
            of_run.setdefault((record.machine.host_id, record.cell_id), []).append(record)
    for (host, cell_id), cell_records in of_run.items():
        if any(record.status in MEASURED for record in cell_records):
            measured.machines.setdefault(host, cell_records[0].machine)
            measured.cells.setdefault(host, {}).setdefault(cell_id, cell_records)
