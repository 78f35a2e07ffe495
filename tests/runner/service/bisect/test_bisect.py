"""`runner bisect` through the real command line: pretended processes, pretended environments, real records."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keras_matrix.records.schema import CellResult
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.history import bisect
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.environments.layered import BaseEnvironment
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NoNetwork, NotNow
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.interrupts import Interrupted
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.service import bisect as search
from tests.conftest import MACHINE, make_settings
from tests.fakes.container_engine import FakeEngine
from tests.fakes.executor import FailsAt, FakeExecutor, crash
from tests.golden import Golden
from tests.runner.conftest import MATRIX
from tests.sessions import nights, noisy, processes, run_name, store_session
from tests.transcripts import Transcript


@dataclass
class FakeAxis:
    """Eight versions of a package, of which those from the sixth on are half as fast."""

    first_slow: int = 5
    slowdown: float = 0.5
    broken: Mapping[int, Exception] = field(default_factory=dict)
    labels: Sequence[str] = tuple(f"1.{n}" for n in range(8))
    subject: str = "small"
    made: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"versions": list(self.labels)}

    def arm(self, position: int) -> ArmRequest:
        if position in self.broken:
            raise self.broken[position]
        self.made.append(position)
        fault = f"slower:{self.slowdown}" if position >= self.first_slow else None
        return ArmRequest(f"python of {self.labels[position]}", fault, {"small": self.labels[position]})

    def differences(self, before: int, found: int) -> list[str]:
        return [f"numpy of {before} -> that of {found}"]

    def close(self) -> None:
        self.closed = True


SHORT = partial(FakeAxis, labels=("1.0", "1.7"), first_slow=1)  # its ends are adjacent: two trials


@dataclass(slots=True)
class Interrupts(FakeExecutor):
    """Is interrupted at one process."""

    after: int = 1000

    def end(self, job: Job) -> Outcome:
        if len(self.jobs) == self.after:
            raise Interrupted("stopped")
        return FakeExecutor.end(self, job)


@dataclass(slots=True)
class EndFails(FakeExecutor):
    """After some processes, those of the good end crash."""

    after: int = 0

    def end(self, job: Job) -> Outcome:
        about = json.loads((Path(job.folder).parents[1] / "run.json").read_text())
        if len(self.jobs) < self.after or about["arm"] != "good":
            return FakeExecutor.end(self, job)
        self.jobs.append(job)
        return crash()(job)


@dataclass(slots=True)
class TakesTurns(FakeExecutor):
    """One end and then the other takes 1.4 times as long, from block to block: no order of the processes decides."""

    def result(self, job: Job) -> CellResult:
        about = json.loads((Path(job.folder).parents[1] / "run.json").read_text())
        slow = (job.repeat % 2 == 0) == (about["arm"] == "bad")
        return FakeExecutor(lambda settings, repeat: 0.014 if slow else 0.01).result(job)


ENDS = ("--package", "small", "--good", "1.0", "--bad", "1.7")


def bisected(monkeypatch: pytest.MonkeyPatch, axis: FakeAxis, *flags: str, executor: FakeExecutor | None = None) -> int:
    monkeypatch.setattr(bisect, "axis_of", lambda args, cell, stored: axis)
    command = ["bisect", "jax:mnist_mlp", *ENDS, *flags]
    return main(command, Seams(executor=executor or FakeExecutor(), engine=FakeEngine()))


@dataclass(frozen=True)
class Searched:
    """A search that was not interrupted: its working folder, axis and executor, and the lines that it printed."""

    folder: Path
    axis: FakeAxis
    executor: FakeExecutor
    lines: Sequence[str]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """One search for all tests that only look at it."""
    folder, axis, executor = tmp_path_factory.mktemp("searched"), FakeAxis(), FakeExecutor()
    (folder / "matrix.yaml").write_text(MATRIX)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(printed):
        patched.chdir(folder)
        assert bisected(patched, axis, executor=executor) == 0
    return Searched(folder, axis, executor, printed.getvalue().splitlines())


def test_ends_candidate_and_confirmation_are_one_session_each(searched: Searched) -> None:
    [own] = (searched.folder / "bisect").iterdir()
    sessions = {run.about()["session"]: list(run.about()["runs"]) for run in Results(own).runs()}
    assert list(sessions.values()) == [
        ["good", "bad"],
        *[["good", "candidate", "bad"]] * 3,
        ["good", "before", "found", "bad"],
    ]
    assert len(searched.executor.jobs) == 9 * (2 + 3 * 3 + 4)
    assert searched.axis.closed
    assert not (searched.folder / "results").exists()


def test_progress_states_no_total_and_no_time_left_for_blocks_that_are_added(searched: Searched) -> None:
    """Mutation: Lines.ended() prints the larger of both numbers as the total."""
    lines = [line for line in searched.lines if " #" in line]
    added = [line for line in lines if " #0: " not in line]
    assert len(added) == 8 * (2 + 3 * 3 + 4)
    assert not any("/" in line.split()[0] or "left)" in line for line in added)
    assert lines[0].startswith("   1/2 ")


def test_result_is_one_document_and_is_stored(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bisected(monkeypatch, FakeAxis(), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["last_good"], found["first_bad"]) == ("found", "1.4", "1.5")
    assert [step["version"] for step in found["steps"]] == ["1.4", "1.6", "1.5"]
    assert found["size"]["centre"] == pytest.approx(1.5)
    [stored] = (folder / "bisect").glob("*/result.json")
    assert json.loads(stored.read_text()) == {name: value for name, value in found.items() if name != "version"}


@pytest.mark.parametrize("after", [7, 40])
def test_same_command_continues_after_an_interruption(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    searched: Searched,
    after: int,
) -> None:
    """Mutation: SearchState() ignores the stored answers."""
    first, second = Interrupts(after=after), FakeExecutor()
    assert bisected(monkeypatch, FakeAxis(), executor=first) == 130
    assert bisected(monkeypatch, FakeAxis(), executor=second) == 0
    # Records of a block are published together: at most the processes of one block are measured twice.
    assert 0 <= len(first.jobs) + len(second.jobs) - len(searched.executor.jobs) < 4


def test_finished_search_is_set_aside_by_the_next_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executors = [FakeExecutor(), FakeExecutor()]
    assert [bisected(monkeypatch, SHORT(), executor=one) for one in executors] == [0, 0]
    assert len(executors[1].jobs) == len(executors[0].jobs)
    [own] = (folder / "bisect").iterdir()
    assert sorted(path.name for path in own.glob("*.json")) == [
        "bisection-1.json",
        "bisection.json",
        "result-1.json",
        "result.json",
    ]


def test_new_search_continues_no_interrupted_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bisected(monkeypatch, SHORT(), executor=Interrupts(after=20)) == 130
    executor = FakeExecutor()
    assert bisected(monkeypatch, SHORT(), "--new", executor=executor) == 0
    assert len(executor.jobs) == 9 * (2 + 2)


def test_damaged_state_is_set_aside_and_nothing_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bisected(monkeypatch, SHORT(), executor=Interrupts(after=20)) == 130
    [state] = (folder / "bisect").glob("*/bisection.json")
    state.write_text("{")
    assert bisected(monkeypatch, SHORT()) == 0
    assert state.with_stem("bisection-1").read_text() == "{"


def test_bad_end_that_is_slower_by_less_than_asked_ends_with_4(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `--smallest` reaches neither the trials nor the search."""
    executor = FakeExecutor()
    assert bisected(monkeypatch, FakeAxis(slowdown=0.05), "--smallest", "0.1", executor=executor) == 4
    assert len(executor.jobs) == 2 * 9


