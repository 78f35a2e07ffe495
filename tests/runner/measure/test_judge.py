"""A status follows from evidence alone."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.surroundings import disturbance
from keras_matrix.records.codec import dumps, to_json
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_use import InputUse
from keras_matrix.records.replicas import Replica, Replicas
from keras_matrix.records.schema import (
    SCHEMA_VERSION,
    CellResult,
    Container,
    DeviceProof,
    GpuEpochs,
    Learning,
    Status,
    Surroundings,
)
from keras_matrix.records.traces.request import Trace
from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES, Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.judge import ResultRefused, accept, judge
from keras_matrix.runner.measure.record_builder import build_record, read_bounded
from tests.conftest import MACHINE, make_settings
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.messages import check_messages, refusal

SETTINGS = make_settings()
JOB = Job("nonce", cell_id(SETTINGS), 0, 0, SETTINGS, 10, "/nowhere", [], None, None)
GOOD = FakeExecutor().result(JOB)
EMPTY = CellResult(SCHEMA_VERSION, JOB.nonce, JOB.cell_id, JOB.repeat, JOB.attempt)
ENDED_WELL = Outcome(exit_code=0)


def result_with(*times_s: float) -> CellResult:
    return replace(GOOD, times=replace(GOOD.times, epoch_times_s=list(times_s), epoch_time_median_s=sorted(times_s)[1]))


def resolved_with(**changes: int) -> CellResult:
    assert GOOD.resolved is not None
    return replace(GOOD, resolved=replace(GOOD.resolved, **changes))


def counted(**changes: Any) -> CellResult:
    """Return the result with changed counts of its last call."""
    assert GOOD.work is not None
    stretches = [*GOOD.work.stretches[:-1], replace(GOOD.work.stretches[-1], **changes)]
    return replace(GOOD, work=replace(GOOD.work, stretches=stretches))


def raised(kind: str, message: str = "what happened") -> CellResult:
    return CellResult(1, "nonce", JOB.cell_id, 0, 0, exception=kind, message=message)


def test_valid_result_and_a_clean_end_are_ok() -> None:
    assert judge(JOB, ENDED_WELL, accept(dumps(GOOD).encode(), JOB), None).status is Status.OK


@pytest.mark.parametrize("why", ["infrastructure", "refused", "missing_device", None])
def test_kills_during_an_attempt_that_was_not_observed_are_not_known(why: str | None) -> None:
    """Mutation: a cell that never started records that no process was killed."""
    reasons: dict[str, Any] = {why: "a reason"} if why else {}
    outcome = replace(ENDED_WELL, **reasons)
    context = "20260101T000000Z-abcdef", MACHINE, datetime(2026, 1, 1, tzinfo=UTC)
    record = build_record(JOB, outcome, (None, None, judge(JOB, outcome, None, None)), context)
    assert record.evidence.oom_kills == (None if why else 0)


@pytest.mark.fault("F1", mutation="judge() ignores the signal that ended a process")
@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(signal=11), Status.CRASH),
        (Outcome(signal=9), Status.CRASH),
        (Outcome(signal=9, oom_kills=1), Status.OOM_HOST),
        (Outcome(signal=11, oom_kills=1), Status.CRASH),
        (Outcome(signal=9, deadline_exceeded=True), Status.TIMEOUT),
        (Outcome(exit_code=0, deadline_exceeded=True), Status.TIMEOUT),
        (Outcome(exit_code=3), Status.ERROR),
        (Outcome(infrastructure="server: gone"), Status.INFRA),
    ],
)
def test_valid_result_does_not_override_a_failed_process(outcome: Outcome, status: Status) -> None:
    assert judge(JOB, outcome, GOOD, None).status is status


@pytest.mark.parametrize(
    "outcome", [ENDED_WELL, Outcome(signal=9, oom_kills=1), Outcome(exit_code=0, deadline_exceeded=True)]
)
def test_figures_published_before_the_model_is_saved_count_regardless_of_the_end(outcome: Outcome) -> None:
    verdict = judge(JOB, outcome, replace(GOOD, unsaved="OSError: no space left"), None)
    assert verdict.status is Status.OK
    expected = "not_saved: the trained model was not saved: OSError: no space left; the figures are complete"
    assert expected in verdict.warnings


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Outcome(signal=6), Status.CRASH, "ended by signal 6, while it exported the model"),
        (Outcome(exit_code=0), Status.ERROR, "exit code 0, while it exported the model"),
        (Outcome(exit_code=7), Status.ERROR, "exit code 7, while it exported the model"),
    ],
)
def test_a_process_that_ends_before_it_has_figures_says_what_it_did(
    outcome: Outcome, status: Status, reason: str
) -> None:
    """Mutation: a result that says what the process is doing counts as one with figures."""
    result = accept(dumps(replace(EMPTY, unfinished="it exported the model")).encode(), JOB)
    for job in (JOB, replace(JOB, board=True)):
        verdict = judge(job, outcome, result, None)
        assert (verdict.status, verdict.reason) == (status, reason)


@pytest.mark.fault("F18", mutation="judge() lets the end of the process count after the figures were published")
@pytest.mark.parametrize("going_on", [{"board": True}, {"trace": Trace()}, {"board": True, "trace": Trace()}])
def test_figures_published_before_a_profile_or_trace_count_regardless_of_the_end(
    going_on: dict[str, Any],
) -> None:
    job = replace(JOB, **going_on)
    for outcome in (Outcome(signal=11), Outcome(signal=9, deadline_exceeded=True), Outcome(exit_code=1)):
        assert judge(job, outcome, GOOD, None).status is Status.OK
        assert judge(job, outcome, None, "no_result").status is not Status.OK
    ended = Outcome(signal=9, deadline_exceeded=True)
    assert judge(job, ended, raised("builtins.ValueError"), None).status is Status.TIMEOUT


@pytest.mark.parametrize(
    ("params", "begun", "reason"),
    [
        ({}, 0, "before the first measured epoch; the process was ended; set a larger timeout_s, or end its epochs"),
        ({"call": "fit:2"}, 2, "in measured epoch 2 of 3; the process was ended; set a larger timeout_s, or end its"),
        ({"call": "step:1"}, 1, "in measured epoch 1 of 3; the process was ended; set a larger timeout_s, or fewer"),
        ({"call": "predict"}, 3, "in measured epoch 3 of 3; the process was ended; set a larger timeout_s"),
    ],
)
def test_time_limit_of_a_program_says_where_it_passed_and_what_to_do(
    params: dict[str, Any], begun: int, reason: str
) -> None:
    job = replace(JOB, settings=make_settings(workload="script:train.py", params=params))
    ended = replace(watched(*[1.0] * begun), exit_code=None, signal=9, deadline_exceeded=True, limit_s=60.0)
    text = judge(job, ended, None, "no_result").reason or ""
    assert text.startswith(f"the time limit of 60 s passed (timeout_s) {reason}")
    assert ("--most-steps" in text) is (params.get("call") in (None, "fit:2"))


@pytest.mark.fault("F3", mutation="judge() takes a clean end without a result as measured")
def test_clean_end_without_a_result_is_an_error() -> None:
    verdict = judge(JOB, ENDED_WELL, None, "no_result: the process did not write one")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "no_result: the process did not write one")


def text_of(result: CellResult) -> bytes:
    return dumps(result).encode()


REFUSED = {
    "no file": None,
    "an empty file": b"",
    "a file that is too large": b"{" + b" " * RESULT_LIMIT_BYTES,
    "another nonce": text_of(replace(GOOD, nonce="other")),
    "another cell": text_of(replace(GOOD, cell_id="f" * 16)),
    "another attempt": text_of(replace(GOOD, attempt=1)),
    "another repeat": text_of(replace(GOOD, repeat=1)),
    "a newer version": text_of(replace(GOOD, schema_version=SCHEMA_VERSION + 1)),
    "an infinite number": dumps(GOOD).replace('"repeat": 0', '"repeat": 1e999').encode(),
    "a number of 400 digits": dumps(GOOD).replace('"import_time_s": 1.0', '"import_time_s": 1' + "0" * 400).encode(),
    "no device": text_of(replace(GOOD, device=None)),
    "another device": text_of(replace(GOOD, device=DeviceProof("gpu", "x", 1))),
    "no resolved settings": text_of(replace(GOOD, resolved=None)),
    "no step": text_of(resolved_with(steps_per_epoch=0)),
    "a negative batch": text_of(resolved_with(batch_size=-1)),
    "no sample": text_of(resolved_with(samples=0)),
    "an epoch of no time": text_of(result_with(0.1, 0.2, 0.0)),
    "an epoch of negative time": text_of(result_with(0.1, -0.2, 0.1)),
    "an epoch less": text_of(result_with(0.1, 0.2)),
    "the work of an unknown call": text_of(counted(name="none")),
    "the work of no step": text_of(counted(steps=0)),
    "less than no update": text_of(counted(skipped_updates=[-1, 0, 0])),
    "updates of fewer epochs": text_of(counted(updates=[10])),
    "other CPUs": text_of(replace(GOOD, resolved=replace(GOOD.resolved, affinity="0-3"))),
    "unknown CPUs": text_of(replace(GOOD, resolved=replace(GOOD.resolved, affinity=None))),
}


@pytest.mark.fault("F16", mutation="accept() takes epochs that took zero or negative time")
@pytest.mark.fault("F3", mutation="accept() does not compare the nonce")
def test_every_result_that_cannot_be_of_the_job_is_refused(golden: Golden) -> None:
    on_two = replace(JOB, settings=make_settings(cpus="0-1"))
    jobs = {"other CPUs": on_two, "unknown CPUs": on_two}
    messages = {
        title: refusal(ResultRefused, partial(accept, raw, jobs.get(title, JOB))) for title, raw in REFUSED.items()
    }
    check_messages(golden, "results.txt", messages)


@pytest.mark.fault("F22", mutation="read_bounded() refuses the result for every OSError")
def test_an_input_error_of_the_disk_is_not_blamed_on_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path, flags: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(OSError, match="Input/output error"):
        read_bounded(tmp_path / "result.json", RESULT_LIMIT_BYTES)


@pytest.mark.fault("F3", mutation="loads() closes the brackets that a truncated text leaves open")
def test_result_truncated_at_any_byte_is_refused() -> None:
    data = dumps(GOOD).encode().rstrip()
    for length in range(len(data)):
        with pytest.raises(ResultRefused, match="bad_result"):
            accept(data[:length], JOB)


@pytest.mark.fault("F11", mutation="judge() does not look at the losses")
def test_non_finite_loss_is_diverged_with_its_epoch() -> None:
    verdict = judge(JOB, ENDED_WELL, replace(GOOD, learning=Learning(loss=[1.0, None, None, None])), None)
    assert (verdict.status, verdict.reason) == (Status.DIVERGED, "the loss was not finite in epoch 2")


@pytest.mark.fault("F17", mutation="the limit of the first measured epoch is 2 times the median")
def test_slow_second_epoch_is_unstable_with_advice() -> None:
    verdict = judge(JOB, ENDED_WELL, result_with(1.3, 1.0, 1.0), None)
    assert verdict.status is Status.UNSTABLE
    assert "1.30 times the median" in (verdict.reason or "")
    assert "discard" in (verdict.reason or "")


def test_second_epoch_at_the_limit_is_ok() -> None:
    assert judge(JOB, ENDED_WELL, result_with(1.2, 1.0, 1.0), None).status is Status.OK


@pytest.mark.fault("F15", mutation="the exception Unsupported counts as an error")
@pytest.mark.fault("F6", mutation="judge() takes any text about exhausted memory as oom_device, also on a CPU")
@pytest.mark.fault("F4", mutation="a MemoryError of Python counts as oom_host")
@pytest.mark.parametrize(
    ("kind", "message", "status"),
    [
        ("keras_matrix.runner.cell.backends.Unsupported", "no", Status.UNSUPPORTED),
        ("keras_matrix.models.workload.UnsupportedWorkload", "no", Status.UNSUPPORTED),
        ("keras_matrix.models.workload.NotFetched", "no connection", Status.INFRA),
        ("keras_matrix.runner.cell.measure.DeviceMismatch", "gpu requested", Status.DEVICE_MISMATCH),
        ("builtins.MemoryError", "", Status.ERROR),
        ("builtins.ValueError", "RESOURCE_EXHAUSTED: out of memory", Status.ERROR),
    ],
)
def test_exception_becomes_its_status_on_a_cpu(kind: str, message: str, status: Status) -> None:
    assert judge(JOB, Outcome(exit_code=1), raised(kind, message), None).status is status


@pytest.mark.fault("F6", mutation="judge() looks only at the types of exceptions, not at their messages", recorded=True)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tensorflow.python.framework.errors_impl.ResourceExhaustedError", "OOM when allocating tensor"),
        ("jaxlib._jax.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 8.00 GiB."),
        ("torch.AcceleratorError", "CUDA error: out of memory\nCUDA kernel errors might be reported later."),
        ("builtins.RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("builtins.RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("jaxlib._jax.XlaRuntimeError", "INTERNAL: failed to allocate 2.0GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    ],
)
def test_out_of_memory_error_of_each_backend_is_oom_device_on_a_gpu(kind: str, message: str) -> None:
    job = replace(JOB, settings=make_settings(device="gpu"))
    assert judge(job, Outcome(exit_code=1), raised(kind, message), None).status is Status.OOM_DEVICE


@pytest.mark.fault("F17", mutation="no warning is made of the CPU time of other processes")
@pytest.mark.parametrize(
    ("surroundings", "rule"),
    [(Surroundings(steal_share=0.05), "steal"), (Surroundings(other_cpu_share=0.3), "busy")],
)
def test_disturbed_machine_is_a_warning(surroundings: Surroundings, rule: str) -> None:
    verdict = judge(JOB, replace(ENDED_WELL, surroundings=surroundings), result_with(1.0, 1.0, 1.0), None)
    assert verdict.status is Status.OK
    assert [warning.partition(":")[0] for warning in verdict.warnings] == [rule]


@pytest.mark.parametrize(("share", "warned"), [(None, False), (0.0, False), (0.029, False), (0.031, True)])
def test_cell_that_computes_while_it_waits_is_warned_beyond_the_limit(share: float | None, warned: bool) -> None:
    outcome = replace(ENDED_WELL, surroundings=Surroundings(waiting_cpu_share=share))
    warnings = judge(JOB, outcome, result_with(1.0, 1.0, 1.0), None).warnings
    assert [warning.partition(":")[0] for warning in warnings] == ["busy_while_waiting"] * warned


@pytest.mark.parametrize(
    ("field", "limit"), [("steal_share", disturbance.STEAL_LIMIT), ("other_cpu_share", disturbance.OTHER_CPU_LIMIT)]
)
@pytest.mark.parametrize(("times", "warned"), [(0.99, False), (1.01, True)])
def test_warning_has_the_same_limit_as_block_replacement(field: str, limit: float, times: float, warned: bool) -> None:
    outcome = replace(ENDED_WELL, surroundings=Surroundings(**{field: limit * times}))
    assert bool(judge(JOB, outcome, result_with(1.0, 1.0, 1.0), None).warnings) is warned


@pytest.mark.parametrize(
    ("cpus", "affinity", "accepted"),
    [
        ("all", None, True),
        ("all", "0-7", True),
        ("0-1", "0-1", True),
        ("0-1", "0-3", False),
        ("0-1", None, False),
        (2, "4,6", True),
        (2, "0-3", False),
        (2, None, False),
    ],
)
def test_result_from_cpus_other_than_requested_is_refused(
    cpus: int | str, affinity: str | None, accepted: bool
) -> None:
    job = replace(JOB, settings=make_settings(cpus=cpus))
    result = replace(GOOD, resolved=replace(GOOD.resolved, affinity=affinity))
    if accepted:
        assert accept(dumps(result).encode(), job).resolved == result.resolved
    else:
        with pytest.raises(ResultRefused):
            accept(dumps(result).encode(), job)


def test_refused_process_is_unsupported_with_the_reason() -> None:
    verdict = judge(JOB, Outcome(refused="clocks: locked: not here"), None, "no_result")
    assert (verdict.status, verdict.reason) == (Status.UNSUPPORTED, "clocks: locked: not here")


@pytest.mark.fault("F17", mutation="the time that the power limit throttled a GPU is ignored", recorded=True)
@pytest.mark.parametrize(
    ("thermal_s", "power_s", "warned"),
    [
        ([0.0, 0.0, 0.2], [None, 0.0, 0.0], ["gpu_throttled"]),
        ([None, None, None], [0.05, 0.05, 0.05], ["gpu_throttled"]),
        ([0.01, 0.0, 0.0], [0.02, 0.02, 0.02], []),
        ([None, None, None], [None, None, None], []),
    ],
)
def test_throttled_gpu_is_a_warning(
    thermal_s: list[float | None], power_s: list[float | None], warned: list[str]
) -> None:
    gpu = GpuEpochs([], [], [], [], [], [], thermal_s, power_s)
    outcome = replace(ENDED_WELL, surroundings=Surroundings(gpu=gpu))
    found = judge(JOB, outcome, result_with(1.0, 1.0, 1.0), None)
    assert [warning.partition(":")[0] for warning in found.warnings] == warned


GPU_JOB = replace(JOB, settings=make_settings(device="gpu"))
assert GOOD.work is not None
GPU_GOOD = replace(GOOD, device=DeviceProof("gpu", "cuda:0", 1), work=replace(GOOD.work, weight_platforms=["gpu"]))


@pytest.mark.parametrize(
    ("preflight", "unread", "expected"),
    [
        ("nvml_unavailable: nothing is recorded: NVML: Unknown Error; install it", "GPU 0: NVML: Unknown Error", []),
        ("nvml_unavailable: GPU 0 cannot be checked: NVML: Unknown Error; ask", "GPU 0: NVML: Unknown Error", []),
        (
            "nvml_unavailable: GPU 0 cannot be checked: NVML: Unknown Error; ask",
            "GPU 0: NVML: Unknown Error; GPU 1: NVML: Insufficient Permissions: nvmlDeviceGetPowerUsage",
            [
                "gpu_unread: power, memory or throttling is missing: GPU 1: NVML: Insufficient Permissions: "
                "nvmlDeviceGetPowerUsage"
            ],
        ),
        (
            "gpu_persistence: off; a",
            "GPU 0: NVML: x",
            ["gpu_unread: power, memory or throttling is missing: GPU 0: NVML: x"],
        ),
    ],
)
def test_warning_of_the_preflight_is_not_repeated_by_the_readings(
    preflight: str, unread: str, expected: list[str]
) -> None:
    outcome = replace(ENDED_WELL, warnings=(preflight,), surroundings=Surroundings(gpu_unread=unread))
    warnings = judge(GPU_JOB, outcome, GPU_GOOD, None).warnings
    assert [one.partition("; run as")[0] for one in warnings if one.startswith("gpu_")] == expected


def test_mig_device_reported_by_the_preflight_is_one_warning() -> None:
    around = Surroundings(gpu=GpuEpochs([], [], [], [], [], [], [], [], mig=True))
    outcome = replace(ENDED_WELL, warnings=("gpu_mig: GPU 0 is divided",), surroundings=around)
    warnings = judge(GPU_JOB, outcome, GPU_GOOD, None).warnings
    assert [one for one in warnings if one.startswith(("gpu_mig", "mig_slice"))] == []


@pytest.mark.fault("F14", mutation="judge() looks for a lost GPU only after a failed process", recorded=True)
@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(exit_code=0, gpu_lost="GPU 0: GPU is lost"),
        Outcome(exit_code=1, gpu_lost="GPU 0: GPU is lost"),
        Outcome(signal=9, deadline_exceeded=True, gpu_lost="GPU 0: GPU is lost"),
    ],
)
def test_gpu_that_nvml_reports_lost_is_infra_however_the_process_ended(outcome: Outcome) -> None:
    found = judge(GPU_JOB, outcome, GPU_GOOD, None)
    assert found.status is Status.INFRA
    assert found.reason == (
        "GPU lost: NVML says GPU 0: GPU is lost; look for Xid in the kernel's log (dmesg), reset the GPU "
        "(nvidia-smi --gpu-reset) or restart the machine"
    )


LOST_MESSAGES = [
    "INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
    "torch.AcceleratorError: device lost",
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
]


@pytest.mark.fault(
    "F14", mutation="the messages about a lost GPU do not include uncorrectable ECC errors", recorded=True
)
@pytest.mark.parametrize("message", LOST_MESSAGES)
def test_failed_cell_whose_output_names_a_lost_gpu_is_infra(message: str) -> None:
    printed = judge(GPU_JOB, Outcome(signal=6, output_tail=f"first\n{message}\nlast"), None, "no_result")
    raised_lost = judge(GPU_JOB, Outcome(exit_code=0), raised("builtins.RuntimeError", message), None)
    assert [one.status for one in (printed, raised_lost)] == [Status.INFRA] * 2
    assert (printed.reason or "").startswith('GPU lost: the cell failed and its output says "')


@pytest.mark.parametrize("message", LOST_MESSAGES)
def test_such_output_changes_neither_a_good_cell_nor_one_on_a_cpu(message: str) -> None:
    assert judge(GPU_JOB, Outcome(exit_code=0, output_tail=message), GPU_GOOD, None).status is Status.OK
    assert judge(JOB, Outcome(exit_code=1, output_tail=message), None, "no_result").status is Status.ERROR


BUSY_MESSAGES = [
    "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "INTERNAL: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are",
]


@pytest.mark.parametrize("message", BUSY_MESSAGES)
def test_failed_cell_whose_gpu_another_process_uses_exclusively_is_infra_and_no_lost_gpu(message: str) -> None:
    printed = judge(GPU_JOB, Outcome(signal=6, output_tail=f"first\n{message}\nlast"), None, "no_result")
    in_result = judge(GPU_JOB, Outcome(exit_code=0), raised("builtins.RuntimeError", message), None)
    assert [one.status for one in (printed, in_result)] == [Status.INFRA] * 2
    assert (printed.reason or "").startswith("GPU busy: another process uses it exclusively (the output says ")
    assert (printed.reason or "").endswith("; stop it, or end the exclusive mode: nvidia-smi -c DEFAULT")


def test_busy_gpu_in_the_output_of_a_cell_that_worked_or_ran_on_a_cpu_changes_nothing() -> None:
    (message, _) = BUSY_MESSAGES
    assert judge(GPU_JOB, Outcome(exit_code=0, output_tail=message), GPU_GOOD, None).status is Status.OK
    assert judge(JOB, Outcome(exit_code=1, output_tail=message), None, "no_result").status is Status.ERROR


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: CUDA error: unspecified launch failure",
        "E0000 could not synchronize: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
    ],
)
def test_launch_failure_is_a_fault_of_a_kernel_unless_nvml_reports_the_gpu_lost(message: str) -> None:
    aborted = Outcome(signal=6, output_tail=message)
    assert judge(GPU_JOB, aborted, None, "no_result").status is Status.CRASH
    result = raised("builtins.RuntimeError", message)
    assert judge(GPU_JOB, Outcome(exit_code=0), result, None).status is Status.ERROR
    assert judge(GPU_JOB, replace(aborted, gpu_lost="GPU 0: x"), None, "no_result").status is Status.INFRA


def test_model_that_tells_no_loss_has_not_diverged() -> None:
    assert judge(JOB, ENDED_WELL, replace(GOOD, learning=Learning()), None).status is Status.OK


def test_short_epoch_is_a_warning_only_where_its_length_was_ours() -> None:
    automatic = judge(JOB, ENDED_WELL, result_with(0.05, 0.05, 0.05), None)
    chosen = judge(
        replace(JOB, settings=make_settings(steps_per_epoch=10)), ENDED_WELL, result_with(0.05, 0.05, 0.05), None
    )
    warning = "short_epoch: an epoch took 0.05 s, not 0.5 s; set steps_per_epoch to 100"
    assert (automatic.warnings, chosen.warnings) == ((warning,), ())
    assert judge(JOB, ENDED_WELL, result_with(0.19, 0.19, 0.19), None).warnings == ()


@pytest.mark.parametrize(
    ("container", "advice"),
    [
        (
            None,
            "put it in /here or /matrices, or install it for the cells' Python; PYTHONPATH does not reach it (mount it "
            "there where the runner itself is in a container)",
        ),
        (
            Container("image", "sha256:0", 1, 1),
            "put it in /here or /matrices, which its container can read; PYTHONPATH and the host's packages do not "
            "reach it",
        ),
    ],
)
def test_advice_on_a_module_that_was_not_found_names_the_folders_searched(
    container: Container | None, advice: str
) -> None:
    job = replace(JOB, import_roots=["/here", "/matrices", "/here"])
    verdict = judge(
        job,
        Outcome(exit_code=1, container=container),
        raised("keras_matrix.models.user_workload.WorkloadNotFound", "a:b: no"),
        None,
    )
    assert (verdict.status, verdict.reason) == (Status.ERROR, f"WorkloadNotFound: a:b: no; {advice}")


def test_results_are_plain_json() -> None:
    assert to_json(GOOD)["device"]["platform"] == "cpu"


def watched(*wall_times_s: float) -> Outcome:
    unused = disturbance.OwnUse()
    return replace(
        ENDED_WELL,
        watched=tuple(disturbance.MeasuredStretch(disturbance.CounterChanges(s), unused) for s in wall_times_s),
    )


@pytest.mark.fault("F16", mutation="judge() believes the clock of the cell")
@pytest.mark.parametrize(
    ("watched_s", "reason"),
    [
        ((1.0, 1.1, 1.0), None),
        ((2.9, 3.9, 9.0), None),  # a busy machine; after the last epoch fit has more to do
        ((0.0, 0.0, 0.0), None),
        ((1.0, 4.1, 1.0), "bad_result: measured epoch 2 took 1 s by the cell's clock and 4.1 s by the runner's"),
        ((1.0, 1.0), "bad_result: it reports 3 measured epochs, but the runner observed 2"),
        ((), "bad_result: it reports 3 measured epochs, but the runner observed 0"),
    ],
)
def test_epochs_that_contradict_the_runners_clock_are_refused(watched_s: tuple[float, ...], reason: str | None) -> None:
    verdict = judge(JOB, watched(*watched_s), result_with(1.0, 1.0, 1.0), None)
    assert (verdict.status, verdict.reason) == (Status.ERROR if reason else Status.OK, reason)


def test_time_before_an_epoch_from_a_pipeline_is_not_part_of_the_epoch() -> None:
    result = replace(result_with(1.0, 1.0, 1.0), input=InputUse(lead_in_times_s=[7.0, 7.0, 7.0]))
    assert judge(JOB, watched(8.0, 8.1, 8.0), result, None).status is Status.OK
    reason = "bad_result: measured epoch 2 took 1 s by the cell's clock and 5 s by the runner's"
    assert judge(JOB, watched(8.0, 12.0, 8.0), result, None).reason == reason


def test_time_until_workers_rest_after_an_epoch_is_not_part_of_the_epoch() -> None:
    result = replace(result_with(1.0, 1.0, 1.0), input=InputUse(settling_times_s=[5.0, 5.0, 5.0]))
    assert judge(JOB, watched(6.0, 6.1, 6.0), result, None).status is Status.OK


def test_result_that_counts_no_work_is_not_believed() -> None:
    with pytest.raises(ResultRefused, match="bad_result: it does not report the work that was done"):
        accept(dumps(replace(GOOD, work=None)).encode(), JOB)


def test_fit_that_ran_too_few_epochs_is_a_work_mismatch() -> None:
    message = "epochs: fit must run 4, got 0"
    verdict = judge(JOB, ENDED_WELL, raised("keras_matrix.runner.cell.phases.WorkMismatch", message), None)
    assert (verdict.status, verdict.reason) == (Status.WORK_MISMATCH, message)


def own_step(received: int | None, samples: int | None = 10) -> CellResult:
    """Return the result of a step of the model's own: its loss metric counts `samples`, one for each of 10 steps."""
    result = counted(samples=[samples] * SETTINGS.epochs)
    assert result.work is not None
    a_step = None if samples is None else samples / 10
    done = replace(result.work, own_methods=["train_step"], samples_per_step=a_step, received_samples=received)
    return replace(result, work=done)


