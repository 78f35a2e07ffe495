"""Compare each call of a model, as a cell times it, with a bare loop of the same runtime. Run it on a quiet machine.

    lab/run calls                                     each call and backend, 200 pairs of epochs in one process each
    lab/run calls --backends jax --ways jit           one backend, one call
    lab/run calls --width 2048 --batch 64             a larger model: calls over 1 ms
    lab/run calls --ways onnx litert                  exported files in their runtimes (extra serve), from each backend
    lab/run calls --processes 6                       200 pairs in each of six processes

A pair is an epoch of the cell's loop (`call_epochs` with the call of `runner.cell.predicting`) and one of a bare loop,
which calls the same model as a script without this project does and ends in NumPy, too. Both alternate in one process,
with one thread on one CPU, in alternating order: what differs from process to process is the same for both. Printed:
the median ratio of the times of a call with the 95 % interval of the sign test over the pairs, and the median
difference in microseconds: where another system has the sibling of the core, some epochs take twice as long, which
makes a mean useless. With six processes or more the interval is that of the medians of the processes.

A file is exported once, in a process with Keras; both loops load it in processes of its runtime alone, with the options
of `league: matched`, which the bare loop sets itself. A backend that cannot export it has a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from scipy.stats import quantile_test

from keras_matrix.analysis.stats.blocks import CONFIDENCE
from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS
from keras_matrix.records.host.inherited_environment import THREAD_VARIABLES
from keras_matrix.records.settings import CALLS, EXPORTED, NATIVE

KERAS_WAYS = tuple(call for call in CALLS if call not in (*EXPORTED, NATIVE))  # no twin of this model
ENOUGH_PROCESSES = 6  # for a sign test at 95 %
# What a practitioner writes; nothing of this project is imported.
MODEL = """\
import json, os, sys, time
asked = json.loads(sys.argv[1])
import keras, numpy as np
if keras.backend.backend() != "tensorflow" and asked["way"] not in asked["exported"]:
    sys.modules["tensorflow"] = None
width, batch, way, calls = asked["width"], asked["batch"], asked["way"], asked["calls"]
keras.utils.set_random_seed(0)
hidden = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
model = keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(10, activation="softmax")])
x = np.random.default_rng(0).random((batch, width), "float32")
"""
BARE = """
x = keras.ops.convert_to_tensor(x)
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
"""
EXPORT = """
from keras_matrix.runner.cell.exporting import FORMATS
keras_format, name = FORMATS[way]
signature = [keras.InputSpec(dtype="float32", shape=x.shape, name="x0")]
model(x)
file = os.path.join(asked["folder"], name)
try:
    model.export(file, format=keras_format, verbose=False, input_signature=signature)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0]}")
np.save(os.path.join(asked["folder"], "x.npy"), x)
print(file)
"""
# What a practitioner writes for a file, in a process that imports its runtime alone.
BARE_FILE = """\
import json, os, sys, time
asked = json.loads(sys.argv[1])
import numpy as np
way, batch, calls, file = asked["way"], asked["batch"], asked["calls"], asked["file"]
x = np.load(os.path.join(asked["folder"], "x.npy"))
if way == "saved_model":
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    program, placed = tf.saved_model.load(file), tf.constant(x)
    call = lambda: np.array(program.serve(placed))
elif way == "onnx":
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: x}
    call = lambda: session.run(None, inputs)
elif way == "litert":
    from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(model_path=file, num_threads=1)
    interpreter.allocate_tensors()
    [first], [last] = interpreter.get_input_details(), interpreter.get_output_details()
    def call():
        interpreter.set_tensor(first["index"], x)
        interpreter.invoke()
        return interpreter.get_tensor(last["index"])
elif way == "openvino":
    import openvino
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    program = openvino.Core().compile_model(file, "CPU", options)
    call = lambda: program([x])[0]
else:
    import torch  # its threads are those of the environment; it takes those between operations once, from the cell
    program, placed = torch.export.load(file).module(), torch.from_numpy(x)
    def call():
        with torch.no_grad():
            return program(placed).numpy().copy()
