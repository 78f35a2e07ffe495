"""Real processes: after any behaviour of a workload the next one runs, and no process or file is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import dumps
from keras_matrix.records.host.inherited_environment import MARK
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import MEASURED, CellResult, Record, Status
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.process.fork_servers import ProcessServer
from keras_matrix.runner.measure.judge import ResultRefused, accept, judge
from keras_matrix.runner.measure.record_builder import build_record
from keras_matrix.runner.measure.scheduler import utc_now
from tests.conftest import MACHINE, make_settings

pytestmark = pytest.mark.process
ROOT = str(Path(__file__).parents[4])
NO_RESULT = "no_result: the process did not write one"
CRASHED = pytest.mark.fault("F1", mutation="judge() ignores the signal that ended a process")
EXITED = pytest.mark.fault("F2", mutation="judge() ignores the exit code of a process without a result")
WITHOUT_RESULT = pytest.mark.fault("F3", mutation="judge() takes a clean end without a result as measured")
REPLACED = pytest.mark.fault("F35", mutation="read_bounded() follows links and reads any kind of file")


# Of what a fresh interpreter shares with a forked one, forks are tried for every change.
FORKED = pytest.mark.parametrize("executor", ["fork", pytest.param("fresh", marks=pytest.mark.nightly)], indirect=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, ProcessExecutor]]:
    """One executor for each way to start: whatever a cell did, the same server starts the next test's."""
    made = {start: ProcessExecutor(start=start, mark=uuid.uuid4().hex) for start in ("fork", "fresh")}
    yield made
    for executor in made.values():
        executor.close()


@pytest.fixture(params=["fork", "fresh"])
def executor(request: pytest.FixtureRequest, shared: dict[str, ProcessExecutor]) -> ProcessExecutor:
    found: ProcessExecutor = shared[request.param]
    return found


@pytest.fixture
def forking(shared: dict[str, ProcessExecutor]) -> ProcessExecutor:
    return shared["fork"]


@pytest.fixture
def own() -> Iterator[ProcessExecutor]:
    """A forking executor whose servers this test may start, kill and replace."""
    made = ProcessExecutor(start="fork", mark=uuid.uuid4().hex)
    yield made
    made.close()


def make_job(tmp_path: Path, workload: str, **changes: Any) -> Job:
    changes = {"backend": "torch", "samples": 8, "batch_size": 4, "steps_per_epoch": 2} | changes
    settings = make_settings(workload=f"tests.workloads.misbehaving:{workload}", **changes)
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    return Job(uuid.uuid4().hex, cell_id(settings), 0, 0, settings, 2, str(folder), [ROOT], None, None)


def run(executor: ProcessExecutor, job: Job, timeout_s: float = 120.0) -> Record:
    outcome = executor.start(job, timeout_s).finish()
    result, problem = read(job)
    verdict = judge(job, outcome, result, problem)
    return build_record(job, outcome, (result, problem, verdict), ("20260101T000000Z-abcdef", MACHINE, utc_now()))


def read(job: Job) -> tuple[CellResult | None, str | None]:
    from keras_matrix.runner.measure import record_builder

    return record_builder.read_result(job)


def processes_with(text: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("workload", "params", "status", "reason"),
    [
        ("well", {}, Status.OK, None),
        pytest.param("segfaulting", {}, Status.CRASH, "ended by signal 11", marks=CRASHED),
    ],
)
def test_each_kind_of_end_has_its_status_and_the_next_cell_runs(
    executor: ProcessExecutor,
    forking: ProcessExecutor,
    tmp_path: Path,
    workload: str,
    params: dict[str, Any],
    status: Status,
    reason: str | None,
) -> None:
    """After each kind of end a server forks a further cell."""
    record = run(executor, make_job(tmp_path, workload, params=params))
    assert record.status is status or (record.status in MEASURED and status is Status.OK), record
    assert (record.reason or "").startswith(reason or "")
    if executor is forking and workload != "well":
        assert run(executor, make_job(tmp_path, "well")).status in MEASURED


