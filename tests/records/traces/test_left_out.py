"""What of PyTorch's files belongs to no step, or is not read: left out and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.traces import read_table
from keras_matrix.records.traces import conversion, torch
from keras_matrix.records.traces.neutral import Span, TrackKind
from keras_matrix.records.traces.request import TraceError
from keras_matrix.records.traces.table import TraceSummary
from keras_matrix.runner.cli.measure.trace import heading
from tests.records.traces.synthetic import chrome, event, mark


def annotation(name: str, ts: float, dur: float) -> dict[str, Any]:
    return event(name, ts, dur, "user_annotation")


def spans_of(tmp_path: Path, events: list[dict[str, Any]]) -> list[Span]:
    return torch.spans(torch.read(chrome(tmp_path / "trace.json", events)), 0)[0]


def table_of(tmp_path: Path, events: list[dict[str, Any]]) -> TraceSummary:
    """The table of a file with these events."""
    conversion.make_of(chrome(tmp_path / "trace.json", events), tmp_path / "trace.json.gz")
    return read_table(tmp_path / "trace.json.gz")


CATEGORIES = ("user_annotation", "cpu_op", "cuda_runtime", "kernel")
CATEGORIES_UNTIL_1_10 = ("Operator", "Operator", "Runtime", "Kernel")


def behind(lag: float = 9_500, categories: tuple[str, ...] = CATEGORIES) -> list[dict[str, Any]]:
    """Three steps of 10 ms whose kernels follow one another without a gap, so long after their launches."""
    found = []
    mark_category, operator, runtime, device = categories
    for number in range(3):
        begin = 1_000 + 10_000 * number
        found += [event(f"ProfilerStep#{number + 1}", begin, 10_000, mark_category)]
        found += [event("aten::mm", begin, 9_990, operator, **{"External id": number})]
        found += [event("cudaLaunchKernel", begin + 5, 9_980, runtime, correlation=number)]
        found += [event("gemm", begin + lag, 10_000, device, pid=0, tid=7, correlation=number)]
    return found


def test_the_drain_of_the_last_step_is_not_divided_over_the_steps(tmp_path: Path) -> None:
    found = table_of(tmp_path, behind())
    assert (found.steps, found.step_time_s, found.busy_share) == (3, pytest.approx(0.01), pytest.approx(1))
    assert [(part.name, part.count) for part in found.by_operation] == [("aten::mm", 3)]


def test_kernel_that_was_launched_before_the_trace_is_left_out_and_named(tmp_path: Path) -> None:
    orphan = event("ncclDevKernel_AllReduce", 1_000, 9_000, "kernel", pid=0, tid=7, correlation=900)
    found = table_of(tmp_path, [*behind(), orphan])
    assert [(part.name, part.count) for part in found.by_operation] == [("aten::mm", 3)]
    assert (found.step_time_s, found.overlap_share) == (pytest.approx(0.01), None)
    assert found.notes == [
        "work of the device that was launched outside of the traced steps (9.000 ms in all) is left out:"
        " ncclDevKernel_AllReduce"
    ]
    track = next(one.track for one in spans_of(tmp_path, [*behind(), orphan]) if one.name.startswith("nccl"))
    assert track.name == "outside"


def test_kernel_that_is_launched_between_two_marks_belongs_to_the_next_step(tmp_path: Path) -> None:
    events = [
        mark("step:1", 0, 50),
        mark("step:2", 60, 50),
        event("cudaLaunchKernel", 20, 5, "cuda_runtime", correlation=1),
    ]
    events += [event("cudaLaunchKernel", 55, 2, "cuda_runtime", correlation=2)]
    events += [event(f"k{n}", 30 * n, 20, "kernel", pid=0, tid=7, correlation=n) for n in (1, 2)]
    assert {one.name: one.step for one in spans_of(tmp_path, events) if one.track.kind is TrackKind.COMPUTE} == {
        "k1": 1,
        "k2": 2,
    }


def test_the_profilers_last_mark_without_a_step_is_left_out_and_named(tmp_path: Path) -> None:
    """Of `schedule(active=10)` and a loop that ends after two steps."""
    work = [event("aten::mm", at, 1_500) for at in (1_100, 2_900, 4_700, 6_500, 8_300)]
    marks = [
        event("ProfilerStep#1", 1_000, 10_000, "user_annotation"),
        event("ProfilerStep#2", 11_000, 50, "user_annotation"),
    ]
    found = table_of(tmp_path, [*marks, *work, event("aten::mm", 11_010, 5)])
    assert (found.steps, found.step_time_s) == (1, pytest.approx(0.01))
    assert [(part.name, part.count) for part in found.by_operation] == [("aten::mm", 5)]
    assert found.notes == ["ProfilerStep#2, the last one (0.050 ms), is left out: the profiler stopped before it ended"]


def test_launch_without_a_kernel_after_the_last_step_leaves_the_step_as_it_is(tmp_path: Path) -> None:
    """Mutation: what follows the last mark counts for it."""
    later = event("cudaLaunchKernel", 31_500, 5, "cuda_runtime", correlation=99)
    found = table_of(tmp_path, [*behind(), later, event("aten::add", 31_400, 300)])
    assert (found.steps, found.notes) == (3, [])


def test_file_without_steps_lasts_as_long_as_its_program(tmp_path: Path) -> None:
    """As the replay of such a file says, not only from the first to the last of the device's work."""
    events = [event("aten::mm", 0, 2_000), event("cudaLaunchKernel", 500, 5, "cuda_runtime", correlation=1)]
    found = table_of(tmp_path, [*events, event("gemm", 600, 1_000, "kernel", pid=0, tid=7, correlation=1)])
    assert (found.steps, found.window_s, found.busy_share) == (None, pytest.approx(0.002), pytest.approx(0.5))


