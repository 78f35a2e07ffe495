"""The call of a program that is measured, and the steps after which its epochs are cut, from what scouting has seen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records import files
from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import CellResult
from keras_matrix.runner.cell.job import Job, Scouted, ScoutedCall
from keras_matrix.runner.cli.history import bisect
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.service.script import OtherCall, ScoutedProgram, lines, rounded_down, steps_within, with_call
from tests.fakes.container_engine import FakeEngine
from tests.fakes.executor import FakeExecutor

ROOT = Path(__file__).parents[3]
PRETRAINING = ScoutedCall("fit", "parts/train.py:5", 1, 1, calls=1, epochs=2, steps=20, epoch_steps=10)
EVALUATION = ScoutedCall("evaluate", "train.py:20", 2, 1, calls=2, epochs=2, steps=8, epoch_steps=4)
TRAINING = ScoutedCall(
    "fit", "train.py:31", 3, 2, calls=4, epochs=40, steps=8000, epoch_steps=200, step_time_s=0.01, end_time_s=1.0
)
CALLS = [PRETRAINING, EVALUATION, TRAINING]


def program(calls: list[ScoutedCall], **changes: object) -> ScoutedProgram:
    seen = Scouted("", calls, has_ended=not changes.get("reached_limit"))
    return replace(ScoutedProgram(1, "train.py", "", "jax", 60.0, False, seen), **changes)  # type: ignore[arg-type]


def cell(text: str = "", **changes: object) -> Cell:
    matrix = f"version: 1\nbackends: [jax]\ncells: [{{workload: {{script: train.py{text}}}}}]\n"
    return replace(expand(parse(Path("matrix.yaml"), matrix.encode()))[0], **changes)  # type: ignore[arg-type]


def test_call_of_fit_with_the_most_steps_is_measured_unless_another_one_is_chosen() -> None:
    chosen = {choice: program(CALLS).chosen(choice) for choice in ("", "fit", "fit:1", "2", "fit train.py:31", "9")}
    assert chosen == {
        "": TRAINING,
        "fit": PRETRAINING,
        "fit:1": PRETRAINING,
        "2": EVALUATION,
        "fit train.py:31": TRAINING,
        "9": None,
    }
    loop = ScoutedCall("steps", "train.py:40", 4, 1, calls=3, epochs=3, steps=9)
    assert program([*CALLS, loop]).chosen("") == loop, "who marks a loop wants it measured"
    assert program([EVALUATION]).chosen("") is None


def test_program_that_reaches_the_limit_is_measured_by_the_call_in_which_it_did() -> None:
    running = replace(PRETRAINING, steps=0, is_running=True)
    assert program([running, TRAINING], reached_limit=True).chosen("") == running
    assert "scouting ended after 60 s" in lines(program([running], reached_limit=True))[-1]


def test_choice_becomes_part_of_the_settings_whichever_line_it_is_on() -> None:
    by_default, by_number = with_call(cell(), {"": program(CALLS)}), with_call(cell(", call: 3"), {"": program(CALLS)})
    assert by_default.settings.params == by_number.settings.params == {"call": "fit:2"}
    assert by_default.cell_id == by_number.cell_id != cell().cell_id
    evaluation = with_call(cell(", call: 2"), {"": program(CALLS)})
    assert (evaluation.settings.params, evaluation.settings.phase) == ({"call": "evaluate:1"}, "predict")


def test_choice_of_a_call_that_the_program_does_not_make_is_refused_with_its_calls() -> None:
    with pytest.raises(UsageError) as error:
        with_call(cell(", call: 9"), {"": program(CALLS)})
    assert str(error.value).splitlines() == [
        "call: train.py makes no call '9'",
        "calls of train.py, as seen on jax:",
        "  1  fit parts/train.py:5 (fit:1): 20 steps in 2 epochs",
        "  2  evaluate train.py:20 (evaluate:1): 8 steps in 2 epochs of 2 calls",
        "  3  fit train.py:31 (fit:2): 8,000 steps in 40 epochs of 4 calls, 10.0 ms a step; measured by default",
    ]
    unseen = cell(", call: 9")
    assert with_call(unseen, {"": program(CALLS, reached_limit=True)}) == unseen, "the program may make it later"
    assert with_call(unseen, {"": None}) == unseen


@pytest.mark.parametrize(
    ("timeout_s", "changes", "steps"),
    [
        (300.0, {}, None),  # an epoch takes 3 s, and has 300 / 4 / 2 / 2 of them
        (40.0, {}, 100),  # 2.5 s, of which 1 s is the epoch's end: 150 steps
        (4.0, {}, 2),  # never fewer
        (4.0, {"epoch_steps": 2}, None),
        (300.0, {"step_time_s": 3.0}, 5),  # 17.75 s
        (40.0, {"epoch_steps": None, "steps": 50, "is_exact": False}, 100),
        (4.0, {"step_time_s": None}, None),
        (4.0, {"kind": "evaluate"}, None),
    ],
)
def test_epoch_for_which_the_cell_has_no_time_is_cut(timeout_s: float, changes: dict[str, object], steps: int) -> None:
    call = replace(TRAINING, **changes)  # type: ignore[arg-type]
    assert steps_within(cell(timeout_s=timeout_s), call) == steps


def test_number_of_steps_of_the_matrix_goes_before_the_limit() -> None:
    call = program([replace(TRAINING, epoch_steps=10**6)])
    limits = {"": 1000, ", most_steps: 30": 30, ", most_steps: all": None}
    found = {text: with_call(cell(text), {"": call}).settings.params.get("most_steps") for text in limits}
    assert found == limits
    assert [rounded_down(steps) for steps in (1, 4, 5, 19, 99, 100, 2501)] == [1, 2, 5, 10, 50, 100, 2000]


def test_two_versions_have_the_same_call_and_the_same_cut_or_are_refused() -> None:
    slower = replace(TRAINING, step_time_s=0.05)
    faster_and_slower = {"base": program([PRETRAINING, TRAINING]), "new": program([PRETRAINING, slower])}
    short = cell(timeout_s=40.0)
    params = with_call(short, faster_and_slower).settings.params
    assert params == {"call": "fit:2", "most_steps": 20}, "the slower version has time for its epochs, too"
    assert with_call(short, dict(reversed(faster_and_slower.items()))).settings.params == params
    unseen = {"base": program(CALLS), "new": None}
    assert with_call(cell(), unseen).settings.params == {"call": "fit:2"}, "a version that fails is measured, and fails"
    longer = replace(PRETRAINING, epochs=900, steps=9000)
    with pytest.raises(OtherCall) as error:
        with_call(cell(), {"base": program(CALLS), "new": program([longer, TRAINING])})
    refusal, seen, *_ = str(error.value).splitlines()
    assert refusal.startswith(
        "call: train.py would be measured at different calls, fit:2 in base, fit:1 in new; choose "
    )
    assert seen == "base: calls of train.py, as seen on jax:"
    assert with_call(cell(", call: fit:2"), {"base": program(CALLS), "new": program([longer, TRAINING])}).cell_id
    for choice in ("", ", call: fit:2"):
        with pytest.raises(OtherCall, match=r"^call: train.py makes no call 'fit:2' in new\n"):
            with_call(cell(choice), {"base": program(CALLS), "new": program([EVALUATION])})


MATRIX = """\
version: 1
backends: [jax]
cells:
  - workload: {script: train.py}
    repeats: 2
