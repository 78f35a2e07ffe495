"""The status derived from the observation of a command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.records.schema import Status, Surroundings
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.runner.executors import Outcome, TaskObservation
from keras_matrix.runner.measure.record_builder import judge_task

RUN = TaskRun("t", ["true"], "speed", [Metric("speed", 3.0, "m/s"), Metric("loss", 0.5)])
DONE = Outcome(exit_code=0, wall_time_s=1.0, task=TaskObservation(RUN))


def without(problem: str) -> Outcome:
    metrics = [Metric("speed", None, problem=problem), Metric("loss", 0.5)]
    return replace(DONE, task=TaskObservation(replace(RUN, metrics=metrics)))


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (DONE, Status.OK, None),
        (replace(DONE, exit_code=1, output_tail="a\nwhy \n"), Status.ERROR, "exit code 1: why"),
        (
            replace(DONE, exit_code=None, signal=9, oom_kills=1),
            Status.OOM_HOST,
            "the kernel killed the process because memory was exhausted",
        ),
        (
            replace(DONE, exit_code=None, signal=15, deadline_exceeded=True),
            Status.TIMEOUT,
            "the time limit passed (timeout_s); the process was ended",
        ),
        (
            replace(DONE, deadline_exceeded=True),
            Status.TIMEOUT,
            "the time limit passed (timeout_s); the process was ended",
        ),
        (replace(DONE, signal=15, task=TaskObservation(RUN, stopped="log_limit: so")), Status.ERROR, "log_limit: so"),
        (Outcome(task=TaskObservation(RUN, never="command: none")), Status.ERROR, "command: none"),
        (Outcome(task=TaskObservation(RUN, no_device="gpus: none")), Status.DEVICE_MISMATCH, "gpus: none"),
        (Outcome(task=TaskObservation(RUN, too_few_devices="gpus: 1")), Status.UNSUPPORTED, "gpus: 1"),
        (Outcome(infrastructure="server: gone"), Status.INFRA, "server: gone"),
        (
            replace(DONE, exit_code=1, gpu_lost="GPU 0: GPU is lost"),
            Status.INFRA,
            "GPU lost: NVML says GPU 0: GPU is lost; look for Xid in the kernel's log (dmesg), reset the GPU "
            "(nvidia-smi --gpu-reset) or restart the machine",
        ),
        (Outcome(refused="not here"), Status.UNSUPPORTED, "not here"),
        (without("no_match: none"), Status.ERROR, "metric speed: no_match: none"),
        (without("not_finite: nan"), Status.DIVERGED, "metric speed: not_finite: nan"),
        (
            replace(DONE, task=TaskObservation(replace(RUN, metrics=[]))),
            Status.ERROR,
            "metric speed: no_match: the command did not report this metric",
        ),
    ],
)
def test_status_follows_from_the_evidence(outcome: Outcome, status: Status, reason: str | None) -> None:
    verdict = judge_task(outcome)
    assert (verdict.status, verdict.reason) == (status, reason)


def test_caveats_are_warnings_with_advice() -> None:
    missing = replace(RUN, outlived=2, metrics=[*RUN.metrics, Metric("wait", None, problem="no_match: none")])
    outcome = replace(
        DONE, task=TaskObservation(missing, caveats=("reports: bad",)), surroundings=Surroundings(steal_share=0.5)
    )
    assert [warning.partition(":")[0] for warning in judge_task(outcome).warnings] == [
        "outlived",
        "metric_missing",
        "reports",
        "steal",
    ]
