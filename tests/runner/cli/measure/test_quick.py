"""`runner quick`: one process on each backend, ratios without a verdict, and the command that decides."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.surroundings.disturbance import CounterChanges, MeasuredStretch, OwnUse
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.cli.measure.quick import work_lines
from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import make_record, make_settings
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.sessions import newest_records
from tests.transcripts import Transcript

HEAD = "cifar10_cnn on tensorflow, jax, torch, one process each: about 27 s"
# Of the pretended durations: 10, 20 and 40 ms, 1 % more in repeat 0 of a name with 11 letters.
FIGURES = [
    "cifar10_cnn: time of a step, and its ratio to the lowest",
    "  tensorflow  10.1 ms  1.00x  one process",
    "  jax         20.2 ms  2.00x  one process",
    "  torch       40.4 ms  4.00x  one process",
    "",
    "One process each: this does not say which backend is fastest, nor whether a",
    "difference is more than chance.",
    "Whether they do the same work was checked at other versions only: runner parity cifar10_cnn",
]
STOLEN = MeasuredStretch(
    CounterChanges(wall_s=2.0, cpu_total_s=4.0, cpu_busy_s=3.0, cpu_irq_s=0.0, cpu_steal_s=1.0), OwnUse(3.0, 0.1, 0)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quick(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(["quick", *arguments], Seams(executor=executor or FakeExecutor()))


def after_progress(text: str) -> list[str]:
    return without_times(text).partition("\n\n")[2].splitlines()


def without_times(text: str) -> str:
    """Leave out how long the deciding command takes: five times as long as the test did."""
    return re.sub(r"(?m)^(.* in five processes each) \(about \d+ s\):$", r"\1:", text)


def command_of(text: str, purpose: str = "to decide") -> str:
    lines = without_times(text).splitlines()
    return lines[lines.index(f"{purpose}, in five processes each:") + 1].removeprefix("  ")


def test_each_backend_is_measured_once(folder: Path) -> None:
    executor = FakeExecutor()
    assert quick(executor=executor) == 0
    assert sorted((job.settings.backend, job.repeat) for job in executor.jobs) == [
        ("jax", 0),
        ("tensorflow", 0),
        ("torch", 0),
    ]
    assert len(newest_records(folder)) == 3


def test_the_command_that_decides_measures_the_same_work_in_five_processes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick("--set", "image_size=16", "--set", "batch_size=64", "--backend", "jax", "--backend", "torch") == 0
    command = command_of(capsys.readouterr().out).split()
    assert command[0] == "runner"
    first = newest_records(folder)
    assert main(command[1:], Seams(executor=FakeExecutor())) == 0
    deciding = newest_records(folder)
    assert len(deciding) == 2 * 5

    def works(records: list[Record]) -> set[tuple[str, str, int]]:
        return {(r.settings.backend, str(r.settings.params), r.settings.batch_size) for r in records}

    assert works(first) == works(deciding)
    assert {key for _, key, _ in works(first)} == {"{'image_size': 16}"}


def test_ones_own_model_gets_its_arguments(folder: Path) -> None:
    executor = FakeExecutor()
    assert quick("my_workload:build", "--set", "width=64", executor=executor) == 0
    assert {str(job.settings.params) for job in executor.jobs} == {"{'width': 64}"}


def test_a_model_that_was_measured_before_takes_as_long_as_then(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(job: Job) -> Outcome:
        return replace(FakeExecutor().succeed(job), wall_time_s=20.0)

    executor = FakeExecutor(behaviours={"my_workload:build": timed})
    assert quick("my_workload:build", executor=executor) == 0
    capsys.readouterr()
    assert quick("my_workload:build", executor=executor) == 0
    head = "my_workload:build on tensorflow, jax, torch, one process each: about 1 min 15 s"
    assert capsys.readouterr().out.splitlines()[0] == head


def test_a_disturbed_quick_run_is_not_measured_again(folder: Path) -> None:
    def disturbed(job: Job) -> Outcome:
        return replace(FakeExecutor().succeed(job), watched=(STOLEN,) * (job.settings.epochs - job.settings.discard))

    executor = FakeExecutor(behaviours={"cifar10_cnn": disturbed})
    assert quick(executor=executor) == 0
    assert len(executor.jobs) == 3
    executor.jobs.clear()
    assert main(["--workload", "cifar10_cnn", "--repeats", "1"], Seams(executor=executor)) == 0
    assert len(executor.jobs) == 6  # the main command does


def test_a_quick_run_is_marked_and_no_other_command_continues_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = FakeExecutor()

    def stop(job: Job) -> Outcome:
        raise Interrupted("stopped")

    stopped.behaviours = {"cifar10_cnn": stop}
    assert quick(executor=stopped) == 130
    [first] = Results(Path("results")).runs()
    about = first.about()
    assert (about["matrix_path"], about["stopping"]) == ("runner quick", "quick")
    assert about["decided_by"] == "runner --workload cifar10_cnn"
    same = ("--set", "epochs=2", "--repeats", "1")
    assert main(["--workload", "cifar10_cnn", *same], Seams(executor=FakeExecutor())) == 0
    assert quick() == 0
    runs = Results(Path("results")).runs()
    assert len(runs) == 3
    assert [run.about()["plan_id"] for run in runs] == [about["plan_id"]] * 3
    assert first.load()[0] == []
    assert Path("results/latest").resolve().name == runs[-1].run_id


def test_histories_and_merged_tables_leave_a_quick_run_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("--workload", "cifar10_cnn", "--set", "epochs=2", "--backend", "jax")
    assert main(list(command), Seams(executor=FakeExecutor())) == 0
    assert quick() == 0
    name = Results(Path("results")).runs()[-1].run_id
    capsys.readouterr()
    assert main(["history", "jax:cifar10_cnn", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(one["sessions"]) for one in found["histories"]] == [1]
    why = "a quick look: one process of each cell, not measured again if it was disturbed"
    assert f"run {name} is left out: {why}" in found["caveats"]
    assert main(["report", "--merge", "--json"]) == 0
    assert [one["run_id"] for one in json.loads(capsys.readouterr().out)["merge"]["left_out"]] == [name]


def test_the_document_has_the_rows_of_a_run_and_the_command_that_decides(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decided_by"] == "runner --workload cifar10_cnn"
    assert [row["fastest"] for row in found["rows"]] == [None]
    assert sorted(found["rows"][0]["cells"]) == ["jax", "tensorflow", "torch"]


def test_caveats_of_the_comparison_stand_below_its_figures() -> None:
    [row] = table(make_record(0.01, settings=make_settings(backend=backend)) for backend in ("jax", "torch"))
    [work] = result_table([replace(row, caveats=("jit: only jax runs operations\x1b[31m one by one",))]).works
    lines = work_lines(work)
    assert lines[-1].startswith("  caveat: jit: only jax runs operations")
    assert "\x1b" not in "".join(lines)


def test_a_workload_replaces_a_matrix_file(folder: Path) -> None:
    command = ["--workload", "lstm", "--backend", "jax", "--repeats", "2"]
    assert main(command, Seams(executor=FakeExecutor())) == 0
    [run] = Results(Path("results")).runs()
    assert run.about()["matrix_path"] == "runner --workload"


def test_settings_of_a_quick_look_are_those_that_the_fake_sees(folder: Path) -> None:
    executor = FakeExecutor()
    assert quick("--set", "epochs=4", executor=executor) == 0
    settings: list[Settings] = [job.settings for job in executor.jobs]
    assert {(one.epochs, one.discard) for one in settings} == {(4, 1)}
    assert executor.timeouts_s == [120.0] * 3


def test_what_a_quick_look_prints(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    def disturbed(job: Job) -> Outcome:
        return replace(FakeExecutor().succeed(job), watched=(STOLEN,) * (job.settings.epochs - job.settings.discard))

    def failing(job: Job) -> Outcome:
        return Outcome(exit_code=1) if job.settings.backend == "torch" else FakeExecutor().succeed(job)

    there = [*TRAINING_BACKENDS, "keras"]
    monkeypatch.setattr(Interpreter, "absent", lambda self, asked: [name for name in asked if name not in there])
    transcript.run("quick --set batch_size=64", seams=Seams(executor=FakeExecutor()))
    transcript.run("quick my_workload:build --set width=64", seams=Seams(executor=FakeExecutor()), brief=True)
    for text, behaviour in (("other programs use the CPUs", disturbed), ("PyTorch fails", failing)):
        transcript.note(text)
        transcript.run("quick", seams=Seams(executor=FakeExecutor(behaviours={"cifar10_cnn": behaviour})), brief=True)
    transcript.note("the report, and the history, of quick looks")
    transcript.run("report", "history jax:cifar10_cnn", "report --merge")
    there[:] = ["keras", "jax"]
    transcript.note("one backend is installed")
    transcript.run("quick", seams=Seams(executor=FakeExecutor()), brief=True)
    everywhere = FakeExecutor(behaviours={"my_workload:build": lambda job: Outcome(exit_code=1)})
    transcript.run("quick my_workload:build", seams=Seams(executor=everywhere), brief=True)
    (folder / "my_workload.py").write_text("def build(width=8): ...\n")
    transcript.run("quick my_workload:biuld", "quick cifar10_cn", "quick --backend jaxx", "quick --set width=3")
    transcript.run("quick --set epochs", "quick --repeats 5")
    there.clear()
    transcript.note("no backend is installed")
    transcript.run("quick")
    golden.check("quick.txt", transcript.text)
