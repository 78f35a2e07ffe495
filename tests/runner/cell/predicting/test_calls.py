"""The calls of a model and the comparison of their outputs, with fakes of models and backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_matrix.records.epoch_figures import call_interval, call_quantile
from keras_matrix.records.settings import CALLS, COMPILED, DIRECT, EXPORTED, ON_BATCH, ON_DEVICE, WHOLE
from keras_matrix.runner.cell.artefacts import RUNTIMES
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.exporting import reason_of, unequal_shapes
from keras_matrix.runner.cell.predicting import WAYS, Predicting, deviation_of, inference_arguments
from tests.conftest import make_settings

INPUTS = np.arange(6, dtype="float32").reshape(3, 2)


class FakeModel:
    """Doubles its inputs, and keeps how it was called."""

    _call_has_training_arg = True

    def __init__(self, built: bool = True) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.built = built

    def __call__(self, inputs: Any, **named: Any) -> Any:
        self.calls.append(("call", named))
        self.built = True
        return inputs * 2

    def predict(self, inputs: Any, **named: Any) -> Any:
        self.calls.append(("predict", named))
        return inputs * 2

    def predict_on_batch(self, inputs: Any) -> Any:
        self.calls.append(("predict_on_batch", {}))
        return inputs * 2

    def _flatten_layers(self) -> list[Any]:
        return [self]


class FakeBackend:
    """Compiles by returning the function, or fails as a compiler does at the first call."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.forwards = self.copies = 0
        self.waits: list[Any] = []

    def forward(self, model: Any, arguments: Mapping[str, bool]) -> Callable[[Any], Any]:
        self.forwards += 1

        def program(inputs: Any) -> Any:
            if self.error:
                raise self.error
            return model(inputs, **arguments)

        return program

    def to_host(self, array: Any) -> Any:
        self.copies += 1
        return np.array(array)

    def wait(self, outputs: Any) -> None:
        self.waits.append(outputs)

    def resident(self, batch: Any) -> Any:
        return batch


def work(call: str, model: FakeModel, backend: FakeBackend, **changes: Any) -> Predicting:
    settings = make_settings(phase="predict", call=call, backend="jax", batch_size=3, **changes)
    job: Any = SimpleNamespace(settings=settings)
    built: Any = SimpleNamespace(model=model)
    return Predicting(built, backend, job, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (WHOLE, [("predict", {"batch_size": 3, "verbose": 0})]),
        (ON_BATCH, [("predict_on_batch", {})]),
        (DIRECT, [("call", {"training": False})]),
        (COMPILED, [("call", {"training": False})]),
    ],
)
def test_each_way_calls_the_model_once_and_ends_in_numpy(call: str, expected: object) -> None:
    model = FakeModel()
    outputs = work(call, model, FakeBackend())._call(INPUTS)
    assert (type(outputs), outputs.tolist(), model.calls) == (np.ndarray, (INPUTS * 2).tolist(), expected)


@pytest.mark.parametrize("call", [DIRECT, COMPILED])  # and native, for the built-in models that have twins
def test_outputs_on_the_device_end_a_call_once_they_are_computed_and_are_copied_to_be_compared_only(call: str) -> None:
    """Mutation: the call ends before the device has computed them, or with a copy of them."""
    backend = FakeBackend()
    calling = work(call, FakeModel(), backend, outputs=ON_DEVICE)
    outputs = calling._call(INPUTS)
    assert (backend.waits, backend.copies) == ([outputs], 0)
    calling._fed = [(INPUTS,)]
    assert calling.outputs() == (0.0, None)
    assert backend.copies == 2


def test_there_is_a_way_for_each_value_of_the_setting() -> None:
    """Those of exported files are in the runtime's process."""
    assert (set(WAYS) | set(RUNTIMES), set(RUNTIMES)) == (set(CALLS), set(EXPORTED))


def test_a_model_is_compiled_once_and_built_before() -> None:
    """Mutation: the forward pass is compiled anew at each call."""
    model, backend = FakeModel(built=False), FakeBackend()
    calling = work(COMPILED, model, backend)
    for _ in range(3):
        calling._call(INPUTS)
    assert (backend.forwards, len(model.calls)) == (1, 4), "one call builds it"


def test_a_call_without_training_gets_none() -> None:
    model: Any = SimpleNamespace(_call_has_training_arg=False)
    assert inference_arguments(model) == {}


def test_an_error_of_the_compiler_is_unsupported_and_one_of_memory_is_not() -> None:
    """Mutation: `_first_call` raises every error as it is, or none."""
    with pytest.raises(Unsupported, match="call: jit: jax cannot compile the model's forward pass, TypeError: no"):
        work(COMPILED, FakeModel(), FakeBackend(TypeError("no")))._first_call([(INPUTS,)])
    within = TypeError("in user code:\n\n File a.py\n\x1b[1mno tracing\x1b[0m\n Arguments received")
    with pytest.raises(Unsupported, match="forward pass, TypeError: no tracing; set another call"):
        work(COMPILED, FakeModel(), FakeBackend(within))._first_call([(INPUTS,)])
    with pytest.raises(ValueError, match="RESOURCE_EXHAUSTED"):
        work(COMPILED, FakeModel(), FakeBackend(ValueError("RESOURCE_EXHAUSTED")))._first_call([(INPUTS,)])


