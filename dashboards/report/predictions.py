"""The verified what-ifs of a run: each setting's predicted and measured step time, and the verdict.

A module of its own: it is imported only for runs with verified what-ifs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.whatif.verify import Round, SettingCheck, Verification
from keras_matrix.dashboards.charts import figure_table
from keras_matrix.dashboards.charts.figure_table import Grid
from keras_matrix.records.text import NOTHING, TIME_UNITS, interval, number, percentage, unit_for


@dataclass(frozen=True, slots=True)
class Predictions:
    """The verdict in words, a table for each round, and what decided the verdict."""

    verdict: str
    tables: tuple[Grid, ...]
    facts: tuple[str, ...]
    reasons: tuple[str, ...]


def predictions(verification: Verification) -> Predictions:
    """Return the section of a run's verification."""
    titles = ["As predicted", f"After a recalibration of the link: {verification.recalibration}"]
    last_round = verification.rounds[-1]
    return Predictions(
        str(verification.verdict),
        tuple(_table(checked_round, title) for checked_round, title in zip(verification.rounds, titles, strict=False)),
        tuple(_facts(last_round)),
        last_round.reasons,
    )


def _table(checked_round: Round, title: str) -> Grid:
    times_s = [time for row in checked_round.rows for time in (row.predicted.step_time_s, row.measured.centre)]
    unit = unit_for(times_s, TIME_UNITS)
    columns = [
        f"predicted, {unit.name}",
        "single steps, p10 to p90",
        f"measured, {unit.name}",
        "95 % interval",
        "error",
        "verdict",
    ]
    return Grid(title, columns, [figure_table.GridRow(row.name, _values(row, unit.size)) for row in checked_round.rows])


def _values(row: SettingCheck, unit: float) -> list[str]:
    predicted_time, measured_time = row.predicted, row.measured
    return [
        number(predicted_time.step_time_s, unit),
        interval(predicted_time.low_s, predicted_time.high_s, predicted_time.step_time_s, unit) or NOTHING,
        number(measured_time.centre, unit),
        interval(measured_time.low, measured_time.high, measured_time.centre, unit) or NOTHING,
        percentage(row.error, signed=True),
        "fitted" if row.fitted else str(row.verdict),
    ]


def _facts(last_round: Round) -> Iterator[str]:
    if last_round.mean_error is not None and last_round.largest_error is not None:
        yield f"error: mean {percentage(last_round.mean_error)}, largest {percentage(last_round.largest_error)}"
    if last_round.correlation is not None:
        yield f"rank correlation: {last_round.correlation:.2f} over {_listed(last_round.ranked)}"
    best_text = "and is" if last_round.chosen == last_round.best else f"{last_round.best} is"
    yield (
        f"regret: {percentage(last_round.regret)}; {last_round.chosen} was predicted to have the lowest time, "
        f"{best_text} lowest"
    )


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} settings that differ by more than noise"
