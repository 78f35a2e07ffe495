"""Predictions against pretended pipelines that really change, and which changes are advised at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.stalls import analysis as advising
from keras_matrix.analysis.stalls.analysis import helps, reports
from keras_matrix.analysis.stalls.report import Advice, SpeedupVerdict, StallReport, verdict, verified
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.instruments.input_use import DecoderCost, InputProbe, InputUse, StorageLimits
from keras_matrix.records.instruments.stall_arms import ArmName
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.settings import Settings
from tests.analysis.stalls.pretended import PARAMS, Pretended, base_settings, records
from tests.analysis.stalls.test_bottleneck import CAPPED_BYTES, CAPPED_REQUESTS, LOCKED, STORAGE
from tests.conftest import make_settings

DECODERS = {"pil": DecoderCost(0.005, 0.003), "simplejpeg": DecoderCost(0.002, 0.0019)}
PROBE = InputProbe(64, DECODERS, 0.0003, 0.05)
DECODING = Pretended(prepare_s=0.0052, prepare_cpu_s=0.0052, workers=1)


def of(pipeline: Pretended, probe: InputProbe | None = PROBE, settings: Settings | None = None) -> StallReport:
    found = records(pipeline, settings=settings)
    name = reports(found)[0].cell_id
    (report,) = reports(found, {name: probe} if probe else None)
    return report


def advice(report: StallReport, change: str) -> Advice:
    return next(one for one in report.advice if one.change == change)


def changes(report: StallReport) -> set[str]:
    return {one.change for one in report.advice}


def gain(pipeline: Pretended, **changed: Any) -> float:
    """Return how much faster the pretended pipeline becomes."""
    return pipeline.step_s(ArmName.COLD) / replace(pipeline, **changed).step_s(ArmName.COLD)


def decoded_by_tensorflow(one: Record) -> Record:
    """Return a record whose pipeline has a decoder that the probe does not know."""
    use = one.input or InputUse()
    return replace(one, input=replace(use, facts=use.facts and replace(use.facts, decoder="tf_io")))


def test_more_workers_are_predicted_up_to_the_cores_for_cpu_bound_preparation() -> None:
    one = advice(of(DECODING), "workers")
    assert one.params == {"input_workers": 2}
    assert one.speed_up.centre == pytest.approx(gain(DECODING, workers=2), rel=0.02)


def test_workers_in_place_of_the_training_thread_overlap_with_compute() -> None:
    alone = replace(DECODING, workers=0)
    one = advice(of(alone), "workers")
    assert one.params == {"input_workers": 2}
    assert one.speed_up.centre == pytest.approx(gain(alone, workers=2), rel=0.03)


def test_more_workers_hide_a_latency_until_the_compute_is_reached() -> None:
    slow = Pretended(fetch_s=0.008, prepare_s=0.0002, prepare_cpu_s=0.0002)
    one = advice(of(slow), "workers")
    assert one.speed_up.centre == pytest.approx(gain(slow, workers=int(one.params["input_workers"])), rel=0.02)
    assert one.speed_up.centre == pytest.approx(slow.step_s(ArmName.COLD) / 0.040, rel=0.03)
    # Not more than are needed for that.
    assert one.params["input_workers"] == 7


def test_full_cores_get_no_more_threads() -> None:
    assert "workers" not in changes(of(replace(DECODING, workers=2)))


@pytest.mark.parametrize("storage", [CAPPED_REQUESTS, CAPPED_BYTES])
def test_saturated_storage_gets_no_more_workers_and_no_decoder(storage: StorageLimits) -> None:
    found = changes(of(STORAGE, replace(PROBE, storage=storage)))
    assert not {"workers", "decoder", "scale", "processes", "prefetch"} & found


def test_another_format_is_advised_where_requests_are_the_limit_alone() -> None:
    one = advice(of(STORAGE, replace(PROBE, storage=CAPPED_REQUESTS)), "format")
    assert one.stored_as == "tfrecord"
    assert one.verifiable
    assert one.speed_up.centre == pytest.approx(80 / 40, rel=0.03)  # down to the compute
    assert "format" not in changes(of(STORAGE, replace(PROBE, storage=CAPPED_BYTES)))


def test_requests_of_other_programs_do_not_count() -> None:
    busy = replace(STORAGE, reads=3200)
    report = of(busy, replace(PROBE, storage=CAPPED_REQUESTS))
    assert report.bottleneck == "storage IOPS"
    assert "other programs" in report.why
    one = advice(report, "format")
    assert one.speed_up.centre == pytest.approx(80 / 40, rel=0.05)


def test_another_format_saves_no_more_than_the_time_of_its_requests() -> None:
    """A delay that is not the storage's stays, whatever the format."""
    slow = replace(STORAGE, cold_fetch_s=0.010, reads=64)
    uncapped = StorageLimits(600e6, 25_000.0, 0.0001)
    report = of(slow, replace(PROBE, storage=uncapped))
    assert report.bottleneck == "fetch latency"
    # 58 of 64 requests of 0.1 ms per batch: 0.18 of 11 ms per sample.
    assert not [one for one in report.advice if one.change == "format" and one.speed_up.centre > 1.03]


