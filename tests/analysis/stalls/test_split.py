"""The split of a step: shares by definition, intervals, noise, and the two opinions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import StallPart, StallReport
from keras_matrix.records.schema import Record, Status
from tests.analysis.stalls.pretended import Pretended, base_settings, records


def of(found: list[Record]) -> StallReport:
    (report,) = reports(found)
    return report


def part(report: StallReport, name: str) -> StallPart:
    return next(one for one in report.parts if one.name == name)


# Two workers make 32 samples of 4 + 3 ms in 112 ms cold, of 0.1 + 3 ms in 50 ms warm; a step computes for 40 ms.
COLD = Pretended(cold_fetch_s=0.004, prepare_s=0.003, prepare_cpu_s=0.003, storage_bytes=3_200_000, reads=32)


def test_shares_follow_from_the_arms_and_add_up_to_one() -> None:
    report = of(records(COLD))
    cold_s, warm_s = 32 * 0.007 / 2, 32 * 0.0031 / 2
    assert part(report, "compute").share.centre == pytest.approx(0.040 / cold_s, rel=0.01)
    assert part(report, "fetch").share.centre == pytest.approx((cold_s - warm_s) / cold_s, rel=0.02)
    assert part(report, "preparation").share.centre == pytest.approx((warm_s - 0.040) / cold_s, rel=0.15)
    total = sum(one.share.centre for one in report.parts if one.share and one.name != "batching and copy")
    assert total == pytest.approx(1.0, abs=1e-9)
    assert report.stall.centre == pytest.approx(1 - 0.040 / cold_s, abs=0.01)
    assert report.stall.low < report.stall.centre < report.stall.high


def test_without_a_cold_arm_the_warm_one_is_explained() -> None:
    report = of(records(COLD, cold=False))
    assert report.observed == "warm"
    assert part(report, "fetch").share is None
    assert not part(report, "fetch").resolved
    assert report.stall.centre == pytest.approx(1 - 0.040 / (32 * 0.0031 / 2), abs=0.01)


def test_time_that_noise_dominates_is_not_resolved_instead_of_negative() -> None:
    report = of(records(Pretended(noise=0.02)))
    copy = part(report, "batching and copy")
    assert not copy.resolved
    assert copy.share.low < 0 < copy.share.high
    assert all(one.share.centre > 0 for one in report.parts if one.resolved)


def test_copy_that_is_separable_is_its_own_part() -> None:
    report = of(records(Pretended(copy_s=0.02, compute_s=0.02)))
    assert part(report, "batching and copy").resolved
    assert part(report, "batching and copy").share.centre == pytest.approx(0.5, abs=0.01)


def test_wait_in_band_is_the_input_bound_share_and_agrees() -> None:
    report = of(records(COLD))
    assert report.input_bound.centre == pytest.approx(report.stall.centre, abs=0.01)


def test_opinions_further_apart_than_five_points_are_explained_as_interference() -> None:
    report = of(records(replace(COLD, wait_share=0.2)))
    assert part(report, "interference").resolved
    assert report.interference.centre == pytest.approx(report.stall.centre - 0.2, abs=0.01)
    total = sum(one.share.centre for one in report.parts if one.share and one.name != "batching and copy")
    assert total == pytest.approx(1.0, abs=1e-9)


def test_timed_arm_that_waits_longer_shows_no_interference() -> None:
    assert of(records(replace(COLD, wait_share=0.9))).interference is None


def test_fewer_than_five_blocks_give_no_interval() -> None:
    assert of(records(COLD, blocks=3)).stall.low is None


def test_source_that_stays_slow_on_a_warm_page_cache_counts_as_fetching() -> None:
    delay = Pretended(fetch_s=0.004, prepare_s=0.001, prepare_cpu_s=0.001)
    report = of(records(delay))
    stall = 1 - 0.040 / (32 * 0.005 / 2)
    assert part(report, "fetch").share.centre == pytest.approx(stall * 0.8, abs=0.02)
    assert part(report, "preparation").share.centre == pytest.approx(stall * 0.2, abs=0.02)


def test_cold_epoch_that_reads_a_second_pass_has_its_share_of_the_page_cache() -> None:
    again = of(records(replace(COLD, storage_bytes=1_600_000)))
    assert again.rates.cache_hit_share == pytest.approx(0.5, abs=0.01)


def test_failed_arm_is_the_reason_why_there_is_no_analysis() -> None:
    def failing(one: Record) -> Record:
        is_arm = one.settings.feed == "pipeline"
        return replace(one, status=Status.ERROR, reason="dataset_path: no such folder") if is_arm else one

    report = of([failing(one) for one in records(COLD)])
    assert report.reason == "cold arm: error: dataset_path: no such folder"


def test_each_backend_has_its_own_analysis_and_other_cells_have_none() -> None:
    jax = records(COLD, settings=base_settings(backend="jax"))
    torch = records(COLD, settings=base_settings(backend="torch"))
    plain = [one for one in records(COLD) if one.settings.feed == "device_resident"]
    assert [one.settings.backend for one in reports([*torch, *jax, *plain])] == ["jax", "torch"]


def test_queue_that_only_the_timed_arm_reads_is_shown() -> None:
    def without_queue(record: Record) -> Record:
        read = record.settings.input_timers or record.input is None
        return record if read else replace(record, input=replace(record.input, queue_sizes=[]))

    report = of([without_queue(record) for record in records(COLD)])
    assert (report.queue_sizes, report.queue_capacity) == ([0.5] * 100, 4)


def test_interference_is_not_taken_out_of_a_copy_that_is_not_resolved() -> None:
    """Its time is in preparation already: drawn parts would exceed 100 %."""
    report = of(records(replace(COLD, wait_share=0.02, noise=0.02), seed=3))
    copy = part(report, "batching and copy")
    assert not copy.resolved
    assert copy.share.centre > 0
    drawn = [one.share.centre for one in report.parts if one.share and one.name != "batching and copy"]
    assert sum(drawn) == pytest.approx(1.0, abs=1e-9)


def cold_fails(one: Record) -> Record:
    is_cold = one.settings.page_cache == "cold" and not one.settings.input_timers
    return replace(one, status=Status.ERROR, reason="killed") if is_cold else one


def test_cold_timed_arm_does_not_explain_a_warm_one() -> None:
    report = of([cold_fails(one) for one in records(COLD)])
    assert report.observed == "warm"
    assert "timed" not in {one.arm for one in report.arms}
    assert report.input_bound is None
    assert report.rates.fetch_wall_s is None
