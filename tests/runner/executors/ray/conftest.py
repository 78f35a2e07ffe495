"""An agent in this process, whose node is this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.executors.ray import agent as agents
from keras_matrix.runner.executors.ray.agent import Agent


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Agent:
    monkeypatch.setattr(agents, "restored", lambda: None)
    monkeypatch.setenv(agents.machine.HOST_VARIABLE, "")  # the agent sets it
    monkeypatch.setattr(agents.tree_memory, "end_leftovers", lambda mark: 0)
    monkeypatch.setattr(agents.tempfile, "gettempdir", lambda: str(tmp_path))
    return Agent("mark", "fork", {"machine": "one", "machine-type": "n1-standard-8"})
