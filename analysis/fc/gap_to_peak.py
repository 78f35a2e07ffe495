"""Gaps of the FC modes as text: of Keras's layers to the native loop, of a backend's library to the machine's best.

Guarantee: pure; each line states figures of the run itself, compared between cells of one backend whose settings are
otherwise equal. Limits: which part of Keras's step takes the time (`lab/run fc layers` measures that) and why a
library is slow are not known here. docs/fc.md and docs/roofline.md state both for one machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.analysis.fc.parallel import FcFigure, ratio_of, with_mode
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.text import percentage

NOTABLE_GAP = 1.05  # Keras's step over the native one
FAR_BELOW = 0.75  # a backend's own product over the machine's best
LAYERS = "fc_keras"
SECTION = "Where Keras's layers lose"  # of docs/fc.md
NATIVE = ("fc_data", "fc_single_manual")  # automatic gradients first, as Keras's are


@dataclass(frozen=True, slots=True)
class Gap:
    """Keras's layers' step over the native loop's; `fixed_share` of that ratio is `fit`'s own time an epoch."""

    keras: FcFigure
    native: FcFigure
    ratio: Estimate
    fixed_share: float | None

    @property
    def notable(self) -> bool:
        """Whether the interval's lower end exceeds the limit, or the centre if there is no interval."""
        low = self.ratio.low if self.ratio.low is not None else self.ratio.centre
        return low > NOTABLE_GAP


def gaps(found: Sequence[FcFigure], cells: Mapping[str, CellSummary]) -> list[Gap]:
    """Return Keras's layers against the native loop wherever both were measured; `cells` are by cell_id."""
    compared = []
    for figure in found:
        modes = NATIVE if figure.task.mode == LAYERS else ()
        native = next((other for mode in modes if (other := with_mode(figure, mode, found))), None)
        if native and (ratio := ratio_of(figure, native, cells)):
            compared.append(Gap(figure, native, ratio, _fixed_share(cells[figure.cell_id])))
    return compared


def lines(found: Sequence[FcFigure], cells: Mapping[str, CellSummary]) -> list[str]:
    """Return the gaps as lines; empty if there is no known gap. `cells` are by cell_id."""
    return [*(_gap_line(gap) for gap in gaps(found, cells) if gap.notable), *_library_lines(found)]


def _fixed_share(cell: CellSummary) -> float | None:
    steps = next((r.resolved.steps_per_epoch for r in cell.measured if r.resolved), None)
    if cell.fixed_time_per_epoch_s is None or cell.step_time is None or not steps:
        return None
    return cell.fixed_time_per_epoch_s / steps / cell.step_time.centre


def _gap_line(gap: Gap) -> str:
    backend, task = gap.keras.settings.backend, gap.keras.task
    ratio = (
        f"{backend}: Keras's layers take {bracketed(gap.ratio)} the step of {gap.native.task.mode}, "
        f"{task.weight_size} wide, batch {task.batch_size}"
    )
    if gap.fixed_share is None:
        return f"{ratio}; the share of fit's own time an epoch is not known (docs/fc.md: {SECTION})"
    return f"{ratio}: {percentage(gap.fixed_share)} of it is fit's own time an epoch (docs/fc.md: {SECTION})"


def _library_lines(found: Sequence[FcFigure]) -> Iterator[str]:
    """Yield a line for each backend and precision whose own product is far below the machine's best."""
    named: set[tuple[str, str]] = set()
    for figure in found:
        name = figure.settings.backend, figure.settings.precision
        if name in named or not figure.share_of_best or not figure.share_of_own:
            continue
        reached = figure.share_of_best / figure.share_of_own
        if reached < FAR_BELOW:
            named.add(name)
            yield (
                f"{name[0]}: its own product reaches {percentage(reached)} of the machine's best in {name[1]}: the "
                "library it multiplies with is the limit, whatever the mode (runner roofline; docs/roofline.md)"
            )
