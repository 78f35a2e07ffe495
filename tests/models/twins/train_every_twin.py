"""Run in a process with KERAS_BACKEND set: trains each implementation of each small workload, prints the results.

For each workload and implementation: the losses of some steps and those of Keras's `train_on_batch` from the same
weights, the largest difference of a weight afterwards relative to its largest update, and the counted updates. For the
first workload also what the cell's check finds in a native one that trains each batch twice, and how the steps are
compiled in each way that the backend has.

Usage: python train_every_twin.py WAY NAME..., WAY is one of those of `compiling`, or `keras`: as the model is compiled
"""

import json
import sys
import warnings

warnings.simplefilter("ignore")  # third-party warnings at import; the figures below are what is tested

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_matrix.models import twins  # noqa: E402
from keras_matrix.models.registry import workloads  # noqa: E402
from keras_matrix.models.twins.interface import Compiled  # noqa: E402
from keras_matrix.models.workload import Request  # noqa: E402
from keras_matrix.runner.cell import backends  # noqa: E402
from keras_matrix.runner.cell.implementations import (  # noqa: E402
    StartValues,
    forget_functions,
    largest_deviation,
    lower_rate,
)
from keras_matrix.runner.cell.options import switch_off  # noqa: E402
from keras_matrix.runner.cell.phases import WorkMismatch  # noqa: E402
from tests.models.train_every_workload import SMALL  # noqa: E402
from tests.models.twins.compiling import BACKEND, WAYS, way_of  # noqa: E402

STEPS = 3
# JAX has no graph without XLA, and PyTorch none without torch.compile.
OF_BACKEND = {"tensorflow": ("jit", "graph", "eager"), "jax": ("jit", "eager"), "torch": ("jit", "eager")}


# Biases of attention keys, whose gradient is 0 except for rounding; and a table of which a batch reads a row twice: the
# gradient then has two parts, which Keras's optimizers on TensorFlow square one by one instead of their sum.
NOT_COMPARED = ("key/bias", "embeddings") if BACKEND == "tensorflow" else ("key/bias",)


def weights(model):
    known = (one for one in model.trainable_variables if not one.path.endswith(NOT_COMPARED))
    return [np.array(keras.ops.convert_to_numpy(one)) for one in known]


def keras_losses(model, batches):
    found = []
    for x, y in batches:
        model.reset_metrics()
        found.append(float(model.train_on_batch(x, y, return_dict=True)["loss"]))
    return found


def rung_losses(rung, batches):
    found = []
    for batch in batches:
        rung.begin_epoch()
        rung.step(batch)
        found.append(rung.end_epoch()["loss"])
    rung.write_back()
    return found


def furthest(found, expected, begin):
    """Return the worst weight's deviation, relative to its update by Keras, as `runner parity` compares updates."""
    pairs = zip(found, expected, begin, strict=True)
    return float(max(np.linalg.norm(a - b) / np.linalg.norm(b - first) for a, b, first in pairs))


def refused(model, start, make, batches):
    """Return the reason why the check refuses an implementation that trains each batch twice."""

    def twice():
        rung = make()
        once = rung.step
        rung.step = lambda batch: (once(batch), once(batch))
        return rung

    try:
        return f"a deviation of {largest_deviation(model, start, twice, batches)}"
    except WorkMismatch as problem:
        return str(problem)


def compiled_steps(model, name):
    """Return how the step of each implementation of this project is compiled, by the way that was requested."""
    found = {}
    for requested in OF_BACKEND[BACKEND]:
        made = {rung: make() for rung, make in twins.load(BACKEND).rungs(model, name, WAYS[requested], 0).items()}
        steps = {rung: one._step if BACKEND == "jax" else one._train for rung, one in made.items() if rung != "loop"}
        found[requested] = {rung: way_of(step) for rung, step in steps.items()}
    return found


def trained(name, way):
    keras.utils.set_random_seed(0)
    built = workloads()[name](Request(SMALL[name], "synthetic", None))
    model, adapter = built.model, backends.load(BACKEND)
    switch_off(model)
    lower_rate(model)
    start = StartValues.of(model)
    x, y = built.samples(8 * STEPS, 0)
    batches = [(x[at : at + 8], y[at : at + 8]) for at in range(0, 8 * STEPS, 8)]
    begin = weights(model)
    expected, ends = keras_losses(model, batches), weights(model)
    compiled = WAYS.get(way) or Compiled(bool(model.jit_compile), False)
    found, makers = {}, twins.load(BACKEND).rungs(model, name, compiled, 0)
    for rung_name, make in makers.items():
        start.restore()
        forget_functions(model)
        rung = make()
        losses = rung_losses(rung, [adapter.resident(one) for one in batches])
        deviation = furthest(weights(model), ends, begin)
        found[rung_name] = {"losses": losses, "weights": deviation, "updates": rung.updates()}
    if name != sys.argv[2]:
        return {"keras": expected, "found": found}
    checked = (model, start, makers["native"], [adapter.resident(one) for one in batches])
    more = {"compiled": compiled_steps(model, name), "refused": refused(*checked)}
    return {"keras": expected, "found": found, **more}


if __name__ == "__main__":
    print(json.dumps({name: trained(name, sys.argv[1]) for name in sys.argv[2:]}))
