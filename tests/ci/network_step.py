"""Run by `ci/netns` with KERAS_BACKEND=torch: what steps of fc_data take on two workers, over the links or loopback.

Prints the bytes that each worker sends in a step, the seconds of a step and of its collectives, and the networks.
"""

import json
import os
import sys
from time import perf_counter

from keras_matrix.models.fc.ranks import Ranks
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc import network
from keras_matrix.records.fc.spec import FcProblem

STEPS = 5
TASK = FcProblem(mode="fc_data", workers=2, level=4, weight_size=256, batch_size=32)

if __name__ == "__main__":
    found = network.parse(os.environ.get(network.VARIABLE, ""))
    worker_group = Ranks(WorkerSpec(TASK, seed=0, namespaces=found.namespaces if found else ()))
    try:
        worker_group.run(1)
        begun_s = perf_counter()
        worker_group.run(STEPS)
        took_s = (perf_counter() - begun_s) / STEPS
        sent = worker_group.traffic().sent_bytes(2) // 2
        communication = worker_group.communication(STEPS, 3)
        inside_s = [
            step_s - compute_s
            for step_s, compute_s in zip(communication.step_times_s, communication.compute_times_s, strict=True)
        ]
        networks = [place.network for place in worker_group.places()]
        print(json.dumps({"sent_bytes": sent, "step_s": took_s, "inside_s": min(inside_s), "networks": networks}))
    finally:
        worker_group.close()
    sys.stdout.flush()
