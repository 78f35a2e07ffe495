"""Figures of a cell of the FC modes in addition to its time: rates and bytes; and the check of a proof."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.records.fc import spec
from keras_matrix.records.fc.proof import Proof
from keras_matrix.records.schema import MEASURED, Record

# How far a result may be from plain NumPy in float64: max |difference| / max |reference|.
LIMITS = {"float64": 1e-10, "float32": 1e-5}


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell over its repeats. `sd_s` is the population deviation of the measured epochs' times per batch.

    `bytes_per_step` is the payload by formula, `wire_bytes_per_step` the bytes that processes actually send;
    None if workers share a process, and in records without it.
    """

    mean_s: float
    sd_s: float
    samples_per_s: float
    bytes_per_step: int
    wire_bytes_per_step: int | None


def summary(records: Sequence[Record]) -> Summary | None:
    """Return the figures of one cell; None if no repeat was measured."""
    measured = [(r, r.resolved.steps_per_epoch) for r in records if r.status in MEASURED and r.resolved is not None]
    batch_s = [epoch_s / steps for record, steps in measured for epoch_s in record.times.epoch_times_s]
    if not batch_s:
        return None
    mean_s, task = statistics.fmean(batch_s), spec.problem_of(records[0].settings)
    return Summary(
        mean_s=mean_s,
        sd_s=statistics.pstdev(batch_s),
        samples_per_s=task.samples_per_step / mean_s,
        bytes_per_step=spec.traffic_per_step(task).sent_bytes(task.workers),
        wire_bytes_per_step=spec.wire_bytes_of(record.parallel for record, _ in measured),
    )


def proof_problem(proof: Proof) -> str | None:
    """Return why a proof fails, None if it passes."""
    limit = LIMITS[proof.problem.precision]
    for what, error in (
        ("gradients", proof.gradient_error),
        ("weights", proof.weight_error),
        ("updates of the weights", proof.update_error),
        ("loss", proof.loss_error),
    ):
        if error is not None and not error <= limit:
            return f"{what} are {error:.1e} from plain NumPy, limit {limit:.0e}"
    if None in (proof.gradient_error, proof.update_error) and spec.MODES[proof.problem.mode].trains:
        return "no gradients or no updates were recorded"
    return proof.layout_problem