@pytest.mark.parametrize("samples", [10, 320, None])
def test_layers_that_receive_part_of_a_batch_are_a_work_mismatch(samples: int | None) -> None:
    result = accept(dumps(own_step(1, samples)).encode(), JOB)
    verdict = judge(JOB, ENDED_WELL, result, None)
    assert verdict.status is Status.WORK_MISMATCH
    assert (verdict.reason or "").startswith("the layers of the model received 1 of the 32 samples of a step")
    assert result.times.samples_per_s is None


@pytest.mark.parametrize(("samples", "proven"), [(10, False), (None, False), (320, True)])
def test_samples_per_second_need_a_count_if_the_layers_do_not_show_them(samples: int | None, proven: bool) -> None:
    result = accept(dumps(own_step(None, samples)).encode(), JOB)
    warnings = judge(JOB, ENDED_WELL, result, None).warnings
    assert (result.times.samples_per_s is not None) == proven
    assert any("samples/s is not stated" in warning for warning in warnings) != proven


def test_layers_that_receive_the_whole_batch_prove_its_samples() -> None:
    result = accept(dumps(own_step(32)).encode(), JOB)
    assert result.times.samples_per_s == pytest.approx(32 / (result.times.step_time_s or 0.0))
    assert not any("samples of a step" in warning for warning in judge(JOB, ENDED_WELL, result, None).warnings)


