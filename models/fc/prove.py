"""The proof of the FC modes on one backend: compares gradients and weights after a few steps with NumPy.

`python -P -m keras_matrix.models.fc.prove FOLDER` reads `order.json` there and writes `answer.json`. This process does
not use PyTorch, so that the workers of each problem can be forked from it; on GPUs they are new interpreters. There
products are in full float32, since TF32 with its ten bits of mantissa would exceed the limit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np

from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.worker_group import Array, WorkerGroup, WorkerSpec, draw_batch, draw_weights, dtype, whole
from keras_matrix.records.codec import decode, dumps, loads
from keras_matrix.records.fc.proof import Proof, ProofAnswer, ProofOrder
from keras_matrix.records.fc.spec import (
    LEARNING_RATE,
    MODES,
    FcProblem,
    Parallel,
    Parallelism,
    layout_problem,
    parallel_of,
)


def prove(order: ProofOrder) -> ProofAnswer:
    """Run each problem for the requested steps and return its errors against NumPy."""
    backend = os.environ["KERAS_BACKEND"]
    _configure(backend, order)
    proofs = [_proof(backend, problem, order) for problem in order.problems]
    # Imported at the end, when no worker will be forked from this process any more.
    return ProofAnswer(backend, proofs, import_module(backend).__version__)


def found(backend: str, problem: FcProblem, order: ProofOrder) -> tuple[Trained, Parallel]:
    """Return the state of a backend's workers after the steps, as complete models, and their layout and counts."""
    spec = WorkerSpec(problem, order.seed, order.device, keep_gradients=True)
    worker_group = assemble(backend, spec, apart=order.device == "cpu")
    try:
        worker_group.run(order.steps)
        parallel = parallel_of(problem, worker_group.places(), worker_group.traffic(), worker_group.peaks_bytes())
        return _models(problem, worker_group), replace(
            parallel, peak_worker_device_memory_bytes=worker_group.device_peaks_bytes() or None
        )
    finally:
        worker_group.close()


def error(actual: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]]) -> float | None:
    """Return the worst max |difference| / max |expected| of any array; None without arrays."""
    errors = [
        float(np.max(np.abs(a.astype(np.float64) - b)) / np.max(np.abs(b)))
        for rank_arrays, reference in zip(actual, expected, strict=True)
        for a, b in zip(rank_arrays, reference, strict=True)
    ]
    return max(errors, default=None)


def update_error(problem: FcProblem, order: ProofOrder, actual: Trained, expected: Trained) -> float:
    """Return the worst max |difference| / max |update| of any weight, where an update is the change by all steps.

    An update is a millionth of a weight, and each step rounds to the weight's last digit: this rounding is excluded.
    """
    errors = []
    for rank_weights, reference, start in zip(
        actual.weights, expected.weights, train(problem, order.seed, 0).weights, strict=True
    ):
        for a, b, initial in zip(rank_weights, reference, start, strict=True):
            last_digit = np.spacing(np.maximum(np.abs(b), np.abs(initial)).astype(dtype(problem)))
            excess = np.maximum(np.abs(a.astype(np.float64) - b) - order.steps * last_digit / 2, 0)
            errors.append(float(np.max(excess) / np.max(np.abs(b - initial))))
    return max(errors)


def _configure(backend: str, order: ProofOrder) -> None:
    """Configure the backend before its first operation. Raises `NoDevice` or `NoSuchDevices`."""
    if backend == "jax" and any(problem.precision == "float64" for problem in order.problems):
        import jax

        jax.config.update("jax_enable_x64", True)
    if order.device == "gpu":
        _compute_in_full_float32(backend)
    reserve(backend, max(problem.workers for problem in order.problems), order.device)


def _compute_in_full_float32(backend: str) -> None:
    """Disable TF32 if it is the default, which on PyTorch is not the case for matrix products."""
    if backend == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
    if backend == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)


