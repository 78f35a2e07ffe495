"""Run with KERAS_BACKEND=tensorflow: on which devices two workers' products are placed, for every mode that divides.

Where variables and batches lie says nothing of it: a product without a device of its own is TensorFlow's to place, and
goes to the first. Prints, for each mode and for MirroredStrategy, how many products of the traced step each device has.
"""

import json
from collections import Counter

from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import MODES, FcProblem, Parallelism

TASK = FcProblem(workers=2, level=2, weight_size=8, batch_size=8, shared_ratio=0.5)


def products(problem: FcProblem) -> dict[str, int]:
    worker_group = assemble("tensorflow", WorkerSpec(problem, seed=0))
    operations = worker_group._step.get_concrete_function().graph.get_operations()
    return Counter(op.device.rpartition("/")[2] for op in operations if op.type == "MatMul")


if __name__ == "__main__":
    reserve("tensorflow", 2, "cpu")
    found = {
        mode.name: products(TASK.changed(mode=mode.name))
        for mode in MODES.values()
        if mode.kind is not Parallelism.SINGLE
    }
    mirrored = products(TASK.changed(mode="fc_data", partition="mirrored_strategy"))
    print(json.dumps(found | {"mirrored_strategy": mirrored}))
