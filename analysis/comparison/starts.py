"""How a process started: what of it was tracing and compiling, as far as the backend reports it.

The backends' events are seconds of the wall clock over the whole process: building a model compiles the programs of
its initialisers, often for longer than the first step takes, and batches, counts of weights and the search for the
steps per epoch compile others. So tracing and compiling are parts of the process, not of the first step. Guarantee:
pure; parts that exceed their whole, as sums over threads that compile at the same time may, are not stated.

What a warm cache of compiled programs saves: the first epoch with a cold cache over that with a warm one.

`compile_cache: [cold, warm]` makes two cells of each backend. They are compared by their first epoch, which traces and
compiles, in the repeats that both have. The process that fills the cache is left out: on JAX one that took no program
from it, on other backends, which do not report that, the first repeat.

Guarantee: pure; only cells that differ in nothing else are compared. Limit: a first epoch also trains its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.ratios import BackendRatio, bracketed, ratio_of, too_few
from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.stats.blocks import Estimate, median_of_known, paired_logs
from keras_matrix.records.codec import canonical
from keras_matrix.records.schema import Record, Times

START_MEANING = "trace and compile are of the whole process, building included; they are not parts of the first step"
COLD, WARM = "cold", "warm"
Repeat = tuple[str, int]
"""A place and the number of a process there."""


@dataclass(frozen=True, slots=True)
class Start:
    """The median over the processes of how they started, in seconds; None for what was not reported or measured."""

    trace_time_s: float | None
    compile_time_s: float | None
    first_step_time_s: float | None


def start_of(records: Sequence[Record]) -> Start:
    """Return how these processes started, with those of tracing and compiling that fit into their whole."""
    times = [record.times for record in records]
    all_times = [record.times for record in records if fits(record)]
    return Start(
        median_of_known([stated_times.trace_time_s for stated_times in all_times]),
        median_of_known([stated_times.compile_time_s for stated_times in all_times]),
        median_of_known([record_times.first_step_time_s for record_times in times]),
    )


def reported(times: Times) -> bool:
    """Return whether the backend reported tracing or compiling."""
    return times.trace_time_s is not None or times.compile_time_s is not None


def fits(record: Record) -> bool:
    """Return whether tracing and compiling together took no longer than the process, if its time was measured."""
    whole_s, times = record.harness.wall_time_s, record.times
    return whole_s is None or (times.trace_time_s or 0.0) + (times.compile_time_s or 0.0) <= whole_s


@dataclass(frozen=True, slots=True)
class WarmCache:
    """A cell with a warm cache against the same cell with a cold one.

    `ratio` is the cold first epoch over the warm one; without it `missing` says why. `hits` are the programs that a
    process took from the cache, the fewest of all; None if the backend does not report them.
    """

    cell_id: str
    backend: str
    ratio: BackendRatio | None
    missing: str
    hits: int | None

    @property
    def estimate(self) -> Estimate | None:
        """The cold first epoch over the warm one; None if they are not compared."""
        return self.ratio.estimate if self.ratio else None

    @property
    def text(self) -> str:
        """The result as one line that begins with the backend and the ratio, such as `jax 1.92x [1.80 2.05], ...`."""
        if self.ratio is None:
            return f"{self.backend}: {self.missing}"
        estimate, reason = self.ratio.estimate, ""
        if estimate.bounds is None:
            reason = too_few([self.ratio])
        elif not estimate.excludes(1.0):
            reason = "not separable from no gain"
        hits_text = "" if self.hits is None else f"at least {self.hits} programs from the cache"
        gain_text = f"{self.backend} {bracketed(estimate)}, first epoch with a cold cache over that with a warm one"
        return "; ".join(part for part in (gain_text, reason, hits_text) if part)


def warm_caches(rows: Sequence[Row]) -> list[WarmCache]:
    """Return the comparison of each measured cell that has a warm cache, in the order of the table."""
    cells = [(row, cell) for row in rows for cell in row.cells.values()]
    cold = {canonical(cell.settings): cell for _, cell in cells if cell.settings.compile_cache == COLD}
    return [
        _compared(row, cell, cold.get(canonical(replace(cell.settings, compile_cache=COLD))))
        for row, cell in cells
        if cell.step_time and cell.settings.compile_cache == WARM
    ]


def _compared(row: Row, warm: CellSummary, cold: CellSummary | None) -> WarmCache:
    filled = [record for record in warm.measured if _took_programs(record)]
    known_hits = [record_hits for record in filled if (record_hits := _hits(record)) is not None]
    missing_reason = ""
    logs: Mapping[Repeat, float] = {}
    if cold is None or not cold.measured:
        missing_reason = f"a cold cache was not measured: set compile_cache: [{COLD}, {WARM}]"
    elif not (logs := paired_logs(_first_epochs_s(cold.measured), _first_epochs_s(filled))):
        missing_reason = "no repeat in common with a cold cache, apart from the one that fills the warm cache"
    ratio = ratio_of(warm.settings.backend, {"": list(logs.values())}, row.looks) if logs else None
    return WarmCache(warm.cell_id, warm.settings.backend, ratio, missing_reason, min(known_hits, default=None))


def _hits(record: Record) -> int | None:
    return record.resolved.compile_cache_hits if record.resolved else None


def _took_programs(record: Record) -> bool:
    hit_count = _hits(record)
    return record.repeat > 0 if hit_count is None else hit_count > 0


def _first_epochs_s(records: Sequence[Record]) -> dict[Repeat, float]:
    return {
        (record.place, record.repeat): record.times.first_epoch_time_s
        for record in records
        if record.times.first_epoch_time_s
    }
