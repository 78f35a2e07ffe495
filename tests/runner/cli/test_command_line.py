"""The complete command line, with fake executors and synthetic durations."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records import store
from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import Status
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import COMMANDS, main
from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.plan import TARGET_EPOCH_S
from tests.conftest import NIGHTLY
from tests.fakes.executor import PRETENDED, FakeExecutor, crash, spoil
from tests.golden import Golden
from tests.sessions import newest_records
from tests.transcripts import Transcript

ROOT = Path(__file__).parents[3]
MATRIX = """\
version: 1
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
  - workload: gru
    repeats: 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def runner(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(list(arguments), Seams(executor=executor or FakeExecutor()))


def test_a_run_publishes_a_record_of_every_repeat_and_a_report(folder: Path) -> None:
    assert runner("--matrix", "matrix.yaml", "--repeats", "5") == 0
    found = newest_records(folder)
    assert len(found) == 3 * 5 + 3 * 5
    assert {r.status for r in found} == {Status.OK}
    assert (folder / "results" / "latest" / "report.html").read_text().startswith("<!doctype html>")


def test_usage_over_time_of_every_process_is_stored_with_its_record_and_in_the_report(folder: Path) -> None:
    assert runner("--matrix", "matrix.yaml", "--filter", "workload=gru") == 0
    run = Results(folder / "results").latest()
    assert run is not None
    records = run.load()[0]
    assert [run.usage_series(record) for record in records] == [PRETENDED.usage_series] * 6
    assert {record.usage.course for record in records if record.usage} == {
        "usage/{}.{}.{}.json".format(*record.key) for record in records
    }
    page = (run.folder / "report.html").read_text()
    assert page.count('<path class="curve') == 6
    assert "anonymous host memory: peak 500\u00a0MiB" in page


def test_backends_of_a_workload_have_equal_steps_and_epochs_are_long_enough(folder: Path) -> None:
    runner("--matrix", "matrix.yaml")
    by_work: dict[str, set[int]] = {}
    for record in newest_records(folder):
        by_work.setdefault(record.settings.workload, set()).add(record.resolved.steps_per_epoch)
        assert record.times.epoch_time_median_s >= TARGET_EPOCH_S
    assert {len(steps) for steps in by_work.values()} == {1}


def test_slow_backend_has_time_for_all_of_its_epochs(folder: Path) -> None:
    # Half a second of TensorFlow has 5,500 steps, which would take PyTorch three hours; its limit is 300 s.
    executor = FakeExecutor(step_time_s=lambda settings, repeat: 2.0 if settings.backend == "torch" else 0.0001)
    runner("--filter", "gru", "--set", "epochs=5", executor=executor)
    assert {r.resolved.steps_per_epoch for r in newest_records(folder)} == {15}


@pytest.mark.parametrize(("setting", "abandoned"), [("device=cpu", 0), ("device=gpu", 6), ("compile_cache=warm", 6)])
def test_only_cells_that_may_share_the_machine_wait_after_calibration(
    folder: Path, setting: str, abandoned: int
) -> None:
    executor = FakeExecutor()
    assert runner("--set", setting, executor=executor) == 0
    assert len(executor.abandoned) == abandoned
    assert len(executor.jobs) == 21
    assert {r.resolved.steps_per_epoch for r in newest_records(folder)} == {56}


def test_cell_refused_by_this_machine_is_unsupported_and_not_retried(folder: Path) -> None:
    executor = FakeExecutor(behaviours={"gru": lambda job: Outcome(refused="clocks: locked: not here")})
    assert runner("--filter", "gru", executor=executor) == 0
    found = newest_records(folder)
    assert {(r.status, r.reason, r.attempt) for r in found} == {(Status.UNSUPPORTED, "clocks: locked: not here", 0)}
    assert len(executor.jobs) == len(found)


def test_repeats_of_a_cell_share_the_folder_of_tuning_results(folder: Path) -> None:
    executor = FakeExecutor()
    asked = ("--filter", "gru", "--set", "device=gpu", "--set", "steps_per_epoch=5")
    assert runner(*asked, "--set", "autotune=pinned", executor=executor) == 0
    kept = {(job.cell_id, job.autotune_dir) for job in executor.jobs}
    assert len({cell for cell, _ in kept}) == len({place for _, place in kept}) == len(kept) == 3
    assert all(Path(str(place)).is_dir() for _, place in kept)


def test_backend_that_fails_in_calibration_has_a_record_and_the_others_agree_on_steps(folder: Path) -> None:
    class Failing(FakeExecutor):
        def end(self, job: Job) -> Outcome:
            return crash()(job) if job.settings.backend == "tensorflow" else super().end(job)

    assert runner("--filter", "gru", executor=Failing()) == 1
    assert {(r.settings.backend, r.status) for r in newest_records(folder)} == {
        ("tensorflow", Status.CRASH),
        ("jax", Status.OK),
        ("torch", Status.OK),
    }


def test_resumed_run_uses_the_steps_of_its_start(folder: Path) -> None:
    with pytest.raises(Interrupted):
        stop_after(6)
    begun = {r.settings.workload: r.resolved.steps_per_epoch for r in newest_records(folder)}
    assert runner(executor=FakeExecutor(step_time_s=lambda settings, repeat: 0.001)) == 0
    for record in newest_records(folder):
        assert record.resolved.steps_per_epoch == begun.get(record.settings.workload, 550)


def test_cells_run_in_blocks_with_every_backend_in_each(folder: Path) -> None:
    executor = FakeExecutor()
    runner("--matrix", "matrix.yaml", executor=executor)
    measured = executor.jobs
    assert [job.repeat for job in measured] == sorted(job.repeat for job in measured)
    assert executor.blocks == 5


def test_measured_epochs_of_a_comparison_alternate_back_and_forth(folder: Path) -> None:
    executor = FakeExecutor()
    runner("--filter", "gru", "--repeats", "1", "--set", "steps_per_epoch=5", executor=executor)
    backends = [job.settings.backend for job in executor.turns]
    warm = backends[:3]
    assert backends == [*warm, *warm, *warm[::-1], *warm]
    assert sorted(warm) == ["jax", "tensorflow", "torch"]


def test_processes_with_cached_programs_are_interleaved_too(folder: Path) -> None:
    executor = FakeExecutor()
    runner("--filter", "gru", "--repeats", "1", "--set", "compile_cache=warm", executor=executor)
    backends = [job.settings.backend for job in executor.turns]
    assert len(set(backends[:3])) == 3
    assert backends[3:6] == backends[:3]
    assert len(executor.abandoned) == 3  # they filled the cache


@pytest.mark.parametrize(("free_gib", "alone"), [(100, False), (0.98, False), (0.97, True), (0.1, True)])
def test_processes_are_interleaved_only_if_they_fit_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float, alone: bool
) -> None:
    """A fake process uses 500 MiB; a second one is started if twice as much is free."""
    monkeypatch.setattr("keras_matrix.runner.measure.scheduler.free_memory_bytes", lambda: int(free_gib * 2**30))
    executor = FakeExecutor()
    runner("--filter", "gru", "--repeats", "1", "--set", "steps_per_epoch=5", executor=executor)
    first = {job.settings.backend for job in executor.turns[:4]}
    assert (len(first) == 1) is alone


