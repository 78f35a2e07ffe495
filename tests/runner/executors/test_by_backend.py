"""Cells of single backends in Python environments of their own: the arm that a request becomes, and its executor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.settings import SCRIPT
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Contract
from keras_matrix.runner.executors.by_backend import ByBackend
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.measure.experiment import own_arm
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.messages import check_messages, refusal

Installed = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """A function that makes an environment with a Python, and returns its folder; each has its own versions."""
    versions_by_python: dict[str, Mapping[str, str]] = {}

    def answer(python: str, packages: tuple[str, ...]) -> dict[str, Any]:
        versions = versions_by_python[python]
        absent = [name for name in packages if name not in versions]
        return {"python": [3, 11, 7], "absent": absent, "versions": versions, "requires": {}}

    def make(versions: Mapping[str, str]) -> Path:
        python = tmp_path / f"env{len(versions_by_python)}" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        versions_by_python[str(python)] = versions
        return python.parents[1]

    monkeypatch.setattr(interpreter, "_facts", answer)
    return make


def request(environments: Mapping[str, Path], *, in_images: bool = False) -> Any:
    """Return a request whose command or matrix names these environments."""
    executors = SimpleNamespace(
        contract=Contract(local_software=not in_images),
        entry=SimpleNamespace(name="docker"),
        software=lambda cells: {"keras": "3.15.1"},
    )
    choice = SimpleNamespace(environments=dict)
    return SimpleNamespace(environments=environments, choice=choice, executors=executors)


def cells(*backends: str) -> Any:
    """Return cells of these backends."""
    return [SimpleNamespace(settings=replace(make_settings(), backend=name)) for name in backends]


KERAS = {"keras": "3.5.0", "numpy": "1.26.4"}


def test_one_environment_is_that_of_all_cells(installed: Installed) -> None:
    folder = installed({**KERAS, "jax": "0.4.31", "torch": "2.4.0"})
    arm = own_arm(request({"": folder}), cells("jax", "torch"))
    assert (arm.python, arm.pythons) == (str(folder / "bin" / "python"), {})
    assert arm.versions["keras"] == "3.5.0"


def test_each_backend_has_its_environment_and_the_others_the_runners_own(installed: Installed) -> None:
    folder = installed({**KERAS, "jax": "0.4.31"})
    arm = own_arm(request({"jax": folder}), cells("jax", "torch"))
    assert (arm.python, arm.pythons) == (None, {"jax": str(folder / "bin" / "python")})
    assert (arm.versions["keras"], arm.versions["keras (jax)"]) == ("3.15.1", "3.5.0")
    assert arm.identity() != own_arm(request({}), cells("jax", "torch")).identity()


def test_programs_alone_are_measured_on_keras_2(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    found = interpreter.of_environment(installed({**KERAS, "keras": "2.15.0", "tensorflow": "2.15.1"}), "--python")
    found.check("--python", ["tensorflow"], are_programs=True)
    assert (found.keras_2, interpreter.installed_backends(found)) == ("keras", ["tensorflow"])
    assert found.variables()["KERAS_BENCHMARK_KERAS_2"] == "keras"
    assert "TF_USE_LEGACY_KERAS" not in found.variables()


def test_tf_keras_is_used_if_tensorflow_is_told_to(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {**KERAS, "keras": "3.15.1", "tf_keras": "2.21.0", "tensorflow": "2.21.0"}
    found = interpreter.of_environment(installed(versions), "--base-env")
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    assert (found.keras_2, found.versions()["keras"]) == (None, "3.15.1")
    assert [*found.variables()] == ["PYTHONPATH"]
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert (found.keras_2, found.versions()["keras"], "tf_keras" in found.versions()) == ("tf_keras", "2.21.0", False)
    variables = found.variables()
    assert (variables["KERAS_BENCHMARK_KERAS_2"], variables["TF_USE_LEGACY_KERAS"]) == ("tf_keras", "1")
    without = interpreter.of_environment(installed({**KERAS, "tensorflow": "2.21.0"}), "--new-env")
    assert (without.keras_2, [*without.variables()]) == (None, ["PYTHONPATH"])


def test_a_request_for_programs_takes_keras_2(installed: Installed) -> None:
    folder = installed({**KERAS, "keras": "2.15.0", "tensorflow": "2.15.1"})
    (program,) = cells("tensorflow")
    program.settings = replace(program.settings, workload=f"{SCRIPT}train.py")
    assert own_arm(request({"": folder}), [program]).versions["keras"] == "2.15.0"


def test_every_environment_that_cannot_measure_its_cells_has_its_message(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Programs alone are measured on Keras 2, which runs on TensorFlow alone."""
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    jax, keras_2 = {**KERAS, "jax": "0.4.31"}, {**KERAS, "keras": "2.15.0", "tensorflow": "2.15.1"}
    older = {**KERAS, "keras": "2.14.0", "tensorflow": "2.14.1"}
    (program,), (build,) = cells("tensorflow"), cells("tensorflow")
    program.settings = replace(program.settings, workload=f"{SCRIPT}train.py")
    on_jax = [SimpleNamespace(settings=replace(program.settings, backend=name)) for name in ("tensorflow", "jax")]
    cases = {
        "a backend is not installed": (jax, cells("jax", "torch"), False),
        "Keras 2, a program and a build": (keras_2, [program, build], False),
        "Keras 2.14": (older, [program], False),
        "Keras 2, a program on JAX": ({**keras_2, **jax, "keras": "2.15.0"}, on_jax, False),
        "cells in images": (KERAS, cells("jax"), True),
    }
    messages = {
        title: refusal(UsageError, partial(own_arm, request({"": installed(versions)}, in_images=in_images), of_cells))
        for title, (versions, of_cells, in_images) in cases.items()
    }
    hidden = {title: [line.replace(str(tmp_path), "FOLDER") for line in lines] for title, lines in messages.items()}
    check_messages(golden, "environments.txt", hidden)


def test_cells_are_started_by_the_executor_of_their_backend() -> None:
    begun = list[str]()
    inner, of_jax = FakeExecutor(), FakeExecutor(absent=frozenset({"jax"}))
    starter: Any = SimpleNamespace(
        missing=of_jax.missing,
        begin_block=lambda settings: begun.extend(one.backend for one in settings),
        start=lambda job, timeout_s: ("jax", timeout_s),
        close=of_jax.close,
    )
    executor = ByBackend(inner, {"jax": starter})
    assert (executor.missing("torch"), bool(executor.missing("jax"))) == (None, True)
    job: Any = SimpleNamespace(settings=replace(make_settings(), backend="jax"))
    executor.begin_block([job.settings, replace(make_settings(), backend="torch")])
    assert (begun, executor.start(job, 3.0)) == (["jax"], ("jax", 3.0))
    executor.close()
    assert (inner.closed, of_jax.closed) == (True, True)


def test_the_runners_own_python_is_not_another_one() -> None:
    assert interpreter.Interpreter(sys.executable).variables() == {}
