"""What Keras costs over plain code of its backend, and which part of Keras costs it.

`implementation` makes a ladder of cells that do the same work, from Keras to native code; of those that train,
neighbours differ in one part (`models.twins.interface`), and generation has the two ends alone. A part costs the
difference of its two neighbours' step times as shares of Keras's, each the geometric mean over the blocks that all
measured rungs have: so the shares agree with the ratio, whose mean is geometric, too. Without a rung its two parts are
one.

Guarantee: pure; only cells that differ in nothing else, and whose records show the same work, are compared. Limit: a
part may overlap with the device's work, so that its own time is longer than what it costs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from keras_matrix.analysis.comparison.primary_metric import cost
from keras_matrix.analysis.comparison.ratios import BackendRatio, RatioText, ratio_of, share_text, takes, text_of
from keras_matrix.analysis.comparison.same_work import differing, losses_apart
from keras_matrix.analysis.comparison.table import CellSummary, Row, logs_by_machine
from keras_matrix.analysis.comparison.titles import titles
from keras_matrix.analysis.stats.blocks import Estimate, arithmetic
from keras_matrix.records.codec import canonical
from keras_matrix.records.settings import GENERATE, IMPLEMENTATIONS, KERAS, NATIVE, Settings

# What each rung has and the next one lacks.
PARTS = ("callbacks and input", "metrics", "optimizer", "layers and loss")
GENERATION_PART = "sampling and layers"
# Why losses may differ although each process has compared its own with Keras's.
DIFFERENT_MASKS = (
    "from the same weights and without dropout each process found the losses of Keras, so that dropout, or steps after "
    "the compared ones, make the difference"
)


@dataclass(frozen=True, slots=True)
class CostShare:
    """What a part of Keras costs, as a share of Keras's step; it may be below 0."""

    name: str
    share: Estimate


@dataclass(frozen=True, slots=True)
class KerasCost:
    """A cell of Keras against the other implementations of the same work on the same backend.

    `over_native` is the time of Keras's step over that of native code; without it `missing` says why. `work` is the
    title of the work, whatever does it, and `key` its identity, the same on all backends. `caveat` is empty if the
    losses are near each other.
    """

    cell_id: str
    key: str
    work: str
    backend: str
    over_native: BackendRatio | None
    missing: str
    parts: tuple[CostShare, ...]
    caveat: str

    @property
    def estimate(self) -> Estimate | None:
        """The time of Keras's step over that of native code; None if they are not compared."""
        return self.over_native.estimate if self.over_native else None

    @property
    def _sentence(self) -> str:
        text = self._over_native_text
        if text is None:
            return f"{self.backend} {self.missing}"
        return text.in_a_sentence(takes(self.backend, text.amount, reference="native code"))

    @property
    def ratio_text(self) -> str:
        """The ratio with its interval and what it does not show, or why it is missing."""
        return self.missing if self._over_native_text is None else str(self._over_native_text)

    @property
    def _over_native_text(self) -> RatioText | None:
        return None if self.over_native is None else text_of(self.over_native, "not separable from no cost")

    @property
    def text(self) -> str:
        """The result as one line: `jax takes 1.08x [1.05 1.11] as long as native code; of a step: metrics 3.1 %`."""
        shares_text = ", ".join(f"{part.name} {share_text(part.share)}" for part in self.parts)
        texts = (self._sentence, shares_text and f"of a step: {shares_text}", self.caveat)
        return "; ".join(text for text in texts if text)


def keras_costs(rows: Sequence[Row]) -> list[KerasCost]:
    """Return what Keras costs in each measured cell of it that another implementation can be compared with."""
    cells = [(row, cell) for row in rows for cell in row.cells.values() if cell.step_time]
    ladders: dict[str, dict[str, tuple[Row, CellSummary]]] = {}
    for row, cell in cells:
        ladders.setdefault(canonical(by_keras(cell.settings)), {})[cell.settings.implementation] = (row, cell)
    compared_ladders = [ladder for ladder in ladders.values() if len(ladder) > 1 and KERAS in ladder]
    ladder_titles = titles([by_keras(ladder[KERAS][1].settings) for ladder in compared_ladders], {})
    return [_cost(ladder, work) for ladder, work in zip(compared_ladders, ladder_titles, strict=True)]


def by_keras(settings: Settings) -> Settings:
    """Return the settings of the same work done by Keras."""
    return replace(settings, implementation=KERAS)


def _cost(ladder: Mapping[str, tuple[Row, CellSummary]], work: str) -> KerasCost:
    row, keras_cell = ladder[KERAS]
    rungs = [name for name in IMPLEMENTATIONS if name in ladder]
    records_by_implementation = {name: ladder[name][1].measured for name in rungs}
    difference = differing(records_by_implementation)
    native = ladder.get(NATIVE)
    missing_reason, ratio = "", None
    if difference:
        missing_reason = f"not comparable: {difference}"
    elif native is None:
        missing_reason = f"{NATIVE} was not measured: set implementation: [{KERAS}, {NATIVE}]"
    elif logs := logs_by_machine(keras_cell, native[1]):
        ratio = ratio_of(keras_cell.settings.backend, logs, row.looks)
    else:
        missing_reason = f"no repeat in common with {NATIVE}"
    cost_parts = () if difference else _parts(row, {name: ladder[name][1] for name in rungs})
    caveat = "" if difference else losses_apart(records_by_implementation, DIFFERENT_MASKS) or ""
    return KerasCost(
        keras_cell.cell_id, row.key, work, keras_cell.settings.backend, ratio, missing_reason, cost_parts, caveat
    )


def _parts(row: Row, rungs: Mapping[str, CellSummary]) -> tuple[CostShare, ...]:
    """Return the part between each rung and the next measured one, over the blocks that all share."""
    times_s = {
        name: {(r.place, r.repeat): time_s for r in cell.measured if (time_s := cost(r))}
        for name, cell in rungs.items()
    }
    blocks = sorted(set.intersection(*(set(rung_times) for rung_times in times_s.values())))
    if not blocks:
        return ()
    confidence = row.looks.confidence(len(blocks))
    has_several_places = len({place for place, _ in blocks}) > 1
    shares = {
        name: _linear([math.log(rung_times[block] / times_s[KERAS][block]) for block in blocks])
        for name, rung_times in times_s.items()
    }
    cost_shares = []
    for upper, lower in pairwise(rungs):
        share = arithmetic([a - b for a, b in zip(shares[upper], shares[lower], strict=True)], confidence)
        assert share is not None
        # Blocks at several machines are not exchangeable: their mean is shown without an interval.
        name = _between(upper, lower, rungs[KERAS].settings.phase)
        cost_shares.append(CostShare(name, replace(share, low=None, high=None) if has_several_places else share))
    return tuple(cost_shares)


def _linear(logs: Sequence[float]) -> list[float]:
    """Return numbers whose mean is the geometric one, and whose scatter is that of the exponentials to first order."""
    mean = statistics.fmean(logs)
    return [math.exp(mean) * (1 + log - mean) for log in logs]


def _between(upper: str, lower: str, phase: str) -> str:
    if phase == GENERATE:
        return GENERATION_PART
    begin, end = IMPLEMENTATIONS.index(upper), IMPLEMENTATIONS.index(lower)
    return " + ".join(PARTS[begin:end])
