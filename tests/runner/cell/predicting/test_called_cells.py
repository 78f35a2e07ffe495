"""Cells that predict, called in each way: real processes, on each backend."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.views.call_ladder import LIMITS
from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.settings import (
    CALLS,
    COMPILED,
    DIRECT,
    EXPORTED,
    GRADIENT,
    GRADIENT_CALLS,
    NATIVE,
    ON_BATCH,
    ON_DEVICE,
    PREDICT,
    WHOLE,
)
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from tests.conftest import make_settings
from tests.real_cells import real_cell

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("called_cells")]
STEPS, BATCH = 12, 8
WAYS = tuple(call for call in CALLS if call not in (*EXPORTED, NATIVE))  # of any model
TWINS = [(backend, NATIVE) for backend in TRAINING_BACKENDS]
BUILT_IN: dict[str, Any] = {"workload": "mnist_mlp", "params": {"image_size": 6}, "samples": 2 * BATCH}
# PyTorch's compiler takes minutes for a decoder.
GRADIENTS = [
    case
    for case in product(TRAINING_BACKENDS, GRADIENT_CALLS, ("mnist_mlp", "decoder_lm"))
    if case != ("torch", COMPILED, "decoder_lm")
]
SMALL_DECODER = {"depth": 1, "heads": 2, "sequence_length": 8, "vocabulary": 32, "width": 16}
CellOf = Callable[..., Record]


@pytest.fixture
def cell(executor: ProcessExecutor, tmp_path: Path) -> CellOf:
    def run(**changes: Any) -> Record:
        given = {"phase": PREDICT, "batch_size": BATCH, "samples": 16, "steps_per_epoch": STEPS, "epochs": 3}
        return real_cell(executor, tmp_path / uuid.uuid4().hex, make_settings(**given | changes), STEPS)

    return run


def own(name: str) -> dict[str, Any]:
    return {"workload": f"tests.workloads.called:{name}"}


def measured(record: Record) -> Record:
    assert record.status in MEASURED, (record.reason, record.evidence.output_tail)
    return record


# PyTorch compiles a call for half a minute: once for every change, in the test of a model with its own step.
COMPILED_ELSEWHERE = pytest.mark.one_backend("tensorflow", "jax", "torch")


@COMPILED_ELSEWHERE
@pytest.mark.parametrize(("backend", "call"), [*product(BACKENDS, WAYS), *TWINS])
def test_each_call_is_timed_and_answers_as_the_model(cell: CellOf, backend: str, call: str) -> None:
    """Mutation: the call of the model is left out of the comparison, or its outputs stay on the device."""
    record = measured(cell(**BUILT_IN, backend=backend, call=call))
    assert record.resolved is not None
    assert record.work is not None
    deviation = record.resolved.outputs_deviation
    assert (record.resolved.outputs_problem, deviation is not None) == (None, True)
    assert 0 <= (deviation or 0.0) <= LIMITS["float32"]
    assert record.work.samples_per_step == BATCH
    assert (record.times.first_step_time_s or 0.0) > 0
    p50_s, ends_s = record.times.call_time_p50_s, record.times.call_time_p50_interval_s
    assert p50_s is not None
    assert ends_s[0] <= p50_s <= ends_s[1]
    assert (record.times.call_time_p99_s, record.times.call_time_p99_interval_s) == (None, []), "of 24 calls"


@pytest.mark.one_backend("tensorflow", "jax")  # PyTorch's compiler takes a minute
@pytest.mark.parametrize("name", ["mnist_mlp", "several"])
@pytest.mark.parametrize("call", [DIRECT, COMPILED])
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_may_stay_on_the_device(cell: CellOf, backend: str, call: str, name: str) -> None:
    """Mutation: the outputs of the device are compared with those of the model without a copy on the host."""
    workload = BUILT_IN if name == "mnist_mlp" else own(name)
    record = measured(cell(**workload, backend=backend, call=call, outputs=ON_DEVICE))
    assert record.resolved is not None
    assert record.work is not None
    assert (record.resolved.outputs_problem, record.work.samples_per_step) == (None, BATCH)
    assert 0 <= (record.resolved.outputs_deviation or 0.0) <= LIMITS["float32"]


@COMPILED_ELSEWHERE
@pytest.mark.parametrize(("backend", "call", "workload"), GRADIENTS)
def test_gradients_are_timed_and_equal_those_that_are_not_compiled(
    cell: CellOf, backend: str, call: str, workload: str
) -> None:
    """Mutations: gradients of a twin in its own layout; dropout in what is compared; each gradient at its
    own scale, where that of an attention's key bias is 0.
    """
    small = BUILT_IN if workload == "mnist_mlp" else {"workload": workload, "params": SMALL_DECODER}
    record = measured(cell(**small, backend=backend, call=call, phase=GRADIENT, steps_per_epoch=3))
    assert record.resolved is not None
    assert record.work is not None
    assert record.resolved.outputs_problem is None
    assert 0 <= (record.resolved.outputs_deviation or 0.0) <= LIMITS["float32"]
    assert record.work.samples_per_step == BATCH
    assert record.work.changed_variables in (0, None), "no weight changes"


@pytest.mark.one_backend("jax", "tensorflow")
@pytest.mark.parametrize("call", [COMPILED, DIRECT])
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_gradients_of_two_losses_and_of_an_own_one_are_those_that_were_timed(
    cell: CellOf, backend: str, call: str
) -> None:
    """Mutations: the losses are built while the step is compiled, whose values leak; `compute_loss` gets `training`."""
    record = measured(cell(**own("losses"), backend=backend, call=call, phase=GRADIENT, steps_per_epoch=3))
    assert record.resolved is not None
    assert record.resolved.outputs_problem is None
    assert 0 <= (record.resolved.outputs_deviation or 0.0) <= LIMITS["float32"]


def test_gradients_of_a_models_own_step_are_not_known(cell: CellOf) -> None:
    record = cell(**own("own_training"), backend="torch", call=DIRECT, phase=GRADIENT)
    assert record.status is Status.UNSUPPORTED
    assert "the model has a train_step of its own, whose gradients are not known; set phase: fit" in record.reason


@pytest.mark.parametrize("call", [DIRECT, COMPILED])
def test_how_a_call_of_the_model_itself_ran_is_recorded(cell: CellOf, call: str) -> None:
    """Mutation: the record has the options of the model's compile(), which these calls ignore."""
    record = measured(cell(**BUILT_IN, backend="tensorflow", call=call))
    assert record.resolved is not None
    assert (record.resolved.jit_compile, record.resolved.eager) == (call == COMPILED, call == DIRECT)
    assert (record.resolved.recompiles_timed or 0) == 0
    assert [text for text in record.warnings if text.startswith("own_options")] == []