@FORKED
@pytest.mark.parametrize(
    ("workload", "params", "status", "reason"),
    [
        ("raising", {}, Status.ERROR, "RuntimeError: the workload says no"),
        pytest.param("killed", {}, Status.CRASH, "ended by signal 9", marks=CRASHED),
        pytest.param("exiting", {"code": 3}, Status.ERROR, f"exit code 3: {NO_RESULT}", marks=EXITED),
        pytest.param("linking", {}, Status.ERROR, "bad_result: a link, which is not followed", marks=REPLACED),
        pytest.param("exiting", {"code": 0}, Status.ERROR, NO_RESULT, marks=WITHOUT_RESULT),
        ("diverging", {}, Status.DIVERGED, "the loss was not finite in epoch"),
        pytest.param("piping", {}, Status.ERROR, "bad_result: not a regular file", marks=REPLACED),
    ],
)
def test_each_further_end_has_its_status_and_the_next_cell_runs(
    executor: ProcessExecutor, tmp_path: Path, workload: str, params: dict[str, Any], status: Status, reason: str
) -> None:
    record = run(executor, make_job(tmp_path, workload, params=params))
    assert record.status is status, record
    assert (record.reason or "").startswith(reason)
    assert run(executor, make_job(tmp_path, "well")).status in MEASURED


def test_injected_slowdown_is_part_of_the_measured_model(forking: ProcessExecutor, tmp_path: Path) -> None:
    sizes = {"params": {"image_size": 8}, "samples": 8, "batch_size": 4, "steps_per_epoch": 2}
    settings = make_settings(workload="mnist_mlp", backend="torch", **sizes)
    flops = []
    for fault in (None, "slower:1.0"):
        job = replace(make_job(tmp_path, "well"), settings=settings, cell_id=cell_id(settings), fault=fault)
        record = run(forking, job)
        assert record.resolved is not None, record.reason
        flops.append(record.resolved.forward_flops or 0)
    assert 0 < flops[0] < flops[1]


@pytest.mark.fault("F2", mutation="judge() ignores the signal that ended a process")
def test_abort_is_a_crash(forking: ProcessExecutor, tmp_path: Path) -> None:
    record = run(forking, make_job(tmp_path, "aborting"))
    assert (record.status, record.reason) == (Status.CRASH, "ended by signal 6")


@pytest.mark.fault("F4", mutation="a MemoryError of Python counts as oom_host")
def test_memory_that_the_system_refuses_is_an_error(forking: ProcessExecutor, tmp_path: Path) -> None:
    record = run(forking, make_job(tmp_path, "starved"))
    assert (record.status, record.evidence.exception) == (Status.ERROR, "builtins.MemoryError")


@pytest.mark.fault("F1", mutation="the output of a process that a signal ended is not stored")
def test_crashed_cell_has_the_end_of_its_output_in_the_record(forking: ProcessExecutor, tmp_path: Path) -> None:
    record = run(forking, make_job(tmp_path, "segfaulting"))
    assert (record.status, record.evidence.signal) == (Status.CRASH, 11)
    assert "the last words" in record.evidence.output_tail.splitlines()


