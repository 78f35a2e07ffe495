"""An environment that cannot run the cells is refused before anything is measured, and conflicts in it are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.executors.process.interpreter import Interpreter

Facts = Callable[..., None]
ENVIRONMENT = Interpreter("/old/bin/python", foreign=True)


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Facts:
    """A function that sets what is installed in an environment: versions, requirements, and absent packages."""

    def install(versions: dict[str, str], requires: dict[str, Any] | None = None, absent: tuple[str, ...] = ()) -> None:
        def answer(python: str, packages: tuple[str, ...]) -> dict[str, Any]:
            absent_names = [name for name in packages if name in absent]
            return {"python": [3, 11, 7], "absent": absent_names, "versions": versions, "requires": requires or {}}

        monkeypatch.setattr(interpreter, "_facts", answer)

    return install


@pytest.mark.parametrize(
    ("versions", "absent", "problem"),
    [
        ({"keras": "3.5.0"}, (), None),
        ({"keras": "3.15.1"}, (), None),
        ({"keras": "a checkout"}, (), None),
        ({"keras": "3.4.1"}, (), "has Keras 3.4.1; install Keras 3.5 or newer there"),
        ({}, ("keras", "jax"), "has no keras, jax; install them there, or choose other backends with --backend"),
    ],
)
def test_environment_that_cannot_run_the_cells_is_refused(
    facts: Facts, versions: dict[str, str], absent: tuple[str, ...], problem: str | None
) -> None:
    facts(versions, absent=absent)
    if problem is None:
        ENVIRONMENT.check("--base-env", ["jax"])
        return
    with pytest.raises(UsageError) as raised:
        ENVIRONMENT.check("--base-env", ["jax"])
    assert str(raised.value) == f"--base-env: /old/bin/python {problem}"


def test_a_package_in_another_version_than_the_backend_requires_is_named(facts: Facts) -> None:
    facts(
        {"keras": "3.5.0", "tensorflow": "2.16.1", "jax": "0.4.30"},
        {
            "keras": {"numpy": "2.0.1", "ml-dtypes; extra == 'none'": "0.1"},
            "tensorflow": {"numpy<2.0.0,>=1.23.5": "2.0.1", "keras>=3.0.0": "3.5.0"},
            "jax": {"numpy<1": "2.0.1"},
        },
    )
    assert ENVIRONMENT.conflicts(["tensorflow"]) == [
        "/old/bin/python: tensorflow 2.16.1 requires numpy<2.0.0,>=1.23.5, but has 2.0.1"
    ]