def test_on_an_accelerator_only_one_process_is_alive(folder: Path) -> None:
    executor = FakeExecutor()
    runner("--filter", "gru", "--repeats", "1", "--set", "device=gpu", executor=executor)
    backends = [job.settings.backend for job in executor.turns]
    assert [backends[i : i + 4] for i in (0, 4, 8)] == [[b] * 4 for b in backends[::4]]


@pytest.mark.fault("F1", mutation="judge() ignores the signal that ended a process")
def test_crash_is_recorded_the_others_continue_and_the_exit_code_is_1(folder: Path) -> None:
    assert runner(executor=FakeExecutor(behaviours={"gru": crash()})) == 1
    statuses = {(r.settings.workload, r.status) for r in newest_records(folder)}
    assert statuses == {("mnist_mlp", Status.OK), ("gru", Status.CRASH)}


def test_infrastructure_failure_is_tried_three_times_with_a_record_each(folder: Path) -> None:
    executor = FakeExecutor(behaviours={"gru": spoil(times=99)})
    assert runner("--set", "steps_per_epoch=5", "--filter", "gru", "--backend", "jax", executor=executor) == 3
    assert [(r.repeat, r.attempt, r.status) for r in newest_records(folder)] == [
        (repeat, attempt, Status.INFRA) for repeat in (0, 1) for attempt in (0, 1, 2)
    ]