@pytest.mark.parametrize("feed", ["device_resident", "host_fed"])
@pytest.mark.parametrize("call", WAYS)
@pytest.mark.one_backend("tensorflow", "jax")
@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_and_outputs_in_dicts_are_called_alike(cell: CellOf, backend: str, call: str, feed: str) -> None:
    record = measured(cell(**own("several"), backend=backend, call=call, feed=feed))
    assert record.resolved is not None
    assert (record.resolved.outputs_deviation or 0.0) <= LIMITS["float32"]
    assert record.resolved.outputs_problem is None


@pytest.mark.backends("tensorflow")
def test_a_model_of_texts_is_called_but_not_compiled(cell: CellOf) -> None:
    called = measured(cell(**own("texts"), backend="tensorflow", call=WHOLE))
    assert called.resolved is not None
    assert called.resolved.outputs_deviation == pytest.approx(0.0, abs=1e-6)
    compiled = cell(**own("texts"), backend="tensorflow", call=COMPILED)
    assert compiled.status is Status.UNSUPPORTED
    assert (compiled.reason or "").startswith("call: jit: tensorflow cannot compile the model's forward pass, ")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_call_that_decides_in_python_is_not_compiled(cell: CellOf, backend: str) -> None:
    """Its `call()` takes no `training`. Mutation: every error of the compiler is an error of the model."""
    assert cell(**own("deciding"), backend=backend, call=COMPILED).status is Status.UNSUPPORTED
    assert measured(cell(**own("deciding"), backend=backend, call=DIRECT)).resolved is not None


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_the_model_itself_is_not_one_of_the_compiler(cell: CellOf, backend: str) -> None:
    """Mutation: every error of the first call of `jit` is taken for the compiler's."""
    record = cell(**own("failing"), backend=backend, call=COMPILED)
    assert record.status is Status.ERROR
    assert "this model fails" in (record.reason or "")


@pytest.mark.parametrize("call", [ON_BATCH, COMPILED])
def test_outputs_that_are_not_finite_are_measured_and_marked(cell: CellOf, call: str) -> None:
    record = measured(cell(**own("not_finite"), backend="jax", call=call))
    assert record.resolved is not None
    assert (record.resolved.outputs_deviation, record.resolved.outputs_problem) == (None, "are not finite")


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_the_models_own_shows_as_other_outputs(cell: CellOf, backend: str) -> None:
    deviations = {}
    for call in (ON_BATCH, COMPILED):
        record = measured(cell(**own("own_step"), backend=backend, call=call))
        assert record.resolved is not None
        deviations[call] = record.resolved.outputs_deviation
    assert deviations == {ON_BATCH: pytest.approx(1.0), COMPILED: pytest.approx(0.0, abs=1e-6)}


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_an_operation_of_other_rows_than_its_batch_is_measured(cell: CellOf, backend: str) -> None:
    """Mutation: the rows of the outputs of single operations are counted as samples."""
    part = {"workload": "keras:op", "params": {"op": "sum", "input": f"{BATCH}x16", "axis": 0}}
    record = measured(cell(**part, backend=backend, call=DIRECT))
    assert record.resolved is not None
    assert (record.resolved.samples, record.resolved.outputs_deviation) == (BATCH, 0.0)


@pytest.mark.one_backend("torch")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_layer_that_its_arguments_do_not_fit_is_unsupported_with_the_reason(cell: CellOf, backend: str) -> None:
    part = {"workload": "keras:layer", "params": {"layer": "Conv2D", "input": f"{BATCH}x16", "filters": 2}}
    record = cell(**part, backend=backend, call=DIRECT)
    assert record.status is Status.UNSUPPORTED
    assert "layer Conv2D: cannot be called with input 8x16, filters=2: TypeError" in (record.reason or "")


@pytest.mark.parametrize("backend", ["jax"])
def test_an_operation_that_is_not_compiled_is_unsupported_with_every_call(cell: CellOf, backend: str) -> None:
    """JAX cannot compile an operation whose outputs have shapes that follow from values.

    Mutation: only `call: jit` is refused so.
    """
    part = {"workload": "keras:op", "params": {"op": "unique", "input": f"{BATCH}x16"}}
    record = cell(**part, backend=backend, call=ON_BATCH)
    assert record.status is Status.UNSUPPORTED
    assert "call: predict_on_batch: jax cannot compile the model's forward pass" in (record.reason or "")
