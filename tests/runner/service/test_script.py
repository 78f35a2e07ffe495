"""The call of a program that is measured, and the steps after which its epochs are cut, from what scouting has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.runner.cell.job import Scouted, ScoutedCall
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.service.script import ScoutedProgram, lines, rounded_down, steps_within, with_call

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
    by_default, by_number = with_call(cell(), program(CALLS)), with_call(cell(", call: 3"), program(CALLS))
    assert by_default.settings.params == by_number.settings.params == {"call": "fit:2"}
    assert by_default.cell_id == by_number.cell_id != cell().cell_id
    evaluation = with_call(cell(", call: 2"), program(CALLS))
    assert (evaluation.settings.params, evaluation.settings.phase) == ({"call": "evaluate:1"}, "predict")


def test_choice_of_a_call_that_the_program_does_not_make_is_refused_with_its_calls() -> None:
    with pytest.raises(UsageError) as error:
        with_call(cell(", call: 9"), program(CALLS))
    assert str(error.value).splitlines() == [
        "call: train.py makes no call '9'",
        "calls of train.py, as seen on jax:",
        "  1  fit parts/train.py:5 (fit:1): 20 steps in 2 epochs",
        "  2  evaluate train.py:20 (evaluate:1): 8 steps in 2 epochs of 2 calls",
        "  3  fit train.py:31 (fit:2): 8,000 steps in 40 epochs of 4 calls, 10.0 ms a step; measured by default",
    ]
    unseen = cell(", call: 9")
    assert with_call(unseen, program(CALLS, reached_limit=True)) == unseen, "the program may make it later"
    assert with_call(unseen, None) == unseen


@pytest.mark.parametrize(
    ("timeout_s", "changes", "steps"),
    [
        (300.0, {}, None),  # an epoch takes 3 s, and has 300 / 4 / 2 / 2 of them
        (40.0, {}, 100),  # 2.5 s, of which 1 s is the epoch's end: 150 steps
        (4.0, {}, 10),  # never fewer
        (4.0, {"epoch_steps": 10}, None),
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
    found = {text: with_call(cell(text), call).settings.params.get("most_steps") for text in limits}
    assert found == limits
    assert [rounded_down(steps) for steps in (1, 4, 5, 19, 99, 100, 2501)] == [1, 2, 5, 10, 50, 100, 2000]
