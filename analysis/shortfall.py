"""What the cells of the FC modes fall short of, in words: Keras's layers of the native loop, a library of the machine.

Promise: pure; said only of what was measured in the run itself, between cells of one backend whose settings are
otherwise equal. Which part of Keras's step a gap lies in is known as far as `fit`'s own time an epoch; the parts of
the rest are measured apart, by `ci/study fc layers`, and stand in docs/fc.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.compare import CellSummary, Row, by_repeat
from analysis.parallel import Figure, figures
from analysis.roofline import Share
from analysis.statistics import Estimate, of_logs, paired_logs
from records.codec import canonical

NOTABLE_GAP = 1.05  # Keras's step over the native one
FAR_BELOW = 0.75  # a backend's own product over the machine's best
LAYERS = "fc_keras"
SECTION = "Where Keras's layers lose"  # of docs/fc.md
NATIVE = ("fc_data", "fc_single_manual")  # automatic gradients first, as Keras's are


@dataclass(frozen=True, slots=True)
class Gap:
    """How many times the native loop's step one of Keras's layers takes; `fixed_share` of that is `fit`'s an epoch."""

    keras: Figure
    native: Figure
    ratio: Estimate
    fixed_share: float | None

    @property
    def notable(self) -> bool:
        """Whether the gap is beyond doubt, or its centre alone where there is no interval."""
        low = self.ratio.low if self.ratio.low is not None else self.ratio.centre
        return low > NOTABLE_GAP


def gaps(found: Sequence[Figure], cells: Mapping[str, CellSummary]) -> list[Gap]:
    """Return Keras's layers against the native loop wherever both were measured; `cells` are by cell_id."""
    by_settings = {canonical(figure.settings): figure for figure in found}
    compared = []
    for figure in found:
        native = next(_natives(figure, by_settings), None) if figure.task.mode == LAYERS else None
        if native is None:
            continue
        cell = cells[figure.cell_id]
        logs = paired_logs(by_repeat(cell), by_repeat(cells[native.cell_id]))
        if ratio := of_logs(list(logs.values())):
            compared.append(Gap(figure, native, ratio, _fixed_share(cell)))
    return compared


def lines(rows: Sequence[Row], shares: Mapping[str, Share]) -> list[str]:
    """Return what falls short, in lines; none where nothing does, or nothing is known. `shares` are by cell_id."""
    cells = {cell.cell_id: cell for row in rows for cell in row.cells.values()}
    found = figures(cells.values(), shares)
    return [*(_gap_line(gap) for gap in gaps(found, cells) if gap.notable), *_library_lines(found, cells)]


def _natives(figure: Figure, by_settings: Mapping[str, Figure]) -> Iterator[Figure]:
    for mode in NATIVE:
        asked = replace(figure.settings, params={**figure.settings.params, "mode": mode})
        if found := by_settings.get(canonical(asked)):
            yield found


def _fixed_share(cell: CellSummary) -> float | None:
    steps = next((r.resolved.steps_per_epoch for r in cell.measured if r.resolved), None)
    if cell.fixed_time_per_epoch_s is None or cell.step_time is None or not steps:
        return None
    return cell.fixed_time_per_epoch_s / steps / cell.step_time.centre


def _gap_line(gap: Gap) -> str:
    low, high = gap.ratio.low, gap.ratio.high
    bounds = "" if low is None or high is None else f" [{low:.2f}-{high:.2f}]"
    backend, task = gap.keras.settings.backend, gap.keras.task
    told = (
        f"{backend}: Keras's layers take {gap.ratio.centre:.2f}x{bounds} the step of {gap.native.task.mode}, "
        f"{task.weight_size} wide, batch {task.batch_size}"
    )
    where = f"in the step itself: layers, update of the weights, metrics, fit's calls (docs/fc.md: {SECTION})"
    if gap.fixed_share is None:
        return f"{told}; it lies {where}, or in fit's own time an epoch, which was not measured"
    return f"{told}: {gap.fixed_share:.1%} of it is fit's own time an epoch, the rest lies {where}"


def _library_lines(found: Sequence[Figure], cells: Mapping[str, CellSummary]) -> Iterator[str]:
    """Yield, once a backend and precision, that its own product stays far below the machine's best."""
    told: set[tuple[str, str]] = set()
    for figure in found:
        name = figure.settings.backend, figure.settings.precision
        if name in told or not figure.share_of_best or not figure.share_of_own:
            continue
        reached = figure.share_of_best / figure.share_of_own
        if reached < FAR_BELOW:
            told.add(name)
            yield (
                f"{name[0]}: its own product reaches {reached:.0%} of the machine's best in {name[1]}: "
                f"{_why(figure, cells[figure.cell_id])}, whatever the mode (runner roofline)"
            )


def _why(figure: Figure, cell: CellSummary) -> str:
    model = next((r.machine.cpu_model or "" for r in cell.measured if r.machine), "")
    if (figure.settings.backend, figure.settings.precision) == ("torch", "float32") and "AMD" in model:
        return "PyTorch multiplies with MKL, which takes a slower path on AMD's CPUs than on Intel's"
    return "the library it multiplies with is the limit"
