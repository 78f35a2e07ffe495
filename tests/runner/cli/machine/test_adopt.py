"""`runner adopt`: a project is read and never run, and its first matrix measures its programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.matrix.reader import expand, load
from keras_matrix.runner.service import adopt
from tests.golden import Golden
from tests.transcripts import Transcript

MARK = "from pathlib import Path\nPath('was_run').write_text('x')\n"
PROGRAM = "import keras\nmodel = keras.Sequential([keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
FIT = PROGRAM + "model.fit([[1.0]], [1.0])\n"
FILES = {
    "train.py": FIT,
    "gan.py": "import tensorflow as tf\n" + PROGRAM + "for step in range(9):\n    with tf.GradientTape() as tape:\n"
    "        loss = model(step)\n",
    "finetune.py": "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--data', required=True)\n" + FIT,
    "lib/steps.py": "import keras\nimport tensorflow as tf\nclass Mine(keras.Model):\n    def train_step(self, data):\n"
    "        with tf.GradientTape() as tape:\n            return {'loss': tf.reduce_mean(data)}\n",
    "own_step.py": "import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\nfrom lib.steps import Mine\n"
    "import keras\nMine().fit([1.0])\n",
    "infer.py": PROGRAM + "print(model.predict([[1.0]]))\n",
    "old.py": "import tf_keras\ntf_keras.Sequential().fit([1.0])\n",
    "broken.py": "print(\n",
    "tests/test_train.py": "import keras\ndef test_fit():\n    keras.Sequential().fit([1.0])\n",
    ".venv/lib/keras.py": FIT,
    "env/pyvenv.cfg": "",
    "env/lib/train.py": FIT,
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of which each module would leave a mark if it were run, and the folder in which commands are given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Interpreter, "absent", lambda self, asked: [])
    monkeypatch.syspath_prepend(tmp_path / "project")
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MARK + text if name.endswith(".py") else text)
    (tmp_path / "project" / "pyproject.toml").touch()
    return tmp_path / "project"


def test_what_adopt_prints_and_writes(project: Path, transcript: Transcript, golden: Golden, tmp_path: Path) -> None:
    (project / "empty").mkdir()
    (project / "empty" / "a.py").write_text("print(1)")
    transcript.run(
        "adopt --list project",
        "adopt project",
        "adopt project",
        "adopt project/finetune.py",
        "adopt project/broken.py",
        "adopt project/empty",
        "adopt project --data x",
        "adopt nowhere",
    )
    matrix_text = (project / "matrix.yaml").read_text()
    golden.check("adopt.txt", f"{transcript.text}\n# matrix.yaml\n{matrix_text}".replace(str(tmp_path), "/FOLDER"))


def test_nothing_of_the_project_is_run_or_written_but_the_matrix(project: Path) -> None:
    """Mutation: the program is imported for its arguments."""
    before = set(project.rglob("*"))
    assert main(["adopt", "project"]) == 0
    assert set(project.rglob("*")) - before == {project / "matrix.yaml"}
    assert not (project.parent / "was_run").exists()


def test_the_matrix_has_each_program_on_the_backends_that_it_allows(project: Path) -> None:
    assert main(["adopt", "project"]) == 0
    cells = expand(load(project / "matrix.yaml"))
    assert {(cell.settings.script, cell.settings.backend, cell.settings.phase) for cell in cells} == {
        *(("train.py", name, "fit") for name in TRAINING_BACKENDS),
        *(("infer.py", name, "predict") for name in TRAINING_BACKENDS),
        ("own_step.py", "tensorflow", "fit"),
    }


def test_a_program_with_its_arguments_is_measured_with_them(project: Path) -> None:
    assert main(["adopt", "project/finetune.py", "--data", "some images"]) == 0
    cells = expand(load(project / "matrix.yaml"))
    assert {cell.settings.params["args"] for cell in cells} == {"--data 'some images'"}
    assert [cell.settings.backend for cell in cells] == list(TRAINING_BACKENDS)


def test_only_installed_backends_are_in_the_matrix(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interpreter, "absent", lambda self, asked: [name for name in asked if name == "tensorflow"])
    assert main(["adopt", "project"]) == 0
    assert {cell.settings.backend for cell in expand(load(project / "matrix.yaml"))} == {"jax", "torch"}
    assert "own_step.py: needs tensorflow, not installed here" in (project / "matrix.yaml").read_text()


def test_a_matrix_that_is_there_stays_as_it_is(project: Path) -> None:
    (project / "matrix.yaml").write_text("mine")
    assert main(["adopt", "project"]) == 2
    assert (project / "matrix.yaml").read_text() == "mine"


def test_the_document_names_each_restriction_with_its_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "--list", "--json", "project"]) == 0
    document = json.loads(capsys.readouterr().out)
    (own_step,) = [program for program in document["programs"] if program["path"] == "own_step.py"]
    assert own_step["backends"] == ["tensorflow"]
    assert own_step["restrictions"][1] == {
        "use": "tf.GradientTape",
        "place": {"file": "lib/steps.py", "line": 7},
        "backends": ["jax", "torch"],
    }
    assert document["written"] is None


def test_a_project_of_too_many_files_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "MOST_SOURCES", 3)
    assert main(["adopt", "project"]) == 2


def test_unreadable_large_and_endless_files_are_named_and_left_out(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(adopt, "SOURCE_LIMIT_BYTES", 1000)
    (project / "large.py").write_text("#" * 1001)
    (project / "loop.py").symlink_to("loop.py")
    (project / "back").symlink_to(project)
    assert main(["adopt", "--list", "--json", "project"]) == 0
    assert {"broken.py", "large.py", "loop.py"} == set(json.loads(capsys.readouterr().out)["unread"])


def environment(folder: Path, *packages: str, python: str = "3.11") -> Path:
    """Make a pretended environment, whose Python would leave a mark if it were started."""
    site = folder / "lib" / f"python{python}" / "site-packages"
    for name in packages:
        (site / name).mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f"#!/bin/sh\ntouch {folder.parent.parent}/was_run\n")
    (folder / "bin" / "python").chmod(0o755)
    return folder


KERAS = ("keras", "keras-3.12.0.dist-info")
PROBLEMS = {
    "has Python 3.9; cells need 3.11 or newer": (*KERAS, "jax"),
    "has no Keras": ("jax",),
    "has Keras 2.15.0; cells need 3.5 or newer": ("keras", "keras-2.15.0.dist-info", "tensorflow"),
    "has none of tensorflow, jax, torch, openvino": KERAS,
}


def test_cells_run_in_the_environment_of_the_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: the backends of the matrix are those of the runner's own environment."""
    environment(project / "old_env", *KERAS)  # without a backend
    environment(project / ".venv2", *KERAS, "jax", "torch")
    assert main(["adopt", "project"]) == 0
    assert "environment: .venv2 is the cells' (jax, torch)" in capsys.readouterr().out
    matrix = load(project / "matrix.yaml")
    assert matrix.environments == {"": ".venv2"}
    assert {cell.settings.backend for cell in expand(matrix)} == {"jax", "torch"}
    assert "own_step.py: needs tensorflow, not installed in .venv2" in (project / "matrix.yaml").read_text()
    assert not (project.parent / "was_run").exists()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_environment_in_which_no_cell_can_run_is_named_and_not_used(
    project: Path, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment(project / "venv", *PROBLEMS[problem], python="3.9" if "3.9" in problem else "3.13")
    assert main(["adopt", "project"]) == 0
    assert f"environment: venv {problem}\n" in capsys.readouterr().out
    assert f"\n# venv {problem}: the cells use the runner's own environment.\n" in (project / "matrix.yaml").read_text()
    assert load(project / "matrix.yaml").environments == {}


def test_environment_with_packages_of_another_one_may_have_every_backend(project: Path) -> None:
    (environment(project / ".venv3", "pip") / "pyvenv.cfg").write_text("include-system-site-packages = True\n")
    assert main(["adopt", "project"]) == 0
    matrix = load(project / "matrix.yaml")
    assert (matrix.environments, {cell.settings.backend for cell in expand(matrix)}) == (
        {"": ".venv3"},
        {*TRAINING_BACKENDS},
    )
