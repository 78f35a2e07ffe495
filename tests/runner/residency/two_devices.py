"""TensorFlow with two logical CPUs: CPU:0 represents the host, CPU:1 a device with its own memory.

`python two_devices.py STEPS_PER_EXECUTION JIT EAGER` trains a small model on CPU:1 from the feed that a GPU gets and
prints, as JSON, where a batch is, which operations sent a tensor to the other device in a measured epoch, and more.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_matrix.records.traces.xspace.xplane import planes
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.backends import tensorflow
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.phases import fit_epochs

DEVICE = "/device:CPU:1"
STEPS, BATCHES, ROWS = 10, 5, 64


def two_devices() -> None:
    """Split the CPU in two, of which the second is the accelerator."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tensorflow.accelerator = lambda: DEVICE


def batches() -> list[Any]:
    """Return batches of two inputs, one of them int32, and int32 labels."""
    drawn = np.random.default_rng(0)
    return [
        (
            {"x": drawn.normal(size=(ROWS, 32)).astype("float32"), "ids": drawn.integers(0, 9, (ROWS, 16), "int32")},
            drawn.integers(0, 10, ROWS, "int32"),
        )
        for _ in range(BATCHES)
    ]


def model(steps_per_execution: int, jit: bool, eager: bool) -> Any:
    """Return a compiled model of these two inputs."""
    keras.utils.set_random_seed(0)
    x, ids = keras.Input((32,), name="x"), keras.Input((16,), dtype="int32", name="ids")
    hidden = keras.layers.Concatenate()([x, keras.layers.Flatten()(keras.layers.Embedding(9, 4)(ids))])
    made = keras.Model({"x": x, "ids": ids}, keras.layers.Dense(10)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"steps_per_execution": steps_per_execution, "jit_compile": jit, "run_eagerly": eager}
    made.compile("sgd", loss, metrics=["accuracy"], **options)
    return made


def sent(folder: str) -> list[str]:
    """Return the names of the operations whose output an epoch sent to the other device."""
    (path,) = Path(folder).rglob("*.xplane.pb")
    names = {name for plane in planes(path.read_bytes()) for name in plane.event_names.values()}
    return sorted({name.rpartition("/")[0] for name in names if name.endswith(":_Send") and "/" in name})


def main(steps_per_execution: int, jit: bool, eager: bool) -> None:
    """Train and print what was seen."""
    two_devices()
    adapter = backends.load("tensorflow")
    adapter._count_traces()
    given = batches()
    # Made outside of the device's scope: its kernels are for the host only.
    first_feeder, feeder = adapter.feeder(given[:1]), adapter.feeder(given)
    short, same, feed = first_feeder(steps_per_execution), feeder(STEPS), feeder(2 * STEPS)
    with tf.device(DEVICE):
        made = model(steps_per_execution, jit, eager)
        first = fit_epochs(made, short.source, adapter, Stretch(steps_per_execution, 1))
        fit_epochs(made, same.source, adapter, Stretch(STEPS, 1))
        traces = adapter.compilations()
        with tempfile.TemporaryDirectory() as folder:
            options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
            tf.profiler.experimental.start(folder, options)
            log = fit_epochs(made, feed.source, adapter, Stretch(STEPS, 2))
            tf.profiler.experimental.stop()
            copied = sent(folder)
    drawn = feed.drawn()
    iterator = iter(feeder(2 * BATCHES).source)
    yielded = [next(iterator) for _ in range(2 * BATCHES)]
    parts = [tf.nest.flatten(batch) for batch in yielded]
    equal = all(
        np.array_equal(part, expected)
        for one, batch in zip(parts, given * 2, strict=True)
        for part, expected in zip(one, tf.nest.flatten(batch), strict=True)
    )
    found = {
        "devices": sorted({part.device[-5:] for one in parts for part in one}),
        "sent": copied,
        "losses": [entry["loss"] for entry in [*first.logs, *log.logs]],
        "same_batches": equal,
        "drawn": drawn,
        "new_traces": (adapter.compilations() or 0) - (traces or 0),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "jit", sys.argv[3] == "eager")
