"""A block that was disturbed from outside is measured again completely, and its records are retained."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.surroundings.disturbance import CounterChanges, MeasuredStretch, OwnUse, WaitingUse
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Status
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome, Running, WaitingCell
from keras_matrix.runner.executors.supervise.epochs import Alive, Epochs
from keras_matrix.runner.machine.surroundings.snapshot import cpu_now
from keras_matrix.runner.measure.scheduler import MOST_REPLACEMENTS, REPLACED_SHARE, SURELY_REPLACED
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor, FakeRunning

MATRIX = """\
version: 1
backends: [jax, torch]
defaults: {repeats: 5, steps_per_epoch: 5}
cells:
  - workload: gru
"""
CALM = MeasuredStretch(
    CounterChanges(wall_s=2.0, cpu_total_s=4.0, cpu_busy_s=3.0, cpu_irq_s=0.0, cpu_steal_s=0.0), OwnUse(3.0, 0.1, 0)
)
STOLEN = replace(CALM, stretch=replace(CALM.stretch, cpu_steal_s=1.0))
# 3.8 % of the time that its CPUs had work; of a block of two such stretches 2 %.
LITTLE_STOLEN = replace(CALM, stretch=replace(CALM.stretch, cpu_steal_s=0.12))
# On an accelerator processes run one after the other.
DEVICE = pytest.mark.parametrize("device", ["cpu", "gpu"])


class Watching(FakeExecutor):
    """Reports what `sees` says of each job's kept epochs."""

    sees: Callable[[Job], MeasuredStretch]

    def succeed(self, job: Job) -> Outcome:
        return replace(super().succeed(job), watched=(self.sees(job),) * (job.settings.epochs - job.settings.discard))


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    sees: Callable[[Job], MeasuredStretch],
    device: str = "cpu",
    repeats: int = 5,
) -> Counter[tuple[str, int, int]]:
    monkeypatch.chdir(folder)
    (folder / "matrix.yaml").write_text(MATRIX.replace("repeats: 5", f"repeats: {repeats}"))
    executor = Watching()
    executor.sees = sees
    assert main(["--matrix", "matrix.yaml", "--set", f"device={device}"], Seams(executor=executor)) == 0
    records = Results(folder / "results").runs()[-1].load()[0]
    disturbed = {(record.repeat, record.attempt) for record in records if record.surroundings.disturbed}
    for record in records:
        # A disturbance of one arm is recorded for all arms of the block.
        assert ((record.repeat, record.attempt) in disturbed) is bool(record.surroundings.disturbed)
    return Counter((r.settings.backend, r.repeat, r.attempt) for r in records)


def test_repeated_block_is_not_counted_as_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, monkeypatch, lambda job: STOLEN if job.attempt == 0 else CALM)
    printed = [line for line in capsys.readouterr().out.splitlines() if " a step" in line and "/" in line]
    again = [["(measured again)" in line for line in printed[at : at + 4]] for at in (0, 4)]
    assert again == [[False, False, True, True]] * SURELY_REPLACED
    counts = [line.split()[0] for line in printed[:8]]
    assert counts == [f"{n}/10" for block in range(2) for n in (2 * block + 1, *[2 * block + 2] * 3)]


def test_no_block_is_repeated_on_an_idle_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path, monkeypatch, lambda job: CALM)
    assert {(backend, repeat, 0) for backend in ("jax", "torch") for repeat in range(5)} == set(found)


@pytest.mark.fault("F17", mutation="no block is measured again")
@DEVICE
def test_all_arms_of_a_disturbed_block_are_measured_again_whichever_was_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    def sees(job: Job) -> MeasuredStretch:
        hit = (job.settings.backend, job.repeat, job.attempt) == ("torch", 3, 0)
        return STOLEN if hit else CALM

    found = run(tmp_path, monkeypatch, sees, device)
    assert sorted(key for key in found if key[2]) == [("jax", 3, 1), ("torch", 3, 1)]


@DEVICE
def test_block_is_judged_by_all_its_arms_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    found = run(
        tmp_path,
        monkeypatch,
        lambda job: LITTLE_STOLEN if (job.settings.backend, job.repeat) == ("torch", 3) else CALM,
        device,
    )
    assert [key for key in found if key[2]] == []


def test_block_is_repeated_a_limited_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path, monkeypatch, lambda job: STOLEN)
    assert max(attempt for _, _, attempt in found) == MOST_REPLACEMENTS == 1


class Ending(Watching):
    """Ends each process as `ends` says, watched as it was; None for a result."""

    ends: Callable[[Job], Outcome | None]

    def end(self, job: Job) -> Outcome:
        outcome = self.ends(job)
        return super().end(job) if outcome is None else replace(outcome, watched=(self.sees(job),))


