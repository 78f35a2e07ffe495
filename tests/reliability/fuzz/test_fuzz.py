"""The inputs that once failed or are known attacks, and a short fuzzing of every target: none gives a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.fuzz import engine
from tests.reliability.fuzz.target import corpus, load, names

SEED = 27
INPUTS = {"commands": 5, "http": 100, "logs": 100, "traces_torch": 100, "traces_xplane": 60, "traces_neutral": 150}
USUAL_INPUTS = 250
FAULTS = {
    "matrix": ("F32", "resolve() of strict_yaml.py converts integers of any length"),
    "records": ("F23", "loads() of codec.py does not catch RecursionError"),
    "results": ("F3", "_work_problem() of judge.py returns None for any counts"),
    "logs": ("F10", "in_log() of match.py decodes the log strictly"),
}


def marked(target: str) -> object:
    """Return a target with the fault that its stored inputs show."""
    number, mutation = FAULTS.get(target, (None, ""))
    return pytest.param(target, marks=[pytest.mark.fault(number, mutation=mutation)] if number else [])


@pytest.mark.parametrize("target", [marked(name) for name in names() if corpus(name)])
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
    """Mutation: `malformed` of work_judge.py returns None at once (results); a strategy makes only damaged inputs."""
    monkeypatch.setattr(engine, "store", lambda name, data: None)  # a failing test does not write into the corpus
    found = engine.run(target, INPUTS.get(target, USUAL_INPUTS), SEED)
    assert found.failures == {}
    assert found.accepted / found.inputs > 0.5
