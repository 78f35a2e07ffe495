"""Run with KERAS_BACKEND: two workers of each named mode run far more steps than a backend has in flight."""

import json
import math
import os
import sys

from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem

BACKEND = os.environ["KERAS_BACKEND"]
STEPS = 200


def main() -> None:
    reserve(BACKEND, 2, "cpu")
    for mode in sys.argv[1:]:
        worker_group = assemble(BACKEND, WorkerSpec(FcProblem(mode, workers=2, weight_size=64), seed=0))
        worker_group.run(STEPS)
        print(json.dumps({mode: math.isfinite(worker_group.loss())}))
        worker_group.close()


if __name__ == "__main__":
    main()