@pytest.mark.parametrize("library", ["nccl", "xccl", "hccl"])
def test_overlap_of_communication_is_not_known_without_the_devices_work(tmp_path: Path, library: str) -> None:
    """Mutation: the range that launches a collective is one, which its own operator overlaps."""
    events = [
        annotation("ProfilerStep#1", 0, 100),
        annotation(f"{library}:all_reduce", 10, 50),
    ]
    found = table_of(tmp_path, [*events, event("c10d::allreduce_", 12, 40), event("record_param_comms", 14, 20)])
    assert found.overlap_share is None
    assert found.notes == [
        f"how much of the communication by {library} was overlapped by compute is not known: the file has no work of a"
        " device, and these ranges only launch it"
    ]


def test_operators_that_start_a_collective_do_not_overlap_it(tmp_path: Path) -> None:
    events = [annotation("ProfilerStep#1", 0, 100), annotation("gloo:send", 14, 30)]
    events += [event("c10d::send", 10, 40), event("record_param_comms", 12, 35), event("aten::mm", 60, 20)]
    found = table_of(tmp_path, events)
    assert (found.overlap_share, found.notes) == (0, [])


def test_categories_of_older_files_are_those_of_today(tmp_path: Path) -> None:
    older = behind(categories=CATEGORIES_UNTIL_1_10)
    assert table_of(tmp_path, older) == table_of(tmp_path, behind())


def test_work_of_an_accelerator_that_is_not_read_is_named(tmp_path: Path) -> None:
    events = [annotation("ProfilerStep#1", 0, 100), event("aten::mm", 10, 20)]
    events += [event("dma_request", ts, 5, "mtia_ccp_events", pid=9) for ts in (20, 30)]
    events += [event("runFunction", 15, 5, "mtia_runtime")]
    text = (
        "2 events of an accelerator (mtia_ccp_events) are left out, because this program does not know what they mean"
    )
    found = table_of(tmp_path, events)
    assert found.notes == [f"{text}: the times are those of its host"]
    assert heading(found, None)[1] == "host busy 20.0 % of the time; 2 gaps, 80.0 us in all"
    with_device = table_of(tmp_path, [*behind(), *events[1:]])
    assert with_device.notes[0] == text
    assert heading(with_device, None)[1].startswith("device (gpu) busy ")


def test_file_with_other_events_only_names_their_categories(tmp_path: Path) -> None:
    events = [event("dma_request", 20, 5, "mtia_ccp_events", pid=9)]
    with pytest.raises(TraceError, match=r"no event of a profiler \(of the categories mtia_ccp_events\); record"):
        table_of(tmp_path, events)
