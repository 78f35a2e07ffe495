"""Run by `ci/netns` with KERAS_BACKEND jax or tensorflow: workers in networks, compared with NumPy and one process.

Prints an object per problem: errors against NumPy in float64, the loss in one process, the workers' networks and the
sums of a step; with the only argument `traced` the files of a trace and the times of collectives by their bytes.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import keras  # once, with the backend, for all workers that are forked

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.prove import error, train
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc import communication, network
from keras_matrix.records.fc.spec import FcProblem, layout_problem, parallel_of
from keras_matrix.records.traces.request import TraceOrder

BACKEND = keras.backend.backend()
STEPS = 3
SMALL = FcProblem("fc_data", workers=2, level=5, weight_size=48, batch_size=24, network="200mbit")
TRACED = SMALL.changed(weight_size=256)  # 1.3 MB of gradients take 52 ms


def linked(problem: FcProblem, namespaces: tuple[str, ...]) -> dict[str, object]:
    """Return what workers of this problem in these namespaces did."""
    workers = assemble(BACKEND, WorkerSpec(problem, seed=0, keep_gradients=True, namespaces=namespaces))
    try:
        workers.run(STEPS)
        states, wanted = workers.states(), train(problem, 0, STEPS)
        found = parallel_of(problem, workers.places(), workers.traffic(), workers.peaks_bytes())
        again_s = perf_counter()
        workers.run(1)
        return {
            "gradient_error": error(worker_group.whole(problem, [one.gradients for one in states]), wanted.gradients),
            "weight_error": error(worker_group.whole(problem, [one.weights for one in states]), wanted.weights),
            "loss": sum(one.loss for one in states),
            "layout_problem": layout_problem(problem, found),
            "processes": len({place.process for place in found.places} - {os.getpid()}),
            "sums": found.traffic.calls,
            "step_s": perf_counter() - again_s,
        }
    finally:
        workers.close()


def traced(namespaces: tuple[str, ...]) -> dict[str, object]:
    """Return the files of a trace of workers in these namespaces, and the least time of a collective of each size."""
    workers = assemble(BACKEND, WorkerSpec(TRACED, seed=0, namespaces=namespaces))
    try:
        with tempfile.TemporaryDirectory() as folder:
            workers.run(1)
            before = workers.traffic()
            workers.traced(TraceOrder(folder, epochs=[1], steps=2))
            assert workers.traffic() == before
            files = sorted(path.name for path in Path(folder).iterdir())
            least_s: dict[int, float] = {}
            for one in communication.read(Path(folder)):
                assert (one.operation, one.ranks) == ("all_reduce", 2)
                least_s[one.bytes] = min(one.seconds, least_s.get(one.bytes, one.seconds))
            return {"files": files, "least_s": least_s}
    finally:
        workers.close()


def loss_in_one_process(problem: FcProblem) -> float:
    workers = assemble(BACKEND, WorkerSpec(problem.changed(bytes_per_pack=0), seed=0))
    workers.run(STEPS)
    return workers.loss()


if __name__ == "__main__":
    there = network.parse(os.environ[network.VARIABLE])
    if sys.argv[1:] == ["traced"]:
        print(json.dumps(traced(there.namespaces)))
        sys.exit()
    problems = {text: SMALL.changed(**json.loads(text)) for text in sys.argv[1:]}
    answers = {text: linked(problem, there.namespaces) for text, problem in problems.items()}
    # Only now: worker processes are copies of a process that has not used the backend.
    reserve(BACKEND, 2, "cpu")
    for text, problem in problems.items():
        answers[text]["loss_in_one_process"] = loss_in_one_process(problem)
    print(json.dumps(answers))
