"""The tables of a trace for the terminal."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.comparison.starts import START_MEANING
from keras_matrix.records.traces.table import IdleGap, TimeShare
from keras_matrix.runner.cli.measure.trace import heading, start_lines, table_lines
from tests.conftest import make_record
from tests.records.traces.synthetic import TABLE

SHOWN = replace(
    TABLE,
    by_operation=[TimeShare("dot", 8, 0.004, 0.8), TimeShare("add", 4, 0.0006, 0.12), TimeShare(None, 4, 0.0004, 0.08)],
    gaps=[IdleGap(1, 0.001, 0.003, "dot", None, "input")],
)


def test_heading_has_the_traced_and_measured_step_and_the_busy_share() -> None:
    assert heading(SHOWN, 0.004) == [
        "4 steps: 5.00 ms each with the profiler on; 4.00 ms as measured, without it",
        "device (cpu) busy 25.0 % of the time; 1 gap, 3.00 ms in all",
    ]


def test_one_step_and_several_gaps_of_workers_are_counted_in_words() -> None:
    found = replace(SHOWN, workers=2, steps=1, gap_count=1200)
    assert heading(found, None) == [
        "1 step of 2 workers: 20.0 ms each with the profiler on",
        "device (cpu) busy 25.0 % of the time; 1,200 gaps, 3.00 ms in all",
    ]


def test_unknown_figures_are_not_printed() -> None:
    assert heading(replace(SHOWN, steps=None, busy_share=None), None) == [
        "20.0 ms; no step was marked",
        "device (cpu) busy not known; 1 gap, 3.00 ms in all",
    ]


def test_parts_beyond_the_requested_lines_are_summed() -> None:
    assert table_lines(SHOWN, 1)[:4] == [
        "",
        "by operation   share  time a step  count a step",
        "dot           80.0 %      1.00 ms          2.00",
        "2 others      20.0 %       250 us          2.00",
    ]


def test_longest_gaps_are_shown() -> None:
    gaps = [IdleGap(0, 0.001, 0.003, "dot", "add", None), IdleGap(0, 0.009, 0.002, "add", None, None)]
    (shown,) = [line.split() for line in table_lines(replace(SHOWN, gaps=gaps), 1)[-2:] if line]
    assert shown == ["3.00", "ms", "1.00", "ms", "dot", "add", "-"]


def test_missing_name_has_a_placeholder_and_a_long_name_is_shortened() -> None:
    found = replace(SHOWN, by_operation=[TimeShare(None, 4, 0.001, 0.2), TimeShare("x" * 99, 4, 0.001, 0.2)])
    names = [line.split()[0] for line in table_lines(found, 20)[2:4]]
    assert names == ["(not", "x" * 57 + "..."]


def test_gap_of_several_workers_names_its_worker() -> None:
    lines = table_lines(replace(SHOWN, workers=2), 20)
    assert lines[-2].split("  ")[0] == "worker 1: 3.00 ms"
    assert table_lines(replace(SHOWN, gaps=[]), 20)[-2] == "no gaps"


def test_trace_of_a_gpu_shows_its_kinds_of_work_and_how_much_communication_is_overlapped() -> None:
    kinds = [TimeShare("compute", 8, 0.004, 0.8), TimeShare("communication", 4, 0.001, 0.2)]
    found = replace(SHOWN, device="gpu", by_kind=kinds, overlap_share=0.5)
    assert heading(found, None)[1:] == [
        "device (gpu) busy 25.0 % of the time; 1 gap, 3.00 ms in all",
        "communication overlapped by compute: 50.0 % of its time",
    ]
    assert [line for line in table_lines(found, 9) if line.startswith(("by kind", "communication"))] == [
        "by kind         share  time a step  count a step",
        "communication  20.0 %       250 us          1.00",
    ]
    assert "by kind" not in "\n".join(table_lines(replace(found, by_kind=kinds[:1]), 9))


def test_heading_ends_with_the_profilers_warnings() -> None:
    found = replace(SHOWN, warnings=["Dropped 7 events"])
    assert heading(found, None)[2:] == ["warning: the profiler reports: Dropped 7 events"]


def test_start_of_the_traced_process_has_what_its_backend_reports() -> None:
    plain = make_record(0.01)
    times = replace(plain.times, trace_time_s=0.5, compile_time_s=4.2, first_step_time_s=2.5)
    assert start_lines(replace(plain, times=times)) == [
        f"start of the process: trace 500 ms, compile 4.20 s, first step 2.50 s ({START_MEANING})"
    ]
    only_step = replace(times, trace_time_s=None, compile_time_s=None)
    assert start_lines(replace(plain, times=only_step)) == ["start of the process: first step 2.50 s"]
    assert start_lines(replace(plain, times=replace(only_step, first_step_time_s=None))) == []
