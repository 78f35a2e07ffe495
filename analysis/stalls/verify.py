"""Compares the measured speed-up of an advice with the predicted one.

The changed cell was measured interleaved with the unchanged one. "As predicted" means that the interval of measured /
predicted is within `TOLERANCE`; less or more, that it is entirely below or above. Otherwise more repeats would have to
decide. The interval of the ratio is that of the measured speed-up: the prediction is taken as it was printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.stalls.arms import step_s, too_few
from keras_matrix.analysis.stalls.report import Advice, SpeedupVerdict, VerifiedAdvice
from keras_matrix.analysis.stats.blocks import Estimate, of_logs, paired_logs
from keras_matrix.records.schema import MEASURED, Record

TOLERANCE = 0.15


def verified(one: Advice, cell_id: str, unchanged: Sequence[Record], changed: Sequence[Record]) -> VerifiedAdvice:
    """Return the result of an advice from the records of the unchanged and the changed cell."""
    before, after = ({r.repeat: step_s(r) for r in side if _measured(r)} for side in (unchanged, changed))
    gain = of_logs(list(paired_logs(before, after).values()))
    if gain is None:
        failed = "; ".join(sorted({f"{r.status}: {r.reason}" for r in (*unchanged, *changed) if not _measured(r)}))
        why = failed or "no repeat of both cells was measured"
        return VerifiedAdvice(one.change, one.text, cell_id, one.speed_up, None, SpeedupVerdict.UNDECIDED, why)
    return VerifiedAdvice(one.change, one.text, cell_id, one.speed_up, gain, *verdict(gain, one.speed_up))


def verdict(measured: Estimate, predicted: Estimate) -> tuple[SpeedupVerdict, str | None]:
    """Return the verdict, and why it is open."""
    if measured.low is None or measured.high is None:
        return SpeedupVerdict.UNDECIDED, too_few(measured.count)
    low, high = measured.low / predicted.centre, measured.high / predicted.centre
    least, most = 1 / (1 + TOLERANCE), 1 + TOLERANCE
    if least <= low and high <= most:
        return SpeedupVerdict.AS_PREDICTED, None
    if high < least:
        return SpeedupVerdict.LESS, None
    if low > most:
        return SpeedupVerdict.MORE, None
    return (
        SpeedupVerdict.UNDECIDED,
        f"measured / predicted is between {low:.2f} and {high:.2f}: more repeats would decide",
    )


def _measured(record: Record) -> bool:
    return record.status in MEASURED and bool(record.times.step_time_s)