def test_threads_that_share_an_interpreter_become_processes_and_not_more_threads() -> None:
    report = of(LOCKED, replace(PROBE, lock_held_share=0.8))
    assert "workers" not in changes(report)
    one = advice(report, "processes")
    assert one.params == {"worker_kind": "process"}
    assert one.speed_up.centre == pytest.approx(gain(LOCKED, prepare_s=0.005), rel=0.03)


def test_processes_do_not_spend_the_cpu_time_of_threads_that_pass_the_lock_on() -> None:
    contended = replace(LOCKED, prepare_cpu_s=0.006)
    held = replace(PROBE, lock_held_share=0.8)
    costly, cheaper = (
        advice(of(contended, replace(held, alone_cpu_s=alone_s)), "processes").speed_up.centre
        for alone_s in (None, 0.004)
    )
    assert cheaper / costly == pytest.approx(6 / 4, rel=0.05)


@pytest.mark.parametrize("workers", [0, 1])
def test_python_code_that_holds_the_interpreter_gets_processes_in_place_of_more_threads(workers: int) -> None:
    spinning = replace(DECODING, workers=workers)
    report = of(spinning, replace(PROBE, lock_held_share=0.9))
    assert "workers" not in changes(report)
    one = advice(report, "processes")
    assert one.params == {"worker_kind": "process", "input_workers": 2}
    assert one.speed_up.centre == pytest.approx(gain(spinning, workers=2), rel=0.03)


def test_threads_are_advised_with_a_condition_if_the_lock_was_not_probed() -> None:
    assert "releases the interpreter's lock" in str(advice(of(DECODING, None), "workers").note)
    assert advice(of(DECODING), "workers").note is None


def test_cheaper_decoder_and_scale_follow_the_probed_costs() -> None:
    report = of(DECODING)
    decoder, scale = advice(report, "decoder"), advice(report, "scale")
    assert (decoder.params, scale.params) == ({"decoder": "simplejpeg"}, {"decode_scale": "dct"})
    assert decoder.speed_up.centre == pytest.approx(gain(DECODING, prepare_s=0.0022), rel=0.03)
    assert scale.speed_up.centre == pytest.approx(gain(DECODING, prepare_s=0.0032), rel=0.03)


@pytest.mark.parametrize(("alone_cpu_s", "cost_s"), [(0.0022, 0.0022), (None, None), (0.009, None)])
def test_decoder_of_a_backend_is_compared_with_the_probes_by_the_cost_of_entire_samples(
    alone_cpu_s: float | None, cost_s: float | None
) -> None:
    found = [decoded_by_tensorflow(one) for one in records(DECODING)]
    (report,) = reports(found, {reports(found)[0].cell_id: replace(PROBE, alone_cpu_s=alone_cpu_s)})
    if cost_s is None:
        assert "decoder" not in changes(report)
    else:
        one = advice(report, "decoder")
        assert one.params == {"decoder": "auto"}
        assert "in place of tf_io" in one.text
        assert one.speed_up.centre == pytest.approx(gain(DECODING, fetch_s=0.0, prepare_s=cost_s), rel=0.04)


def test_cost_of_passing_the_lock_on_is_not_known_for_a_decoder_that_the_probe_does_not_have() -> None:
    found = [decoded_by_tensorflow(one) for one in records(replace(LOCKED, prepare_cpu_s=0.006))]
    speed_ups = []
    for alone_cpu_s in (None, 0.002):
        probe = replace(PROBE, lock_held_share=0.8, alone_cpu_s=alone_cpu_s)
        (report,) = reports(found, {reports(found)[0].cell_id: probe})
        assert report.bottleneck == "GIL"
        assert "decoder" not in changes(report)
        speed_ups.append(advice(report, "processes").speed_up.centre)
    assert speed_ups[0] == speed_ups[1]


