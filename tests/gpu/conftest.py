"""The fake NVIDIA driver library, compiled once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.fake_nvml import FakeDriver, build, load_into_this_process


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled library."""
    return build(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    """What the fake library reports in this test."""
    return FakeDriver(tmp_path / "nvml.txt")


@pytest.fixture
def pynvml(fake_library: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`pynvml` over the fake library, in this process."""
    return load_into_this_process(fake_library, driver, monkeypatch)
