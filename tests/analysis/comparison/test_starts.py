"""Tracing and compiling are parts of the whole process, and never exceed it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.comparison.starts import fits, reported, start_of
from keras_matrix.records.schema import Harness, Record, Times
from keras_matrix.records.store import Results
from tests.conftest import make_record

DATA = Path(__file__).parents[2] / "data"


def record_of(times: Times, wall_time_s: float | None = None) -> Record:
    return replace(make_record(0.01), times=times, harness=Harness(wall_time_s=wall_time_s))


def test_stated_parts_never_exceed_their_whole() -> None:
    numbers, stated = random.Random(0), 0
    for _ in range(500):
        wall_s, trace_s, compile_s = (numbers.uniform(0.1, 10) for _ in range(3))
        record = record_of(Times(trace_time_s=trace_s, compile_time_s=compile_s, first_step_time_s=1.0), wall_s)
        start = start_of([record])
        assert start.first_step_time_s == 1.0
        if start.compile_time_s is not None:
            stated += 1
            assert (start.trace_time_s or 0.0) + start.compile_time_s <= wall_s
        else:
            assert (start.trace_time_s, fits(record)) == (None, False)
    assert 50 < stated < 450


def test_parts_of_a_process_without_a_known_time_are_stated() -> None:
    start = start_of([record_of(Times(compile_time_s=3.0)), record_of(Times(compile_time_s=5.0))])
    assert (start.trace_time_s, start.compile_time_s, start.first_step_time_s) == (None, 4.0, None)


def test_measured_records_of_every_version_have_parts_within_their_whole() -> None:
    records = [
        record
        for folder in sorted(DATA.glob("results_*"))
        for run in Results(folder).runs()
        for record in run.load()[0]
        if reported(record.times) and record.harness.wall_time_s is not None
    ]
    assert len(records) >= 3
    assert all(fits(record) for record in records)
    # The first step alone is not their whole: building the model compiles, too.
    assert any((record.times.compile_time_s or 0.0) > (record.times.first_step_time_s or 0.0) for record in records)