def test_same_command_measures_spoiled_cells_and_completes_the_run(folder: Path) -> None:
    arguments = ("--set", "steps_per_epoch=5", "--filter", "gru", "--backend", "jax")
    runner(*arguments, executor=FakeExecutor(behaviours={"gru": spoil(times=99)}))
    assert runner(*arguments) == 0
    assert len(Results(folder / "results").runs()) == 1
    assert [(r.repeat, r.attempt) for r in newest_records(folder) if r.status is Status.OK] == [(0, 3), (1, 3)]


def test_a_backend_that_is_not_installed_leaves_its_cells_pending_and_the_others_run(folder: Path) -> None:
    assert runner(executor=FakeExecutor(absent=frozenset({"torch"}))) == 3
    statuses = {(r.settings.backend, r.status) for r in newest_records(folder)}
    assert statuses == {("tensorflow", Status.OK), ("jax", Status.OK), ("torch", Status.INFRA)}
    assert runner() == 0
    assert len(Results(folder / "results").runs()) == 1


def test_the_same_command_starts_a_new_run_once_the_last_is_finished(folder: Path) -> None:
    runner()
    runner()
    assert len(Results(folder / "results").runs()) == 2


def test_another_plan_does_not_continue_an_unfinished_run(folder: Path) -> None:
    with pytest.raises(Interrupted):
        stop_after(3)
    runner("--repeats", "1")
    assert len(Results(folder / "results").runs()) == 2


def stop_after(count: int, *arguments: str) -> None:
    """An executor that is interrupted after `count` cells."""
    from keras_matrix.runner.cli import main as program

    class Interrupting(FakeExecutor):
        def end(self, job: Job) -> Outcome:
            if len(self.jobs) >= count:
                raise Interrupted("stopped by SIGINT")
            return super().end(job)

    executor = Interrupting()

    args = program.parse(["run", *arguments])
    args.seams, args.given = Seams(executor=executor), []
    args.main(args)


@pytest.mark.fault("F19", mutation="a continued run measures all of its repeats again")
@pytest.mark.parametrize("count", [0, 8, 20])  # any end of the earlier session: tests/runner/plan/test_plan.py
def test_an_interrupted_run_is_continued_and_repeats_nothing(folder: Path, count: int) -> None:
    with pytest.raises(Interrupted):
        stop_after(count)
    first = {r.key: dumps(r) for r in newest_records(folder)}
    assert len(first) == count - count % 3  # the arms of a block are published together, once all have ended
    executor = FakeExecutor()
    assert runner(executor=executor) == 0
    assert len(Results(folder / "results").runs()) == 1
    after = {r.key: dumps(r) for r in newest_records(folder)}
    assert len(after) == 21
    assert {key: after[key] for key in first} == first
    assert len(executor.jobs) == 21 - len(first)


@pytest.mark.fault("F23", mutation="the session does not set damaged files aside")
def test_a_corrupt_record_is_set_aside_and_its_cell_measured_again(folder: Path) -> None:
    runner()
    victim = sorted((folder / "results" / "latest" / "records").glob("*.json"))[3]
    victim.write_text(victim.read_text()[:100])
    assert runner() == 0
    assert len(Results(folder / "results").runs()) == 1
    assert len(newest_records(folder)) == 21


def test_scratch_folders_are_removed(folder: Path) -> None:
    runner()
    assert not (folder / "results" / "latest" / "work").exists()


def test_with_json_nothing_else_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--json", "--repeats", "5") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["statuses"] == {"ok": 30}
    assert [row["fastest"] for row in document["rows"]] == ["tensorflow", "tensorflow"]
    assert document["answer"]["fastest"] == {"tensorflow": 2}
    assert [mean["against"] for mean in document["answer"]["means"]] == ["jax", "torch"]


def test_report_command_rewrites_the_report(folder: Path) -> None:
    runner()
    page = folder / "results" / "latest" / "report.html"
    before = page.read_text()
    page.unlink()
    assert main(["report"]) == 0
    assert page.read_text() == before


@pytest.mark.fault("F25", mutation="the runner does not lock its results folder")
def test_a_results_folder_in_use_is_exit_code_3(folder: Path) -> None:
    held = Results(folder / "results")
    held.open_for_writing()
    assert runner() == 3
    held.close()


