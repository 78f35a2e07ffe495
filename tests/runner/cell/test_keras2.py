"""Programs on Keras 2: what a cell's modules find at `keras`, and real programs with tf_keras and TensorFlow's own."""

from __future__ import annotations

import ast
import importlib
import os
import re
import site
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.runner.cell import keras2
from keras_matrix.runner.cli.main import main
from tests.sessions import counted_records

PROGRAM = """\
try:
    import tf_keras as keras
except ImportError:
    import keras
import numpy as np

x = np.random.default_rng(0).random((1000, 8), dtype="float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=10.0)
model.fit(x, y, batch_size=64, epochs=2, validation_split=0.1, callbacks=[stop], verbose=0)
model.evaluate(x, y, batch_size=50, verbose=0)
model.predict(x, verbose=0)
"""
FIT = "fit train.py:12"
INSTALLED = metadata.version("keras")
MADE_BEFORE = os.environ.get("KERAS_2_ENVIRONMENT")  # of ci/keras2: so that TensorFlow is installed once
# Names to which the cell of a program on Keras 2 does not come: of RematScope, of a GPU, and of generation.
ONLY_ON_KERAS_3 = [
    "checks.remat: keras.RematScope",
    "checks.remat: keras.version",
    "checks.tf32: keras.ops.conv",
    "checks.tf32: keras.ops.convert_to_tensor",
    "checks.tf32: keras.ops.matmul",
    "options: keras.ops.zeros",
]
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 3}
backends: [tensorflow]
cells:
  - workload: {script: train.py}
  - workload: {script: train.py, most_steps: 5}
  - workload: {script: train.py, call: evaluate}
  - workload: {script: train.py, call: predict}
"""
COMPARED = """\
version: 1
defaults: {repeats: 2, epochs: 3}
backends: [tensorflow]
cells:
  - workload: {script: train.py}
"""


def test_names_are_added_to_what_is_imported_and_not_to_the_module() -> None:
    module = ModuleType("keras")
    vars(module).update(layers="layers", __version__="2.15.0")
    names = keras2.Names(module, ops="ops", layers="others")
    assert (names.ops, names.layers, names.__version__, names.__name__) == ("ops", "others", "2.15.0", "keras")
    assert (hasattr(module, "ops"), module.layers, hasattr(names, "config")) == (False, "layers", False)


def test_an_attribute_that_is_read_gives_way_to_an_objects_own() -> None:
    class Model:
        compiled_loss = SimpleNamespace(count=3)

    Model._loss_tracker = keras2.Read(lambda model: model.compiled_loss.count)  # type: ignore[attr-defined]
    model: Any = Model()
    assert model._loss_tracker == 3
    model._loss_tracker = 5
    assert (model._loss_tracker, isinstance(Model._loss_tracker, keras2.Read)) == (5, True)  # type: ignore[attr-defined]


def test_what_keras_3_states_of_models_optimizers_and_passes_is_read_of_those_of_keras_2() -> None:
    model, layer, legacy, scaled, handler = (
        type(name, (), {}) for name in ("Model", "Layer", "Legacy", "Scaled", "Handler")
    )
    keras: Any = SimpleNamespace(
        Model=model,
        layers=SimpleNamespace(Layer=layer),
        optimizers=SimpleNamespace(legacy=SimpleNamespace(Optimizer=legacy)),
        mixed_precision=SimpleNamespace(LossScaleOptimizer=scaled),
        src=SimpleNamespace(engine=SimpleNamespace(data_adapter=SimpleNamespace(DataHandler=handler))),
    )
    keras2.add_attributes(keras)
    of_model, of_optimizer, of_scaled, of_pass = model(), legacy(), scaled(), handler()
    of_model.compiled_loss = None
    assert of_model._loss_tracker is None
    of_model.compiled_loss = SimpleNamespace(_total_loss_mean="tracker")
    assert of_model._loss_tracker == "tracker"
    of_optimizer._get_hyper = {"learning_rate": 0.5}.get
    of_scaled.inner_optimizer, of_scaled.loss_scale = of_optimizer, 8.0
    assert (of_optimizer._learning_rate, of_scaled._learning_rate, of_scaled.dynamic_scale) == (0.5, 0.5, 8.0)
    of_pass.inferred_steps, of_pass.step_increment = 15, 3
    assert (of_pass.steps_per_epoch, of_pass.steps_per_execution) == (15, 4)


@pytest.mark.parametrize(("source", "is_read_anew"), [("TensorLikeDataAdapter", True), ("GeneratorDataAdapter", False)])
def test_arrays_are_read_anew_after_a_cut_and_generators_go_on(source: str, is_read_anew: bool) -> None:
    adapter = type(source, (), {"should_recreate_iterator": lambda self: False})()
    keras2.read_anew(SimpleNamespace(_adapter=adapter))
    assert adapter.should_recreate_iterator() is is_read_anew


@pytest.mark.parametrize("before", [None, ModuleType("keras")])
def test_keras_2_is_keras_only_while_the_modules_are_imported(
    monkeypatch: pytest.MonkeyPatch, before: ModuleType | None
) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    if before is not None:
        monkeypatch.setitem(sys.modules, "keras", before)
    names = keras2.Names(ModuleType("tf_keras"))
    with keras2.as_keras(names):
        within = sys.modules["keras"]
    assert (within is names, sys.modules.get("keras") is before) == (True, True)


def is_there(names: object, chain: str) -> bool:
    """Return whether a chain of attributes such as `config.floatx` exists."""
    for name in chain.split("."):
        if not hasattr(names, name):
            return False
        names = getattr(names, name)
    return True


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not INSTALLED.startswith("2."), reason="needs Keras 2 as keras: ci/keras2")
def test_every_name_of_keras_that_the_cell_uses_is_there_on_keras_2() -> None:
    """A name that a module of a program's cell begins to use must be added to those of Keras 2."""
    keras2.import_modules("keras")
    names = keras2.names_of_keras_3(*map(importlib.import_module, ("keras", "tensorflow")))
    prefix = "keras_matrix.runner.cell."
    files = {name.removeprefix(prefix): str(module.__file__) for name, module in sys.modules.items() if prefix in name}
    used = {
        (module, match[1])
        for module, file in files.items()
        for node in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(node, ast.Attribute) and (match := re.fullmatch(r"keras\.([\w.]+)", ast.unparse(node)))
    }
    assert len(used) >= 20
    assert {"script", "calls", "called_fit", "options"} <= {module for module, _ in used}
    missing = sorted(f"{module}: keras.{chain}" for module, chain in used if not is_there(names, chain))
    assert missing == ONLY_ON_KERAS_3


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a program that runs on Keras 2 where it is installed."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    return folder


