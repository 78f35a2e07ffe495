"""Run with KERAS_BACKEND=torch: do two worker processes compute the same as copies and as new interpreters?

Prints, for each mode, whether weights, gradients, losses and counted bytes are equal to the bit. A new interpreter runs
this file too, so that its worker has the method below. One start of the workers serves all modes.
"""

import json
import os
import sys
from dataclasses import replace
from functools import partial

from keras_matrix.models.fc.native.torch import TorchRank
from keras_matrix.models.fc.ranks import Ranks
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.models.process import keep_float64
from keras_matrix.records.fc.spec import MODES, FcProblem, Parallelism

TASK = FcProblem(mode="fc_data", workers=2, level=3, weight_size=16, batch_size=16, precision="float64")
MODES_OF_RANKS = [mode.name for mode in MODES.values() if mode.kind is not Parallelism.SINGLE]
STEPS = 2


def results(own, problems):
    found, workers = [], []
    for problem in problems:
        worker = TorchRank(replace(own._order, problem=problem), own._rank)
        workers.append(worker)  # what a stage sends must live until it has arrived
        worker.run(STEPS)
        (kept,) = worker.states()
        arrays = [array.tobytes() for array in (*kept.weights, *kept.gradients)]
        found.append((kept.loss, arrays, worker.traffic(), worker.device_peaks_bytes()))
    return found


TorchRank.results = results


def problems():
    shared = {"fc_phy": {"shared_ratio": 0.3}}
    found = [TASK.changed(mode=mode, **shared.get(mode, {})) for mode in MODES_OF_RANKS]
    return [*found, TASK.changed(overlap="off"), TASK.changed(mode="fc_model", partition="dtensor")]


def configure(text):
    # In one write: both workers have the same output.
    os.write(sys.stdout.fileno(), (json.dumps({"configured": text}) + "\n").encode())


def main() -> None:
    keep_float64()  # as `assemble` does; a new interpreter has to do it itself
    found = {}
    for method in ("fork", "spawn"):
        worker_group = Ranks(
            WorkerSpec(TASK, seed=0, keep_gradients=True, configure=partial(configure, method)), method=method
        )
        try:
            found[method] = worker_group._ask("results", problems())
            places = worker_group.places()
        finally:
            worker_group.close()
    names = [f"{problem.mode} {problem.overlap} {problem.partition}" for problem in problems()]
    equal = {
        name: [rank[number] for rank in found["fork"]] == [rank[number] for rank in found["spawn"]]
        for number, name in enumerate(names)
    }
    print(json.dumps({"equal": equal, "processes": len({place.process for place in places})}))


if __name__ == "__main__":
    main()
