"""Compares the rate of a runner that has measured many cells with that of a fresh one, interleaved.

While one measures a block of comparisons, the other is stopped (SIGSTOP) between two of its comparisons. A block begins
with one comparison that is not timed: its first cell has started before its runner was stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from keras_matrix.analysis.stats.blocks import Estimate, of_logs
from tests.reliability.soak.running import ManyCells

TIMED = 4  # comparisons of a block
LEAD_IN = 1
SETTLE_S = 0.5  # until the cell that has just started waits for its turn
WARM_UP = 10  # comparisons of the fresh runner before the first block
LIMIT = 0.05


def comparisons_of(pairs: int) -> int:
    """Return how many comparisons a runner needs for so many blocks."""
    return pairs * (LEAD_IN + TIMED)


def ratio(old: ManyCells, fresh: ManyCells, pairs: int, cells: int, report: Callable[[str], None]) -> Estimate | None:
    """Return the time per cell of the old runner relative to the fresh one. Both rest; `cells` are in a comparison."""
    logs = []
    for pair in range(pairs):
        both = (old, fresh) if pair % 2 else (fresh, old)
        times_s = {runner: _block_s(runner, cells) for runner in both}
        logs.append(math.log(times_s[old] / times_s[fresh]))
        report(f"pair {pair + 1}: {times_s[old]:.3f} s a cell after many, {times_s[fresh]:.3f} s in a fresh runner")
    return of_logs(logs)


def _block_s(runner: ManyCells, cells: int) -> float:
    """Let a runner measure a block; return the seconds per cell."""
    runner.go()
    begun_s = runner.measured(LEAD_IN * cells)
    ended_s = runner.measured(TIMED * cells)
    runner.rest()
    time.sleep(SETTLE_S)
    return (ended_s - begun_s) / (TIMED * cells)
