"""The bottleneck is named from stage times, CPU time and storage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import BottleneckKind, StallReport
from keras_matrix.records.instruments.input_use import InputProbe, InputUse, StorageLimits
from keras_matrix.records.schema import Record
from keras_matrix.runner.cli.inputs.stalls import report_lines
from tests.analysis.stalls.pretended import Pretended, records

PREPARATION = Pretended(prepare_s=0.005, prepare_cpu_s=0.005, workers=1)
# A step of 80 ms: 40 MB/s in 400 requests per second.
STORAGE = Pretended(cold_fetch_s=0.004, prepare_s=0.001, prepare_cpu_s=0.001, storage_bytes=3_200_000, reads=32)
SLOWLY_PREPARED = replace(STORAGE, prepare_s=0.006, prepare_cpu_s=0.006)
CAPPED_REQUESTS = StorageLimits(bytes_per_s=45e6, small_reads_per_s=420.0, one_read_s=0.002)
CAPPED_BYTES = StorageLimits(bytes_per_s=42e6, small_reads_per_s=9000.0, one_read_s=0.0001)
UNCAPPED = StorageLimits(bytes_per_s=600e6, small_reads_per_s=25_000.0, one_read_s=0.0001)
# Two threads of 5 ms CPU per sample hold the lock of the interpreter: 10 ms of wall time each.
LOCKED = Pretended(prepare_s=0.010, prepare_cpu_s=0.005, workers=2)


def of(found: list[Record], storage: StorageLimits | None = None) -> StallReport:
    name = reports(found)[0].cell_id
    (report,) = reports(found, {name: InputProbe(64, storage=storage)} if storage else None)
    return report


@pytest.mark.parametrize(
    ("pipeline", "storage", "expected"),
    [
        (Pretended(), None, BottleneckKind.NONE),
        (Pretended(compute_s=0.02, copy_s=0.02), None, BottleneckKind.COPY),
        (Pretended(fetch_s=0.004), None, BottleneckKind.LATENCY),
        (replace(STORAGE, storage_bytes=100_000), CAPPED_REQUESTS, BottleneckKind.LATENCY),
        (STORAGE, CAPPED_REQUESTS, BottleneckKind.IOPS),
        (STORAGE, CAPPED_BYTES, BottleneckKind.BANDWIDTH),
        (STORAGE, UNCAPPED, BottleneckKind.LATENCY),
        # 20 MB/s while preparation takes longer than the fetch: all that storage delivers, or not.
        (SLOWLY_PREPARED, replace(CAPPED_BYTES, bytes_per_s=21e6), BottleneckKind.BANDWIDTH),
        (SLOWLY_PREPARED, replace(CAPPED_BYTES, bytes_per_s=30e6), BottleneckKind.CPU),
        (SLOWLY_PREPARED, replace(CAPPED_REQUESTS, small_reads_per_s=210.0), BottleneckKind.IOPS),
        (STORAGE, None, BottleneckKind.BANDWIDTH),
        (replace(STORAGE, reads=320), None, BottleneckKind.IOPS),
        (PREPARATION, None, BottleneckKind.CPU),
        (replace(PREPARATION, workers=0), None, BottleneckKind.CPU),
        (replace(PREPARATION, workers=2), None, BottleneckKind.CPU),
        (LOCKED, None, BottleneckKind.GIL),
        (replace(LOCKED, cores=8, workers=8, prepare_s=0.040), None, BottleneckKind.GIL),
        (replace(LOCKED, kind="process"), None, BottleneckKind.CPU),
        # Four threads on two full cores wait for a CPU, not for the interpreter.
        (replace(PREPARATION, workers=4, prepare_s=0.010), None, BottleneckKind.CPU),
        # Compute takes the other core.
        (replace(LOCKED, compute_cpu_s=0.150), None, BottleneckKind.CPU),
    ],
)
def test_bottleneck_follows_from_the_measured_costs(
    pipeline: Pretended, storage: StorageLimits | None, expected: BottleneckKind
) -> None:
    report = of(records(pipeline), storage)
    assert expected == report.bottleneck, report.why


@pytest.mark.parametrize(("held", "expected"), [(0.8, BottleneckKind.GIL), (0.1, BottleneckKind.CPU)])
@pytest.mark.parametrize("compute_cpu_s", [0.001, 0.150])
def test_probe_decides_whether_threads_wait_for_the_interpreter(
    held: float, expected: BottleneckKind, compute_cpu_s: float
) -> None:
    found = records(replace(LOCKED, compute_cpu_s=compute_cpu_s))
    (report,) = reports(found, {reports(found)[0].cell_id: InputProbe(64, lock_held_share=held)})
    assert expected == report.bottleneck


@pytest.mark.parametrize(("cpu_s", "expected"), [(0.16, BottleneckKind.CPU), (0.10, BottleneckKind.GIL)])
def test_training_that_waits_for_the_interpreter_although_batches_are_ready_has_the_gil_as_bottleneck(
    cpu_s: float, expected: BottleneckKind
) -> None:
    """Two threads need 56 ms of CPU for a batch; a step takes 88 instead of 40 ms, and no batch is waited for.

    With 160 ms of CPU in a step both CPUs are busy: then training waits for one of them.
    """

    def slower(one: Record) -> Record:
        if one.settings.feed != "pipeline" or one.input is None:
            return one
        waits_s = [0.01] * 3 if one.settings.input_timers else []
        use = replace(one.input, wait_times_s=waits_s, wall_time_s=0.088 * 60, cpu_time_s=cpu_s * 60)
        return replace(one, times=replace(one.times, step_time_s=0.088, epoch_times_s=[1.76] * 3), input=use)

    found = [slower(one) for one in records(Pretended(prepare_s=0.0019, prepare_cpu_s=0.0017))]
    (report,) = reports(found, {reports(found)[0].cell_id: InputProbe(64, lock_held_share=0.9)})
    assert report.bottleneck == expected, report.why


def without_timers(one: Record) -> Record:
    names = ("fetch_wall_time_s", "fetch_cpu_time_s", "prepare_wall_time_s", "prepare_cpu_time_s", "batches")
    return replace(one, input=replace(one.input or InputUse(), **dict.fromkeys(names), wait_times_s=[]))


@pytest.mark.parametrize(
    ("pipeline", "storage", "expected"),
    [
        (STORAGE, CAPPED_REQUESTS, BottleneckKind.IOPS),
        (STORAGE, CAPPED_BYTES, BottleneckKind.BANDWIDTH),
        (replace(PREPARATION, workers=2), None, BottleneckKind.CPU),
        (LOCKED, None, BottleneckKind.GIL),
        (Pretended(fetch_s=0.004, prepare_s=0.0005, prepare_cpu_s=0.0005), None, BottleneckKind.LATENCY),
    ],
)
def test_pipeline_whose_stages_cannot_be_timed_is_judged_by_cpu_time_and_storage(
    pipeline: Pretended, storage: StorageLimits | None, expected: BottleneckKind
) -> None:
    report = of([without_timers(one) for one in records(pipeline)], storage)
    assert expected == report.bottleneck, report.why
    assert ("workers" in {one.change for one in report.advice}) == (expected is BottleneckKind.LATENCY)


def test_tiny_copy_is_not_the_bottleneck_where_preparation_interferes_with_compute() -> None:
    # A step of 83 ms computes for 48 ms; of the rest training waits 1.6 %, and 0.8 ms are the copy.
    busy = Pretended(compute_s=0.048, copy_s=0.0013, workers=1, prepare_s=0.0025, prepare_cpu_s=0.0025, noise=0.0002)
    report = of(records(replace(busy, wait_share=0.016)))
    shares = {one.name: one.share.centre for one in report.parts if one.share and one.resolved}
    assert shares["interference"] > 0.35
    assert 0 < shares["batching and copy"] < 0.02
    assert report.bottleneck == BottleneckKind.CPU, report.why


def uncounted(one: Record) -> Record:
    """Read from a file system whose device does not count its requests, such as overlayfs."""
    return replace(one, input=replace(one.input or InputUse(), storage_reads=None))


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        (CAPPED_REQUESTS, BottleneckKind.IOPS),
        # Each file takes two requests.
        (StorageLimits(bytes_per_s=42e6, small_reads_per_s=840.0, one_read_s=0.002), BottleneckKind.IOPS),
        (CAPPED_BYTES, BottleneckKind.BANDWIDTH),
        (UNCAPPED, BottleneckKind.LATENCY),
    ],
)
def test_files_of_a_folder_are_requests_where_the_device_counts_none(
    storage: StorageLimits, expected: BottleneckKind
) -> None:
    report = of([uncounted(one) for one in records(STORAGE)], storage)
    assert expected == report.bottleneck, report.why
    assert ("format" in {one.change for one in report.advice}) == (expected is BottleneckKind.IOPS)


@pytest.mark.parametrize("blocks", [1, 4])
def test_no_bottleneck_is_named_without_an_interval(blocks: int) -> None:
    report = of(records(Pretended(compute_s=0.02, copy_s=0.02), blocks=blocks))
    given = "1 block gives" if blocks == 1 else f"{blocks} blocks give"
    why = f"{given} no interval: use --repeats 5 or more"
    assert (report.bottleneck, report.why, report.caveats[0]) == (BottleneckKind.UNDECIDED, why, why)
    lines = report_lines(report)
    assert lines[1] == f"caveat: {why}"
    assert f"bottleneck: not named. {why}." in lines
    named = of(records(Pretended(compute_s=0.02, copy_s=0.02), blocks=5))
    assert named.bottleneck is BottleneckKind.COPY