@pytest.mark.process
@pytest.mark.fault("F25", mutation="the file of the lock is inherited by cells, or not locked at all")
def test_second_runner_is_refused_until_the_first_was_killed(
    folder: Path, slow_runner: Callable[[], subprocess.Popen[bytes]]
) -> None:
    first = slow_runner()
    assert first.stdout is not None
    first.stdout.readline()
    first.send_signal(signal.SIGSTOP)  # on a busy machine it would end before the second one has started
    second = slow_runner()
    _, errors = second.communicate()
    assert second.returncode == 3
    assert f"another runner measures into this folder (process {first.pid} on {platform.node()})" in errors.decode()
    first.kill()
    first.communicate()
    third = slow_runner()
    _, errors = third.communicate()
    assert (third.returncode, len(newest_records(folder))) == (0, 21), errors


@pytest.mark.fault("F22", mutation="open_for_writing() does not write a probe")
def test_results_folder_that_cannot_be_written_is_refused_before_any_cell(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path, text: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(store, "write_synced", failing)
    executor = FakeExecutor()
    assert runner(executor=executor) == 3
    assert executor.timeouts_s == []


@pytest.mark.process
@pytest.mark.fault("F22", mutation="an error of the system when the results folder is created is not explained")
def test_results_folder_on_a_read_only_disk_is_refused_with_advice(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")
    try:
        assert runner("--results", str(disk / "results")) == 3
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    expected = f"{disk}/results: cannot be created: Read-only file system; choose a writable folder with --results"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: runner" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "--matrix" in capsys.readouterr().out


@pytest.mark.fault("F21", mutation="an error of the disk while the report is written is ignored")
def test_report_that_finds_the_disk_full_is_named_with_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from keras_matrix.records import files

    real = files._write

    def full(path: Path, text: str) -> None:
        if ".report.html." in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr(files, "_write", full)
    assert runner() == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "/report.html: No space left on device; free some space and run the same command again; "
        "no published record is lost"
    )


@pytest.mark.fault("F21", mutation="the advice about a full disk is missing in the message")
def test_record_that_cannot_be_stored_ends_the_run_with_exit_code_3(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.publish

    def full(path: Path, text: str) -> None:
        if path.parent.name == "records" and len(list(path.parent.glob("*.json"))) >= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    with monkeypatch.context() as disk:
        disk.setattr(store, "publish", full)
        assert runner() == 3
    assert "No space left on device; free some space and run the same command again" in capsys.readouterr().err
    assert runner() == 0
    assert len(Results(folder / "results").runs()) == 1
    assert len(newest_records(folder)) == 21


@pytest.fixture
def slow_runner(folder: Path) -> Callable[[], subprocess.Popen[bytes]]:
    """Start a real runner process with slow cells."""
    script = (
        "import sys, time\n"
        "from keras_matrix.runner.cli.main import main; from keras_matrix.runner.measure.seams import Seams\n"
        "from tests.fakes.executor import FakeExecutor\n"
        "class Slow(FakeExecutor):\n"
        "    def end(self, job):\n"
        "        time.sleep(0.02)\n"
        "        return super().end(job)\n"
        "sys.exit(main([], Seams(executor=Slow())))\n"
    )

    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


@pytest.mark.fault("F20", mutation="an unfinished run is not continued")
@pytest.mark.fault("F19", mutation="SIGTERM is not handled")
@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_at_any_moment_damages_no_file_and_the_run_can_be_completed(
    folder: Path, slow_runner: Callable[[], subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    for lines in range(0, 8, 1 if NIGHTLY else 2):
        process = slow_runner()
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate()
        ends = {signal.SIGKILL: {-9}, signal.SIGINT: {130, 0, -2}, signal.SIGTERM: {130, 0, -15}}
        assert process.returncode in ends[number], errors
        for run in Results(folder / "results").runs():
            assert run.load()[1] == []
    assert slow_runner().communicate() is not None
    done = [run for run in Results(folder / "results").runs() if len(run.load()[0]) == 21]
    assert done
    for run in Results(folder / "results").runs()[:-1]:
        assert len(run.load()[0]) == 21


@pytest.mark.fault("F7", mutation="judge() takes the result of a process that was ended at its time limit")
def test_result_of_a_cell_that_was_ended_is_not_used(folder: Path) -> None:
    def late(job: Job) -> Outcome:
        return replace(FakeExecutor().succeed(job), deadline_exceeded=True, signal=9, exit_code=None)

    assert runner("--backend", "jax", "--filter", "gru", executor=FakeExecutor(behaviours={"gru": late})) == 1
    assert {r.status for r in newest_records(folder)} == {Status.TIMEOUT}


@pytest.mark.fault("F3", mutation="all processes of a run have the same nonce")
def test_every_process_has_its_own_nonce_and_its_time_limit(folder: Path) -> None:
    executor = FakeExecutor()
    runner("--set", "timeout_s=77", executor=executor)
    assert len({job.nonce for job in executor.jobs}) == len(executor.jobs)
    assert set(executor.timeouts_s) == {77.0}
    assert executor.closed


@pytest.mark.fault("F19", mutation="measure() does not close its executor after an interrupt")
def test_interrupted_run_closes_its_executor(folder: Path) -> None:
    def interrupting(settings: Any, repeat: int) -> float:
        raise Interrupted("stopped by SIGTERM")

    executor = FakeExecutor(step_time_s=interrupting)
    assert runner(executor=executor) == 130
    assert executor.closed


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--set", "steps_per_epoch=seed"], {32}),
        (["--set", "steps_per_epoch=seed", "--set", "steps_per_execution=10"], {40}),
        (["--set", "steps_per_epoch=7"], {7}),
        (["--set", "steps_per_execution=50"], {100}),
    ],
)
def test_epoch_has_the_requested_steps(folder: Path, arguments: list[str], steps: set[int]) -> None:
    executor = FakeExecutor()
    runner(*arguments, executor=executor)
    assert {job.steps for job in executor.jobs} == steps


def test_a_run_of_another_host_is_not_continued(folder: Path) -> None:
    with pytest.raises(Interrupted):
        stop_after(3)
    path = folder / "results" / "latest" / "run.json"
    path.write_text(path.read_text().replace('"host_id": "', '"host_id": "x'))
    runner()
    assert len(Results(folder / "results").runs()) == 2


def test_a_run_under_other_versions_is_not_continued(folder: Path) -> None:
    with pytest.raises(Interrupted):
        stop_after(3)
    path = folder / "results" / "latest" / "run.json"
    path.write_text(path.read_text().replace('"numpy": "', '"numpy": "0.'))
    runner()
    assert len(Results(folder / "results").runs()) == 2


def test_new_starts_a_new_run_although_one_is_unfinished(folder: Path) -> None:
    with pytest.raises(Interrupted):
        stop_after(3)
    runner("--new")
    assert len(Results(folder / "results").runs()) == 2


def test_a_continued_run_keeps_its_order(folder: Path) -> None:
    from keras_matrix.runner.matrix.reader import expand, load
    from keras_matrix.runner.plan.plan import order

    with pytest.raises(Interrupted):
        stop_after(6, "--order-seed", "7")
    executor = FakeExecutor()
    runner(executor=executor)
    steps = [(step.cell.cell_id, step.repeat) for step in order(expand(load(Path("matrix.yaml"))), 7)]
    assert [(job.cell_id, job.repeat) for job in executor.jobs] == steps[6:]


@pytest.mark.fault("F15", mutation="an unsupported cell is a failure for the exit code")
def test_unsupported_cells_leave_the_exit_code_0(folder: Path) -> None:
    class Refusing(FakeExecutor):
        def result(self, job: Job) -> Any:
            return replace(
                super().result(job), exception="keras_matrix.runner.cell.backends.Unsupported", message="no such thing"
            )

    assert runner("--filter", "gru", executor=Refusing()) == 0
    assert {r.status for r in newest_records(folder)} == {Status.UNSUPPORTED}


def test_plan_estimates_from_the_times_of_the_newest_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner()
    capsys.readouterr()
    main(["plan", "--json"])
    assert json.loads(capsys.readouterr().out)["estimated_s"] == 21.0


@pytest.mark.process
def test_measuring_continues_after_the_reader_closed_the_pipe(
    folder: Path, slow_runner: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = slow_runner()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
    assert len(newest_records(folder)) == 21


def test_a_folder_in_place_of_a_result_is_refused(folder: Path) -> None:
    def planting(job: Job) -> Outcome:
        job.result_path.mkdir()
        return Outcome(exit_code=0)

    assert runner("--backend", "jax", executor=FakeExecutor(behaviours={"gru": planting, "mnist_mlp": planting})) == 1
    assert {r.status for r in newest_records(folder)} == {Status.ERROR}


@pytest.mark.process
def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "keras_matrix.runner", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("runner ")


@pytest.mark.process
@pytest.mark.parametrize("written", ["hostile", "other/../hostile", "./hostile/"])
def test_modules_of_pythonpath_do_not_replace_the_installed_packages(folder: Path, written: str) -> None:
    """Python has normalised the folders in its path, however PYTHONPATH writes them."""
    for name in ("hostile", "other"):
        (folder / name).mkdir()
    (folder / "hostile" / "yaml.py").write_text("raise SystemExit('the yaml of PYTHONPATH')")
    path = os.pathsep.join([written, f"{folder}/{written}", os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "keras_matrix.runner", "plan"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


class Various(FakeExecutor):
    """TensorFlow crashes, this machine refuses JAX, and PyTorch reports an error."""

    def end(self, job: Job) -> Outcome:
        if job.settings.backend == "tensorflow":
            return crash()(job)
        if job.settings.backend == "jax":
            return Outcome(refused="clocks: locked: not here")
        failed = replace(self.result(job), exception="builtins.ValueError", message="no such layer")
        write_result(job, failed)
        return Outcome(exit_code=1)


def test_what_is_printed_of_a_run(folder: Path, transcript: Transcript, golden: Golden) -> None:
    gru = "--matrix matrix.yaml --filter workload=gru"
    transcript.run(f"{gru} --repeats 5", seams=Seams(executor=FakeExecutor()))
    transcript.note("two repeats")
    transcript.run(f"{gru} --backend jax --backend torch", seams=Seams(executor=FakeExecutor()))
    transcript.note("two crashes and a refusal")
    transcript.run(gru, seams=Seams(executor=Various()), brief=True)
    transcript.note("PyTorch is not installed; then it is")
    transcript.run(gru, seams=Seams(executor=FakeExecutor(absent=frozenset({"torch"}))), brief=True)
    transcript.run(gru, seams=Seams(executor=FakeExecutor()), brief=True)
    run = Results(folder / "results").runs()[-1]
    damaged = sorted((run.folder / "records").glob("*.json"))[3]
    damaged.write_text(damaged.read_text()[:100])
    transcript.note("a record is cut off")
    transcript.run(gru, seams=Seams(executor=FakeExecutor()), brief=True)
    (run.folder / "run.json").write_text("{")
    transcript.note("the description of the newest run is damaged")
    transcript.run(f"{gru} --backend jax", seams=Seams(executor=FakeExecutor()), brief=True)
    stopped = FakeExecutor(behaviours={"gru": interrupting})
    transcript.note("SIGTERM")
    transcript.run(gru, seams=Seams(executor=stopped), brief=True)
    transcript.note("automatic repeats within a budget")
    transcript.run(
        f"{gru} --repeats auto --backend jax --backend torch", seams=Seams(executor=FakeExecutor()), brief=True
    )
    transcript.note("a file in the place of the warehouse")
    (folder / "results" / "warehouse").write_text("in the way")
    transcript.run(f"{gru} --backend jax --upload local", seams=Seams(executor=FakeExecutor()), brief=True)
    golden.check("run.txt", transcript.text)


def interrupting(job: Job) -> Outcome:
    raise Interrupted("stopped by SIGTERM")


def test_messages_of_runs_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    executor = FakeExecutor()
    seams = Seams(executor=executor)
    transcript.run(
        "comprae a b",
        "--matrix absent.yaml",
        "--set cpus=60000-60001",
        "--filter gruu",
        "--backend jaxx",
        "--results ''",
        "--results matrix.yaml",
        "--budget soon",
        "--log-dir matrix.yaml",
        "--memory 8g",
        "--workload lst",
        "--upload bigquery://nowhere",
        "--upload local --upload-deadline 0",
        "--upload local --upload-deadline soon",
        "--upload local --upload-maximum-bytes-billed -1",
        "--upload-location EU",
        "--upload-append-only",
        "--no-such-flag",
        seams=seams,
    )
    assert not (folder / "results").exists()
    held = Results(folder / "results")
    held.open_for_writing()
    transcript.note("another runner measures into the folder")
    transcript.run("--matrix matrix.yaml", seams=seams)
    held.close()

    def failing(path: Path, text: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as disk:
        disk.setattr(store, "write_synced", failing)
        transcript.note("a read-only disk")
        transcript.run("--matrix matrix.yaml", seams=seams)
    (folder / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mpl\n")
    transcript.note("a misspelt workload; then no matrix")
    transcript.run("--matrix matrix.yaml", seams=seams)
    (folder / "matrix.yaml").unlink()
    transcript.run("", seams=seams)
    assert executor.jobs == []
    golden.check("run_refused.txt", transcript.text)
