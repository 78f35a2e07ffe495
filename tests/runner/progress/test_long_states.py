"""Lines about what takes long, without a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.plan.plan import order
from keras_matrix.runner.progress import lines
from keras_matrix.runner.progress.lines import FIRST_S, AttemptLines, LongStates, printing
from keras_matrix.runner.progress.time_left import CellNames, OutcomeText, TimeLeft
from tests.conftest import make_record

MATRIX = b"version: 1\nbackends: [jax, torch]\ndefaults: {repeats: 1}\ncells:\n  - workload: gru\n"


class Clock:
    """A clock that is set."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_state_is_printed_after_a_while_and_whenever_its_time_has_doubled() -> None:
    clock = Clock()
    states = LongStates(clock)
    printed = []
    for second in range(130):
        if second == 0:
            states.enter("measuring x")
        clock.now_s = 100.0 + second
        if line := states.due():
            printed.append((second, line.strip()))
    assert printed == [
        (15, "measuring x, 15 s so far"),
        (30, "measuring x, 30 s so far"),
        (60, "measuring x, 1 min 00 s so far"),
        (120, "measuring x, 2 min 00 s so far"),
    ]


def test_short_states_and_none_print_nothing() -> None:
    clock = Clock()
    states = LongStates(clock)
    for text in ("preparing x", "measuring x", ""):
        states.enter(text)
        clock.now_s += FIRST_S - 1
        assert states.due() is None
    clock.now_s += 1000
    assert states.due() is None


def test_every_state_of_an_attempt_has_its_text_until_it_ends() -> None:
    cells = expand(parse(Path("matrix.yaml"), MATRIX))
    repeats = order(cells, 0)
    view = AttemptLines(2, 0, TimeLeft({}, repeats), OutcomeText(()), CellNames(repeats))
    clock = Clock()
    view.states = LongStates(clock)
    found = []
    events: list[Callable[[], None]] = [
        lambda: view.calibrating(repeats[0].cell),
        lambda: view.begun(repeats[0]),
        lambda: view.interleaving(repeats),
        lambda: view.placed(repeats, "node-1"),
        lambda: view.ended(repeats[0], make_record(0.01)),
    ]
    for event in events:
        event()
        clock.now_s += FIRST_S
        found.append((view.states.due() or "").strip())
    one, both = view._names.label(repeats[0]), ", ".join(map(view._names.label, repeats))
    assert found == [
        f"calibrating {view._names.of(repeats[0].cell)}, 15 s so far",
        f"preparing {one}, 15 s so far",
        f"measuring {both}, 15 s so far",
        f"measuring {one} at node-1, 15 s so far",
        "",
    ]


def test_lines_are_printed_by_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "POLL_S", 0.0)
    clock = Clock()
    states = LongStates(clock)
    states.enter("measuring x")
    clock.now_s += FIRST_S
    printed: list[str] = []
    with printing(states, printed.append):
        while not printed:
            pass
    assert printed == ["        measuring x, 15 s so far"]
