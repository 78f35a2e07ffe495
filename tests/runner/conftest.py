"""Fixtures that several modules of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import transcripts
from tests.transcripts import Transcript

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


@pytest.fixture
def transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Transcript:
    """What commands print in the test's folder, for its golden file."""
    return transcripts.begin(tmp_path, monkeypatch, capsys)
