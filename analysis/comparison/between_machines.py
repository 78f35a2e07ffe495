"""Two machines over stored runs, row by row: which is faster and, by their prices, which is cheaper. Pure.

A row is one cell on both machines: equal settings, and the device, too, where both machines have it. Of each machine it
is the newest session of that cell. What belongs to a machine may differ, its CPUs and devices; another work does not
compare, with the reason. Ratios are B / A.

Two machines are two sessions, never pairs of processes: so the interval of a ratio needs the spread between sessions
of the cell on each machine (`analysis.stats.sessions`). A machine is called faster only if the interval excludes 1, and
the row is a discovery among all rows (Benjamini and Hochberg 1995, at 5 %).

The ratio of costs has the interval of the times: prices have no error, and the power is taken as it was measured.
Guarantee: no machine is named without an interval; the lower figure is then said to lead. Limit: two machines differ in
all that their software is, which `changed` names, and not in their hardware alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.same_work import OF_A_MACHINE, differing, mixed
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.analysis.comparison.titles import Usual, titles
from keras_matrix.analysis.comparison.versus import changed
from keras_matrix.analysis.cost import CellCost, Prices, cell_cost, energy_counted, energy_per_sample
from keras_matrix.analysis.history.sessions import LEAST_PROCESSES, LEAST_SESSIONS, SessionRatio
from keras_matrix.analysis.stats.blocks import LEVEL, Estimate, adjusted_p_values
from keras_matrix.analysis.stats.sessions import SessionValue, separate_ratio
from keras_matrix.records.codec import canonical, to_json
from keras_matrix.records.schema import Machine
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import bytes_text, plural

A, B = "A", "B"
NO_INTERVAL = (
    f"no interval: it needs {LEAST_PROCESSES} processes and {LEAST_SESSIONS} other stored sessions of the cell on each "
    "machine"
)


@dataclass(frozen=True, slots=True)
class StoredMachine:
    """A machine with its cells, each of its newest session there, and their values."""

    machine: Machine
    cells: Mapping[str, CellSummary]
    values: Mapping[str, SessionValue]

    @property
    def text(self) -> str:
        """The machine in one line: its type, CPUs, memory and GPUs."""
        machine = self.machine
        memory = [] if machine.memory_bytes is None else [bytes_text(machine.memory_bytes)]
        gpus = [f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus)] or ["no GPU"]
        kind = [machine.machine_type] if machine.machine_type else []
        return ", ".join([*kind, f"{machine.logical_cpus} x {machine.cpu_model}", *memory, *gpus])


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure on both machines: its ratio B / A, which machine has the lower one, and whether that is shown."""

    ratio: SessionRatio
    lower: str
    is_shown: bool = False

    @property
    def estimate(self) -> Estimate:
        """The ratio with its interval."""
        return self.ratio.estimate

    @property
    def text(self) -> str:
        """The machine with the lower figure, if that is shown; else why it is not."""
        if self.is_shown:
            return self.lower
        if self.estimate.bounds:
            return "not separable"
        return "equal, no interval" if self.estimate.centre == 1 else f"{self.lower} leads, no interval"


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A cell on both machines. `reason` says why its times are not compared, None if they are.

    `costs` are those of a million samples on A and B, empty without prices; `cost` is their ratio, None if one of them
    is not known. `energies` are those of a sample, in joules, on A and B; None unless both count the same parts.
    """

    title: str
    backend: str
    cells: tuple[CellSummary, CellSummary]
    time: ComparedFigure | None
    reason: str | None
    costs: tuple[CellCost, ...] = ()
    cost: ComparedFigure | None = None
    energies: tuple[Estimate, Estimate] | None = None


@dataclass(frozen=True, slots=True)
class MachineComparison:
    """Two machines, their rows, the cells that only one of them has, and what else differs between them."""

    machines: tuple[StoredMachine, StoredMachine]
    rows: tuple[MachineRow, ...]
    currency: str | None
    only: tuple[str, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> list[str]:
        """How many rows each machine is faster and cheaper in, and what an interval would need."""
        lines = [_summary("faster", [row.time for row in self.rows])]
        lines += [_summary("cheaper", [row.cost for row in self.rows])] if self.currency else []
        if any(row.time and not row.time.estimate.bounds for row in self.rows):
            lines.append(NO_INTERVAL)
        return lines


def _summary(word: str, compared: Sequence[ComparedFigure | None]) -> str:
    counts = {side: sum(one is not None and one.is_shown and one.lower == side for one in compared) for side in (A, B)}
    undecided = sum(one is not None and not one.is_shown for one in compared)
    texts = [f"{side} is {word} in {count}" for side, count in counts.items()]
    parts = [*texts, f"undecided in {undecided}", f"not compared in {sum(one is None for one in compared)}"]
    return f"{', '.join(parts)} of {plural(len(compared), 'row')}"


def between_machines(
    machines: tuple[StoredMachine, StoredMachine], usual: Usual, prices: Prices | None = None
) -> MachineComparison:
    """Return the comparison of two machines; titles leave out settings with these usual values."""
    pairs = list(_pairs(*machines))
    shown_titles = titles([_shown(*pair) for pair in pairs], usual)
    rows = [_row(title, pair, machines, prices) for title, pair in zip(shown_titles, pairs, strict=True)]
    rows = _judged(sorted(rows, key=lambda row: (row.title, row.backend)))
    paired = {cell.cell_id for pair in pairs for cell in pair}
    only = [
        f"only on {side}: {cell.settings.workload} on {cell.settings.backend} ({cell_id})"
        for side, machine in zip((A, B), machines, strict=True)
        for cell_id, cell in machine.cells.items()
        if cell_id not in paired
    ]
    differences = [text for text in changed(pairs) if not text.startswith("host ")]
    return MachineComparison(
        machines, tuple(rows), prices.currency if prices else None, tuple(only), tuple(differences)
    )


def _pairs(first: StoredMachine, second: StoredMachine) -> Iterator[tuple[CellSummary, CellSummary]]:
    """Yield the cells of both machines: equal ones, then those that differ in the device alone."""
    for cell_id in first.cells.keys() & second.cells.keys():
        yield first.cells[cell_id], second.cells[cell_id]
    singles = [
        _by_work(cell for cell_id, cell in one.cells.items() if cell_id not in other.cells)
        for one, other in ((first, second), (second, first))
    ]
    for work in singles[0].keys() & singles[1].keys():
        if len(singles[0][work]) == len(singles[1][work]) == 1:
            yield singles[0][work][0], singles[1][work][0]


def _by_work(cells: Iterator[CellSummary]) -> dict[str, list[CellSummary]]:
    works: dict[str, list[CellSummary]] = {}
    for cell in cells:
        works.setdefault(canonical(to_json(replace(cell.settings, device="cpu"))), []).append(cell)
    return works


def _shown(first: CellSummary, second: CellSummary) -> Settings:
    """Return the settings that a title names: without the device if it differs."""
    same_device = first.settings.device == second.settings.device
    return first.settings if same_device else replace(first.settings, device="cpu")


def _row(
    title: str,
    cells: tuple[CellSummary, CellSummary],
    machines: tuple[StoredMachine, StoredMachine],
    prices: Prices | None,
) -> MachineRow:
    values = [machine.values.get(cell.cell_id) for machine, cell in zip(machines, cells, strict=True)]
    costs = tuple(cell_cost(cell, prices) for cell in cells) if prices else ()
    row = MachineRow(title, cells[0].settings.backend, cells, None, _reason(cells), costs, energies=_energies(cells))
    if row.reason is not None or values[0] is None or values[1] is None:
        return replace(row, reason=row.reason or "no process ended ok on both machines")
    ratio = separate_ratio(values[1], values[0])
    return replace(row, time=_compared(ratio), cost=_cost(ratio, costs))


def _reason(cells: tuple[CellSummary, CellSummary]) -> str | None:
    """Return why two cells are not compared; None if they did the same work."""
    sides = dict(zip((A, B), cells, strict=True))
    for side, cell in sides.items():
        if not cell.measured:
            return f"not measured on {side}"
        if mixture := mixed(cell.measured):
            return f"not comparable: {mixture} within {side}"
    reason = differing({side: cell.measured for side, cell in sides.items()}, apart=True, varied=OF_A_MACHINE)
    return None if reason is None else f"not comparable: {reason}"


def _compared(ratio: SessionRatio) -> ComparedFigure:
    return ComparedFigure(ratio, A if ratio.estimate.centre > 1 else B)


def _cost(ratio: SessionRatio, costs: Sequence[CellCost]) -> ComparedFigure | None:
    """Return the ratio of costs, with the errors of the ratio of times; None if a cost is not known."""
    estimates = [cost.estimate for cost in costs if cost.estimate]
    if len(estimates) < 2:
        return None
    factor = estimates[1].centre / estimates[0].centre / ratio.estimate.centre
    return _compared(SessionRatio(ratio.estimate.scaled(factor), ratio.errors))


def _energies(cells: tuple[CellSummary, CellSummary]) -> tuple[Estimate, Estimate] | None:
    first, second = map(energy_per_sample, cells)
    is_alike = energy_counted(cells[0]) == energy_counted(cells[1])
    return (first, second) if first and second and is_alike else None


def _judged(rows: Sequence[MachineRow]) -> list[MachineRow]:
    """Return the rows, of which times and costs that are discoveries among all rows are shown to differ."""
    times, costs = _discoveries([row.time for row in rows]), _discoveries([row.cost for row in rows])
    return [replace(row, time=time, cost=cost) for row, time, cost in zip(rows, times, costs, strict=True)]


def _discoveries(compared: Sequence[ComparedFigure | None]) -> list[ComparedFigure | None]:
    p_values = {i: p for i, one in enumerate(compared) if one and (p := one.ratio.p_value()) is not None}
    adjusted = dict(zip(p_values, adjusted_p_values(list(p_values.values())), strict=True))
    return [
        one and replace(one, is_shown=adjusted.get(i, 1.0) <= LEVEL and one.estimate.excludes(1.0))
        for i, one in enumerate(compared)
    ]