@pytest.mark.parametrize("outcome", [Outcome(signal=9, oom_kills=1), Outcome(exit_code=0, deadline_exceeded=True)])
def test_figures_count_if_the_process_ends_while_its_layers_are_watched(outcome: Outcome) -> None:
    watching = replace(own_step(None, 320), samples_unseen="the process ended")
    assert judge(JOB, outcome, watching, None).status is Status.OK


@pytest.mark.parametrize("outcome", [Outcome(signal=11), Outcome(exit_code=0, deadline_exceeded=True)])
def test_a_process_that_ends_while_it_times_collectives_has_complete_figures(outcome: Outcome) -> None:
    timing = replace(GOOD, collectives_not_timed="the process ended while it timed its collectives")
    verdict = judge(JOB, outcome, timing, None)
    assert (verdict.status, verdict.warnings[0].partition(":")[0]) == (Status.OK, "collectives_not_timed")


REPLICA = "keras_matrix.runner.cell.replicated.torch.ReplicaFailed"


def test_batches_that_do_not_fit_a_replicas_device_exhaust_its_memory() -> None:
    job = replace(JOB, settings=make_settings(device="gpu", devices=2))
    text = "replica 1 of 2: OutOfMemoryError: CUDA out of memory. Tried 2 GiB; the other replicas were ended"
    assert judge(job, Outcome(exit_code=1), raised(REPLICA, text), None).status is Status.OOM_DEVICE


