"""Which changes for the worse a later change undid, and the significance of the difference of two levels. Pure.

A change is repaired from the first later level on that is no worse than the level before it: less than half of the
shift remains, and the rest is at most `NEGLIGIBLE`, or the rule for change points would not report it between two such
levels. A level that an intended change made worse counts without that worsening, which somebody wanted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = float | Sequence[float] | NDArray[np.float64]

LEAST_SCATTER_LOG = 0.001  # no machine repeats closer; without it, equal values would make any change significant
NEGLIGIBLE = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """The means and sizes of the levels, and their pooled scatter with its degrees of freedom."""

    means: NDArray[np.float64]
    sizes: NDArray[np.int64]
    scatter: float
    degrees: int

    def scores(self, shifts: Values, first: slice | int, second: slice | int) -> NDArray[np.float64]:
        """Return the significance of shifts between levels, as standard normal values of equal probability."""
        import numpy as np

        from keras_matrix.analysis.stats.special import ndtri, stdtr

        errors = self.scatter * np.sqrt(1 / self.sizes[first] + 1 / self.sizes[second])
        scores: NDArray[np.float64] = -ndtri(stdtr(self.degrees, -np.abs(shifts) / errors))
        return scores


def fitted(values: Sequence[float] | NDArray[np.float64], starts: Sequence[int]) -> Fit:
    """Return the levels of these logarithms that begin at `starts`, of which the first is 0."""
    import numpy as np

    sizes = np.diff([*starts, len(values)])
    means = np.add.reduceat(np.asarray(values, dtype=float), starts) / sizes
    degrees = len(values) - len(starts)
    squares = float(np.sum((values - np.repeat(means, sizes)) ** 2))
    scatter = math.sqrt(squares / degrees) if degrees > 0 else 0.0
    return Fit(means, sizes, max(scatter, LEAST_SCATTER_LOG), degrees)


def repairs(
    costs: Sequence[float] | NDArray[np.float64], begins: Sequence[int], intended: Collection[int], threshold: float
) -> dict[int, int]:
    """Return for each repaired change where the level begins that repaired it; both are indices of sessions.

    `costs` are logarithms of which a higher one is worse, `begins` where each level begins, `intended` which of them
    were annotated.
    """
    fit = fitted(costs, begins)
    # An intended worsening is subtracted from all levels since.
    wanted, levels = 0.0, [float(fit.means[0])]
    for number in range(1, len(begins)):
        shift = float(fit.means[number] - fit.means[number - 1])
        wanted += max(shift, 0.0) if begins[number] in intended else 0.0
        levels.append(float(fit.means[number]) - wanted)
    found = {}
    for number in range(1, len(begins)):
        if levels[number] > levels[number - 1] and begins[number] not in intended:
            later = next(_undoing(fit, levels, number, threshold), None)
            if later is not None:
                found[begins[number]] = begins[later]
    return found


def _undoing(fit: Fit, levels: Sequence[float], number: int, threshold: float) -> Iterator[int]:
    """Yield the later levels that are no worse than the one before the change to level `number`."""
    before = levels[number - 1]
    for later in range(number + 1, len(levels)):
        rest = levels[later] - before
        if rest >= (levels[number] - before) / 2:
            continue
        if rest <= math.log1p(NEGLIGIBLE) or float(fit.scores(rest, number - 1, later)) <= threshold:
            yield later
