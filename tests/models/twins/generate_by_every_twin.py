"""Run in a process with KERAS_BACKEND set: continues prompts by native code, prints whether the tokens are Keras's.

All weights are random, biases and normalisations included, as those of a trained model would be.

Usage: python generate_by_every_twin.py
"""

import json
import warnings

warnings.simplefilter("ignore")  # third-party warnings at import; the tokens below are what is tested

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_matrix.models import twins  # noqa: E402
from keras_matrix.models.registry import workloads  # noqa: E402
from keras_matrix.models.workload import Request  # noqa: E402
from keras_matrix.runner.cell import backends  # noqa: E402
from keras_matrix.runner.cell.generation import generated  # noqa: E402
from tests.models.twins.compiling import BACKEND, WAYS, way_of  # noqa: E402

ROWS, LONGEST = 3, 12
# JAX has no graph without XLA, and nothing is compiled on PyTorch.
OF_BACKEND = {"tensorflow": ("jit", "graph", "eager"), "jax": ("jit", "eager"), "torch": ("eager",)}


def built(prompt_length):
    params = {"prompt_length": prompt_length, "max_length": LONGEST}
    made = workloads()["gpt2"](Request(params, "synthetic", None, batch_size=ROWS, phase="generate"))
    draw = np.random.default_rng(0)
    for one in made.model.backbone.weights:
        one.assign(one + draw.normal(0, 0.1, one.shape))
    return made


def continued(prompt_length):
    """Return, for each way to compile, whether all tokens are Keras's; and how many different ones those are.

    `compiled` is how the program was compiled, by the way that was requested.
    """
    made = built(prompt_length)
    batch = backends.load(BACKEND).resident(made.samples(ROWS, 0))
    expected = generated(made.model, batch[0])["token_ids"]
    native, equal, compiled = twins.load(BACKEND), {}, {}
    for name in OF_BACKEND[BACKEND]:
        call = native.continuing(made.model, prompt_length, WAYS[name])
        found = [call(batch[0]["token_ids"]) for _ in range(2)]
        equal[name] = [bool(np.array_equal(one, expected)) for one in found]
        compiled[name] = way_of(call)
    return {"equal": equal, "compiled": compiled, "different": len(set(expected[:, prompt_length:].ravel().tolist()))}


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    print(json.dumps({length: continued(length) for length in (1, 5, LONGEST - 1)}))
