"""Run with KERAS_BACKEND=jax: the compiled step of two workers in this process, under the parameters of a what-if.

Prints an object per problem: products, sums and callbacks of the program, and the error against NumPy in float64.
"""

import json
import sys

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.native import assemble, reserve
from keras_matrix.models.fc.prove import error, train
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.spec import FcProblem

SMALL = FcProblem("fc_data", workers=2, level=5, weight_size=48, batch_size=24)
COUNTED = {"products": " dot(", "sums": " all-reduce(", "callbacks": "xla_ffi_python_cpu_callback"}


def compiled(problem: FcProblem) -> dict[str, object]:
    workers = assemble("jax", WorkerSpec(problem, seed=0, keep_gradients=True))
    workers.run(2)
    gradients = worker_group.whole(problem, [one.gradients for one in workers.states()])
    text = workers._text()
    counts = {name: sum(text_of in line for line in text.splitlines()) for name, text_of in COUNTED.items()}
    return counts | {"error": error(gradients, train(problem, 0, 2).gradients)}


if __name__ == "__main__":
    reserve("jax", 2, "cpu")
    for text in sys.argv[1:]:
        print(json.dumps({text: compiled(SMALL.changed(**json.loads(text)))}))
