"""A stall analysis on the terminal: its figures with units, its advice, and what is not known."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.stalls.analysis import reports
from keras_matrix.analysis.stalls.report import SpeedupVerdict, StallReport, VerifiedAdvice
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.runner.cli.inputs.stalls import report_lines
from tests.analysis.stalls.pretended import Pretended, records
from tests.golden import Golden

# A step of 80 ms, of which 40 ms compute: 40 MB/s in 400 requests of 97.7 KiB per second.
STORAGE = Pretended(cold_fetch_s=0.004, prepare_s=0.001, prepare_cpu_s=0.001, storage_bytes=3_200_000, reads=32)
GAIN = Estimate(1.5, 1.4, 1.6, 6)
NOT_APPLIED = VerifiedAdvice("format", "TFRecord", "", GAIN, None, SpeedupVerdict.UNDECIDED, "not applied: disk full")


def report_of(pipeline: Pretended = STORAGE, *, cold: bool = True) -> StallReport:
    (report,) = reports(records(replace(pipeline, noise=0.0), blocks=6, cold=cold))
    return report


def with_failures(report: StallReport) -> StallReport:
    arms = [replace(arm, failures=["timeout: after 300 s"]) if arm.arm == "host" else arm for arm in report.arms]
    return replace(report, arms=arms)


def test_what_is_printed_of_an_analysis(golden: Golden) -> None:
    cases = {
        "half of the step waits for the storage; advice that could not be applied; a process that failed": replace(
            with_failures(report_of()), verified=[NOT_APPLIED]
        ),
        "a slower storage": report_of(replace(STORAGE, cold_fetch_s=0.009)),
        "not measured with a cold cache": report_of(cold=False),
        "nothing to gain": report_of(Pretended()),
        "no gain could be predicted": replace(report_of(), advice=[], by_workers=[]),
        "no analysis": replace(report_of(), reason="cold arm: error: no such folder"),
    }
    texts = [f"# {title}\n" + "".join(f"{line}\n" for line in report_lines(case)) for title, case in cases.items()]
    golden.check("stall_report.txt", "\n".join(texts))
