"""The GPUs of a cell, from `CUDA_VISIBLE_DEVICES` and the driver's list."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.schema import Status
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.process import executor
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.supervise import visible_gpus as visible
from keras_matrix.runner.executors.supervise.visible_gpus import (
    NoGpu,
    TooFewGpus,
    completed_uuid,
    gpus_if_visible,
    gpus_needed,
    gpus_of,
    order_warnings,
    visible_gpus,
)
from keras_matrix.runner.machine.gpus.nvml import PresentGpus
from keras_matrix.runner.measure import judge
from keras_matrix.runner.measure.record_builder import record_of
from tests.conftest import MACHINE, make_settings
from tests.golden import Golden
from tests.messages import check_messages, refusal

UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-89aa0000-0000-0000-0000-000000000000", "GPU-1f-2", "GPU-2")
FOUR = PresentGpus(UUIDS, ("NVIDIA A100",) * 4, "580.1")
MIXED = PresentGpus(UUIDS[:2], ("NVIDIA T4", "NVIDIA H100"))
UNKNOWN = Unread("NVML: Driver Not Loaded")


def named(value: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": value}


def fc_cell(workers: int, **changes: Any) -> Any:
    params = {"mode": "fc_data", "workers": workers}
    return make_settings(workload="fc", device="gpu", params=params, **changes)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", ("0",)),
        ("3,1", ("3", "1")),
        (" 2 , 00 ", ("2", "0")),
        ("0,2,-1,1", ("0", "2")),
        ("1,,0", ("1",)),
        ("GPU-8932", (UUIDS[0],)),
        ("gpu-1F,GPU-2", (UUIDS[2], UUIDS[3])),
        ("all", ("0", "1", "2", "3")),
        ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f,MIG-other", ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",)),
        ("MIG-GPU-8932f937/1/0", ("MIG-GPU-8932f937/1/0",)),
    ],
)
def test_visible_gpus_are_read_as_cuda_reads_them(value: str, expected: tuple[str, ...]) -> None:
    assert visible_gpus(named(value), FOUR) == expected


def test_a_shortened_uuid_is_completed_if_one_gpu_has_it() -> None:
    assert completed_uuid("GPU-893", UUIDS) == UUIDS[0]
    assert completed_uuid("GPU-893", ()) == "GPU-893", "without a list of UUIDs CUDA completes it"


def test_without_the_variable_all_gpus_are_visible_or_the_first_if_their_number_is_not_known() -> None:
    assert visible_gpus({}, FOUR) == ("0", "1", "2", "3")
    assert visible_gpus({}, UNKNOWN) == ("0",)


def test_a_cell_gets_a_gpu_for_each_of_its_workers() -> None:
    assert gpus_of(make_settings(device="gpu"), {}, FOUR) == ("0",)
    assert gpus_of(make_settings(device="gpu", params={"workers": 3}), {}, FOUR) == ("0",), "not of the workload fc"
    assert gpus_of(make_settings(device="cpu"), {}, FOUR) == ()
    assert gpus_of(fc_cell(1), named("2,3"), FOUR) == ("2",)
    assert gpus_of(fc_cell(2), named("3,GPU-1f,0"), FOUR) == ("3", UUIDS[2])
    assert gpus_of(fc_cell(3), {}, FOUR) == ("0", "1", "2")


def test_workers_are_one_by_default() -> None:
    assert gpus_needed(make_settings(workload="fc", device="gpu", params={"mode": "fc_data"})) == 1


def test_if_the_number_of_gpus_is_not_known_the_cell_finds_it_out() -> None:
    assert gpus_of(fc_cell(4), {}, UNKNOWN) == ("0", "1", "2", "3")
    assert gpus_of(fc_cell(2), named("all"), None) == ("0", "1")


def test_an_index_is_warned_of_where_cuda_counts_gpus_of_several_models_otherwise() -> None:
    assert len(order_warnings(("0",), named("0"), MIXED)) == 1
    assert order_warnings(("0",), named("0"), FOUR) == ()
    assert order_warnings(("0",), named("0") | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED) == ()
    assert order_warnings(("0",), {}, MIXED) == ()
    assert order_warnings((UUIDS[0],), named("GPU-8932"), MIXED) == ()
    assert order_warnings(("0",), named("0"), UNKNOWN) == ()


def test_gpus_if_visible_is_empty_if_a_cell_cannot_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "present_gpus", lambda: FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpus_if_visible(fc_cell(workers)) for workers in (1, 2)] == [("1",), ()]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_if_visible(fc_cell(1)) == ()


def test_a_warning_that_is_known_before_the_process_starts_is_in_the_record(tmp_path: Path) -> None:
    outcome = Outcome(exit_code=1, warnings=("gpu_order: of two models",))
    record = record_of("run", MACHINE, job_of(tmp_path, fc_cell(1)), (outcome, datetime.now(UTC)))
    assert record.warnings == ["gpu_order: of two models"]


def job_of(tmp_path: Path, settings: Any) -> Job:
    return Job("n", "c", 0, 0, settings, 2, str(tmp_path), [], None, None)


@pytest.mark.parametrize(
    ("value", "workers", "status", "reason"),
    [
        ("", 1, Status.DEVICE_MISMATCH, "CUDA_VISIBLE_DEVICES is '': no GPU is visible; unset it or name one"),
        ("9", 1, Status.DEVICE_MISMATCH, "CUDA_VISIBLE_DEVICES is '9': index 9 is out of range: "),
        ("GPU-7", 1, Status.DEVICE_MISMATCH, "CUDA_VISIBLE_DEVICES: 'GPU-7' is the UUID of no GPU here; "),
        ("1", 2, Status.UNSUPPORTED, "workers: must be at most the number of visible GPUs (1: "),
    ],
)
def test_cell_without_visible_gpus_starts_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, workers: int, status: Status, reason: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    monkeypatch.setattr(visible, "present_gpus", lambda: FOUR)
    monkeypatch.setattr(executor, "_launch_server", lambda *arguments: pytest.fail("a process was started"))
    job = job_of(tmp_path, fc_cell(workers))
    outcome = ProcessExecutor().start(job, 10).finish()
    verdict = judge.judge(job, outcome, None, "no_result")
    assert verdict.status is status
    assert (verdict.reason or "").startswith(reason)


def test_every_list_that_names_no_gpu_has_its_message(golden: Golden) -> None:
    """A cell with more workers than GPUs, too; and the warning of an order that is not CUDA's."""
    lists = ("", " ", "-1", "-1,0", "NoDevFiles", ",0", "0,4", "1,1", "GPU-2,3", "0;1", "0.5", "0,MIG-1")
    messages = {f"of four GPUs {value!r}": refusal(NoGpu, partial(visible_gpus, named(value), FOUR)) for value in lists}
    for uuid in ("GPU-89", "GPU-7"):
        messages[f"the UUID {uuid}"] = refusal(NoGpu, partial(completed_uuid, uuid, UUIDS))
    messages["a driver without a GPU"] = refusal(NoGpu, partial(visible_gpus, {}, PresentGpus(())))
    too_few = {
        "three workers on two GPUs of four": (named("0,3"), FOUR),
        "three workers on two GPUs of an unknown number": (named("0,3"), UNKNOWN),
        "three workers on two GPUs": ({}, MIXED),
    }
    for title, (variables, present) in too_few.items():
        messages[title] = refusal(TooFewGpus, partial(gpus_of, fc_cell(3), variables, present))
    messages["the first of two models"] = [*order_warnings(("0",), named("0"), MIXED)]
    check_messages(golden, "visible_gpus.txt", messages)
