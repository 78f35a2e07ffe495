"""`import keras_matrix` imports nothing else, and no use of the API imports Keras or a backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import keras_matrix as km
from keras_matrix.runner import api
from tests.runner.api.conftest import measured

BACKENDS = {"keras", "tensorflow", "jax", "torch", "numpy", "keras_matrix.models"}


def modules_after(script: str) -> set[str]:
    """Return the modules that a script adds to those of an interpreter's start."""
    code = f"import sys\nbefore = set(sys.modules)\n{script}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.process
def test_import_of_the_package_imports_nothing_of_it() -> None:
    found = modules_after("import keras_matrix")
    assert {name for name in found if name.startswith("keras_matrix")} == {"keras_matrix"}
    assert found & BACKENDS == set()


@pytest.mark.process
def test_no_use_of_a_stored_run_imports_a_backend(folder: Path) -> None:
    measured(repeats=1)
    uses = (
        "run = km.load(); run.cells; run.comparisons; repr(run); run._repr_html_(); run.to_frame('dict'); run.report()"
    )
    found = modules_after(f"import keras_matrix as km\n{uses}")
    assert "keras_matrix.runner.api.measuring" in found
    assert found & (BACKENDS - {"numpy"}) == set()  # SciPy's distributions import NumPy


def test_package_has_the_names_of_the_api() -> None:
    names = [name for name in km.__all__ if name not in km._OF_THE_CELLS_SIDE]
    assert names == api.__all__
    assert [getattr(km, name) for name in names] == [getattr(api, name) for name in names]
    assert [getattr(km, name).__name__ for name in km._OF_THE_CELLS_SIDE] == ["Fit", "step", "steps"]
    assert set(km.__all__) <= set(dir(km))
    with pytest.raises(AttributeError, match="module 'keras_matrix' has no attribute 'lod'"):
        km.lod  # type: ignore[attr-defined]  # noqa: B018
