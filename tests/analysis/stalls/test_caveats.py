"""What a reader of a stall analysis must know: what "cold" meant, damaged images, and what could not be measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import StallReport
from keras_matrix.records.instruments.input_use import InputUse
from keras_matrix.records.instruments.stall_arms import ArmName
from keras_matrix.records.schema import Record, Status
from tests.analysis.stalls.pretended import Pretended, records
from tests.conftest import make_settings

FREE = Pretended()
BOUND = Pretended(prepare_s=0.004, prepare_cpu_s=0.004, storage_bytes=3_200_000, reads=32)


def of(found: list[Record]) -> StallReport:
    (report,) = reports(found)
    return report


def cold_arm(found: list[Record], **changes: Any) -> list[Record]:
    """Return the records with changed uses of the input in the cold arm."""
    return [
        replace(one, input=replace(one.input or InputUse(), **changes)) if one.settings.page_cache == "cold" else one
        for one in found
    ]


def test_files_that_stay_in_the_page_cache_are_a_caveat_also_where_no_stall_is_found() -> None:
    """On tmpfs a cold arm is as fast as a warm one: that no input is waited for is then no result."""
    not_cold = {"cold_files": 5000, "cold_meaning": "not cold: 100.0 % of the pages stayed", "resident_share": 1.0}
    report = of(cold_arm(records(FREE), **not_cold))
    assert report.bottleneck == "none (compute-bound)"
    assert "cold means: not cold: 100.0 % of the pages stayed" in report.caveats
    expected = "up to 100.0 % of the files stayed in the page cache: the cold arm was not entirely cold"
    assert expected in report.caveats
    assert expected not in of(cold_arm(records(FREE), resident_share=0.05)).caveats


def test_meaning_of_cold_is_stated_once() -> None:
    refused = "posix_fadvise; refused for 1 of 4 files, which may be warm"
    report = of(cold_arm(records(BOUND), cold_meaning=refused))
    assert [text for text in report.caveats if text.startswith("cold means:")] == [f"cold means: {refused}"]
    assert not any("cold means" in text for text in of(records(BOUND, cold=False)).caveats)


def test_data_set_that_fits_into_memory_is_read_from_storage_once_only() -> None:
    text = "the data set (477 MiB) fits into memory: only the first pass after a start reads from storage, as here"
    assert text in of(records(BOUND)).caveats
    assert text not in of(records(FREE)).caveats
    small = [replace(one, machine=replace(one.machine, memory_bytes=900_000_000)) for one in records(BOUND)]
    assert text not in of(small).caveats


def test_replaced_images_are_counted_and_named() -> None:
    for pipeline in (FREE, BOUND):
        found = cold_arm(records(pipeline), bad_samples=4, bad_names=["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
        assert "4 samples could not be decoded and were replaced: a.jpg, b.jpg, c.jpg" in of(found).caveats


def without_workers(one: Record) -> Record:
    use = one.input or InputUse()
    return replace(one, input=replace(use, facts=use.facts and replace(use.facts, workers=None, worker_kind=None)))


def test_pipeline_that_does_not_state_its_workers_has_no_predictions_and_a_caveat() -> None:
    text = "no change could be predicted: the pipeline does not state its number of workers"
    report = of([without_workers(one) for one in records(BOUND)])
    assert (report.advice, report.by_workers, text in report.caveats) == ([], [], True)
    assert text not in of(records(BOUND)).caveats
    assert text not in of([without_workers(one) for one in records(FREE)]).caveats


def test_users_pipeline_whose_files_are_not_known_is_explained_by_its_warm_arms() -> None:
    def refused(one: Record) -> Record:
        is_cold = one.settings.page_cache == "cold"
        reason = "page_cache: cold: the files that the source reads are not known"
        return replace(one, status=Status.UNSUPPORTED, reason=reason) if is_cold else one

    settings = make_settings(workload="my.module:build", params={}, batch_size=32, feed="pipeline")
    report = of([refused(one) for one in records(BOUND, settings=settings)])
    assert (report.observed, report.blocks, report.reason) == (ArmName.WARM, 6, None)
    assert report.input_bound is not None  # of the timed arm with a warm page cache
    (cold,) = [arm for arm in report.arms if arm.arm is ArmName.COLD]
    assert cold.failures == ["unsupported: page_cache: cold: the files that the source reads are not known"]