"""
LONG = replace(TRAINING, step_time_s=1.0)


@dataclass(slots=True)
class Scouting(FakeExecutor):
    """Each scouting process sees the next of these calls, and the last ones again."""

    seen: Sequence[Sequence[ScoutedCall]] = ((PRETRAINING, LONG),)
    scouted: list[Job] = field(default_factory=list)

    def end(self, job: Job) -> Outcome:
        if not job.scouts:
            return FakeExecutor.end(self, job)
        calls = self.seen[min(len(self.scouted), len(self.seen) - 1)]
        self.scouted.append(job)
        files.replace(job.scouted_path, dumps(Scouted(job.nonce, list(calls), ["train.py"], has_ended=True)))
        return Outcome(exit_code=0)

    def result(self, job: Job) -> CellResult:
        result = FakeExecutor.result(self, job)
        assert result.resolved is not None
        return replace(result, resolved=replace(result.resolved, call="fit train.py:31"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a program and its matrix, and two environments that are pretended."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    (tmp_path / "train.py").write_text("model.fit(x, y)\n")
    monkeypatch.setattr(interpreter, "of_environment", lambda path, flag: Interpreter(f"{path}/bin/python", True))
    facts = {"python": [3, 11, 7], "absent": [], "versions": {"keras": "3.15.1"}, "requires": {}}
    monkeypatch.setattr(interpreter, "_facts", lambda python, packages: facts)
    monkeypatch.setattr(bisect, "axis_of", lambda span, cell, stored: Versions())
    return tmp_path


@dataclass
class Versions:
    """Two versions, of which the second is half as fast."""

    labels: Sequence[str] = ("1.0", "2.0")
    subject: str = "small"
    identity: Mapping[str, Any] = field(default_factory=lambda: {"versions": ["1.0", "2.0"]})

    def arm(self, position: int) -> ArmRequest:
        return ArmRequest(f"python of {self.labels[position]}", "slower:1" if position else None)

    def differences(self, before: int, found: int) -> list[str]:
        return []

    def close(self) -> None:
        pass


ENVIRONMENTS = "--base-env old --new-env new"
BISECT = "bisect jax:script:train.py --package small --good 1.0 --bad 2.0"
MEASURING = {
    "run --matrix matrix.yaml": 1,
    f"compare {ENVIRONMENTS}": 2,
    f"gate {ENVIRONMENTS} --repeats 2": 2,
    "selftest": 1,
    BISECT: 3,  # in the runner's own environment, as a run does, and in that of each version
}


@pytest.mark.parametrize("command", MEASURING)
def test_every_command_that_measures_a_program_measures_the_same_cell(project: Path, command: str) -> None:
    """Mutation: a command measures the cells of its matrix without `with_found_values`."""
    executor = Scouting()
    main(command.split(), Seams(executor=executor, engine=FakeEngine()))
    assert {(job.cell_id, job.settings.params["call"], job.settings.params["most_steps"]) for job in executor.jobs} == {
        (executor.jobs[0].cell_id, "fit:2", 10)
    }
    assert executor.jobs[0].cell_id == with_call(cell(), {"": program([PRETRAINING, LONG])}).cell_id
    assert len(executor.scouted) == MEASURING[command], "each environment once"
    again = Scouting()
    anew = "--new-run" if command.startswith(("compare", "gate")) else "--new"
    main([*command.split(), anew], Seams(executor=again, engine=FakeEngine()))
    assert (len(again.scouted), {job.cell_id for job in again.jobs}) == (0, {job.cell_id for job in executor.jobs})


@pytest.mark.parametrize("command", [f"compare {ENVIRONMENTS}", f"gate {ENVIRONMENTS}", BISECT])
def test_versions_of_a_program_that_make_other_calls_are_refused_before_anything_is_measured(
    project: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = replace(PRETRAINING, epochs=900, steps=9000)
    executor = Scouting(seen=[CALLS] * (MEASURING.get(command, 2) - 1) + [[longer, TRAINING]])
    assert main(command.split(), Seams(executor=executor, engine=FakeEngine())) == 2
    assert executor.jobs == []
    error = capsys.readouterr().err
    assert "call: train.py would be measured at " in error
    assert all(name in error for name in ("fit:1", "fit:2", "choose one that all make, by its name"))


@pytest.mark.parametrize("command", ["compare", "gate", "selftest"])
def test_fault_that_no_program_has_is_refused(project: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: the fault is ignored, so that the command finds nothing that was never injected."""
    executor = Scouting()
    assert main([command, "--plant", "slower:0.5"], Seams(executor=executor, engine=FakeEngine())) == 2
    assert "--plant: no fault is injected into a program" in capsys.readouterr().err
    assert (executor.jobs, executor.scouted) == ([], [])


