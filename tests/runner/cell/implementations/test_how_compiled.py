"""A native step is compiled as the model is, whose own compilation the cell's `jit` and `eager` determine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.models import twins
from keras_matrix.models.twins.interface import Compiled
from keras_matrix.runner.cell.implementations import StepTraining
from tests.conftest import make_settings


@pytest.mark.parametrize(
    ("jit_compile", "run_eagerly", "expected"),
    [
        (True, False, Compiled(jit=True, eager=False)),
        (False, False, Compiled(jit=False, eager=False)),
        (False, True, Compiled(jit=False, eager=True)),
        (True, True, Compiled(jit=False, eager=True)),
    ],
)
def test_native_step_is_compiled_as_the_model_is(
    monkeypatch: pytest.MonkeyPatch, jit_compile: bool, run_eagerly: bool, expected: Compiled
) -> None:
    """Mutation: `_make` compiles every step."""
    given: list[Any] = []

    def rungs(model: Any, workload: str, compiled: Compiled, seed: int) -> dict[str, Any]:
        given.append(compiled)
        return {"native": lambda: "the native step", "layers": lambda: "another one"}

    monkeypatch.setattr(twins, "load", lambda backend: SimpleNamespace(rungs=rungs))
    built: Any = SimpleNamespace(model=SimpleNamespace(jit_compile=jit_compile, run_eagerly=run_eagerly))
    job: Any = SimpleNamespace(settings=make_settings(implementation="native"))
    work = StepTraining(built, None, job, None)  # type: ignore[arg-type]
    assert (work._make(), given) == ("the native step", [expected])
