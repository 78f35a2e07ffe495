"""What holds for a run as a whole: geometric means, what differences it could have shown, and what a night could.

A night's share is a projection, and says so: each comparison is taken to go on scattering as its blocks did, at the
cost they had, and gets blocks, the cheapest comparisons first, until a difference of `NOTABLE` would show with 80 %
power or no look is left. It does not know hours that are noisier than the one it saw.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.stats.blocks import blocks_needed
from keras_matrix.analysis.stats.league_means import suite
from keras_matrix.analysis.stats.sequential import LOOKS
from keras_matrix.analysis.stats.suite import SuiteRatio
from keras_matrix.records.schema import Status

NOTABLE = 0.05  # the relative difference of which a run tells whether it would have shown
NIGHT_S = 7200.0


@dataclass(frozen=True, slots=True)
class Fraction:
    """So many of the comparisons of a run: each cell of a row against its quickest, drawn or not."""

    able: int
    of: int


def lines(rows: Sequence[Row]) -> list[str]:
    """Return what holds for the run, in lines; none where nothing is compared."""
    told = []
    for one in suite(rows):
        ratios = ", ".join(f"{ratio.estimate.centre:.2f}x {name}{_bounds(ratio)}" for name, ratio in one.ratios.items())
        told.append(f"geometric mean, league {one.league}: {ratios} against {one.against}")
    rows = [row for row in rows if not row.values]  # what separate sessions would have shown takes more sessions
    now, drawn = detectable(rows, NOTABLE), sum(len(row.ratios) for row in rows)
    if not drawn:
        return told
    told.append(f"a difference of {NOTABLE * 100:.0f} % would have shown in {now.able} of {now.of} comparisons")
    if drawn < now.of:
        told[-1] += f" ({now.of - drawn} not compared)"
    if (night := projected(rows, NIGHT_S)) is not None and night.able > now.able:
        told[-1] += (
            f"; in {night.able} after --repeats auto --budget {NIGHT_S:.0f}, if they go on to scatter as they did"
        )
    return told


def detectable(rows: Sequence[Row], effect: float) -> Fraction:
    """Return how many of the comparisons would have shown a relative difference of `effect`."""
    known = [ratio.smallest_difference for row in rows for ratio in row.ratios]
    return Fraction(sum(found is not None and found <= effect for found in known), _expected(rows))


def projected(rows: Sequence[Row], budget_s: float, effect: float = NOTABLE) -> Fraction | None:
    """Return how many comparisons a budget would probably bring to show `effect`; None where too little is known.

    Blocks are those of `repeats: auto`: up to its last look, and at its looks only.
    """
    compared = [row for row in rows if row.ratios]
    if any(ratio.scatter is None for row in compared for ratio in row.ratios) or not compared:
        return None
    servers_s = server_time_s(compared)
    spent_s, most_blocks, able = 0.0, 0, 0
    for cost_s, blocks, count in sorted(_wanted(row, effect) for row in compared):
        longest = max(most_blocks, blocks)
        if spent_s + cost_s + longest * servers_s <= budget_s:
            spent_s, most_blocks, able = spent_s + cost_s, longest, able + count
    return Fraction(able, _expected(rows))


def _expected(rows: Sequence[Row]) -> int:
    """Return how many comparisons a run of these rows should hold: what failed or did other work has shown nothing.

    What a backend cannot do at all is none.
    """
    able = [[cell for cell in row.cells.values() if not _unsupported(cell)] for row in rows]
    return sum(max(0, len(cells) - 1) for cells in able)


def _unsupported(cell: CellSummary) -> bool:
    return all(record.status is Status.UNSUPPORTED for record in cell.records)


def _wanted(row: Row, effect: float) -> tuple[float, int, int]:
    """Return what it takes to bring a row's comparisons as far as its looks can: seconds, blocks; how many that is."""
    needed = [blocks_needed(ratio.scatter or 0.0, effect) for ratio in row.ratios]
    looks = [next((at for at in LOOKS.blocks if found is not None and found <= at), None) for found in needed]
    reached = [look for look in looks if look is not None]
    blocks = max(reached, default=0)
    return blocks * block_time_s(row), blocks, len(reached)


def block_time_s(row: Row) -> float:
    """Return the mean wall time of a row's processes in a block."""
    cells = [cell.measured for cell in row.cells.values() if cell.measured]
    return sum(statistics.fmean(record.harness.wall_time_s or 0.0 for record in records) for records in cells)


def server_time_s(rows: Sequence[Row]) -> float:
    """Return what starting the servers of a block takes: one a backend, for all rows; as if one after the other."""
    times_s: dict[str, list[float]] = {}
    for row in rows:
        for backend, cell in row.cells.items():
            times_s.setdefault(backend, []).extend(record.times.import_time_s or 0.0 for record in cell.measured)
    return sum(statistics.fmean(found) for found in times_s.values() if found)


def _bounds(ratio: SuiteRatio) -> str:
    low, high = ratio.estimate.low, ratio.estimate.high
    if low is None or high is None:
        return " (separate sessions: no interval)" if ratio.separate else ""
    return f" ({low:.2f}-{high:.2f}{', separate sessions' if ratio.separate else ''})"