def attempts(folder: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Job], Outcome | None]) -> list[int]:
    """Measure one disturbed block whose processes end like this; return the attempts at one of its cells."""
    monkeypatch.chdir(folder)
    (folder / "matrix.yaml").write_text(MATRIX.replace("repeats: 5", "repeats: 1"))
    executor = Ending()
    executor.sees, executor.ends = lambda job: STOLEN if job.attempt == 0 else CALM, ends
    main(["--matrix", "matrix.yaml"], Seams(executor=executor))
    records = Results(folder / "results").runs()[-1].load()[0]
    return sorted(record.attempt for record in records if record.settings.backend == "jax")


def counted(folder: Path) -> dict[str, tuple[int, Status, str | None]]:
    """Return the attempt of each backend that counts, and how the latest one ended."""
    records = Results(folder / "results").runs()[-1].load()[0]
    return {r.settings.backend: (r.attempt, r.status, r.surroundings.disturbed) for r in latest_attempts(records)}


@pytest.mark.parametrize(
    "failing", [Outcome(deadline_exceeded=True), Outcome(signal=11), Outcome(exit_code=1, output_tail="no result")]
)
def test_first_figures_of_a_block_remain_if_a_process_of_its_second_try_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: Outcome
) -> None:
    """Of both arms: a disturbed first try against an undisturbed second one would favour the second."""
    fails = lambda job: failing if (job.attempt, job.settings.backend) == (1, "torch") else None  # noqa: E731
    assert attempts(tmp_path, monkeypatch, fails) == [0, 1]
    found = counted(tmp_path)
    assert {backend: chosen[:2] for backend, chosen in found.items()} == {
        "jax": (0, Status.OK),
        "torch": (0, Status.OK),
    }
    assert all((chosen[2] or "").startswith("steal: ") for chosen in found.values())
    printed = " ".join(capsys.readouterr().out.split())
    assert "first_try: the figure of repeat 0 is of a disturbed block; measured again, it failed: " in printed
    second = [r for r in Results(tmp_path / "results").runs()[-1].load()[0] if r.attempt == 1]
    assert {r.settings.backend: r.status for r in second}["jax"] is Status.INFRA
    assert next(r.reason or "" for r in second if r.settings.backend == "jax").startswith("second_try: torch:gru ended")


def test_run_whose_second_try_failed_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = lambda job: Outcome(signal=11) if job.attempt and job.settings.backend == "torch" else None  # noqa: E731
    attempts(tmp_path, monkeypatch, fails)
    executor = Ending()
    executor.sees, executor.ends = lambda job: CALM, lambda job: None
    assert main(["--matrix", "matrix.yaml"], Seams(executor=executor)) == 0
    first, second = Results(tmp_path / "results").runs()
    assert (len(first.load()[0]), len(second.load()[0])) == (4, 2)


def test_error_in_a_disturbed_block_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = Outcome(exit_code=1, output_tail="ValueError")
    fails = lambda job: error if job.settings.backend == "torch" else None  # noqa: E731
    assert attempts(tmp_path, monkeypatch, fails) == [0, 1]
    assert {backend: found[:2] for backend, found in counted(tmp_path).items()} == {
        "jax": (1, Status.OK),
        "torch": (0, Status.ERROR),
    }


def test_disturbed_block_without_measurements_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempts(tmp_path, monkeypatch, lambda job: Outcome(signal=11)) == [0]


def test_repeated_block_has_the_same_number_of_infrastructure_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Outcome(infrastructure="server: pretended to be gone")
    assert attempts(tmp_path, monkeypatch, lambda job: gone if job.attempt else None) == [0, 1, 2, 3]


@pytest.mark.fault("F17", mutation="every disturbed block is measured again")
def test_at_most_a_quarter_of_the_blocks_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path, monkeypatch, lambda job: STOLEN, repeats=16)
    again = sorted({repeat for _, repeat, attempt in found if attempt})
    # The first two; then whenever a quarter of what was measured is more than what was measured again.
    assert again == [0, 1, 8, 12]
    assert len(again) == REPLACED_SHARE * 16


