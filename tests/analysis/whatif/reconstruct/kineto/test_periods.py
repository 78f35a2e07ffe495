"""The replayed steps take as long as the traced ones: of simulated training, and of public traces."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from keras_matrix.analysis.whatif.replay import replay
from keras_matrix.runner.whatif.source import graph_of_files
from tests.analysis.whatif.reconstruct.kineto.events import Event, call, graph_in, kernel, named, operator
from tests.analysis.whatif.reconstruct.kineto.generated import Work, files
from tests.conftest import NIGHTLY
from tests.records.traces.public import PUBLIC, needs_public_traces
from tests.records.traces.synthetic import event

COUNT = 100 if NIGHTLY else 20  # traces of each kind


def divided(draw: random.Random, total: float, parts: int) -> list[float]:
    """Return positive parts of a time."""
    shares = [draw.uniform(0.5, 1.5) for _ in range(parts)]
    return [total * share / sum(shares) for share in shares]


def lag(draw: random.Random) -> float:
    return draw.choice((0.0, 100.0, draw.uniform(0, 5_000), draw.uniform(0, 50_000), 50_000.0))


def bound_by_the_device(draw: random.Random) -> Work:
    parts, device = draw.randint(2, 5), draw.uniform(2_000, 20_000)
    thread = device * draw.uniform(0.05, 0.9)
    return Work([divided(draw, thread, parts)], [divided(draw, device, parts)], 6, lag(draw), jitter=0.02)


def bound_by_the_thread(draw: random.Random) -> Work:
    """What the thread launches begins up to 50 ms later, as far as the clocks of the file say."""
    parts, thread = draw.randint(2, 5), draw.uniform(2_000, 20_000)
    device = thread * draw.uniform(0.05, 0.9)
    latency = 5 + lag(draw)
    return Work([divided(draw, thread, parts)], [divided(draw, device, parts)], 6, latency=latency, jitter=0.01)


def alternating(draw: random.Random) -> Work:
    """Steps are bound by the thread and by the device in turn."""
    parts, long = draw.randint(2, 4), draw.uniform(4_000, 20_000)
    short = long * draw.uniform(0.1, 0.8)
    other = draw.uniform(0.5, 1.0)
    thread = [divided(draw, long * other, parts), divided(draw, short * other, parts)]
    device = [divided(draw, short, parts), divided(draw, long, parts)]
    return Work(thread, device, 7, max(lag(draw), long))


def two_streams(draw: random.Random) -> Work:
    work = draw.choice((bound_by_the_device, bound_by_the_thread))(draw)
    slowest = min(map(min, work.device))
    return Work(work.thread, work.device, 6, work.lag, work.latency, side=slowest * draw.uniform(0.1, 0.9), jitter=0.01)


def several_ranks(draw: random.Random) -> Work:
    work = draw.choice((bound_by_the_device, bound_by_the_thread))(draw)
    return Work(work.thread, work.device, 5, work.lag, work.latency, ranks=draw.choice((2, 3)), jitter=0.01)


KINDS: list[Callable[[random.Random], Work]] = [
    bound_by_the_device,
    bound_by_the_thread,
    alternating,
    two_streams,
    several_ranks,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_replayed_steps_of_simulated_training_take_the_true_period(
    tmp_path: Path, kind: Callable[[random.Random], Work]
) -> None:
    """Mutation: the gap of a step's first kernel begins at its launch: a lag counts in each step."""
    errors = {}
    for seed in range(COUNT):
        paths, period_us = files(tmp_path, kind(random.Random(seed)))
        errors[seed] = replay(graph_of_files(paths), resamples=1).step_time_s * 1e6 / period_us - 1
    assert len(errors) == COUNT >= (100 if NIGHTLY else 20)
    assert {seed: error for seed, error in errors.items() if abs(error) > 0.01} == {}


# Small files, whose periods are known.


def behind(lag: float = 9_500, steps: int = 3) -> list[Event]:
    """Steps of 10 ms whose kernels follow one another without a gap, so long after their launches."""
    found = []
    for number in range(steps):
        begin = 1000 + 10_000 * number
        found += [event(f"ProfilerStep#{number + 1}", begin, 10_000, "user_annotation")]
        found += [operator("aten::mm", begin, 9_990, **{"External id": number})]
        found += [call("cudaLaunchKernel", begin + 5, 9_980, number), kernel("gemm", begin + lag, 10_000, number)]
    return found


def test_kernels_that_lag_behind_their_launches_take_the_period_of_the_device(tmp_path: Path) -> None:
    found = graph_in(tmp_path, behind())
    assert found.header.step_times_s == pytest.approx([0.01] * 3)
    assert replay(found).step_time_s == pytest.approx(0.01)
    assert found.header.coverage > 0.99


