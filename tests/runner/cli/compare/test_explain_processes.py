"""Planted differences between real cells are the first line of `runner explain`, on each backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.explanation import Explanation
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.store import Results
from keras_matrix.records.traces.programs import stored_programs
from keras_matrix.runner.cli.compare import explain
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.measure.traces import stored_traces

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[4]
# A step of PyTorch on several threads takes many times as long while another process computes.
MATRIX = """\
version: 1
defaults:
  {{repeats: 1, epochs: 3, discard: 1, samples: 1024, batch_size: 1024, steps_per_epoch: 5, threads: 1,
    trace: {{epochs: [1], steps: 10}}}}
backends: [{backend}]
cells:
{cells}
"""
NAMES = ("plain", "twice", "copied")
SOURCES = {"jax": "XLA", "tensorflow": "TensorFlow graph", "torch": "autograd graph"}

Explained = Callable[[str, str], tuple[Explanation, list[str]]]


@pytest.fixture
def explained(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Explained:
    """Measure and trace cells, and return what explains the difference of two of them, and the printed lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    seen: list[Explanation] = []
    plain = explain.explanation

    def noted(*arguments: Any) -> Explanation:
        seen.append(plain(*arguments))
        return seen[-1]

    monkeypatch.setattr(explain, "explanation", noted)

    def of(base: str, new: str) -> tuple[Explanation, list[str]]:
        run = Results(Path("results")).latest()
        assert run is not None
        found = {f"{r.settings.workload.partition(':')[2]} {r.settings.jit}": r.cell_id for r in run.load()[0]}
        capsys.readouterr()
        assert main(["explain", found[base], found[new], "--stored"], Seams()) == 0
        return seen[-1], capsys.readouterr().out.splitlines()

    return of


def measure(backend: str, *cells: str) -> None:
    entries = "\n".join(f"  - {{workload: 'tests.workloads.explained:{cell}}}" for cell in cells)
    Path("matrix.yaml").write_text(MATRIX.format(backend=backend, cells=entries))
    assert main(["--matrix", "matrix.yaml"], Seams()) == 0


@pytest.mark.one_backend("tensorflow")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_layer_that_is_twice_as_slow_and_one_more_copy_are_the_first_lines(explained: Explained, backend: str) -> None:
    """Mutation: `layers.claims` returns nothing."""
    measure(backend, *(f"{name}'" for name in NAMES))
    twice, lines = explained("plain auto", "twice auto")
    assert twice.differences[0].kind == "layer"
    assert twice.differences[0].title.startswith("layer product: matrix product 3 -> ")
    assert any(line.startswith("1.") and "layer product: matrix product" in line for line in lines)
    copied, lines = explained("plain auto", "copied auto")
    assert copied.differences[0].title.startswith("layer shifted: copy 0 -> ")
    for found in (twice, copied):
        parts = [*(one.share for one in found.differences), found.share(found.others_s + found.unexplained_s)]
        assert sum(parts) == pytest.approx(1)
    assert any(f"programs ({SOURCES[backend]})" in line for line in lines) or backend == "torch"
    run = Results(Path("results")).latest()
    assert run is not None
    for _, path in stored_traces(run, run.load()[0]):
        program, facts = stored_programs(path.parent)
        assert program is not None
        assert program.source == SOURCES[backend]
        assert facts.page_faults_per_step is not None


@pytest.mark.nightly
@pytest.mark.alone  # a step is a third slower without: less than what a test that runs at the same time may change
@pytest.mark.parametrize(
    ("backend", "base", "new"),
    [("jax", "True", "False"), pytest.param("tensorflow", "True", "False", marks=pytest.mark.nightly)],
)
def test_jit_that_is_off_is_the_first_line(explained: Explained, backend: str, base: str, new: str) -> None:
    """Mutation: `compile_mode.mode` returns "jit" for every step."""
    measure(backend, *(f"plain', jit: {jit.lower()}" for jit in (base, new)))
    found, lines = explained(f"plain {base}", f"plain {new}")
    assert found.differences[0].title == "compilation of the step: jit -> no jit"
    assert any(line.startswith("1.") and "compilation of the step: jit -> no jit" in line for line in lines)


@pytest.mark.nightly
def test_jit_that_is_off_is_the_first_line_on_torch(explained: Explained) -> None:
    """Mutation: `compile_mode.mode` returns "jit" for every step."""
    measure("torch", "plain', jit: true", "plain', jit: false")
    found, _ = explained("plain True", "plain False")
    assert found.differences[0].title == "compilation of the step: jit -> no jit"
