"""Run with KERAS_BACKEND: how far one worker in this very process, as a cell has it, is from plain NumPy in float64."""

import json
import os

from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.prove import error, train
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem

BACKEND = os.environ["KERAS_BACKEND"]
STEPS = 5


def main() -> None:
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    problem = FcProblem("fc_data", level=3, weight_size=32, batch_size=16, precision="float64")
    reserve(BACKEND, 1, "cpu")
    worker_group = assemble(BACKEND, WorkerSpec(problem, seed=0, keep_gradients=True))
    worker_group.run(STEPS)
    (kept,) = worker_group.states()
    assert {place.process for place in worker_group.places()} <= {None, os.getpid()}
    print(json.dumps({"error": error([kept.gradients], train(problem, 0, STEPS).gradients)}))


if __name__ == "__main__":
    main()
