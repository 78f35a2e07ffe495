"""The proof of the FC modes on one backend: gradients and weights after a few steps against plain NumPy.

`python -P -m keras_matrix.models.fc.prove FOLDER` reads `order.json` there and writes `answer.json`. PyTorch keeps out
of this process, so that its workers can be forked from it task after task; on GPUs they are new interpreters. There
products are in full float32, not in TF32, whose ten bits of mantissa would be beyond the limit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from keras_matrix.models.fc import layout
from keras_matrix.models.fc.native.assembly import assemble, reserve
from keras_matrix.models.fc.reference import Trained, train
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec
from keras_matrix.records.codec import decode, dumps, loads
from keras_matrix.records.fc.proof import Proof, ProofAnswer, ProofOrder
from keras_matrix.records.fc.spec import MODES, FcProblem, Parallel, layout_problem, parallel_of


def prove(order: ProofOrder) -> ProofAnswer:
    """Run each problem for the steps asked and say how far it is from plain NumPy and from `fc_single_manual`."""
    backend = os.environ["KERAS_BACKEND"]
    _configure(backend, order)
    return ProofAnswer(backend, [_proof(backend, problem, order) for problem in order.problems])


def found(backend: str, problem: FcProblem, order: ProofOrder) -> tuple[Trained, Parallel]:
    """Return what a backend's workers hold after the steps, as whole models, and what they proved."""
    asked = WorkerSpec(problem, order.seed, order.device, keep_gradients=True)
    worker_group = assemble(backend, asked, apart=order.device == "cpu")
    try:
        worker_group.run(order.steps)
        parallel = parallel_of(problem, worker_group.places(), worker_group.traffic(), worker_group.peaks_bytes())
        return _whole(problem, worker_group), replace(
            parallel, peak_worker_device_memory_bytes=worker_group.device_peaks_bytes() or None
        )
    finally:
        worker_group.close()


def error(found: Sequence[Sequence[layout.Array]], wanted: Sequence[Sequence[layout.Array]]) -> float | None:
    """Return the worst max |difference| / max |wanted| of any array; None where there is none to compare."""
    errors = [
        float(np.max(np.abs(a.astype(np.float64) - b)) / np.max(np.abs(b)))
        for own, reference in zip(found, wanted, strict=True)
        for a, b in zip(own, reference, strict=True)
    ]
    return max(errors, default=None)


def update_error(problem: FcProblem, order: ProofOrder, found: Trained, wanted: Trained) -> float:
    """Return the worst max |difference| / max |update| of any weight, an update being what all steps together changed.

    That is a millionth of a weight, and each step rounds it to the weight's last digit: as much is no difference.
    """
    errors = []
    for own, reference, start in zip(found.weights, wanted.weights, train(problem, order.seed, 0).weights, strict=True):
        for a, b, first in zip(own, reference, start, strict=True):
            last_digit = np.spacing(np.maximum(np.abs(b), np.abs(first)).astype(layout.dtype(problem)))
            beyond = np.maximum(np.abs(a.astype(np.float64) - b) - order.steps * last_digit / 2, 0)
            errors.append(float(np.max(beyond) / np.max(np.abs(b - first))))
    return max(errors)


def _configure(backend: str, order: ProofOrder) -> None:
    """Set what must be set before the backend's first operation. Raises `NoDevice` or `NoSuchDevices`."""
    if backend == "jax" and any(problem.precision == "float64" for problem in order.problems):
        import jax

        jax.config.update("jax_enable_x64", True)
    if order.device == "gpu":
        _compute_in_full_float32(backend)
    reserve(backend, max(problem.workers for problem in order.problems), order.device)


def _compute_in_full_float32(backend: str) -> None:
    """Forbid TF32 where it is the default; on PyTorch it is not for products of matrices."""
    if backend == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
    if backend == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)


def _proof(backend: str, problem: FcProblem, order: ProofOrder) -> Proof:
    trained, parallel = found(backend, problem, order)
    wanted = train(problem, order.seed, order.steps)
    return Proof(
        problem=problem,
        gradient_error=error(trained.gradients, wanted.gradients),
        weight_error=error(trained.weights, wanted.weights),
        update_error=update_error(problem, order, trained, wanted) if MODES[problem.mode].trains else None,
        loss_error=abs(trained.loss - wanted.loss) / abs(wanted.loss),
        parallel=parallel,
        layout_problem=layout_problem(problem, parallel),
    )


def _whole(problem: FcProblem, worker_group: WorkerGroup) -> Trained:
    kept = worker_group.kept()
    weights = layout.whole(problem, [one.weights for one in kept])
    gradients: list[list[layout.Array]] = [[] for _ in weights]
    if MODES[problem.mode].trains:
        gradients = layout.whole(problem, [one.gradients for one in kept])
    return Trained(sum(one.loss for one in kept), gradients, weights)


def main() -> None:
    """Read the order, prove, answer."""
    folder = Path(sys.argv[1])
    order = decode(ProofOrder, loads((folder / "order.json").read_bytes()), "order")
    (folder / "answer.json").write_text(dumps(prove(order)), encoding="utf-8")


if __name__ == "__main__":
    main()
