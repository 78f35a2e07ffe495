"""What a cell's epochs and processes show beside their mean: outliers, drift, slow processes; each with its advice.

Promise: nothing here changes a figure. It does not know why; it says what to look at, or what to set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.epochs import Drift, EpochSummary, summarise_epochs
from analysis.processes import modes
from records.schema import MEASURED, Record


def doubts(records: Sequence[Record]) -> tuple[str, ...]:
    """Return what is doubtful about one cell, one line each, from its records (of each repeat one)."""
    measured = [record for record in records if record.status in MEASURED]
    epochs = [found for record in measured if (found := _epochs(record))]
    figures = [record.times.step_time_s for record in measured if record.times.step_time_s]
    compiled = (_recompiles(measured), _graph_breaks(measured))
    return tuple(line for line in (*_drifts(epochs), _outliers(epochs), _modes(figures), *compiled) if line)


def _epochs(record: Record) -> EpochSummary | None:
    return summarise_epochs(record.times.epoch_times_s, record.settings.discard)


def _drifts(epochs: Sequence[EpochSummary]) -> list[str]:
    counted = Counter(one.drift for one in epochs if one.drift not in (None, Drift.STEADY))
    advised = max((one.advised_discard for one in epochs if one.drift is Drift.WARMING), default=None)
    advice = {Drift.WARMING: f"set discard: {advised}"}
    return [
        f"{drift} in {count} of {len(epochs)} processes: {advice.get(drift, 'look for other load, or for throttling')}"
        for drift, count in counted.items()
        if drift is not None
    ]


def _outliers(epochs: Sequence[EpochSummary]) -> str | None:
    found, count = sum(len(one.outliers) for one in epochs), sum(one.count for one in epochs)
    return f"outliers: {found} of {count} epochs lie beyond ten robust deviations; they count" if found else None


def _modes(figures: Sequence[float]) -> str | None:
    found = modes(figures)
    if found is None:
        return None
    return (
        f"two kinds of processes: {found.count - found.slow_count} at {found.fast * 1e3:.3g} ms and "
        f"{found.slow_count} at {found.slow * 1e3:.3g} ms a step (p {found.p_value:.2g}); the mean lies where none is: "
        "set repeats: 20 or more"
    )


def _recompiles(measured: Sequence[Record]) -> str | None:
    counts = [r.resolved.recompiles_timed or 0 for r in measured if r.resolved]
    if not any(counts):
        return None
    return (
        f"recompiles in the timed region: {sum(counts)} in {sum(count > 0 for count in counts)} of {len(counts)} "
        "processes; the step time holds them: look for shapes, arguments or functions that change from step to step"
    )


def _graph_breaks(measured: Sequence[Record]) -> str | None:
    most = max((r.resolved.graph_breaks or 0 for r in measured if r.resolved), default=0)
    return (
        f"graph breaks: torch.compile cut the step's program in {most} places; TORCH_LOGS=graph_breaks names them"
        if most
        else None
    )
