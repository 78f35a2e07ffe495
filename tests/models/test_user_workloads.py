"""A user's own workload: every error before its model is used, and the documented example."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_matrix.models.registry import load
from keras_matrix.models.user_workload import WorkloadNotFound
from keras_matrix.models.workload import Request, UnsupportedWorkload

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MODULE = """
import numpy as np
number = 3
def single(): return 1
def lists(): return None, [1.0], np.zeros(1)
def objects(): return None, np.array([["a"], [3]], dtype=object), np.zeros(2)
def scalar(): return None, np.float32(1), np.zeros(1)
def unequal(): return None, np.zeros((3, 1)), {"a": np.zeros(3), "b": np.zeros(2)}
def empty(): return None, np.zeros((0, 2)), np.zeros(0)
def wide(width): return None
def breaks(): raise LookupError("the user's own")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_workloads.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_workloads", None)


def refused(kind, name, data="synthetic", **params):
    with pytest.raises(kind) as raised:
        load(name)(Request(params, data, None))
    return str(raised.value)


@pytest.mark.usefixtures("own")
class TestRefusals:
    def test_name_must_be_a_path_to_a_function(self):
        assert "package.module:function. Received: 'a b:c'" in refused(ValueError, "a b:c")
        assert "package.module:function. Received: 'own_workloads:'" in refused(ValueError, "own_workloads:")

    def test_a_module_that_is_not_there(self):
        expected = "no_such.module:build: no module named 'no_such'"
        assert refused(WorkloadNotFound, "no_such.module:build") == expected

    def test_a_module_that_is_missing_in_a_package_is_refused_with_the_folders_of_the_package(self, tmp_path):
        (tmp_path / "own_package").mkdir()
        missing = "own_package.no_such:build: no module named 'own_package.no_such' in 'own_package'"
        assert refused(ValueError, "own_package.no_such:build") == f"{missing} ({tmp_path}/own_package)"
        missing = "own_workloads.no_such:build: no module named 'own_workloads.no_such' in 'own_workloads'"
        assert refused(ValueError, "own_workloads.no_such:build") == f"{missing} (a module, not a package)"

    def test_import_error_within_the_users_module_is_passed_on(self):
        assert refused(ModuleNotFoundError, "own_broken:build") == "No module named 'no_such_dependency'"

    def test_a_function_that_is_not_there_is_answered_with_a_near_one(self):
        expected = "own_workloads:singel: module 'own_workloads' has no 'singel' (did you mean 'single'?)"
        assert refused(ValueError, "own_workloads:singel") == expected

    def test_non_callable_is_rejected(self):
        assert refused(TypeError, "own_workloads:number") == "own_workloads:number: must be a function. Received: 3"

    def test_parameters_the_function_does_not_take(self):
        expected = "own_workloads:wide: missing a required argument: 'width'. Received: params={}"
        assert refused(TypeError, "own_workloads:wide") == expected
        assert "unexpected keyword argument 'depth'" in refused(TypeError, "own_workloads:single", depth=1)

    def test_data_that_is_not_its_own(self):
        assert "brings its own data" in refused(UnsupportedWorkload, "own_workloads:single", data="digits")

    @pytest.mark.parametrize(
        ("name", "kind", "message"),
        [
            (
                "single",
                TypeError,
                "must return (model, x), (model, x, y), (model, x, y, sample_weight), (model, source) or "
                "keras_matrix.Fit(model, x=..., ...). Received: int",
            ),
            ("lists", TypeError, "x must be a numpy array. Received: float"),
            (
                "objects",
                TypeError,
                "x must be rows of numbers or strings. Received: shape (2, 1), dtype object",
            ),
            ("scalar", TypeError, "x must be a numpy array. Received: float32"),
            ("unequal", ValueError, "x and y must be equally long. Received lengths: [2, 3]"),
            ("empty", ValueError, "x and y are empty"),
        ],
    )
    def test_result_of_a_users_workload_is_checked(self, name, kind, message):
        assert refused(kind, f"own_workloads:{name}") == f"own_workloads:{name}: {message}"

    def test_an_exception_of_the_users_own_code_passes_through(self):
        assert refused(LookupError, "own_workloads:breaks") == "the user's own"


PROGRAM = """
import json, sys, warnings
import keras_matrix
assert keras_matrix.Fit(None, x=1).arguments == {"x": 1, "y": None}
assert not {"numpy", "keras", "keras_matrix.runner"} & set(sys.modules), "keras_matrix.Fit must be light"
warnings.simplefilter("ignore")
import keras
import numpy as np
from keras_matrix.models.registry import load
from keras_matrix.models.workload import Request

def uncompiled(): return keras.Sequential([keras.layers.Dense(1)]), np.zeros((2, 3)), np.zeros((2, 1))
def no_model(): return "model", np.zeros((2, 3)), np.zeros((2, 1))
def unbuilt():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, np.zeros((2, 3)), np.zeros((2, 1))

def message(name):
    try:
        return load("__main__:" + name)(Request({}, "synthetic", None)).model.count_params()
    except (TypeError, ValueError) as problem:
        return type(problem).__name__ + ": " + str(problem)

built = load("my_workload:build")(Request({"width": 16}, "synthetic", None))
x, y = built.samples(2001, 0)
print(json.dumps({
    "parameters": built.model.count_params(), "x": x.shape, "y": y.shape,
    "wraps": bool((x[0] == x[1000]).all() and (x[0] == x[2000]).all()),
    "loss": float(built.model.train_on_batch(x[:8], y[:8])),
    **{name: message(name) for name in ("uncompiled", "no_model", "unbuilt")},
}))
"""


@pytest.mark.process
def test_the_documented_example_builds_and_trains_and_models_that_cannot_are_refused():
    path = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parents[1])])
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert np.isfinite(seen.pop("loss"))
    assert seen == {
        "parameters": 32 * 16 + 16 + 16 + 1,
        "x": [2001, 32],
        "y": [2001, 1],
        "wraps": True,
        "uncompiled": "ValueError: __main__:uncompiled: the model is not compiled; "
        "call model.compile(optimizer=..., loss=...)",
        "no_model": "TypeError: __main__:no_model: the model must be a keras.Model. Received: builtins.str",
        "unbuilt": 4,
    }


def test_the_documented_example_is_the_file_and_fits_in_fifteen_lines_of_code():
    example = (EXAMPLES / "my_workload.py").read_text()
    assert example in (EXAMPLES.parent / "tutorials" / "your-own-model.md").read_text()
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
