"""Run with KERAS_BACKEND=torch in its own network namespace: the bytes that steps send over its loopback interface.

Prints, for each problem, those bytes, the payload by formula, and what a cell records as sent on the wire.
"""

import json
import os
from pathlib import Path

import torch  # once, for all workers that are forked

from keras_matrix.models.fc.ranks import Ranks
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem, parallel_of

STEPS = 2
TASK = FcProblem(workers=2, level=2, weight_size=384, batch_size=384)
TASKS = [
    TASK.changed(mode="fc_data_manual", workers=3),
    TASK.changed(mode="fc_model_manual"),
    TASK.changed(mode="fc_hybrid", workers=4),
    TASK.changed(mode="fc_zero"),
    TASK.changed(mode="fc_model", partition="dtensor"),
]


def sent_bytes() -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def measured(problem: FcProblem) -> dict[str, object]:
    worker_group = Ranks(WorkerSpec(problem, seed=0))
    try:
        worker_group.run(2)  # in its first step DistributedDataParallel agrees on its buckets
        before = sent_bytes()
        worker_group.run(STEPS)
        each = (sent_bytes() - before) / STEPS
        found = parallel_of(problem, worker_group.places(), worker_group.traffic(), [])
    finally:
        worker_group.close()
    name = f"{problem.mode} {problem.workers} {problem.partition}"
    return {"name": name, "measured": each, "payload": found.formula_bytes_per_step, "wire": found.wire_bytes_per_step}


if __name__ == "__main__":
    assert os.environ["KERAS_BACKEND"] == torch.__name__
    print(json.dumps({"problems": [measured(problem) for problem in TASKS]}))
