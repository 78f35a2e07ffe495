"""The inputs that once failed or are known attacks, and a short fuzzing of every target: none gives a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import NIGHTLY
from tests.reliability.fuzz import engine
from tests.reliability.fuzz.target import corpus, load, names

SEED = 27
INPUTS = {"commands": 5, "http": 100, "logs": 100, "programs": 80 if NIGHTLY else 30, "traces_torch": 100}
INPUTS |= {"traces_xplane": 60, "traces_neutral": 150}
USUAL_INPUTS = 250
STORED = [
    pytest.param(
        "matrix",
        marks=pytest.mark.fault("F32", mutation="resolve() of scalars.py converts integers of any length"),
    ),
    pytest.param(
        "records", marks=pytest.mark.fault("F23", mutation="loads() of codec.py does not catch RecursionError")
    ),
    pytest.param(
        "results", marks=pytest.mark.fault("F3", mutation="_work_problem() of judge.py returns None for any counts")
    ),
    pytest.param("logs", marks=pytest.mark.fault("F10", mutation="in_log() of metric_match.py decodes a log strictly")),
    *("arguments", "commands", "programs", "stored_files", "tasks", "traces_neutral", "traces_torch", "traces_xplane"),
]


def test_stored_inputs_of_every_target_are_checked() -> None:
    """Mutation: a target with stored inputs is not in the list."""
    checked = {one if isinstance(one, str) else one.values[0] for one in STORED}
    assert checked == {name for name in names() if corpus(name)}


@pytest.mark.parametrize("target", STORED)
def test_stored_inputs_give_no_traceback(target: str, tmp_path: Path) -> None:
    """Mutation: for a target without a fault, a repair is undone: `left_out` looks up an arm that is a list."""
    failed = []
    with load(target).checking(tmp_path) as check:
        for path in corpus(target):
            try:
                with engine.limited(engine.HANG_S):
                    check(path.read_bytes())
            except Exception as error:  # noqa: BLE001 - whatever it is, it is listed
                failed.append(f"{path.name}: {error!r}")
    assert failed == []


@pytest.mark.process
@pytest.mark.parametrize("target", names())
def test_generated_inputs_give_no_traceback_and_most_are_accepted(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `malformed` of evidence.py returns None at once (results); a strategy makes only damaged inputs."""
    monkeypatch.setattr(engine, "store", lambda name, data: None)  # a failing test does not write into the corpus
    found = engine.run(target, INPUTS.get(target, USUAL_INPUTS), SEED)
    assert found.failures == {}
    assert found.accepted / found.inputs > load(target).least_accepted
