"""Without the requirements of torch.compile the cell is unsupported, with advice what to install."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.runner.cell.backends import Unsupported
from tests.conftest import make_settings

pytestmark = pytest.mark.process  # importing PyTorch takes seconds


@pytest.fixture
def torch_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch's adapter, in an environment that names no compiler."""
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    return importlib.import_module("keras_matrix.runner.cell.backends.torch")


def reason(backend: Any, device: str) -> str:
    with pytest.raises(Unsupported) as caught:
        backend.Adapter().configure(make_settings(backend="torch", device=device, league="matched"), None)
    return str(caught.value)


def test_missing_compiler_is_reported_with_its_package(torch_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert reason(torch_backend, "cpu") == (
        "jit: torch.compile needs a C++ compiler on a CPU: install g++ or clang, or set CXX"
    )
    assert reason(torch_backend, "gpu") == (
        "jit: torch.compile needs a C compiler on a GPU, for Triton: install gcc and libc6-dev, or set CC"
    )


def test_missing_python_headers_are_named_on_a_gpu_only(
    torch_backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert reason(torch_backend, "gpu") == (
        f"jit: torch.compile needs Python's headers on a GPU, for Triton: install python3-dev, {tmp_path}/Python.h is "
        "missing"
    )
    assert torch_backend._missing_for_compile("cpu") is None
    (tmp_path / "Python.h").touch()
    assert torch_backend._missing_for_compile("gpu") is None


def test_league_matched_turns_tf32_off_in_every_operation(torch_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = torch_backend.torch.backends
    monkeypatch.setattr(torch_backend, "_missing_for_compile", lambda device: None)
    before = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    try:
        backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = True
        torch_backend.Adapter().configure(make_settings(backend="torch", device="gpu", league="matched"), None)
        operations = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
        assert [one.fp32_precision for one in operations] == ["ieee"] * 3
    finally:
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = before


def test_options_of_a_matrix_reach_torch_compile_and_the_precision_of_products(
    torch_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: the options are not passed on, or win over those that a program gives itself."""
    given: list[dict[str, object]] = []
    torch = torch_backend.torch
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.append(options))
    monkeypatch.setattr(torch_backend, "_missing_for_compile", lambda device: None)
    before = torch.get_float32_matmul_precision()
    options = {"jit": True, "torch_compile": "dynamic=false mode=max-autotune", "matmul_precision": "high"}
    try:
        torch_backend.Adapter().configure(make_settings(backend="torch", **options), None)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    torch.compile(len)
    torch.compile(len, dynamic=True)
    assert given == [{"dynamic": False, "mode": "max-autotune"}, {"dynamic": True, "mode": "max-autotune"}]
