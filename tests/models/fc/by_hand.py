"""Run with KERAS_BACKEND=numpy, which cannot differentiate: the manual programs on one worker, against the reference.

Prints, for each manual mode, the worst error of its gradients.
"""

import json

from models.fc import layout
from models.fc.programs import program
from models.fc.prove import error
from models.fc.reference import train
from models.fc.seam import Worker
from records.fc import MODES, Task


class Alone(Worker):
    """One worker with nobody to speak to and no automatic differentiation."""

    def gradient(self, loss, weights):
        raise AssertionError("a manual mode asked for automatic differentiation")

    def _all_reduce(self, x):
        raise AssertionError("one worker has nothing to sum")

    _reduce_scatter = _all_gather = _all_reduce


def gradients_error(mode: str) -> float | None:
    task = Task(mode=mode, level=3, weight_size=16, batch_size=8)
    weights = layout.weights_of(task, 0, 0)
    _, gradients = program(mode)(Alone(1), task, weights, layout.batch_of(task, 0, 0))
    return error([gradients], train(task, 0, 1).gradients)


if __name__ == "__main__":
    print(json.dumps({mode.name: gradients_error(mode.name) for mode in MODES.values() if mode.manual}))
