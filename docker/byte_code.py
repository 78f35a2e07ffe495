"""Writes the byte code of what an image uses: pip would write that of every module, most of which no cell imports.

    python byte_code.py            of the packages of this environment
    python byte_code.py ray        of a package that was added to it

Each program below imports and runs what the commands and the cells do with a package, in a process of its own: Python
then writes the byte code next to the sources, which must be writable. A program whose packages are missing is left out;
an environment without the packages of any, such as the emulator's, gets the byte code of everything.

Not known here: what single workloads import beyond that. Where images run, nothing can be written, so that each process
compiles such a module again; tests/docker/test_byte_code.py counts them.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

COMMANDS = """
import docker, docker.types, duckdb, jinja2, packaging.requirements, packaging.utils, psutil, pynvml, shtab
import numpy.typing, scipy.special, tensorboardX, yaml
from docker.context import ContextAPI
"""
TABLES = """
import sys, duckdb, pytz, sqlglot, sqlglot.optimizer.qualify, sqlglot.optimizer.pushdown_projections
import rich.console, rich.markup, rich.progress, rich.table
sqlglot.parse_one("SELECT COUNT(*) AS n FROM t WHERE d > DATE '2026-01-01'", read="bigquery").sql("duckdb")
table = rich.table.Table("name")
table.add_row("value")
rich.console.Console(stderr=True).print(table)
with rich.progress.Progress(console=rich.console.Console(file=sys.stderr, force_terminal=True)) as progress:
    progress.advance(progress.add_task("cells", total=1))
"""
BIGQUERY = """
import google.auth.transport.requests, google.auth.impersonated_credentials, google.cloud.bigquery
import google.auth.compute_engine, google.auth.identity_pool, google.oauth2.credentials, google.oauth2.service_account
"""
KERAS = """
import numpy as np
import keras
from keras import layers

def run(model, inputs, optimizer):
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    if keras.backend.backend() != "openvino":
        model.fit(inputs, np.zeros(4, "int32"), batch_size=2, epochs=1, verbose=0)
    model.predict(inputs, verbose=0)

images = keras.Input((8, 8, 3))
x = layers.Dropout(0.5)(layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3)(images))))
x = layers.GlobalAveragePooling2D()(layers.DepthwiseConv2D(2)(layers.MaxPooling2D()(x)))
run(keras.Model(images, layers.Dense(2, "softmax")(x)), np.zeros((4, 8, 8, 3), "float32"), "adam")
tokens = keras.Input((6,), dtype="int32")
x = layers.Embedding(8, 4)(tokens)
x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 2)(x, x))
x = layers.GRU(4)(layers.LSTM(4, return_sequences=True)(layers.SimpleRNN(4, return_sequences=True)(x)))
run(keras.Model(tokens, layers.Dense(2, "softmax")(x)), np.zeros((4, 6), "int32"), keras.optimizers.AdamW())
"""
HUB = """
import keras_hub, sklearn.datasets, h5py
sklearn.datasets.load_digits()
"""
INPUTS = """
import array_record.python.array_record_module, google_crc32c, grain, simplejpeg
import PIL.Image, PIL.JpegImagePlugin
"""
JAX = "import jax.distributed, jax.experimental, jax.experimental.multihost_utils, jax.profiler, jax.sharding\n"
TENSORFLOW = "import tensorflow as tf\ntf.distribute, tf.data, tf.profiler, tf.config\n"
TORCH = """
import torch.distributed.tensor, torch.nn.attention, torch.profiler, torch.utils.checkpoint, torch.utils.data
import torch.utils.flop_counter, torch._dynamo, torch._inductor.config
"""
RAY = """
import ray, ray.scripts.scripts, ray.util.client.server, ray.util.client.worker, ray.util.scheduling_strategies
import ray._private.log_monitor, ray._private.worker, ray._private.workers.default_worker
"""
# The packages that a program needs, and the program.
PROGRAMS = {
    "commands": (("docker", "scipy"), COMMANDS),
    "tables": (("duckdb", "sqlglot", "rich"), TABLES),
    "bigquery": (("google.cloud.bigquery",), BIGQUERY),
    "dashboard": (("waitress",), "import waitress.server\n"),
    "tensorflow": (("tensorflow", "keras"), TENSORFLOW + KERAS),
    "jax": (("jax", "keras"), JAX + KERAS),
    "torch": (("torch", "keras"), TORCH + KERAS),
    "openvino": (("openvino", "keras"), "import openvino\n" + KERAS),
    "hub": (("keras_hub",), HUB),
    "inputs": (("grain", "array_record"), INPUTS),
    "opencv": (("cv2",), "import cv2\n"),
    "ray": (("ray",), RAY),
}
BACKENDS = ("tensorflow", "jax", "torch", "openvino")


def present(modules: tuple[str, ...]) -> bool:
    """Whether this environment has all of these modules."""
    try:
        return all(importlib.util.find_spec(name) for name in modules)
    except ModuleNotFoundError:  # the folder above a dotted name
        return False


def write(program: str, backend: str, home: str) -> None:
    """Run a program that writes byte code, without a GPU. Raises `CalledProcessError`."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    quiet["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # the programs compile, and their speed is no matter
    environment = {**os.environ, **quiet, "HOME": home, "KERAS_BACKEND": backend}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def main(names: list[str]) -> None:
    """Write the byte code of the named programs, or of all whose packages are here."""
    packages = Path(sysconfig.get_path("purelib"))
    chosen = names or [name for name, (modules, _) in PROGRAMS.items() if present(modules)]
    backend = next((name for name in BACKENDS if present((name, "keras"))), "")
    with tempfile.TemporaryDirectory() as home:
        for name in chosen:
            write(PROGRAMS[name][1], name if name in BACKENDS else backend, home)
    if not chosen:
        compileall.compile_dir(packages, quiet=2)  # as pip does: a module that is for another Python is left out
    compiled = [path.stat().st_size for path in packages.rglob("*.pyc")]
    print(f"byte code: {', '.join(chosen) or 'everything'}: {len(compiled)} modules, {sum(compiled) / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
