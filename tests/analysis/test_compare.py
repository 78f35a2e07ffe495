"""The table says only what the records allow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from analysis.compare import Row, summarise, table
from records.schema import DeviceProof, Memory, Record, Resolved, Status, Times
from tests.conftest import MACHINE, make_record, make_settings

CLOSE = {"tensorflow": 0.0100, "jax": 0.0101, "torch": 0.0102}
APART = {"tensorflow": 0.010, "jax": 0.020, "torch": 0.040}


def records_of(
    step_times_s: dict[str, float], *, repeats: int = 3, noise: float = 0.02, **changes: Any
) -> list[Record]:
    return [
        make_record(
            base * (1 + noise * ((i + r) % 3 - 1)), repeat=r, settings=make_settings(backend=backend), **changes
        )
        for i, (backend, base) in enumerate(step_times_s.items())
        for r in range(repeats)
    ]


def only_row(records: list[Record]) -> Row:
    rows = table(records)
    assert len(rows) == 1
    return rows[0]


def test_a_clear_winner_is_named_with_its_ratios() -> None:
    row = only_row(records_of(APART))
    assert row.fastest == "tensorflow"
    assert row.verdict == "tensorflow is fastest: 2.00x jax, 4.00x torch"


def test_close_backends_are_not_separable() -> None:
    row = only_row(records_of(CLOSE))
    assert row.fastest is None
    assert row.verdict.startswith("not separable: tensorflow against")


def test_the_second_best_alone_can_keep_a_winner_unnamed() -> None:
    row = only_row(records_of({"tensorflow": 0.0100, "jax": 0.0101, "torch": 0.040}))
    assert row.fastest is None
    assert "torch" not in row.verdict


def test_two_repeats_never_name_a_winner() -> None:
    row = only_row(records_of(APART, repeats=2))
    assert (row.fastest, row.verdict) == (None, "not separable: fewer than 3 repeats")


def test_one_backend_has_nothing_to_be_compared_with() -> None:
    assert only_row(records_of({"jax": 0.01})).verdict == "nothing to compare"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"resolved": Resolved(50, 32, "fork", "float32", parameters=999)}, "parameters differ: jax 999, torch 1000"),
        ({"resolved": Resolved(50, 32, "fork", "mixed_bfloat16", parameters=1000)}, "precisions differ"),
        ({"resolved": Resolved(60, 32, "fork", "float32", parameters=1000)}, "steps per epoch differ"),
        ({"device": DeviceProof("gpu", "cuda:0", 1)}, "devices differ: jax gpu, torch cpu"),
    ],
)
def test_cells_that_did_other_work_are_not_compared(change: dict[str, Any], reason: str) -> None:
    row = only_row(records_of({"torch": 0.04}) + records_of({"jax": 0.01}, **change))
    assert row.fastest is None
    assert row.verdict.startswith(f"not comparable: {reason}")


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("tf32", True, "TF32 settings"), ("cpus", 1, "CPUs"), ("data_is_real", True, "kinds of data")],
)
def test_other_settings_in_force_are_no_comparison(field: str, value: Any, reason: str) -> None:
    resolved = replace(Resolved(50, 32, "fork", "float32", parameters=1000), **{field: value})
    row = only_row(records_of({"torch": 0.04}) + records_of({"jax": 0.01}, resolved=resolved))
    assert row.verdict.startswith(f"not comparable: {reason} differ")


def test_other_hosts_are_no_comparison() -> None:
    elsewhere = records_of({"jax": 0.01}, machine=replace(MACHINE, host_id="f" * 16))
    assert only_row(records_of({"torch": 0.04}) + elsewhere).verdict.startswith("not comparable: hosts differ")


def test_the_intervals_hold_together_not_one_by_one() -> None:
    """Two ratios whose 95 % intervals exclude 1 but whose 97.5 % ones do not name no winner."""
    quick = [make_record(1.0, repeat=r, settings=make_settings(backend="jax")) for r in range(3)]
    others = [
        make_record(math.exp(0.10 + 0.038 * (r - 1)), repeat=r, settings=make_settings(backend=backend))
        for backend in ("tensorflow", "torch")
        for r in range(3)
    ]
    alone = only_row(quick + others[:3])
    assert alone.fastest == "jax"
    assert only_row(quick + others).fastest is None


def test_a_summary_takes_the_median_speed_and_the_largest_memory() -> None:
    made = [
        make_record(
            None,
            repeat=r,
            times=Times(step_time_s=0.01 * (r + 1), samples_per_s=float(speed)),
            memory=Memory(peak_host_memory_bytes=memory),
        )
        for r, (speed, memory) in enumerate([(10, 3), (50, 9), (20, 6)])
    ]
    assert (summarise(made).samples_per_s, summarise(made).peak_host_memory_bytes) == (20.0, 9)


def test_leagues_are_rows_of_their_own() -> None:
    matched = [replace(r, settings=replace(r.settings, league="matched")) for r in records_of({"jax": 0.01})]
    matched = [make_record(0.01, repeat=r.repeat, settings=r.settings) for r in matched]
    assert [row.title for row in table(records_of({"torch": 0.04}) + matched)] == [
        "mnist_mlp league=as_shipped",
        "mnist_mlp league=matched",
    ]


def test_a_title_names_what_is_unusual_and_what_varies() -> None:
    records = [
        make_record(0.01, settings=make_settings(workload="vit", params={"image_size": 64, "depth": 12}, batch_size=8)),
        make_record(
            0.01, settings=make_settings(workload="vit", params={"image_size": 64, "depth": 12}, batch_size=16)
        ),
        make_record(0.01, settings=make_settings(workload="gru")),
    ]
    usual = {"vit": {"image_size": 224, "depth": 12, "batch_size": 8}, "gru": {"batch_size": 32}}
    assert [row.title for row in table(records, usual)] == [
        "gru",
        "vit image_size=64 batch_size=16",
        "vit image_size=64 batch_size=8",
    ]


def test_failures_are_listed_and_not_counted() -> None:
    bad = make_record(None, repeat=2, status=Status.CRASH, reason="ended by signal 11")
    cell = summarise([make_record(0.01), make_record(0.02, repeat=1), bad])
    assert cell.failures == ((Status.CRASH, "ended by signal 11"),)
    assert len(cell.measured) == 2


def test_of_a_repeat_the_latest_attempt_counts() -> None:
    spoiled = make_record(None, status=Status.INFRA)
    assert summarise([replace(make_record(0.01), attempt=1), spoiled]).failures == ()


def test_unstable_cells_are_measured_too() -> None:
    assert summarise([make_record(0.01, status=Status.UNSTABLE)]).step_time is not None