@pytest.mark.one_backend
@pytest.mark.fault("F11", mutation="a loss that is not finite is written as 0")
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_diverged_cell_has_its_times_and_no_loss_on_each_backend(
    forking: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record = run(forking, make_job(tmp_path, "diverging", backend=backend))
    assert (record.status, record.learning.loss[-1]) == (Status.DIVERGED, None), record
    assert len(record.times.epoch_times_s) == 3
    assert "NaN" not in dumps(record)


@pytest.mark.one_backend
@pytest.mark.fault("F12", mutation="data without samples are accepted")
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_empty_data_are_an_error_on_each_backend(forking: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    """Keras itself ends such a `fit` with success on TensorFlow and with StopIteration on JAX."""
    record = run(forking, make_job(tmp_path, "empty", backend=backend))
    assert record.status is Status.ERROR, record
    assert (record.reason or "").startswith("ValueError: tests.workloads.misbehaving:empty: x and y are empty")


@pytest.mark.fault(
    "F7", mutation="at the time limit only the cell's own process is killed, and its server ends no orphans"
)
def test_hanging_cell_is_killed_with_its_process_tree_at_the_time_limit(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    marker = uuid.uuid4().hex
    job = make_job(tmp_path, "family", params={"marker": marker, "hang": True})
    record = run(executor, job, timeout_s=6)
    assert record.status is Status.TIMEOUT
    assert processes_with(marker) == []
    assert 6 <= (record.harness.wall_time_s or 0) < 6 + 5
    assert run(executor, make_job(tmp_path, "well")).status in MEASURED


@pytest.mark.fault("F8", mutation="the server does not end what a cell left")
def test_grandchild_in_its_own_session_neither_blocks_the_runner_nor_survives(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    marker = uuid.uuid4().hex
    record = run(executor, make_job(tmp_path, "orphaning", params={"marker": marker}))
    assert record.status in MEASURED
    assert processes_with(marker) == []


@pytest.mark.fault("F9", mutation="the record has the last MiB of the output")
def test_a_gigabyte_of_output_is_capped_and_does_not_grow_the_runner(forking: ProcessExecutor, tmp_path: Path) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this test
    before_kib = peak_kib()
    job = make_job(tmp_path, "flooding")
    outcome = forking.start(job, 120).finish()
    assert outcome.exit_code == 0
    assert len(outcome.output_tail) < 40_000
    assert "the first line\nxxx" in outcome.output_tail
    assert "bytes left out" in outcome.output_tail
    assert "xxx\nthe last line\n" in outcome.output_tail
    assert peak_kib() - before_kib < 64 << 10


def peak_kib() -> int:
    """Return the highest resident memory of this process since the peak was reset."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


@pytest.mark.fault("F10", mutation="escape sequences are stored as they are")
def test_stored_output_is_readable(forking: ProcessExecutor, tmp_path: Path) -> None:
    record = run(forking, make_job(tmp_path, "garbage"))
    assert "\ufffd\ufffd\\u0000red done" in record.evidence.output_tail
    assert "\x1b" not in record.evidence.output_tail
    assert "\x00" not in record.evidence.output_tail


@pytest.mark.fault("F31", mutation="a cell's process keeps the variables of its server")
@pytest.mark.parametrize("start", ["fork", "fresh"])
def test_cell_environment_is_the_allowlist_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "XLA_FLAGS", "NVIDIA_TF32_OVERRIDE", "PYTHONPATH", "KERAS_HOME"):
        monkeypatch.setenv(name, "canary-value")
    with contextlib.closing(ProcessExecutor(start=start, mark=uuid.uuid4().hex)) as begun_with_them:
        record = run(begun_with_them, make_job(tmp_path, "telling"))
    assert "the environment was received" in (record.reason or "")
    assert "KERAS_BACKEND" in record.evidence.output_tail
    assert "canary-value" not in record.evidence.output_tail


@pytest.mark.one_backend
@pytest.mark.fault("F13", mutation="a missing device counts as an error")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_missing_gpu_is_a_device_mismatch_on_every_backend(own: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has the GPU whose absence is tested")
    record = run(own, make_job(tmp_path, "well", backend=backend, device="gpu"))
    assert record.status is Status.DEVICE_MISMATCH, (record.reason, record.evidence.output_tail)
    assert record.times.epoch_times_s == []


@pytest.mark.backends
def test_missing_backend_is_reported_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    executor = ProcessExecutor()
    assert "torch cannot be found" in (executor.missing("torch") or "")
    assert "pip install" in (executor.missing("torch") or "")
    assert executor.missing("jax") is None


def test_end_of_a_server_is_an_infrastructure_failure_and_the_next_cell_runs(
    own: ProcessExecutor, tmp_path: Path
) -> None:
    job = make_job(tmp_path, "well")
    assert run(own, job).status in MEASURED
    server = next(iter(own._servers._servers.values()))
    assert isinstance(server, ProcessServer)
    server.process.kill()
    assert run(own, make_job(tmp_path, "well")).status is Status.INFRA
    assert run(own, make_job(tmp_path, "well")).status in MEASURED


@pytest.mark.nightly
def test_a_new_block_has_new_servers(own: ProcessExecutor, tmp_path: Path) -> None:
    run(own, make_job(tmp_path, "well"))
    first = next(iter(own._servers._servers.values()))
    own.begin_block([])
    own.await_block()
    run(own, make_job(tmp_path, "well"))
    second = next(iter(own._servers._servers.values()))
    assert isinstance(first, ProcessServer)
    assert isinstance(second, ProcessServer)
    assert first.process.pid != second.process.pid
    assert first.process.returncode is not None


@FORKED
def test_calibrated_processes_wait_idle_and_run_the_steps_they_receive(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    jobs = [
        replace(make_job(tmp_path, "well", backend=b, steps_per_epoch="auto"), steps=None) for b in ("jax", "torch")
    ]
    running = [executor.start(job, 120) for job in jobs]
    assert all((process.calibrated() or 0) > 0 for process in running)
    before = [cpu_ticks(process) for process in running]
    time.sleep(0.3)
    assert [cpu_ticks(one) - ticks <= IDLE_TICKS for one, ticks in zip(running, before, strict=True)] == [True, True]
    for job, process in zip(jobs, running, strict=True):
        process.resume(7)
        assert process.turn()
        outcome = process.finish()
        assert outcome.exit_code == 0, outcome.output_tail
        result = accept(job.result_path.read_bytes(), job)
        assert result.resolved is not None
        assert result.resolved.steps_per_epoch == 7
        assert (result.times.calibration_time_s or 0) > 0


def test_interleaved_processes_rest_idle_between_turns(forking: ProcessExecutor, tmp_path: Path) -> None:
    jobs = [make_job(tmp_path, "well", backend=backend, epochs=4) for backend in ("jax", "torch")]
    first, second = [forking.start(job, 120) for job in jobs]
    assert first.turn()
    assert second.turn()
    for _ in range(3):
        before = cpu_ticks(second)
        assert first.turn()
        assert cpu_ticks(second) - before <= IDLE_TICKS
        assert second.turn()
    for job, process in zip(jobs, (first, second), strict=True):
        outcome = process.finish()
        assert outcome.exit_code == 0, outcome.output_tail
        assert len(accept(job.result_path.read_bytes(), job).times.epoch_times_s) == 3


@pytest.mark.nightly
def test_cells_of_one_stall_analysis_are_alive_together_each_with_a_server_of_its_own(
    own: ProcessExecutor, tmp_path: Path
) -> None:
    fed = ("device_resident", "host_fed", "pipeline")
    own.begin_block([make_settings(backend="torch", feed=feed) for feed in fed])
    own.await_block()
    assert len(own._servers._servers) == len(fed)
    jobs = [make_job(tmp_path, "well", backend="torch", feed=feed) for feed in fed[:2]]
    both = [own.start(job, 120) for job in jobs]
    assert all(process.turn() for process in both)
    assert len({process.root() for process in both}) == len(both)
    outcomes = [process.finish() for process in both]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0], [outcome.output_tail for outcome in outcomes]
    assert len(own._servers._servers) == len(fed)


def test_cells_that_only_share_a_backend_share_a_server(own: ProcessExecutor) -> None:
    own.begin_block([make_settings(backend="torch", feed=feed) for feed in ("device_resident", "host_fed")])
    own.await_block()
    assert len(own._servers._servers) == 1


IDLE_TICKS = 1
"""Ticks of 10 ms that a resting process may use: a backend's threads may still be going to sleep. A loop uses all."""


def cpu_ticks(process: Any) -> int:
    fields = Path(f"/proc/{process._pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@FORKED
def test_abandoned_process_is_ended_and_its_server_runs_the_next(executor: ProcessExecutor, tmp_path: Path) -> None:
    process = executor.start(replace(make_job(tmp_path, "well", steps_per_epoch="auto"), steps=None), 120)
    assert process.calibrated() is not None
    process.abandon()
    assert run(executor, make_job(tmp_path, "well")).status in MEASURED


@pytest.mark.fault("F29", mutation="end_leftovers() ends nothing, or processes with any mark")
def test_next_start_ends_what_a_killed_runner_has_left_and_no_other_process(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    waits = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    left, other = (
        subprocess.Popen(waits, env={MARK: str(mark)}, stdout=subprocess.PIPE) for mark in (folder, f"{folder}2")
    )
    try:
        for one in (left, other):
            assert one.stdout is not None
            assert one.stdout.readline() == b"\n"  # it has its own environment now
        matrix = tmp_path / "matrix.yaml"
        matrix.write_text("version: 1\nbackends: [torch]\ncells:\n  - workload: no_such_module:build\n")
        main(["--matrix", str(matrix), "--results", str(folder), "--start", "fresh", "--repeats", "1"])
        assert (left.wait(timeout=60), other.poll()) == (-signal.SIGKILL, None)
    finally:
        for one in (left, other):
            one.kill()
            one.communicate()


def test_kill_without_an_oom_of_the_cell_is_not_an_oom() -> None:
    with pytest.raises(ResultRefused):
        accept(None, Job("", "", 0, 0, make_settings(), 1, "", [], None, None))
    assert Outcome().oom_kills == 0