def _proof(backend: str, problem: FcProblem, order: ProofOrder) -> Proof:
    trained, parallel = found(backend, problem, order)
    expected = train(problem, order.seed, order.steps)
    return Proof(
        problem=problem,
        gradient_error=error(trained.gradients, expected.gradients),
        weight_error=error(trained.weights, expected.weights),
        update_error=update_error(problem, order, trained, expected) if MODES[problem.mode].trains else None,
        loss_error=abs(trained.loss - expected.loss) / abs(expected.loss),
        parallel=parallel,
        layout_problem=layout_problem(problem, parallel),
    )


def _models(problem: FcProblem, worker_group: WorkerGroup) -> Trained:
    states = worker_group.states()
    weights = whole(problem, [state.weights for state in states])
    gradients: list[list[Array]] = [[] for _ in weights]
    if MODES[problem.mode].trains:
        gradients = whole(problem, [state.gradients for state in states])
    return Trained(sum(state.loss for state in states), gradients, weights)


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training: loss and gradients of the last step, and the weights after it, by model."""

    loss: float
    gradients: list[list[Array]]
    weights: list[list[Array]]


def train(problem: FcProblem, seed: int, steps: int) -> Trained:
    """Return the result of `steps` steps, computed in float64 from the weights and batch in the problem's precision.

    The FC modes in NumPy in a single process. There are no workers: what is divided among them is one sum here. Only
    fc_phy has its own rule.
    """
    batch, labels = (array.astype(np.float64) for array in draw_batch(problem, seed))
    models = [[weight.astype(np.float64) for weight in draw_weights(problem, seed)] for _ in range(problem.copies)]
    copy_batches = list(zip(np.split(batch, problem.copies), np.split(labels, problem.copies), strict=True))
    losses, gradients = [0.0], [list[Array]()]
    for _ in range(steps):
        outcomes = [backward(model, *copy_batch) for model, copy_batch in zip(models, copy_batches, strict=True)]
        losses, gradients = [loss for loss, _ in outcomes], [gradient for _, gradient in outcomes]
        if not MODES[problem.mode].trains:
            gradients = [[] for _ in models]
            continue
        gradients = _exchanged(problem, gradients)
        models = [
            [weight - LEARNING_RATE * gradient for weight, gradient in zip(model, model_gradients, strict=True)]
            for model, model_gradients in zip(models, gradients, strict=True)
        ]
    return Trained(sum(losses), gradients, models)


def backward(weights: Sequence[Array], batch: Array, labels: Array) -> tuple[float, list[Array]]:
    """Return the loss of one model and its gradients, by backpropagation."""
    inputs = [batch]
    for weight in weights:
        inputs.append(inputs[-1] @ weight)
    difference = inputs.pop() - labels
    d = 2 * difference
    gradients = []
    for weight, x in zip(reversed(weights), reversed(inputs), strict=True):
        gradients.append(x.T @ d)
        d = d @ weight.T
    return float(np.sum(difference**2)), gradients[::-1]


def _exchanged(problem: FcProblem, gradients: list[list[Array]]) -> list[list[Array]]:
    """Apply a mode's rule to the gradients of all its copies, or to those of the single model."""
    if problem.kind is Parallelism.PHYSICS:
        return _shared(problem, gradients)
    if problem.reduce == "mean":
        return [[gradient / problem.data_size for gradient in rank_gradients] for rank_gradients in gradients]
    return gradients


def _shared(problem: FcProblem, gradients: list[list[Array]]) -> list[list[Array]]:
    """The rule of fc_phy: the first int(rows x shared_ratio) rows of each gradient are averaged, the rest is local."""
    shared_gradients = [[gradient.copy() for gradient in rank_gradients] for rank_gradients in gradients]
    for layer in range(problem.level + 1):
        rows = int(len(gradients[0][layer]) * problem.shared_ratio)
        mean = np.mean([rank_gradients[layer][:rows] for rank_gradients in gradients], axis=0)
        for rank_gradients in shared_gradients:
            rank_gradients[layer][:rows] = mean
    return shared_gradients


def main() -> None:
    """Read the order, prove, answer."""
    folder = Path(sys.argv[1])
    order = decode(ProofOrder, loads((folder / "order.json").read_bytes()), "order")
    (folder / "answer.json").write_text(dumps(prove(order)), encoding="utf-8")


if __name__ == "__main__":
    main()
