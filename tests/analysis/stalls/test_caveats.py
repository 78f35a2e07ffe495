"""What a reader of a stall analysis must know: what "cold" meant, damaged images, and what could not be measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import StallReport
from keras_matrix.records.instruments.input_use import InputProbe, InputUse, StorageLimits
from keras_matrix.records.instruments.stall_arms import ArmName
from keras_matrix.records.schema import Record, Status
from tests.analysis.stalls.pretended import Pretended, records
from tests.analysis.stalls.test_bottleneck import LOCKED, STORAGE, without_timers
from tests.analysis.stalls.test_split import COLD, cold_fails
from tests.conftest import make_settings
from tests.golden import Golden
from tests.messages import check_messages

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


def without_workers(one: Record) -> Record:
    use = one.input or InputUse()
    return replace(one, input=replace(use, facts=use.facts and replace(use.facts, workers=None, worker_kind=None)))


def test_pipeline_that_does_not_state_its_workers_has_no_predictions() -> None:
    report = of([without_workers(one) for one in records(BOUND)])
    assert (report.advice, report.by_workers) == ([], [])


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


def test_every_reservation_has_its_text(golden: Golden) -> None:
    """All caveats of each report are compared, so that one which does not apply is a difference, too.

    Files on tmpfs stay in the page cache: that no input is waited for is then no result.
    """
    not_cold = {"cold_files": 5000, "cold_meaning": "not cold: 100.0 % of the pages stayed", "resident_share": 1.0}
    refused = "posix_fadvise; refused for 1 of 4 files, which may be warm"
    damaged = {"bad_samples": 4, "bad_names": ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]}
    small = [replace(one, machine=replace(one.machine, memory_bytes=900_000_000)) for one in records(BOUND)]
    slow = InputProbe(64, storage=StorageLimits(bytes_per_s=42e6, small_reads_per_s=9000.0, one_read_s=0.0001))
    found = {
        "no stall": records(FREE),
        "no stall, files that stay in the page cache": cold_arm(records(FREE), **not_cold),
        "no stall, a few pages that stay in the page cache": cold_arm(records(FREE), resident_share=0.05),
        "no stall, workers not stated": [without_workers(one) for one in records(FREE)],
        "no stall, damaged images": cold_arm(records(FREE), **damaged),
        "a stall": records(BOUND),
        "a stall, a page cache that could not be emptied": cold_arm(records(BOUND), cold_meaning=refused),
        "a stall, measured with a warm page cache alone": records(BOUND, cold=False),
        "a stall, a memory smaller than the data set": small,
        "a stall, damaged images": cold_arm(records(BOUND), **damaged),
        "a stall, workers not stated": [without_workers(one) for one in records(BOUND)],
        "a stall, stages that cannot be timed": [without_timers(one) for one in records(LOCKED)],
        "storage": records(STORAGE),
        "storage, three blocks": records(STORAGE, blocks=3),
        "storage, the wait is shorter than the stall": records(replace(COLD, wait_share=0.2)),
        "storage, the wait is longer than the stall": records(replace(COLD, wait_share=0.9)),
        "storage, a second pass from the page cache": records(replace(COLD, storage_bytes=1_600_000)),
        "storage, the cold arm failed": [cold_fails(one) for one in records(COLD)],
    }
    caveats = {title: of(case).caveats or ["(none)"] for title, case in found.items()}
    (probed,) = reports(found["storage"], {of(found["storage"]).cell_id: slow})
    check_messages(golden, "caveats.txt", {**caveats, "storage, probed": probed.caveats or ["(none)"]})