def test_a_backend_that_compiles_no_forward_pass_says_so() -> None:
    class Without(FakeBackend):
        forward = BackendAdapter.forward

    with pytest.raises(Unsupported, match="call: jit: this backend compiles no forward pass"):
        work(COMPILED, FakeModel(), Without())._first_call([(INPUTS,)])


def test_an_error_of_the_model_stays_its_own() -> None:
    class Failing(FakeModel):
        def __call__(self, inputs: Any, **named: Any) -> Any:
            raise RuntimeError("this model fails")

    for call in (COMPILED, DIRECT):
        with pytest.raises(RuntimeError, match="this model fails"):
            work(call, Failing(), FakeBackend())._first_call([(INPUTS,)])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ImportError("This requires the jax2onnx module. You can install it"),
            "the jax2onnx module; install it for the",
        ),
        (
            ImportError("you must install the `litert-torch` package. Install via"),
            "`litert-torch` package; install it for",
        ),
        (
            ImportError("This requires the tf2onnx module. You can"),
            "the tf2onnx module; install keras-matrix[serve] for",
        ),
        (ValueError("cannot trace\nmore"), "ValueError: cannot trace; set another call"),
    ],
)
def test_the_reason_of_an_exporter_says_what_to_do(error: Exception, reason: str) -> None:
    """Mutation: an exporter that is missing here is one that cannot export the model."""
    assert reason in reason_of(error)


def test_batches_of_several_shapes_have_no_file() -> None:
    """Mutation: the file is exported for the first batch, and the others fail in NumPy."""
    same, other = [np.zeros((4, 2)), np.zeros((4, 3))], [np.zeros((4, 2)), np.zeros((1, 3))]
    assert unequal_shapes("onnx", [same, same]) is None
    assert unequal_shapes("onnx", [same, same, other]) == (
        "call: onnx: batch 3 has inputs of [(4, 2), (1, 3)], and the first, for which the file is, of [(4, 2), (4, 3)]"
        "; pad them to one shape, drop a last batch that is not full, or set another call"
    )


def test_outputs_are_compared_with_those_of_the_model() -> None:
    class Own(FakeModel):
        def predict(self, inputs: Any, **named: Any) -> Any:
            return inputs * 3

    found = work(WHOLE, Own(), FakeBackend())
    found._fed = [(INPUTS,)]
    assert found.outputs() == (pytest.approx(0.5), None)


@pytest.mark.parametrize(
    ("actual", "expected", "deviation", "problem"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0, None),
        ([1.0, -3.0], [1.0, -4.0], 0.25, None),
        ({"b": [1.0], "a": [2.0]}, {"a": [2.0], "b": [1.0]}, 0.0, None),
        ({"a": [100.0], "b": [1.1]}, {"a": [100.0], "b": [1.0]}, 0.1, None),
        ([0.0], [0.0], 0.0, None),
        ([1.0 + 1.0j], [1.0], 1.0, None),
        ([], [], 0.0, None),
        ([float("nan")], [1.0], None, "are not finite"),
        ([1.0], [float("inf")], None, "are not finite"),
        ([[1.0, 2.0]], [1.0, 2.0], None, "have the shape (1, 2), and (2,) of model(x)"),
        ({"a": [1.0]}, {"a": [1.0], "b": [1.0]}, None, "are 1, and 2 of model(x)"),
        (["x", "y"], ["x", "y"], 0.0, None),
        (["x", "y"], ["x", "z"], None, "are other texts than those of model(x)"),
    ],
)
def test_deviation_is_a_share_of_the_largest_number_of_each_output(
    actual: Any, expected: Any, deviation: float | None, problem: str | None
) -> None:
    found, reason = deviation_of(*map(arrays, (actual, expected)))
    assert (found, reason) == (deviation if deviation is None else pytest.approx(deviation), problem)


def arrays(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {name: arrays(part) for name, part in structure.items()}
    return np.array(structure, "float32" if all(isinstance(number, float) for number in structure) else None)


@pytest.mark.parametrize(
    ("calls", "percent", "is_stated"), [(19, 50, False), (20, 50, True), (999, 99, False), (1000, 99, True)]
)
def test_a_percentile_is_stated_if_ten_calls_are_beyond_it(calls: int, percent: float, is_stated: bool) -> None:
    times_s = [float(number) for number in range(calls)]
    assert (call_quantile(times_s, percent) is not None, len(call_interval(times_s, percent))) == (
        is_stated,
        2 if is_stated else 0,
    )


def test_the_interval_of_the_median_has_the_ranks_of_the_binomial_distribution() -> None:
    """Of 100 values the interval of at least 95 % has the ranks 40 and 61 (Conover, table of the sign test)."""
    assert call_interval([float(rank) for rank in range(1, 101)], 50) == [40.0, 61.0]