def test_cpu_time_of_a_waiting_cell_is_reported_and_does_not_repeat_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try would have the same neighbour."""
    busy = replace(CALM, waiting=(WaitingUse("jax:gru", 1.2),))
    found = run(tmp_path, monkeypatch, lambda job: busy if job.settings.backend == "torch" else CALM)
    assert {attempt for _, _, attempt in found} == {0}
    records = Results(tmp_path / "results").runs()[-1].load()[0]
    shares = {record.settings.backend: record.surroundings.waiting_cpu_share for record in records}
    assert shares == {"jax": pytest.approx(0.3), "torch": None}
    warned = {(r.settings.backend, warning.partition(":")[0]) for r in records for warning in r.warnings}
    assert warned == {("jax", "busy_while_waiting")}


class Waiting(FakeExecutor):
    """Its processes say below which process they are, and note who waits while they work."""

    noted: list[tuple[str, list[WaitingCell]]]

    def start(self, job: Job, timeout_s: float) -> Running:
        FakeExecutor.start(self, job, timeout_s)
        return WaitingRunning(self, job)


class WaitingRunning(FakeRunning):
    def root(self) -> int | None:
        return None if self.job in self.executor.jobs else {"jax": 100, "torch": 200}[self.job.settings.backend]

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        assert isinstance(self.executor, Waiting)
        self.executor.noted.append((self.job.settings.backend, list(waiting)))
        return True


def test_measured_epochs_receive_the_waiting_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("repeats: 5", "repeats: 2"))
    executor = Waiting()
    executor.noted = []
    assert main(["--matrix", "matrix.yaml"], Seams(executor=executor)) == 0
    epochs = [(backend, waiting) for backend, waiting in executor.noted if waiting]
    assert {backend for backend, _ in epochs} == {"jax", "torch"}
    other = {"jax": WaitingCell("torch:gru", 200), "torch": WaitingCell("jax:gru", 100)}
    assert [[other[backend]] for backend, _ in epochs] == [waiting for _, waiting in epochs]


BURNING = "while True: sum(range(100000))"


@pytest.mark.process
def test_cpu_time_of_all_processes_of_the_run_is_not_a_disturbance(tmp_path: Path) -> None:
    """Including a waiting cell, which is not a child of the working one."""
    settings = make_settings(epochs=2, discard=1)
    epochs = Epochs(Job("nonce", cell_id(settings), 0, 0, settings, 10, str(tmp_path), [], None, None))
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as working,
        subprocess.Popen([sys.executable, "-c", BURNING]) as burning,
    ):
        try:
            waits = [WaitingCell("jax:burning", burning.pid), WaitingCell("gone", 1 << 22)]
            epochs.begin(Alive(working.pid, working.pid, waits))
            begun_s, begun_here_s = cpu_time_s(burning.pid), time.process_time()
            while cpu_time_s(burning.pid) - begun_s < 0.3:
                pass
            used_here_s = time.process_time() - begun_here_s
            epochs.end()
        finally:
            for process in (working, burning):
                process.kill()
            epochs.close()
    (watched,) = epochs.watched
    (waiting,) = watched.waiting
    assert waiting.name == "jax:burning"
    assert waiting.cpu_s is not None
    assert watched.own.cpu_s is not None
    assert waiting.cpu_s >= 0.3
    assert watched.own.cpu_s > 0.9 * (waiting.cpu_s + used_here_s)
    assert f"(process {burning.pid}," not in " ".join(map(str, epochs.others))


BUSY = """\
version: 1
backends: [jax]
defaults: {repeats: 1, epochs: 3}
cells:
  - workload: mnist_mlp
"""


@pytest.mark.process
@pytest.mark.alone
@pytest.mark.nightly
@pytest.mark.fault("F17", mutation="the processes of the machine are not read when an epoch ends")
def test_cell_measured_while_other_processes_use_every_cpu_has_a_warning_that_names_one(tmp_path: Path) -> None:
    """A process that is busier than these is named instead."""
    (tmp_path / "matrix.yaml").write_text(BUSY)
    places = ["--matrix", tmp_path / "matrix.yaml", "--results", tmp_path / "results"]
    burning = [subprocess.Popen([sys.executable, "-c", BURNING]) for _ in os.sched_getaffinity(0)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "keras_matrix.runner", *places], capture_output=True, text=True, check=False
        )
    finally:
        for process in burning:
            process.kill()
            process.wait()
    assert done.returncode == 0, done.stderr
    records = Results(tmp_path / "results").runs()[-1].load()[0]
    assert {record.status for record in records} <= {Status.OK, Status.UNSTABLE}
    names = [f"(process {process.pid}," for process in burning]
    warned = [warning for record in records for warning in record.warnings if warning.startswith("busy: ")]
    assert len(warned) == len(records) > 0
    assert any(name in warning for name in names for warning in warned), warned


def cpu_time_s(pid: int) -> float:
    found = cpu_now(ProcTree(), [pid])
    assert found is not None
    return found


def test_only_measured_epochs_of_a_process_are_watched(tmp_path: Path) -> None:
    """Disturbances before and after the measured epochs do not count."""
    settings = make_settings(epochs=4, discard=1)
    epochs = Epochs(Job("nonce", cell_id(settings), 0, 0, settings, 10, str(tmp_path), [], None, None))
    for _ in range(5):
        epochs.begin(Alive(os.getpid(), os.getpid()))
        epochs.end()
    epochs.close()
    assert len(epochs.watched) == 3