def test_thread_that_runs_ahead_does_not_shorten_the_steps(tmp_path: Path) -> None:
    """The thread marks steps of 1 ms, and its device takes 10 ms for each."""
    found = []
    for number in range(4):
        begin, launched = 1_000 * number, 1_000 * number + 10
        found += [
            event(f"ProfilerStep#{number}", begin, 1_000, "user_annotation"),
            operator("aten::mm", begin + 5, 900),
        ]
        found += [call("cudaLaunchKernel", launched, 5, number), kernel("gemm", 20 + 10_000 * number, 10_000, number)]
    made = graph_in(tmp_path, found)
    assert made.header.step_times_s == pytest.approx([0.01] * 4)
    assert replay(made).step_time_s == pytest.approx(0.01)
    (gemm,) = named(made, "gemm")
    assert gemm.starts_ns == (0, 0, 0, 0)  # from the end of the step before
    assert made.header.coverage > 0.99


def test_time_in_which_the_device_waits_belongs_to_the_step(tmp_path: Path) -> None:
    """The thread marks steps of 5 ms; in each of its 10 ms the device waits for 2 ms before it works."""
    found = []
    for number in range(4):
        begin = 5_000 * number
        found += [event(f"ProfilerStep#{number}", begin, 5_000, "user_annotation"), operator("aten::mm", begin, 4_900)]
        found += [call("cudaLaunchKernel", begin + 10, 5, number)]
        found += [kernel("gemm", 10_000 * number + 2_000, 8_000, number)]
    assert graph_in(tmp_path, found).header.step_times_s[1:] == pytest.approx([0.01] * 3)


def test_one_step_of_a_device_that_lags_takes_the_devices_time(tmp_path: Path) -> None:
    assert replay(graph_in(tmp_path, behind(steps=1))).step_time_s == pytest.approx(0.01)


def test_the_profilers_last_mark_without_a_step_is_left_out_and_named(tmp_path: Path) -> None:
    step = [operator("aten::mm", at, 1_500) for at in (1_100, 2_900, 4_700, 6_500, 8_300)]
    marks = [event("ProfilerStep#1", 1_000, 10_000, "user_annotation")]
    for last in ([], [operator("aten::mm", 11_005, 20)]):
        nothing = [event("ProfilerStep#2", 11_000, 50, "user_annotation"), *last]
        found = graph_in(tmp_path, [*marks, *step, *nothing])
        assert found.header.step_times_s == pytest.approx([0.01])
        assert found.header.caveats[0] == (
            "step 2, the last one, is left out: the profiler stopped before it ended;"
            f" it has {len(last)} operations, the step before has 5"
        )


def test_last_step_whose_kernels_are_missing_is_left_out_and_named(tmp_path: Path) -> None:
    events = behind(steps=4)[:-1]
    found = graph_in(tmp_path, events)
    assert len(found.header.step_times_s) == 3
    assert (
        "step 4, the last one, is left out: the profiler stopped before it ended; 1 of its 1 launches have no kernel"
        in (found.header.caveats)
    )


def test_a_rank_that_stopped_one_mark_earlier_has_the_same_steps(tmp_path: Path) -> None:
    last = [event("ProfilerStep#4", 31_000, 50, "user_annotation")]
    found = graph_in(tmp_path, [*behind(), *last], behind())
    assert len(found.header.step_times_s) == 3


def test_kernel_that_was_launched_before_the_trace_is_left_out_and_named(tmp_path: Path) -> None:
    orphan = kernel("ncclDevKernel_AllReduce", 1_000, 9_000, 900, **{"External id": 900})
    found = graph_in(tmp_path, [*behind(), orphan])
    assert not named(found, "ncclDevKernel_AllReduce")
    assert len(found.header.step_times_s) == 3
    assert (
        "rank 0: work of the device that was launched outside of the traced steps (9.000 ms in all) is left out:"
        " ncclDevKernel_AllReduce"
    ) in found.header.caveats


# Public traces.


def true_period_s(path: Path) -> float:
    """Return the mean distance between the ends of the last kernels of successive steps, without any of our readers."""
    events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if one.get("ph") == "X"]
    steps = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].startswith("ProfilerStep#")
                   and one["cat"] == "user_annotation")  # fmt: skip
    calls = {
        one["args"].get("correlation"): one["ts"] for one in events if one["cat"] in ("cuda_runtime", "cuda_driver")
    }
    ends: dict[int, float] = defaultdict(float)
    for one in events:
        at = calls.get(one.get("args", {}).get("correlation"))
        if one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and at is not None:
            for number, (begin, end) in enumerate(steps):
                if begin <= at < end:
                    ends[number] = max(ends[number], one["ts"] + one["dur"])
    return fmean(ends[after] - ends[own] for own, after in pairwise(sorted(ends))) / 1e6


@needs_public_traces
@pytest.mark.parametrize("name", ["ddp_nccl_2gpu_rank0", "gpu_bound_rank0"])
def test_replayed_and_measured_steps_of_public_traces_take_the_true_period(name: str) -> None:
    path = PUBLIC / f"{name}.json.gz"
    found = graph_of_files([path])
    assert replay(found, resamples=1).step_time_s == pytest.approx(true_period_s(path), rel=0.03)
    assert found.step_time_s == pytest.approx(true_period_s(path), rel=0.005)
    assert found.header.coverage > 0.9
