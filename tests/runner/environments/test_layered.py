"""A layer has its own packages first, then its folders, then everything of the base, which stays as it is."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from keras_matrix.runner.environments.layered import BaseEnvironment, Layer, base_of, distributions, layered
from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_versions
from tests.small_wheels import write_wheel

HERE = BaseEnvironment(sys.executable, {"keras": "3.15.0"})


def test_name_of_a_layer_depends_on_its_packages_and_on_those_of_the_base() -> None:
    names = {
        Layer(("keras==1",), (), HERE).name,
        Layer(("keras==2",), (), HERE).name,
        Layer(("keras==1",), ("/there",), HERE).name,
        Layer(("keras==1",), (), BaseEnvironment(sys.executable, {"keras": "3.15.1"})).name,
        Layer(("keras==1",), (), BaseEnvironment("/other/python", HERE.versions)).name,
    }
    assert len(names) == 5
    assert Layer(("keras==1",), (), HERE).name in names


@pytest.mark.process
def test_layer_imports_its_own_packages_then_its_folders_then_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: layer.pth names the base before the folders of the layer."""
    wheels, tree = tmp_path / "wheels", tmp_path / "tree"
    wheels.mkdir()
    tree.mkdir()
    (tree / "numpy.py").write_text("__version__ = 'of the folder'\n")
    (tree / "small.py").write_text("VALUE = 'of the folder'\n")
    write_wheel(wheels, "small", "1.0", "VALUE = 'of the layer'\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    base = base_of(sys.executable)
    folder = layered(Layer(("small==1.0",), (str(tree),), base), tmp_path / "cache", print)
    python = str(folder / "bin" / "python")
    code = "import numpy, psutil, small; print(numpy.__version__, small.VALUE)"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "of the folder of the layer\n"
    assert distributions(python) == {**base.versions, "small": "1.0"}
    assert distributions(sys.executable) == base.versions


@pytest.mark.process
@pytest.mark.nightly
def test_layer_is_made_again_for_a_wheel_that_was_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the name of the folder depends on the versions alone."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    layer = Layer(("small==1.0",), (), base_of(sys.executable))

    def value(source: str | None) -> str:
        if source is not None:
            write_wheel(tmp_path, "small", "1.0", source)
        folder = layered(layer, tmp_path / "cache", made.append)
        command = [str(folder / "bin" / "python"), "-c", "import small; print(small.VALUE)"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    made: list[str] = []
    assert [value("VALUE = 1\n"), value(None), value("VALUE = 2\n"), value(None)] == ["1", "1", "2", "2"]
    assert len(made) == 2


@pytest.mark.process
def test_version_of_keras_is_that_of_its_source_in_a_checkout_or_a_nightly_wheel(tmp_path: Path) -> None:
    """Mutation: `_FACTS` states the version of the distribution `keras`, here that of the base."""
    source = tmp_path / "keras" / "src"
    source.mkdir(parents=True)
    (tmp_path / "keras" / "__init__.py").write_text("raise SystemExit('nothing is imported')\n")
    (source / "version.py").write_text('from keras.src import x\n\n__version__ = "3.99.0.dev1"\n')
    folder = layered(Layer((), (str(tmp_path),), base_of(sys.executable)), tmp_path / "cache", print)
    found = Interpreter(str(folder / "bin" / "python"), foreign=True).versions()
    assert {"python", *installed_versions()} == {*found}
    assert (found["keras"], installed_versions()["keras"]) == ("3.99.0.dev1", version("keras"))
