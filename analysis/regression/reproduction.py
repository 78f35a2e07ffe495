"""Whether a cell measured again gives its stored figure: reproduced, differs, or undecided, with what changed since.

The stored and the new processes are of two sessions. If the spread between sessions is known from the stored history,
it is in the interval; otherwise the interval is that of the processes alone, which is too narrow, and a caveat says so.

Guarantee: pure; without an interval there is no verdict. Limit: what no record states, such as packages apart from
Keras, NumPy and the backend, is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from keras_matrix.analysis.comparison.primary_metric import cost
from keras_matrix.analysis.comparison.same_work import differing, loss_path
from keras_matrix.analysis.history.sessions import (
    SessionRatio,
    SessionSpread,
    across_sessions,
    log_mean,
    with_interval,
)
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.text import bytes_text

STORED, NEW = "stored", "measured again"
BETWEEN_UNKNOWN = (
    "the interval is that of the processes alone: the spread between sessions needs five other sessions of this cell"
)


class ReproductionVerdict(StrEnum):
    """The verdict on a cell that was measured again."""

    REPRODUCED = "reproduced"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The verdict; `ratio` is new / stored of the figure as a cost, as in `runner compare`.

    `work` is a difference in work, across which no ratio can be read. `changed` are the facts that differ. `loss` is
    the largest difference of the losses of an epoch, relative to the first loss; None if they cannot be compared.
    """

    verdict: ReproductionVerdict
    ratio: Estimate | None
    tolerance: float
    work: str | None = None
    changed: tuple[str, ...] = ()
    loss: float | None = None
    caveats: tuple[str, ...] = ()


def judge(
    stored_records: Sequence[Record], new: Sequence[Record], spread: SessionSpread | None, tolerance: float
) -> Reproduction:
    """Return whether the records `new` reproduce the records `stored_records` of the same cell.

    Reproduced: the interval of the ratio lies within 1 / (1 + tolerance) and 1 + tolerance. Differs: it lies outside.
    """
    sides = [[record for record in side if record.status is Status.OK] for side in (stored_records, new)]
    base_s, new_s = ([value for record in side if (value := cost(record))] for side in sides)
    session_ratio = across_sessions(base_s, new_s, spread)
    changed_facts = tuple(changes(stored_records, new).values())
    if session_ratio is None:
        return Reproduction(ReproductionVerdict.NOT_MEASURED, None, tolerance, changed=changed_facts)
    work = differing({STORED: sides[0], NEW: sides[1]}, apart=True, spread_out=True)
    caveats: tuple[str, ...] = ()
    if session_ratio.estimate.low is None and (process_ratio := _of_processes(session_ratio, base_s, new_s)):
        session_ratio, caveats = process_ratio, (BETWEEN_UNKNOWN,)
    verdict = ReproductionVerdict.NOT_MEASURED if work else verdict_of(session_ratio.estimate, tolerance)
    return Reproduction(
        verdict, session_ratio.estimate, tolerance, work, changed_facts, _loss_difference(*sides), caveats
    )


def verdict_of(ratio: Estimate, tolerance: float) -> ReproductionVerdict:
    """Return where the interval of a ratio lies: within the tolerance, outside of it, or across its limit."""
    if ratio.low is None or ratio.high is None:
        return ReproductionVerdict.UNDECIDED
    least, most = 1 / (1 + tolerance), 1 + tolerance
    if least <= ratio.low and ratio.high <= most:
        return ReproductionVerdict.REPRODUCED
    return ReproductionVerdict.DIFFERS if ratio.high < least or ratio.low > most else ReproductionVerdict.UNDECIDED


def _of_processes(session_ratio: SessionRatio, base_s: Sequence[float], new_s: Sequence[float]) -> SessionRatio | None:
    """Return the ratio with Welch's interval over the processes; None with fewer than two on a side."""
    means = log_mean(base_s), log_mean(new_s)
    known_errors = [mean[1] for mean in means if mean is not None and mean[1] is not None]
    if len(known_errors) < len(means):
        return None
    variance_parts = [(error**2, len(side) - 1) for error, side in zip(known_errors, (base_s, new_s), strict=True)]
    return with_interval(session_ratio.estimate.centre, session_ratio.estimate.count, [variance_parts])


def changes(stored_records: Sequence[Record], new: Sequence[Record]) -> dict[str, str]:
    """Return the facts that differ between the first records of both sides, each by its name and as a line.

    These are versions, machine, image and environment.
    """
    if not stored_records or not new:
        return {}
    stored_facts, new_facts = _facts(stored_records[0]), _facts(new[0])
    return {
        name: f"{name}: {stored_facts.get(name, 'none')} -> {new_facts.get(name, 'none')}"
        for name in dict.fromkeys([*stored_facts, *new_facts])
        if stored_facts.get(name) != new_facts.get(name)
    }


def _facts(record: Record) -> Mapping[str, str]:
    machine = dict(_fact(name, value) for name, value in to_json(record.machine).items())
    image = {} if record.container is None else {"image": record.container.image_id}
    inherited = record.resolved.inherited if record.resolved else None
    variables = {} if inherited is None else {"inherited variables": _text(inherited)}
    return {**record.versions, **machine, **image, **variables}


def _fact(name: str, value: object) -> tuple[str, str]:
    """Return a field of a machine as its name and value for people."""
    if isinstance(value, int) and name.endswith("_bytes"):
        return name.removesuffix("_bytes"), bytes_text(value)
    return name.removesuffix("_bytes").replace("_", " "), _text(value)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else "none" if value is None else str(value)


def _loss_difference(stored_records: Sequence[Record], new: Sequence[Record]) -> float | None:
    """Return the largest difference of an epoch's losses; None after different numbers of steps, or without losses."""
    steps_per_epoch = [
        {record.resolved.steps_per_epoch for record in side if record.resolved} for side in (stored_records, new)
    ]
    loss_paths = loss_path(stored_records), loss_path(new)
    if steps_per_epoch[0] != steps_per_epoch[1] or not all(loss_paths) or not loss_paths[0][0]:
        return None
    return max(abs(a - b) for a, b in zip(*loss_paths, strict=False)) / abs(loss_paths[0][0])
