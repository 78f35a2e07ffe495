"""Run with KERAS_BACKEND: the time of two workers' collectives, for the mode given by the argument."""

import json
import os
import sys
from dataclasses import asdict

from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem

BACKEND = os.environ["KERAS_BACKEND"]


def watched(mode: str) -> None:
    order = WorkerSpec(FcProblem(mode=mode, workers=2, level=2, weight_size=96, batch_size=32), seed=0)
    reserve(BACKEND, 2, "cpu")
    worker_group = assemble(BACKEND, order, apart=True)
    try:
        worker_group.run(3)
        found = worker_group.communication(4, 3)
        print(json.dumps({"found": asdict(found) if found else None}))
    finally:
        worker_group.close()


if __name__ == "__main__":
    watched(sys.argv[1])
