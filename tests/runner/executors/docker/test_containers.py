"""How a container ended, as its engine reports it."""

from __future__ import annotations

import signal
from typing import cast

import pytest

from keras_matrix.runner.executors.docker import containers
from keras_matrix.runner.executors.docker.engine import Engine


class LateEngine:
    """Learns of a kill for memory at its third question."""

    def __init__(self) -> None:
        self.questions = 0

    def oom_killed(self, container_id: str) -> bool:
        self.questions += 1
        return self.questions >= 3


@pytest.mark.parametrize(
    ("status", "expected", "questions"), [(signal.SIGKILL, True, 3), (1 << 8, False, 1), (0, False, 1)]
)
def test_engine_that_learns_late_of_a_kill_for_memory_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: bool, questions: int
) -> None:
    """Mutation: the engine is asked once."""
    monkeypatch.setattr(containers, "OOM_PAUSES_S", (0.0, 0.0, 0.0))
    engine = LateEngine()
    assert containers._oom_killed(cast(Engine, engine), "id", status) is expected
    assert engine.questions == questions