def test_cache_in_memory_reaches_the_ceiling_unless_it_does_not_fit() -> None:
    report = of(DECODING)
    assert advice(report, "cache").speed_up.centre == pytest.approx(report.ceiling.centre, rel=0.01)


def test_data_that_does_not_fit_into_half_of_the_memory_is_not_cached() -> None:
    large = replace(base_settings(), params=PARAMS | {"image_size": 1024})
    assert "cache" not in changes(of(DECODING, settings=large))


def test_compute_bound_pipeline_gets_no_advice() -> None:
    assert of(Pretended()).advice == []


@pytest.mark.parametrize(("depth", "deeper"), [(2, 8), (0, 4), (300, 1024), (1024, None)])
def test_deeper_queue_is_advised_where_workers_are_fast_enough_on_average(depth: int, deeper: int | None) -> None:
    def slower(one: Record) -> Record:
        """Waits although two workers make a batch in 30 ms."""
        if one.settings.feed != "pipeline":
            return one
        waits_s = [0.2] * 3 if one.settings.input_timers else []
        times = replace(one.times, step_time_s=0.050, epoch_times_s=[1.0] * 3)
        use = one.input or InputUse()
        facts = use.facts and replace(use.facts, prefetch=depth)
        return replace(one, times=times, input=replace(use, wait_times_s=waits_s, facts=facts))

    found = [slower(one) for one in records(Pretended(prepare_s=0.0018, prepare_cpu_s=0.0015))]
    (report,) = reports(found)
    given = [one for one in report.advice if one.change == "prefetch"]
    assert [one.params for one in given] == ([{"prefetch": deeper}] if deeper else [])
    assert all(one.note is not None for one in given)
    assert "prefetch" not in changes(of(DECODING))


def test_copied_floats_become_bytes_on_the_device() -> None:
    settings = replace(base_settings(), params=PARAMS | {"preprocess": "host"})
    report = of(Pretended(compute_s=0.020, copy_s=0.020), settings=settings)
    one = advice(report, "device")
    assert one.params == {"preprocess": "device"}
    assert one.speed_up.centre == pytest.approx(40 / 25, rel=0.03)


def test_changes_of_a_users_own_pipeline_are_advised_in_words() -> None:
    settings = make_settings(workload="my.module:build", params={}, batch_size=32, feed="pipeline")
    report = of(DECODING, None, settings)
    one = advice(report, "workers")
    assert not one.verifiable
    assert one.note is not None
    assert "not verifiable" in one.note


def test_pipeline_without_stage_times_is_predicted_with_workers_that_are_never_idle() -> None:
    names = ("fetch_wall_time_s", "fetch_cpu_time_s", "prepare_wall_time_s", "prepare_cpu_time_s", "batches")
    found = [replace(r, input=replace(r.input or InputUse(), **dict.fromkeys(names))) for r in records(DECODING)]
    (report,) = reports(found)
    one = advice(report, "workers")
    assert one.speed_up.centre == pytest.approx(gain(DECODING, workers=2), rel=0.05)


def test_advice_is_sorted_and_above_one_beyond_its_interval() -> None:
    report = of(DECODING)
    centres = [one.speed_up.centre for one in report.advice]
    assert centres == sorted(centres, reverse=True)
    assert all(one.speed_up.low > 1 for one in report.advice)
    assert not helps(Estimate(1.05, 0.99, 1.11, 6))
    assert not helps(Estimate(1.01, 1.005, 1.015, 6))
    assert helps(Estimate(1.10, None, None, 3))


def test_throughput_by_workers_grows_to_the_cores() -> None:
    found = {one.workers: one.samples_per_s for one in of(DECODING).by_workers}
    assert found[1] == pytest.approx(32 / (32 * 0.0053), rel=0.02)
    assert found[2] > 1.9 * found[1]
    assert found[8] == pytest.approx(found[2], rel=0.05)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Estimate(2.0, 1.9, 2.1, 6), SpeedupVerdict.AS_PREDICTED),
        (Estimate(1.5, 1.4, 1.6, 6), SpeedupVerdict.LESS),
        (Estimate(2.6, 2.5, 2.7, 6), SpeedupVerdict.MORE),
        (Estimate(2.0, 1.2, 2.9, 6), SpeedupVerdict.UNDECIDED),
        (Estimate(2.0, None, None, 3), SpeedupVerdict.UNDECIDED),
    ],
)
def test_verdict_needs_an_interval_within_or_beyond_the_tolerance(measured: Estimate, expected: SpeedupVerdict) -> None:
    found, reason = verdict(measured, Estimate(2.0, 1.95, 2.05, 6))
    assert expected == found
    assert (reason is not None) == (expected is SpeedupVerdict.UNDECIDED)


