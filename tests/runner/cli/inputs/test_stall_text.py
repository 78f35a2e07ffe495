"""A stall analysis on the terminal: its figures with units, its advice, and what is not known."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import SpeedupVerdict, StallReport, VerifiedAdvice
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.runner.cli.inputs.stalls import report_lines
from tests.analysis.stalls.pretended import Pretended, records

# A step of 80 ms, of which 40 ms compute: 40 MB/s in 400 requests of 97.7 KiB per second.
STORAGE = Pretended(cold_fetch_s=0.004, prepare_s=0.001, prepare_cpu_s=0.001, storage_bytes=3_200_000, reads=32)


def report_of(pipeline: Pretended = STORAGE, blocks: int = 6) -> StallReport:
    (report,) = reports(records(replace(pipeline, noise=0.0), blocks=blocks))
    return report


def test_figures_have_their_units() -> None:
    lines = report_lines(report_of())
    assert "  pipeline: grain, folder, 2 threads, pil, prefetch 2" in lines
    assert "  per sample: fetch 4.00 ms (CPU 50.0 us), prepare 1.00 ms (CPU 1.00 ms)" in lines
    assert "  decode rate: 1,000 samples per CPU-second; 0.42 of 2 CPUs" in lines
    assert "  storage: 40.0 MB/s, 400 requests/s of 97.7 KiB, 0.0 % from the page cache" in lines
    assert "  queue: 0.500 batches ready on average of at most 4" in lines
    assert "  own cost of the timers: 0.025 % of the timed arm; the other arms have none" in lines


def test_parts_add_up_and_those_that_are_not_measured_say_so() -> None:
    lines = report_lines(report_of(replace(STORAGE, cold_fetch_s=0.009)))
    (copy,) = [line for line in lines if line.startswith("batching and copy")]
    assert "not resolved" in copy
    (step,) = [line for line in lines if line.startswith("step ")]
    assert step.split()[1:5] == ["160", "ms", "100.0", "%"]
    (warm,) = reports(records(STORAGE, cold=False))
    assert any(line.startswith("fetch") and "not measured" in line for line in report_lines(warm))


def test_page_without_advice_says_whether_a_gain_could_be_predicted() -> None:
    free = report_of(Pretended())
    assert any(
        line.startswith("no change of the pipeline is predicted to help. Ceiling: ") for line in report_lines(free)
    )
    unknown = replace(report_of(), advice=[], by_workers=[])
    assert any(line.startswith("no change of the pipeline could be predicted. ") for line in report_lines(unknown))


def test_failed_processes_are_caveats_of_their_arm() -> None:
    report = report_of()
    arms = [replace(arm, failures=["timeout: after 300 s"]) if arm.arm == "host" else arm for arm in report.arms]
    assert "caveat: host arm: timeout: after 300 s" in report_lines(replace(report, arms=arms))


def test_advice_that_was_not_applied_has_its_reason_and_no_figure() -> None:
    gain = Estimate(1.5, 1.4, 1.6, 6)
    found = VerifiedAdvice("format", "TFRecord", "", gain, None, SpeedupVerdict.UNDECIDED, "not applied: disk full")
    lines = report_lines(replace(report_of(), verified=[found]))
    (row,) = [line for line in lines if line.startswith("format: TFRecord ") and line.endswith("undecided")]
    assert row.split()[2:-1] == ["1.50x", "[1.40", "1.60]", "-"]
    assert "  format: not applied: disk full" in lines


def test_analysis_that_failed_is_one_line() -> None:
    failed = replace(report_of(), reason="cold arm: error: no such folder")
    (line,) = report_lines(failed)
    assert line.endswith(": no analysis: cold arm: error: no such folder")
