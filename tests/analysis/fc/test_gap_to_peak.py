"""Gaps of Keras's layers to the native loop, and of a backend's library to the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import pytest

from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.fc import fc_figures, gap_lines
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record
from tests.golden import Golden
from tests.messages import check_messages
from tests.synthetic_fc import fc_records

KERAS, AUTOMATIC, MANUAL = (FcProblem(mode=mode) for mode in ("fc_keras", "fc_data", "fc_single_manual"))
FACTORS = (1.0, 1.1, 0.9, 1.2, 0.95)


def rows(*tasks: tuple[FcProblem, float], backend: str = "jax", fixed_s: float | None = None) -> list[Row]:
    """Return the table of FC problems with these step times, multiplied by the factor of each block."""
    return table([r for task, step_s in tasks for r in _records(task, backend, [step_s * m for m in FACTORS], fixed_s)])


def _records(task: FcProblem, backend: str, times_s: Sequence[float], fixed_s: float | None) -> list[Record]:
    made = fc_records(task, backend, times_s)
    return [replace(r, times=replace(r.times, fixed_time_per_epoch_s=fixed_s, **_epochs(r))) for r in made]


def _epochs(record: Record) -> dict[str, list[float] | int]:
    """Epochs without scatter, of the record's steps and of one step."""
    return {"epoch_times_s": [1.0, 1.0], "short_epoch_times_s": [0.1, 0.1], "short_epoch_steps": 1}


def lines(found: Sequence[Row], shares: Mapping[str, PeakShare]) -> list[str]:
    cells = {cell.cell_id: cell for row in found for cell in row.cells.values()}
    return gap_lines(fc_figures(cells.values(), shares), cells)


@pytest.mark.parametrize(
    "found",
    [
        rows((KERAS, 0.105), (AUTOMATIC, 0.10)),
        rows((KERAS, 0.12)),
        rows((KERAS, 0.12), (AUTOMATIC.changed(weight_size=512), 0.01)),
        rows((KERAS, 0.12), (AUTOMATIC.changed(workers=2), 0.05)),
        rows((KERAS, 0.12)) + rows((AUTOMATIC, 0.10), backend="torch"),
    ],
    ids=["within 5 %", "alone", "another size", "two workers", "another backend"],
)
def test_small_gap_or_different_work_gives_no_line(found: list[Row]) -> None:
    assert lines(found, {}) == []


def test_gap_needs_an_interval_above_five_per_cent_or_no_interval() -> None:
    def compared(*ratios: float) -> list[str]:
        keras = _records(KERAS, "jax", [0.1 * ratio for ratio in ratios], None)
        return lines(table([*keras, *_records(AUTOMATIC, "jax", [0.1] * len(ratios), None)]), {})

    assert compared(1.0, 1.4, 1.0, 1.4, 1.4) == []
    assert len(compared(1.2, 1.2)) == 1


def shares(found: Sequence[Row], best: float, own: float) -> dict[str, PeakShare]:
    nothing = dict.fromkeys(field.name for field in fields(PeakShare))
    named = {cell.cell_id for row in found for cell in row.cells.values()}
    return {name: PeakShare(**nothing | {"share_of_peak": best, "share_of_own_gemm": own}) for name in named}


def test_library_near_the_machines_best_gives_no_line() -> None:
    found = rows((AUTOMATIC, 0.10), (MANUAL, 0.10), backend="torch")
    assert lines(found, shares(found, 0.8, 0.9)) == []


def test_what_is_said_of_gaps(golden: Golden) -> None:
    """The gap is to the automatic step, to the manual one without it; a library is named once in each precision."""
    both = rows((AUTOMATIC, 0.10), (MANUAL, 0.10), backend="torch")
    precisions = rows((AUTOMATIC, 0.10), (AUTOMATIC.changed(precision="bfloat16"), 0.10), backend="torch")
    pair = [*_records(KERAS, "jax", [0.12] * 2, None), *_records(AUTOMATIC, "jax", [0.1] * 2, None)]
    found = {
        "to the automatic step": lines(rows((KERAS, 0.12), (AUTOMATIC, 0.10), (MANUAL, 0.08), fixed_s=0.12), {}),
        "to the manual step": lines(rows((KERAS, 0.12), (MANUAL, 0.08)), {}),
        "of two blocks": lines(table(pair), {}),
        "of a library": lines(both, shares(both, 0.45, 0.9)),
        "of a library in two precisions": lines(precisions, shares(precisions, 0.45, 0.9)),
    }
    check_messages(golden, "gaps.txt", found)