@pytest.mark.parametrize("command", ["trace jax:script:train.py --new", "stalls jax:script:train.py"])
def test_commands_that_look_into_a_model_refuse_a_program(
    project: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = Scouting()
    assert main(command.split(), Seams(executor=executor)) == 2
    assert "CELL: script:train.py is a program, which " in capsys.readouterr().err.replace("whose", "which")
    assert (executor.jobs, executor.scouted) == ([], [])


THREE_BACKENDS = MATRIX.replace("[jax]", "[jax, torch, tensorflow]")


def test_epochs_are_cut_for_the_slowest_backend_if_they_could_be_too_long_there(project: Path) -> None:
    """Mutation: the cut follows the backend that scouted first."""
    (project / "matrix.yaml").write_text(THREE_BACKENDS)
    short, slower = replace(TRAINING, step_time_s=0.02), replace(TRAINING, step_time_s=0.2)
    executor = Scouting(seen=[[PRETRAINING, short], [PRETRAINING, slower], []])
    main(["--matrix", "matrix.yaml"], Seams(executor=executor))
    assert [job.settings.backend for job in executor.scouted] == ["jax", "torch", "tensorflow"]
    assert steps_within(cell(), short) is None
    assert {job.settings.params.get("most_steps") for job in executor.jobs} == {50}, "10 s of an epoch's 18.75 s"
    again = Scouting()
    main(["--matrix", "matrix.yaml", "--new"], Seams(executor=again))
    assert (again.scouted, {job.cell_id for job in again.jobs}) == ([], {job.cell_id for job in executor.jobs})


@pytest.mark.parametrize(
    ("calls", "entry"),
    [
        ([replace(TRAINING, step_time_s=0.004, end_time_s=None)], "repeats: 2"),  # 0.8 s, 20 times 0.8 s is 16 s
        ([LONG], "repeats: 2, params: {most_steps: 20}"),
        ([EVALUATION], "repeats: 2, params: {call: evaluate}"),
    ],
)
def test_other_backends_are_not_scouted_if_no_epoch_can_be_too_long(
    project: Path, calls: list[ScoutedCall], entry: str
) -> None:
    entry = f"{{workload: {{script: train.py}}, {entry}}}"
    (project / "matrix.yaml").write_text(f"version: 1\nbackends: [jax, torch]\ncells: [{entry}]\n")
    executor = Scouting(seen=[calls])
    main(["--matrix", "matrix.yaml"], Seams(executor=executor))
    assert [job.settings.backend for job in executor.scouted] == ["jax"]


def test_backend_on_which_no_second_step_ended_has_the_shortest_epochs() -> None:
    running = replace(TRAINING, step_time_s=None, is_running=True)
    seen = replace(program(CALLS), elsewhere={"torch": Scouted("", [PRETRAINING, running])})
    assert with_call(cell(), {"": seen}).settings.params == {"call": "fit:2", "most_steps": 2}
    assert lines(seen)[-1] == "  on torch: no step was timed"
    slow = replace(seen, elsewhere={"torch": Scouted("", [PRETRAINING, replace(TRAINING, step_time_s=2.5)])})
    assert lines(slow)[-1] == "  on torch: fit:2 2,500 ms a step"


def test_plan_has_the_cells_of_a_run_once_its_programs_have_been_scouted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `plan` reads the scouting of a program that has changed since."""
    (project / "matrix.yaml").write_text(THREE_BACKENDS)
    assert main(["plan"]) == 0
    before = capsys.readouterr().out
    assert before.count("script:train.py  call: found by scouting") == 3
    executor = Scouting()
    main(["--matrix", "matrix.yaml"], Seams(executor=executor))
    capsys.readouterr()
    assert main(["plan"]) == 0
    after = capsys.readouterr().out
    assert {job.cell_id for job in executor.jobs} == set(re.findall(r"^[0-9a-f]{16}", after, re.MULTILINE))
    assert (after.count("call=fit:2"), "found by scouting" in after) == (3, False)
    (project / "train.py").write_text("model.fit(x, y, epochs=2)\n")
    assert main(["plan"]) == 0
    assert capsys.readouterr().out.count("call: found by scouting") == 3
    (project / "train.py").write_text("model.fit(x, y)\n")
    assert main(["plan", "--set", "params.call=predict", "--matrix", "matrix.yaml"]) == 2


# Commands whose cells are in no matrix, or have had these values before.
OF_NO_MATRIX = {
    "check": "two functions `build` that it writes itself",
    "explain": "cells with a trace, which a program has not",
    "fc": "the modes of one problem",
    "finetune": "one workload of the catalog",
    "fit_batch": "one try of a batch size",
    "quick": "one workload, whose batch size is a number",
    "reproduce": "a cell of a stored run",
    "stalls": "cells with an input pipeline, which a program has not",
    "task": "an external command",
    "trace": "one cell with a trace, which a program has not",
    "whatif": "workloads of the catalog",
    "bisect": "one cell, which has its call by `with_own_call`",
}


def test_every_use_case_that_measures_finds_the_values_of_its_cells_first() -> None:
    sources = {path.stem: path.read_text() for path in (ROOT / "runner" / "service").glob("*.py")}
    measuring = {name for name, text in sources.items() if re.search(r"import (\([^)]*|.*)\bmeasured\b", text)}
    finding = {name for name in measuring if "with_found_values(" in sources[name]}
    assert finding == {"run", "compare", "selftest", "tune"}
    assert measuring - finding == set(OF_NO_MATRIX)
