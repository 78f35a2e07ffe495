"""Runs of a matrix with the fake executor: new, continued, and with the state of a killed one."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.reliability.failpoints.scenario import Scenario, doubled_records

MATRIX = """\
version: 1
backends: [jax, torch]
cells:
  - workload: mnist_mlp
    repeats: 2
"""
PLANNED = 4


def prepare(folder: Path) -> None:
    """Write the matrix."""
    (folder / "matrix.yaml").write_text(MATRIX)


def measure(folder: Path, *arguments: str) -> int:
    """Measure the matrix."""
    results = str(folder / "results")
    return main(["--matrix", "matrix.yaml", "--results", results, *arguments], Seams(executor=FakeExecutor()))


def incomplete(folder: Path) -> list[str]:
    """Return what is missing of the newest run, and what it has twice."""
    results = folder / "results"
    run = Results(results).latest()
    found = len(latest_attempts(run.load()[0])) if run else 0
    missing = [] if found == PLANNED else [f"lost: {PLANNED - found} of {PLANNED} repeats were not measured"]
    page = run.folder / "report.html" if run else results
    if not page.is_file() or not page.read_text().rstrip().endswith("</html>"):
        missing.append(f"torn: {page}")
    return [*missing, *doubled_records(results)]


def prepare_half(folder: Path) -> None:
    """Leave a run of which half of the repeats are published, with the scratch files of its killed runner."""
    prepare(folder)
    assert measure(folder) == 0
    run = Results(folder / "results").latest()
    assert run is not None
    for path in sorted((run.folder / "records").glob("*.json"))[:2]:
        path.unlink()
    for name in ("finished.json", "findings.json", "report.html"):
        (run.folder / name).unlink()
    (run.folder / "work" / "cell").mkdir(parents=True)
    (run.folder / "records" / ".left.1.tmp").write_text("{")


SCENARIOS = (
    Scenario("run", measure, prepare, differences=incomplete, warm=measure),
    Scenario("resume", measure, prepare_half, differences=incomplete, warm=measure),
)