def test_applied_advice_is_compared_by_block() -> None:
    one = advice(of(DECODING), "workers")
    before = [r for r in records(DECODING) if r.settings.page_cache == "cold" and not r.settings.input_timers]
    faster = replace(DECODING, workers=2)
    after = [r for r in records(faster, seed=1) if r.settings.page_cache == "cold" and not r.settings.input_timers]
    found = verified(one, "0" * 16, before, after)
    assert found.verdict is SpeedupVerdict.AS_PREDICTED
    failed = [replace(r, status=Status.ERROR, reason="no such decoder") for r in after]
    broken = verified(one, "0" * 16, before, failed)
    assert (broken.verdict, broken.reason) == (SpeedupVerdict.UNDECIDED, "error: no such decoder")


def test_fewer_threads_wait_less_for_each_other() -> None:
    """Four threads share an interpreter: 2 ms of Python take 8 ms, and fewer threads make batches as fast."""
    contended = Pretended(workers=4, prepare_s=0.008, prepare_cpu_s=0.002, fetch_s=0.0, fetch_cpu_s=0.0)
    found = {one.workers: one.samples_per_s for one in of(contended, replace(PROBE, lock_held_share=0.9)).by_workers}
    for workers in range(1, 5):
        assert 32 / found[workers] == pytest.approx(0.064, rel=0.03)


def test_fewer_processes_than_cpus_take_as_long_as_their_cpu_time() -> None:
    contended = Pretended(workers=4, kind="process", prepare_s=0.008, prepare_cpu_s=0.004)
    found = {one.workers: one.samples_per_s for one in of(contended).by_workers}
    assert 32 / found[1] == pytest.approx(32 * 0.0041, rel=0.05)


def test_cheaper_decoding_shortens_preparation_by_the_cpu_time_of_preparing_alone() -> None:
    """Fetching also needs CPU time, which a decoder does not save."""
    costly = Pretended(workers=1, fetch_s=0.004, fetch_cpu_s=0.004, prepare_s=0.0104, prepare_cpu_s=0.0052, cores=4)
    one = advice(of(costly), "decoder")
    assert one.speed_up.centre == pytest.approx(gain(costly, prepare_s=0.0044), rel=0.02)


def test_cache_must_fit_into_the_memory_that_the_cell_may_use() -> None:
    """0.75 GB of images: half of the machine's 8 GiB, not of a group's 1 GiB."""
    assert "cache" in changes(of(DECODING, replace(PROBE, memory_bytes=4 << 30)))
    assert "cache" not in changes(of(DECODING, replace(PROBE, memory_bytes=1 << 30)))


def test_cache_of_worker_processes_is_complete_only_after_many_passes() -> None:
    processes = replace(DECODING, kind="process", workers=2, prepare_s=0.010, prepare_cpu_s=0.010)
    note = str(advice(of(processes), "cache").note)
    assert "each worker process fills a cache of its own" in note
    assert "second pass" not in note
    assert "second pass" in str(advice(of(DECODING), "cache").note)


def test_no_change_is_advised_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    once = advising._candidates
    monkeypatch.setattr(advising, "_candidates", lambda situation: [*once(situation), *once(situation)])
    names = [one.change for one in of(DECODING).advice]
    assert len(names) > 1
    assert sorted(set(names)) == sorted(names)


INTERFERENCE = Pretended(compute_s=0.048, workers=1, prepare_s=0.0025, prepare_cpu_s=0.0025, wait_share=0.016)


def test_more_workers_are_not_advised_where_training_computes_slower_and_does_not_wait() -> None:
    """Of a step of 83 ms, 35 ms are interference, which more workers do not remove; cheaper preparation does."""
    report = of(INTERFERENCE)
    assert "workers" not in changes(report)
    assert {"decoder", "cache"} <= changes(report)


def test_more_workers_gain_at_most_the_time_that_training_waits() -> None:
    one = advice(of(replace(INTERFERENCE, wait_share=0.2)), "workers")
    assert one.speed_up.centre == pytest.approx(1 / (1 - 0.2), rel=0.02)


