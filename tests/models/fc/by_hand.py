"""Run with KERAS_BACKEND=numpy, which cannot differentiate: the manual programs on one worker, against the reference.

Prints, for each manual mode, the worst error of its gradients; of fc_pipeline also in three stages; and how many
gradients fc_data_manual has made when the first is summed.
"""

import json
from contextlib import nullcontext

import numpy as np

from keras_matrix.models.fc import programs
from keras_matrix.models.fc.interface import Worker
from keras_matrix.models.fc.programs import LocalStage, in_turn, program
from keras_matrix.models.fc.prove import error, train
from keras_matrix.models.fc.worker_group import batch_of, weights_of, whole
from keras_matrix.records.fc.communication import together
from keras_matrix.records.fc.spec import MODES, FcProblem, Parallelism, traffic_per_step


class Alone(Worker):
    """One worker with nobody to speak to and no automatic differentiation."""

    def gradient(self, loss, weights):
        raise AssertionError("a manual mode asked for automatic differentiation")

    def along(self, axis):
        return self

    def _all_reduce(self, x):
        raise AssertionError("one worker has nothing to sum")

    _reduce_scatter = _all_gather = _all_reduce


class Watched(Worker):
    """One of two workers, whose own values count as the sums; notes how many gradients there were at the first."""

    made = 0
    made_at_first_sum = None

    def along(self, axis):
        raise AssertionError("there is one group")

    def gradient(self, loss, weights):
        raise AssertionError("a manual mode asked for automatic differentiation")

    def _all_reduce(self, x):
        self.made_at_first_sum = self.made if self.made_at_first_sum is None else self.made_at_first_sum
        return x

    def _reduce_scatter(self, x, axis):
        return self._all_reduce(np.split(x, self.size, axis)[0])

    def _all_gather(self, x, axis):
        return np.concatenate([x] * self.size, axis)


TASK = FcProblem(level=3, weight_size=16, batch_size=8)


def gradients_error(mode: str) -> float | None:
    problem = TASK.changed(mode=mode)
    worker = LocalStage(1, 0, {}, lambda x: x) if problem.kind is Parallelism.PIPELINE else Alone(1)
    _, gradients = program(mode)(worker, problem, weights_of(problem, 0, 0), batch_of(problem, 0, 0))
    return error([gradients], train(problem, 0, 1).gradients)


def error_in_stages() -> float | None:
    problem, ranks = TASK.changed(mode="fc_pipeline", workers=3), range(3)
    boxes = {}
    stages = [LocalStage(3, rank, boxes, lambda x: x) for rank in ranks]
    weights = [weights_of(problem, 0, rank) for rank in ranks]
    batches = [batch_of(problem, 0, rank) for rank in ranks]
    found = in_turn(stages, problem, weights, batches, lambda rank: nullcontext())
    traffic = together([stage.traffic for stage in stages])
    assert traffic.sent_bytes(3) == traffic_per_step(problem).sent_bytes(3)
    assert traffic.hand_overs == 2 * 2 * problem.micro_batches
    assert not any(boxes.values())
    return error(whole(problem, [gradients for _, gradients in found]), train(problem, 0, 1).gradients)


def made_before_the_first_sum(overlap: str) -> int | None:
    problem = TASK.changed(mode="fc_data_manual", workers=2, overlap=overlap)
    worker, real = Watched(2), programs._product_gradients

    def counted(*arguments, **named):
        worker.made += 1
        return real(*arguments, **named)

    programs._product_gradients = counted
    try:
        program(problem.mode)(worker, problem, weights_of(problem, 0, 0), batch_of(problem, 0, 0))
    finally:
        programs._product_gradients = real
    return worker.made_at_first_sum


if __name__ == "__main__":
    errors = {mode.name: gradients_error(mode.name) for mode in MODES.values() if mode.manual}
    made = {overlap: made_before_the_first_sum(overlap) for overlap in ("on", "off")}
    print(json.dumps({"errors": {**errors, "three stages": error_in_stages()}, "made": made}))