"""
CELL = """
from types import SimpleNamespace
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.predicting import WAYS
called, inputs = WAYS[way](model, backends.load(backend), SimpleNamespace(batch_size=batch)), x
"""
CELL_FILE = """
from pathlib import Path
from keras_matrix.runner.cell.artefacts import RUNTIMES, Options
loaded = RUNTIMES[way].load(Path(file), Options(1, True, True, 0))
called, inputs = loaded.call, loaded.place([x])
"""
BOTH = """
import gc
from keras_matrix.runner.cell.loop import Stretch, call_epochs
def bare():
    begun_s = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begun_s
def cell():
    return call_epochs(called, [(inputs,)], Stretch(calls, 1)).epoch_times_s[0]
calls = 3
bare(), cell()
calls = max(1, round(asked["epoch_s"] * calls / bare()))
gc.collect(), gc.freeze()
for number in range(asked["pairs"]):
    found = {one.__name__: one() / calls for one in ((cell, bare) if number % 2 else (bare, cell))}
    print(json.dumps(found), flush=True)
"""
Pairs = list[dict[str, float]]


def processes_of(backend: str, request: dict[str, Any]) -> list[Pairs] | str:
    """Return the seconds of a call of both loops, for each pair of epochs of each process; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        code, environment = MODEL + BARE + CELL + BOTH, _environment(backend)
        request = request | {"folder": folder, "exported": EXPORTED}
        if request["way"] in EXPORTED:
            exporting = _run(MODEL + EXPORT, request, environment)
            if exporting.returncode:
                return (exporting.stderr.strip().splitlines() or [f"exit code {exporting.returncode}"])[-1]
            request["file"] = exporting.stdout.splitlines()[-1]
            code = BARE_FILE + CELL_FILE + BOTH
        ended = [_run(code, request, environment) for _ in range(request["processes"])]
        return [[json.loads(line) for line in process.stdout.splitlines() if line[0] == "{"] for process in ended]


def _environment(backend: str) -> dict[str, str]:
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return environment | dict.fromkeys(THREAD_VARIABLES, "1")


def _run(code: str, request: dict[str, Any], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code on one CPU. Raises RuntimeError if a process that measures fails."""
    command = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), sys.executable, "-c", code]
    ended = subprocess.run(
        [*command, json.dumps(request)], env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode and code.endswith(BOTH):
        raise RuntimeError(f"{request['way']}: exit code {ended.returncode}: {ended.stderr[-2000:]}")
    return ended


def line(backend: str, way: str, processes: list[Pairs] | str) -> str:
    """Return the ratio and the difference of a cell's call from the bare one, as a row of a table in Markdown."""
    if isinstance(processes, str):
        return f"| {backend} | `{way}` | not exported: {processes[:120]} | | |"
    ratio = _median([[pair["cell"] / pair["bare"] for pair in pairs] for pairs in processes], 4)
    difference_us = _median([[1e6 * (pair["cell"] - pair["bare"]) for pair in pairs] for pairs in processes], 1)
    time_us = 1e6 * statistics.median(pair["bare"] for pairs in processes for pair in pairs)
    return f"| {backend} | `{way}` | {time_us:,.0f} us | {ratio} | {difference_us} us |"


def _median(processes: list[list[float]], places: int) -> str:
    """Return the median of all values with its interval: between processes if there are enough, else between pairs."""
    values = [value for pairs in processes for value in pairs]
    if len(processes) >= ENOUGH_PROCESSES:
        values = [statistics.median(pairs) for pairs in processes]
    interval = quantile_test(values).confidence_interval(CONFIDENCE)
    return f"{statistics.median(values):.{places}f} [{interval.low:.{places}f} {interval.high:.{places}f}]"


def main(arguments: list[str]) -> int:
    """Measure the pairs of each backend and call, and print a table."""
    parser = argparse.ArgumentParser(description="the time of a cell's call over that of a bare loop")
    parser.add_argument("--backends", nargs="+", default=TRAINING_BACKENDS, choices=BACKENDS)
    parser.add_argument("--ways", nargs="+", default=KERAS_WAYS, choices=(*KERAS_WAYS, *EXPORTED))
    parser.add_argument("--epoch-s", type=float, default=0.02, help="seconds of an epoch, about")
    for name, value in {"pairs": 200, "processes": 1, "width": 64, "batch": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args(arguments)
    print("| backend | call | bare | cell over bare | difference |\n|---|---|---:|---|---|", flush=True)
    for backend in args.backends:
        for way in args.ways:
            request = vars(args) | {"way": way, "calls": 1}
            print(line(backend, way, processes_of(backend, request)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
