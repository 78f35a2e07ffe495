"""Tests of the process tier whose backend this Python lacks are skipped with the reason; no others are."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import backends

HERE = "{}.{}".format(*sys.version_info[:2])


def item(*marks: pytest.MarkDecorator, function: Any = lambda: None, **params: Any) -> Any:
    own = [mark.mark for mark in marks]
    return SimpleNamespace(
        callspec=SimpleNamespace(params=params),
        function=function,
        get_closest_marker=lambda name: next((mark for mark in own if mark.name == name), None),
        iter_markers=lambda name: [mark for mark in own if mark.name == name],
    )


@pytest.mark.parametrize("params", [{"backend": "torch"}, {"pair": ("jax", "torch")}, {"case": {"torch": 1}}])
def test_a_test_is_skipped_where_a_backend_of_its_parameters_is_missing(
    monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    monkeypatch.setattr(backends, "INSTALLED", ("tensorflow", "jax"))
    assert backends.why_not(item(pytest.mark.process, **params)) == f"no torch for Python {HERE}"
    assert backends.why_not(item(**params)) is None  # of the unit tier
    monkeypatch.setattr(backends, "INSTALLED", ("jax", "torch"))
    assert backends.why_not(item(pytest.mark.process, **params)) is None


def test_a_mark_names_backends_that_no_parameter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "INSTALLED", ("tensorflow",))
    both = item(pytest.mark.process, pytest.mark.backends("torch", "jax", "tensorflow"), case="torchvision")
    assert backends.why_not(both) == f"no jax and no torch for Python {HERE}"
    assert backends.why_not(item(pytest.mark.process, case="torchvision")) is None


def test_the_code_of_a_test_names_what_no_parameter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: a case of another backend is skipped because its test also has text about PyTorch."""
    monkeypatch.setattr(backends, "INSTALLED", ("jax",))
    code = {"function": lambda cell: cell(backend="torch")}
    assert backends.why_not(item(pytest.mark.process, **code)) == f"no torch for Python {HERE}"
    assert backends.why_not(item(pytest.mark.process, **code, backend="jax")) is None
    assert backends.why_not(item(pytest.mark.process, pytest.mark.backends, **code)) is None


def test_a_test_of_a_backend_that_does_not_train_needs_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backends, "APART", {"openvino": tmp_path})
    apart = item(pytest.mark.process, pytest.mark.backends("openvino"))
    assert backends.why_not(apart) == "no openvino: make its environment with ci/environment openvino-cpu"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert backends.why_not(apart) is None
