"""The service `report` of compose.yaml: one table of the runs in ./results, with any further arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import MACHINE, make_settings
from tests.docker.containers import compose, need
from tests.sessions import processes, run_name, store_session

pytestmark = pytest.mark.docker
BACKENDS = ("tensorflow", "jax", "torch")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the synthetic run of each service."""
    need("dashboard")
    (tmp_path / "matrices").mkdir()
    (tmp_path / "matrix.yaml").write_text("version: 1\ncells: []\n")
    for number, backend in enumerate(BACKENDS):
        found = processes(0.01, settings=make_settings(backend=backend), machine=replace(MACHINE, container="docker"))
        store_session(tmp_path / "results", run_name(number), found, matrix_path="matrix.yaml", command=["runner"])
    return tmp_path


def test_the_service_merges_the_runs_of_the_results_folder(project: Path) -> None:
    done = compose(project, "run", "--rm", "-T", "report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "merge of 3 runs on one machine" in done.stdout
    assert "report: results/merged/report.html" in done.stdout
    page = project / "results" / "merged" / "report.html"
    assert "Merge of 3 runs" in page.read_text(encoding="utf-8")
    assert (page.stat().st_uid, page.stat().st_gid) == (project.stat().st_uid, project.stat().st_gid)


def test_callers_arguments_are_added_to_the_merge(project: Path) -> None:
    done = compose(project, "run", "--rm", "-T", "report", "--json", run_name(0), run_name(2))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["merge"]
    assert [run["backends"] for run in found["runs"]] == [["tensorflow"], ["torch"]]
    assert not (project / "results" / "merged").exists()