def environment(folder: Path, *requirements: str, shared: bool) -> Path:
    """Return a virtual environment with these packages, `shared` besides the ones of this Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    if shared:
        text = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
        (packages / "shared.pth").write_text(f"import site; {text}\n")
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), *requirements]
    subprocess.run([*command, *(["--no-deps"] if shared else [])], check=True)
    return folder


def check(records: list[Record]) -> None:
    """Check what a program's calls of fit, whole and cut, of evaluate and of predict show on Keras 2."""
    assert [record.reason for record in records if record.status not in MEASURED] == []
    by_call = {(record.settings.params["call"], record.settings.params.get("most_steps")): record for record in records}
    fit, cut = by_call["fit:1", None], by_call["fit:1", 5]
    for record in records:
        assert record.versions["keras"].startswith("2.")
        assert record.device is not None
        assert record.device.platform == "cpu"
    assert fit.resolved is not None
    assert fit.work is not None
    resolved, work = fit.resolved, fit.work
    assert (resolved.call, resolved.steps_per_epoch, resolved.samples, resolved.batch_size) == (FIT, 15, 900, 64)
    assert (resolved.optimizer, resolved.optimizer_slots, resolved.precision) == ("Adam", 8, "float32")
    assert resolved.learning_rate == pytest.approx(1e-3)
    assert (resolved.parameters, resolved.jit_compile, resolved.weight_dtypes) == (161, False, ["float32"])
    assert (work.updates_per_step, work.samples_per_step, work.changed_variables) == (1.0, 60.0, 4)
    assert (work.weight_platforms, work.own_methods, resolved.own_compile_options) == (["cpu"], [], [])
    assert any(warning.startswith("stop_deferred: ") for warning in fit.warnings)
    assert (len(fit.learning.loss), set(fit.learning.metrics)) == (3, {"val_loss"})
    assert cut.resolved is not None
    assert (cut.resolved.steps_per_epoch, cut.times.whole_epoch_steps) == (5, 15)
    assert cut.resolved.samples == 320, "each cut epoch reads the first batches"
    assert any(warning.startswith("epoch_cut: ") for warning in cut.warnings)
    evaluate = by_call["evaluate:1", None]
    assert evaluate.resolved is not None
    assert (evaluate.resolved.samples, evaluate.settings.phase) == (1000, "predict")
    assert by_call["predict:1", None].times.samples_per_s


@pytest.mark.process
@pytest.mark.nightly(why="installs tf_keras from the package index, and measures for a minute")
def test_a_program_on_tf_keras_is_measured_and_compared_with_keras_3(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    minor = ".".join(metadata.version("tensorflow-cpu").split(".")[:2])
    folder = environment(tmp_path / "env", f"tf_keras~={minor}.0", shared=True)
    (project / "matrix.yaml").write_text(MATRIX)
    measuring = ["--matrix", str(project / "matrix.yaml"), "--results", str(tmp_path / "results")]
    assert main([*measuring, "--python", f"tensorflow={folder}"]) == 1
    assert "TF_USE_LEGACY_KERAS=1" in capsys.readouterr().out, "without the switch the calls of tf_keras are not seen"
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert main([*measuring, "--python", f"tensorflow={folder}"]) == 0
    check(counted_records(tmp_path))
    (project / "matrix.yaml").write_text(COMPARED)
    capsys.readouterr()
    assert main(["compare", *measuring, "--base-env", str(folder), "--json"]) == 0
    printed = capsys.readouterr().out
    assert f"Keras differs: base {minor}" in printed
    assert main(["--workload", "module:build", *measuring[2:], "--python", f"tensorflow={folder}"]) == 2
    assert "only programs are measured" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.nightly(why="downloads TensorFlow 2.15, 0.5 GB with what it needs")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="TensorFlow 2.15 has no build for this Python")
def test_a_program_on_tensorflows_own_keras_2_is_measured(project: Path, tmp_path: Path) -> None:
    made_before = Path(MADE_BEFORE).absolute() if MADE_BEFORE else None
    folder = made_before or environment(tmp_path / "env", "tensorflow-cpu==2.15.1", shared=False)
    (project / "matrix.yaml").write_text(MATRIX)
    measuring = ["--matrix", str(project / "matrix.yaml"), "--results", str(tmp_path / "results")]
    assert main([*measuring, "--python", f"tensorflow={folder}"]) == 0
    check(counted_records(tmp_path))
