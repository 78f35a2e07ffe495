"""The summary of a cell of the FC modes: time per batch, bytes and FLOPs per second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.proofs import fc_summary
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record, Status, Times
from tests.synthetic_fc import fc_records

TASK = FcProblem(mode="fc_phy", workers=2, phy_blocks=2, shared_ratio=0.5)
STEPS = 10  # of an epoch of the records that are made up here


def record(*epoch_times_s: float, repeat: int = 0, status: Status = Status.OK) -> Record:
    made = fc_records(TASK, "jax", [1.0] * (repeat + 1))[repeat]
    return replace(made, status=status, times=Times(epoch_times_s=list(epoch_times_s)))


def test_deviation_is_that_of_the_population_of_epochs_in_seconds_per_batch() -> None:
    found = fc_summary([record(1.0, 3.0)])
    assert found is not None
    assert (found.mean_s, found.sd_s) == (pytest.approx(0.2), pytest.approx(0.1))  # of a sample it would be 0.14


def test_epochs_of_measured_repeats_only_are_counted() -> None:
    found = fc_summary([record(1.0), record(3.0, repeat=1), record(50.0, repeat=2, status=Status.CRASH)])
    assert found is not None
    assert (found.mean_s, found.sd_s) == (pytest.approx(0.2), pytest.approx(0.1))
    assert fc_summary([record(1.0, status=Status.CRASH)]) is None


def test_rates_are_over_all_workers() -> None:
    found = fc_summary([record(2.0)])
    assert found is not None
    assert found.samples_per_s == pytest.approx(4 * 128 / 0.2)  # four models, each with a batch of its own
    assert found.wire_bytes_per_step is None  # the pretended workers are devices of one process
    assert found.bytes_per_step == spec.traffic_per_step(TASK).sent_bytes(2) > 0
