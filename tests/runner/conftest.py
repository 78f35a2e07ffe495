"""Fixtures that several modules of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

MATRIX = """\
version: 1
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
    repeats: 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a small matrix: one workload on three backends, five repeats."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path
