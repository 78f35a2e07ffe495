"""Compare each call of a model, as a cell times it, with a bare loop of the same runtime. Run it on a quiet machine.

    lab/run calls                                     each call and backend, 200 pairs of epochs in one process each
    lab/run calls --backends jax --ways jit           one backend, one call
    lab/run calls --width 2048 --batch 64             a larger model: calls over 1 ms

A pair is an epoch of the cell's loop (`call_epochs` with the call of `runner.cell.predicting`) and one of a bare loop,
which calls the same model as a script without this project does and ends in NumPy, too. Both alternate in one process,
with one thread on one CPU, in alternating order: what differs from process to process is the same for both. Printed:
the median ratio of the times of a call with the 95 % interval of the sign test over the pairs, and the median
difference in microseconds: where another system has the sibling of the core, some epochs take twice as long, which
makes a mean useless.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from scipy.stats import quantile_test

from keras_matrix.analysis.stats.blocks import CONFIDENCE
from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS
from keras_matrix.records.host.inherited_environment import THREAD_VARIABLES
from keras_matrix.records.settings import CALLS, EXPORTED

WAYS = tuple(call for call in CALLS if call not in EXPORTED)  # an exported file is called in another process
# What a practitioner writes; nothing of this project is imported.
BARE = """\
import json, sys, time
asked = json.loads(sys.argv[1])
import keras, numpy as np
if keras.backend.backend() != "tensorflow":
    sys.modules["tensorflow"] = None
width, batch, way, calls = asked["width"], asked["batch"], asked["way"], asked["calls"]
keras.utils.set_random_seed(0)
hidden = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
model = keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(10, activation="softmax")])
x = keras.ops.convert_to_tensor(np.random.default_rng(0).random((batch, width), "float32"))
backend = keras.backend.backend()
if way == "predict":
    call = lambda: model.predict(x, batch_size=batch, verbose=0)
elif way == "predict_on_batch":
    call = lambda: model.predict_on_batch(x)
elif way == "model" and backend == "torch":
    call = lambda: model(x, training=False).detach().cpu().numpy().copy()
elif way == "model":
    call = lambda: np.array(model(x, training=False))
elif backend == "jax":
    import jax
    program = jax.jit(lambda trainable, others, x: model.stateless_call(trainable, others, x, training=False)[0])
    trainable, others = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]
    call = lambda: np.array(program(trainable, others, x))
elif backend == "tensorflow":
    import tensorflow as tf
    program = tf.function(lambda x: model(x, training=False), jit_compile=True)
    call = lambda: np.array(program(x))
else:
    import torch
    def compiled(model):  # as a local name: a global one is one more guard of the compiled program
        return torch.compile(lambda x: model(x, training=False))
    program = compiled(model)
    def call():
        with torch.no_grad():
            return program(x).cpu().numpy().copy()
def bare():
    begun_s = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begun_s
"""
BOTH = """
import gc
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.loop import Stretch, call_epochs
from keras_matrix.runner.cell.predicting import WAYS
called = WAYS[way](model, backends.load(backend), batch)
def cell():
    return call_epochs(called, [(x,)], Stretch(calls, 1)).epoch_times_s[0]
calls = 3
bare(), cell()
calls = max(1, round(asked["epoch_s"] * calls / bare()))
gc.collect(), gc.freeze()
for number in range(asked["pairs"]):
    found = {one.__name__: one() / calls for one in ((cell, bare) if number % 2 else (bare, cell))}
    print(json.dumps(found), flush=True)
"""


def pairs_of(backend: str, request: dict[str, Any]) -> list[dict[str, float]]:
    """Return the seconds of a call of both loops, for each pair of epochs, in one process of a backend."""
    command = [sys.executable, "-c", BARE + BOTH, json.dumps(request)]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= dict.fromkeys(THREAD_VARIABLES, "1")
    process = subprocess.Popen(command, env=environment, stdout=-1, text=True)
    os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
    output, _ = process.communicate()
    assert process.returncode == 0, f"{backend}: {request['way']}: exit code {process.returncode}"
    return [json.loads(line) for line in output.splitlines()]


def line(backend: str, way: str, pairs: list[dict[str, float]]) -> str:
    """Return the ratio and the difference of a cell's call from the bare one, as a row of a table in Markdown."""
    ratio = _median([pair["cell"] / pair["bare"] for pair in pairs], 4)
    difference_us = _median([1e6 * (pair["cell"] - pair["bare"]) for pair in pairs], 1)
    time_us = 1e6 * statistics.median(pair["bare"] for pair in pairs)
    return f"| {backend} | `{way}` | {time_us:,.0f} us | {ratio} | {difference_us} us |"


def _median(values: list[float], places: int) -> str:
    interval = quantile_test(values).confidence_interval(CONFIDENCE)
    return f"{statistics.median(values):.{places}f} [{interval.low:.{places}f} {interval.high:.{places}f}]"


def main(arguments: list[str]) -> int:
    """Measure the pairs of each backend and call, and print a table."""
    parser = argparse.ArgumentParser(description="the time of a cell's call over that of a bare loop")
    parser.add_argument("--backends", nargs="+", default=TRAINING_BACKENDS, choices=BACKENDS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--epoch-s", type=float, default=0.02, help="seconds of an epoch, about")
    for name, value in {"pairs": 200, "width": 64, "batch": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args(arguments)
    print("| backend | call | bare | cell over bare | difference |\n|---|---|---:|---|---|", flush=True)
    for backend in args.backends:
        for way in args.ways:
            request = vars(args) | {"way": way, "calls": 1}
            print(line(backend, way, pairs_of(backend, request)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
