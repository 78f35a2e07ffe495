"""What Keras costs, as tables: a table for each work, a row for each backend. No markup.

Pure functions. The shares are of a step of Keras, their columns the parts that this work's implementations separate.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison.ratios import share_text
from keras_matrix.analysis.keras_cost import KerasCost
from keras_matrix.dashboards.charts import figure_table
from keras_matrix.dashboards.charts.figure_table import Grid
from keras_matrix.records.text import NOTHING


def tables(keras_costs: Sequence[KerasCost]) -> list[Grid]:
    """Return the tables of a run; empty without cells of other implementations."""
    works: dict[str, list[KerasCost]] = {}
    for cost in keras_costs:
        works.setdefault(cost.key, []).append(cost)
    return [_table(costs) for costs in works.values()]


def _table(costs: Sequence[KerasCost]) -> Grid:
    names = list(dict.fromkeys(part.name for cost in costs for part in cost.parts))
    caveats_text = " ".join(f"{cost.backend}: {cost.caveat}." for cost in costs if cost.caveat)
    return Grid(costs[0].work, ["Keras over native", *names], [_row(cost, names) for cost in costs], caveats_text)


def _row(cost: KerasCost, names: Sequence[str]) -> figure_table.GridRow:
    shares = {part.name: share_text(part.share) for part in cost.parts}
    return figure_table.GridRow(cost.backend, [cost.ratio_text, *(shares.get(name, NOTHING) for name in names)])