def test_deeper_queue_is_not_advised_where_training_does_not_wait() -> None:
    """A step of 60 ms computes for 40 ms alone; two workers make a batch in 30 ms, and 1 % of the time is waited."""

    def slower(one: Record) -> Record:
        if one.settings.feed != "pipeline":
            return one
        waits_s = [0.012] * 3 if one.settings.input_timers else []
        times = replace(one.times, step_time_s=0.060, epoch_times_s=[1.2] * 3)
        return replace(one, times=times, input=replace(one.input or InputUse(), wait_times_s=waits_s))

    (report,) = reports([slower(one) for one in records(Pretended(prepare_s=0.0018, prepare_cpu_s=0.0015))])
    assert report.interference is not None
    assert "prefetch" not in changes(report)


def test_threads_that_wait_for_bytes_and_hold_the_interpreter_gain_no_more_than_its_lock_allows() -> None:
    """2 ms of Python per sample are 64 ms per batch, with any number of threads."""
    slow = Pretended(fetch_s=0.005, prepare_s=0.002, prepare_cpu_s=0.002, cores=8)
    report = of(slow, replace(PROBE, lock_held_share=0.9))
    assert report.bottleneck == "fetch latency"
    one = advice(report, "workers")
    assert one.speed_up.centre == pytest.approx(0.112 / 0.0656, rel=0.03)
    assert one.params == {"input_workers": 4}
    assert advice(of(slow), "workers").speed_up.centre == pytest.approx(0.112 / 0.040, rel=0.03)


def test_predicted_line_of_one_thread_that_holds_the_interpreter_is_flat() -> None:
    found = {one.workers: one.samples_per_s for one in of(DECODING, replace(PROBE, lock_held_share=0.9)).by_workers}
    assert found[8] == pytest.approx(found[1], rel=0.03)


def test_format_of_a_globally_shuffled_folder_comes_with_a_window() -> None:
    """A record file that is read in global order needs a request per sample, as a folder does."""
    settings = replace(base_settings(), params=PARAMS | {"shuffle": "global"})
    one = advice(of(STORAGE, replace(PROBE, storage=CAPPED_REQUESTS), settings), "format")
    assert (one.stored_as, one.params) == ("tfrecord", {"shuffle": "window"})
    assert one.text.endswith(", with shuffle: window")
    window = replace(settings, params=PARAMS | {"shuffle": "window"})
    assert advice(of(STORAGE, replace(PROBE, storage=CAPPED_REQUESTS), window), "format").params == {}


def test_records_that_are_read_in_global_order_get_a_window_and_no_other_format() -> None:
    def of_records(shuffle: str) -> StallReport:
        settings = replace(base_settings(), params=PARAMS | {"shuffle": shuffle})
        found = [as_records(one) for one in records(STORAGE, settings=settings)]
        probes = {reports(found)[0].cell_id: replace(PROBE, storage=CAPPED_REQUESTS)}
        return reports(found, probes)[0]

    def as_records(one: Record) -> Record:
        use = one.input or InputUse()
        return replace(one, input=replace(use, facts=use.facts and replace(use.facts, stored_as="tfrecord")))

    one = advice(of_records("global"), "shuffle")
    assert (one.params, one.stored_as) == ({"shuffle": "window"}, None)
    assert {"shuffle", "format"}.isdisjoint(changes(of_records("window")))


def test_processes_in_place_of_threads_of_tf_data_are_those_of_grain() -> None:
    """tf.data has threads only: a cell with worker_kind: process would be unsupported."""

    def by_tf_data(one: Record) -> Record:
        use = one.input or InputUse()
        return replace(one, input=replace(use, facts=use.facts and replace(use.facts, pipeline="tf_data")))

    settings = replace(base_settings(), params=PARAMS | {"pipeline": "auto"})
    found = [by_tf_data(one) for one in records(LOCKED, settings=settings)]
    (report,) = reports(found, {reports(found)[0].cell_id: replace(PROBE, lock_held_share=0.8)})
    one = advice(report, "processes")
    assert one.params == {"worker_kind": "process", "pipeline": "grain"}
    assert "of tf.data, with pipeline: grain" in one.text


def test_gain_without_an_interval_must_be_larger_to_be_listed() -> None:
    limit = advising.LEAST_GAIN_WITHOUT_INTERVAL
    assert [helps(Estimate(centre, None, None, 3)) for centre in (limit, limit - 0.01)] == [True, False]