def test_ends_of_which_neither_is_shown_to_be_slower_are_measured_until_that_is_too_little(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `Trials` asks `answered` without `smallest`."""
    numbers = itertools.count()
    executor = FakeExecutor(step_time_s=lambda settings, repeat: 0.01 * Random(next(numbers)).lognormvariate(0, 0.05))
    assert bisected(monkeypatch, FakeAxis(first_slow=99), "--smallest", "0.3", executor=executor) == 4
    assert len(executor.jobs) == 2 * 9


@pytest.mark.parametrize("error", [NoNetwork("no connection"), NotNow("No space left on device")])
def test_missing_network_and_full_disk_are_no_property_of_a_version(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert bisected(monkeypatch, FakeAxis(broken={4: error})) == 3
    assert str(error) in capsys.readouterr().err
    assert bisected(monkeypatch, FakeAxis()) == 0
    said = capsys.readouterr().out
    assert "after 1 trials" in said
    assert "found: 1.5" in said


@pytest.mark.parametrize("number", [19, 20, 21])  # the first block of the first candidate: 1.0, 1.4 and 1.7 in an order
def test_end_that_fails_once_is_not_booked_on_the_candidate(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Mutation: `Trials` takes the failure of any arm as the candidate's."""
    executor = FailsAt(numbers=[number])
    code = bisected(monkeypatch, FakeAxis(first_slow=4), executor=executor)
    said = capsys.readouterr().out
    failed = str(executor.jobs[number - 1].folder)
    [candidate] = [run for run in Results(next((folder / "bisect").iterdir())).runs() if str(run.folder) in failed]
    if candidate.about()["arm"] == "candidate":
        assert "1.4 cannot be measured: crash: " in said
        assert code == 5
    else:
        assert "crash: " in said.partition("; an end was measured before: once more")[0]
        assert (code, "found: 1.4 is slower than 1.3" in said) == (0, True)


def test_end_that_fails_again_ends_the_search_for_now(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `Trials` stores the failure as an answer."""
    assert bisected(monkeypatch, FakeAxis(), executor=EndFails(after=18)) == 1
    assert "1.0: crash: " in capsys.readouterr().err
    assert bisected(monkeypatch, FakeAxis()) == 0
    said = capsys.readouterr().out
    assert "after 1 trials" in said
    assert "found: 1.5" in said


def test_failure_of_the_machine_is_no_answer(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `_failures` takes a failure of the infrastructure as one of the cell."""
    gone = FailsAt(numbers=range(19, 100), behaviour=lambda job: Outcome(infrastructure="server: pretended to be gone"))
    assert bisected(monkeypatch, FakeAxis(), executor=gone) == 3
    assert "server: pretended to be gone; once it is repaired, the same command continues" in capsys.readouterr().err
    assert bisected(monkeypatch, FakeAxis()) == 0
    assert "found: 1.5" in capsys.readouterr().out


def test_processes_that_fail_on_both_ends_are_not_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(behaviours={"mnist_mlp": crash()})
    assert bisected(monkeypatch, FakeAxis(), executor=executor) == 1
    assert len(executor.jobs) == 2  # one block shows it


def test_budget_that_is_too_small_for_the_next_trial_ends_before_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor()
    assert bisected(monkeypatch, FakeAxis(), "--budget", "25", executor=executor) == 5
    assert executor.jobs == []


def test_budget_counts_what_was_spent_and_the_same_command_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `_announce` compares the next trial alone with the budget."""
    seconds = itertools.count(0, 100)
    monkeypatch.setattr(search, "Trials", partial(search.Trials, clock=lambda: float(next(seconds))))
    executor = FakeExecutor()
    assert bisected(monkeypatch, FakeAxis(), "--budget", "210", executor=executor) == 5
    assert len(executor.jobs) == 2 * 9
    assert bisected(monkeypatch, FakeAxis(), "--budget", "10000") == 0


def test_plan_prints_versions_and_cost_and_measures_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, axis = FakeExecutor(), FakeAxis(labels=[f"1.{n}" for n in range(64)])
    assert bisected(monkeypatch, axis, "--plan", executor=executor) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "64 versions of small: 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, ..., 1.58, 1.59, 1.60, 1.61, 1.62, 1.63"
    assert second.startswith("at most 8 steps besides the ends and the confirmation; a step is 9 to 40 blocks of 3 ")
    assert ", without versions that cannot be measured, which are not counted; every test at 0.45 %" in third
    assert bisected(monkeypatch, axis, "--plan", "--json", executor=executor) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["subject"], found["versions"], found["most_steps"]) == ("small", axis.labels, 8)
    assert (executor.jobs, axis.made, (folder / "bisect").exists()) == ([], [], False)


def test_machine_that_changed_between_two_stored_runs_is_a_suspect_before_any_package(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for night, kernel, keras in ((0, "6.1", "3.14.0"), (1, "6.8", "3.15.1")):
        records = processes(
            0.01,
            settings=make_settings(backend="jax"),
            machine=replace(MACHINE, kernel=kernel),
            versions={"keras": keras},
        )
        store_session(folder / "results", run_name(night), records)
    flags = ("--good-run", run_name(0), "--bad-run", run_name(1), "--plan")
    assert bisected(monkeypatch, FakeAxis(), *flags, "--matrix", str(folder / "none.yaml")) == 2
    (folder / "matrix.yaml").unlink()
    assert bisected(monkeypatch, FakeAxis(), *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    between = f"between the runs {run_name(0)} and {run_name(1)}"
    assert lines[:3] == [
        f"suspect before any package, {between}: kernel: 6.1 -> 6.8",
        "packages cannot explain these; this search compares packages on the machine as it is now",
        f"packages that differ {between}: keras: 3.14.0 -> 3.15.1",
    ]


def test_suspects_are_those_of_the_last_change_of_the_history_by_default(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "matrix.yaml").unlink()
    for first, level_s, kernel in ((0, 0.010, "6.1"), (10, 0.012, "6.8")):
        given = {"settings": make_settings(backend="jax"), "machine": replace(MACHINE, kernel=kernel)}
        nights(folder / "results", noisy(level_s, 10, seed=first), first=first, **given)
    assert bisected(monkeypatch, FakeAxis(), "--plan") == 0
    first_line = capsys.readouterr().out.splitlines()[0]
    between = f"between the runs {run_name(9)} and {run_name(10)}"
    assert first_line == f"suspect before any package, {between}: kernel: 6.1 -> 6.8"


def test_arm_of_a_commit_imports_the_users_modules_from_its_worktree(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: every arm has the import roots of the session."""

    class Trees(FakeAxis):
        def arm(self, position: int) -> ArmRequest:
            return replace(FakeAxis.arm(self, position), worktree=(str(folder), f"/cache/{position}"))

    executor = FakeExecutor()
    assert bisected(monkeypatch, Trees(), executor=executor) == 0
    roots = {tuple(job.import_roots) for job in executor.jobs}
    assert roots == {(f"/cache/{position}",) * 2 for position in (0, 4, 5, 6, 7)}


def test_what_a_search_prints(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    command = f"bisect jax:mnist_mlp {' '.join(ENDS)}"

    def search_with(axis: FakeAxis, executor: FakeExecutor | None = None, flags: str = "") -> None:
        monkeypatch.setattr(bisect, "axis_of", lambda args, cell, stored: axis)
        seams = Seams(executor=executor or FakeExecutor(), engine=FakeEngine())
        transcript.run(f"{command} {flags}".strip(), seams=seams, brief=True)

    class Faster(FakeAxis):
        def arm(self, position: int) -> ArmRequest:
            return replace(FakeAxis.arm(self, position), fault=None if position else "slower:0.25")

    search_with(FakeAxis(labels=[f"1.{n}" for n in range(64)]), flags="--plan")
    transcript.note("a search that is interrupted in its second step, and continued")
    search_with(FakeAxis(), Interrupts(after=9 * (2 + 3) + 4))
    search_with(FakeAxis())
    transcript.note("the versions are adjacent; the slowdown is large")
    search_with(SHORT(slowdown=3.0))
    transcript.note("the bad end is not slower, slower by too little, and faster")
    search_with(FakeAxis(first_slow=99))
    search_with(FakeAxis(slowdown=0.05), flags="--smallest 0.1")
    search_with(Faster(first_slow=99))
    transcript.note("no look decides")
    search_with(FakeAxis(first_slow=99), TakesTurns())
    transcript.note("a version, then an end, cannot be installed")
    search_with(FakeAxis(broken={4: CannotRebuild("no wheel for Python 3.11")}), flags="--new")
    search_with(FakeAxis(broken={7: CannotRebuild("pip says no")}), flags="--new")
    transcript.note("no network")
    search_with(FakeAxis(broken={4: NoNetwork("no connection")}), flags="--new")
    transcript.note("processes of the good end crash from the second trial on")
    search_with(FakeAxis(), EndFails(after=18), flags="--new")
    transcript.note("a version is not confirmed")
    confirming = 2 * 9 + 3 * 3 * 9
    search_with(FakeAxis(), FailsAt(numbers=range(confirming + 1, confirming + 1000)), flags="--new")
    transcript.note("both ends crash")
    search_with(FakeAxis(), FakeExecutor(behaviours={"mnist_mlp": crash()}), flags="--new")
    search_with(FakeAxis(), flags="--new --budget 25")
    golden.check("bisect.txt", transcript.text)


def test_messages_of_searches_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    installed = dict.fromkeys(("keras", "numpy", "jax", "jaxlib"), "1")
    monkeypatch.setattr(search, "base_of", lambda python: BaseEnvironment(python, installed))
    ends, package = " ".join(ENDS[2:]), " ".join(ENDS)
    transcript.run(
        f"bisect jax:nothing {package}",
        *(
            f"bisect jax:mnist_mlp {flags}"
            for flags in (
                f"{package} --executor docker",
                f"{package} --smallest x",
                f"--dates {ends} --pre",
                f"{package} --requirements x",
                f"--checkout none {ends}",
                f"--dates {ends}",
                f"{package} --good-run x --bad-run y",
                f"{package} --bad-run x",
                ends,
            )
        ),
        seams=Seams(executor=FakeExecutor(), engine=FakeEngine()),
    )
    golden.check("bisect_refused.txt", transcript.text)
