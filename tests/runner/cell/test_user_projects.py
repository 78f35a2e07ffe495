"""A user's project is measured whatever its packages are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.schema import MEASURED
from keras_matrix.records.settings import BACKENDS
from keras_matrix.runner.cli.main import main
from tests.projects.layouts import lay_out
from tests.sessions import counted_records

pytestmark = pytest.mark.process


def run(folder: Path, *arguments: str) -> int:
    return main(["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results"), *arguments])


@pytest.mark.parametrize(("layout", "start"), [("flat", "fresh"), ("src", "fork")])
def test_a_project_with_our_package_names_is_measured_on_every_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, start: str
) -> None:
    lay_out(tmp_path, layout)
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, "--start", start) == 0
    records = counted_records(tmp_path)
    assert {record.settings.backend for record in records} == set(BACKENDS)
    assert [record.reason for record in records if record.status not in MEASURED] == []