@pytest.mark.parametrize(("oom_kills", "status"), [(1, Status.OOM_HOST), (0, Status.ERROR)])
def test_a_replica_that_the_kernel_killed_for_memory_exhausts_the_hosts(oom_kills: int, status: Status) -> None:
    lost = raised(REPLICA, "replica 1 of 2: its process was ended by signal 9 (SIGKILL); the other replicas were ended")
    assert judge(JOB, Outcome(exit_code=1, oom_kills=oom_kills), lost, None).status is status


def test_a_cell_on_several_devices_proves_them() -> None:
    settings = make_settings(devices=2)
    job = replace(JOB, settings=settings, cell_id=cell_id(settings))
    result = replace(GOOD, cell_id=job.cell_id)
    with pytest.raises(ResultRefused, match="bad_result: it does not prove its devices"):
        accept(dumps(result).encode(), job)
    two = [Replica(f"cpu:{rank}", settings.batch_size // 2, 3, 10) for rank in range(2)]
    proved = replace(result, replicas=Replicas("DataParallel", True, two, 0, 6, 100, []))
    assert accept(dumps(proved).encode(), job).replicas == proved.replicas


def in_surroundings(**surroundings: Any) -> list[str]:
    verdict = judge(
        JOB, replace(ENDED_WELL, surroundings=Surroundings(**surroundings)), result_with(1.0, 1.0, 1.0), None
    )
    assert verdict.status is Status.OK
    return verdict.warnings


def of_a_gpu(**surroundings: Any) -> list[str]:
    return judge(GPU_JOB, replace(ENDED_WELL, surroundings=Surroundings(**surroundings)), GPU_GOOD, None).warnings


def with_programs(recompiles: int | None, graph_breaks: int | None) -> list[str]:
    assert GOOD.resolved is not None
    resolved = replace(GOOD.resolved, recompiles_timed=recompiles, graph_breaks_timed=graph_breaks)
    verdict = judge(JOB, ENDED_WELL, replace(result_with(1.0, 1.0, 1.0), resolved=resolved), None)
    assert verdict.status is Status.OK
    return verdict.warnings


def test_every_warning_has_its_text_with_advice(golden: Golden) -> None:
    """All warnings of each cell are compared; the longest throttled GPU counts."""
    usual, throttled = (GpuEpochs([], [], [], [], [], [], [], [seconds]) for seconds in (0.0, 0.5))
    notes = ["class without images (1): pear", "class with one image (1): plum"]
    found = {
        "nothing": in_surroundings(),
        "a host that takes CPU time": in_surroundings(steal_share=0.05),
        "other processes": in_surroundings(other_cpu_share=0.3),
        "other processes, the busiest of which is known": in_surroundings(
            other_cpu_share=0.3, busiest_process="stress (process 123, 0.60 CPUs)"
        ),
        "a neighbour that computes while it waits": in_surroundings(
            busy_neighbours=["jax:my_plugin:build (48.5 % of the CPUs)"]
        ),
        "a cell that computes while it waits": in_surroundings(waiting_cpu_share=0.031),
        "a throttled GPU": in_surroundings(gpu=usual, further_gpus=[throttled]),
        "figures missing from NVML": of_a_gpu(gpu_unread="GPU 0: nvidia-ml-py is not installed"),
        "a slice of a GPU": of_a_gpu(gpu=GpuEpochs([], [], [], [], [], [], [], [], mig=True)),
        "no program during the measured epochs": with_programs(0, 0),
        "a program during the measured epochs": with_programs(1, None),
        "programs during the measured epochs": with_programs(8, None),
        "graph breaks during the measured epochs": with_programs(0, 3),
        "notes about a data set": judge(JOB, ENDED_WELL, replace(GOOD, data_notes=notes), None).warnings,
        "collectives that were not timed": judge(
            JOB, ENDED_WELL, replace(GOOD, collectives_not_timed="WorkerDied: rank 1"), None
        ).warnings,
    }
    check_messages(golden, "warnings.txt", {title: warnings or ["(none)"] for title, warnings in found.items()})
