"""How much of its own matrix products' rate a step of the FC modes reaches, and the overhead of Keras's layers:
the figures in docs/lab/fc.md.

    lab/run fc [steps] [--backend NAME] [--weight-size N] [--batch-size N] [--dtype NAME]
    lab/run fc layers [--backend NAME] [--weight-size N] [--batch-size N] [--rounds N]

Per backend one child process, in which the arms are interleaved in a rotating order. `steps` measures single steps: the
products alone (every product of a step, on separate arrays, each waited for), the update of the weights alone (which
only moves bytes), the manual step, the automatic step. For `layers` see `lab.fc_layers`. Ratios are of
neighbours in a round; intervals are Student's over rounds.
Nothing here is a test: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_matrix.records.fc.spec import FcProblem

ROOT = Path(__file__).parents[1]
BACKENDS = ("tensorflow", "jax", "torch")
LEVEL = 10
STEPS = ("fc_single_manual", "fc_data")
RATE = 1e-6
# Runs once and returns the seconds that counts.
Arm = Callable[[], float]


def arms(backend: str, task: FcProblem) -> dict[str, Arm]:
    """Return the products, the update, and a step of each mode."""
    from keras_matrix.models.fc.native import assemble, reserve
    from keras_matrix.models.fc.worker_group import WorkerSpec

    reserve(backend, 1, "cpu")
    by_name: dict[str, Arm] = {
        "products": clocked(products(task.weight_size, task.batch_size, task.precision)),
        "update": clocked(UPDATES[backend](task.weight_size, task.precision)),
    }
    for mode in STEPS:
        by_name[mode] = clocked(partial(assemble(backend, WorkerSpec(task.changed(mode=mode), 0)).run, 1))
    return by_name


def clocked(run: Callable[[], object]) -> Arm:
    """Return a function that runs this and returns its seconds."""

    def arm() -> float:
        begun_s = time.perf_counter()
        run()
        return time.perf_counter() - begun_s

    return arm


def interleaved(arms: dict[str, Arm], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each arm in each round; the order rotates, and two rounds before do not count."""
    times_s: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(-2, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds = arms[name]()
            if turn >= 0:
                times_s[name].append(seconds)
    return times_s


def products(size: int, batch: int, dtype: str) -> Callable[[], None]:
    """Return a function that runs every matrix product of one step, as the step does, and waits for each."""
    import keras
    import numpy as np
    from keras import ops

    draw = np.random.default_rng(0).standard_normal
    # Elsewhere an operation has ended when it returns.
    wait = (
        importlib.import_module("jax").block_until_ready
        if keras.backend.backend() == "jax"
        else lambda outputs: outputs
    )

    def array(rows: int, columns: int) -> Any:
        return ops.convert_to_tensor(draw((rows, columns)), dtype=dtype)

    weights = [array(size, size) for _ in range(LEVEL)] + [array(size, 1)]
    inputs = [array(batch, size) for _ in weights]
    deltas = [array(batch, size) for _ in weights[:-1]] + [array(batch, 1)]

    def run() -> None:
        for weight, x in zip(weights, inputs, strict=True):
            wait(ops.matmul(x, weight))
        for number in reversed(range(len(weights))):
            wait(ops.matmul(ops.transpose(inputs[number]), deltas[number]))
            if number:
                wait(ops.matmul(deltas[number], ops.transpose(weights[number])))

    return run


def torch_update(size: int, dtype: str) -> Callable[[], None]:
    """Return a function that changes the square weights in place, as the step of PyTorch does."""
    import torch

    weights, gradients = (torch.randn(LEVEL, size, size).to(getattr(torch, dtype)) for _ in range(2))

    def run() -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=RATE)

    return run


def jax_update(size: int, dtype: str) -> Callable[[], None]:
    """Return a function that returns new square weights, as the step of JAX does."""
    import jax

    gradients = [jax.numpy.ones((size, size), dtype) for _ in range(LEVEL)]
    weights = [jax.numpy.zeros((size, size), dtype) for _ in range(LEVEL)]
    step = jax.jit(lambda old, gradients: [w - RATE * g for w, g in zip(old, gradients, strict=True)], donate_argnums=0)

    def run() -> None:
        nonlocal weights
        weights = jax.block_until_ready(step(weights, gradients))

    return run


def tensorflow_update(size: int, dtype: str) -> Callable[[], None]:
    """Return a function that changes the square weights in place, as the step of TensorFlow does."""
    import tensorflow as tf

    gradients = [tf.ones((size, size), dtype) for _ in range(LEVEL)]
    weights = [tf.Variable(tf.zeros((size, size), dtype)) for _ in range(LEVEL)]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            rate = tf.constant(RATE, weight.dtype)
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient)

    return step


UPDATES = {"tensorflow": tensorflow_update, "jax": jax_update, "torch": torch_update}


HEAD = (
    "products, GFLOP/s",
    *("of it: manual", "autodiff", "with the update: manual", "autodiff", "manual / autodiff, time"),
)


def rows(times_s: dict[str, list[float]], task: FcProblem) -> list[str]:
    """Return the cells of a row: the products' rate, and each step's share of it, alone and with the update."""
    from keras_matrix.records.fc.spec import flops_per_step

    centre = statistics.median(times_s["products"])
    combined_s = [sum(pair) for pair in zip(times_s["products"], times_s["update"], strict=True)]
    cells = [f"{flops_per_step(task) / centre / 1e9:.0f}"]
    cells += [share(base, times_s[mode]) for base in (times_s["products"], combined_s) for mode in STEPS]
    return [*cells, share(times_s["fc_single_manual"], times_s["fc_data"])]


def share(numerators_s: list[float], denominators_s: list[float]) -> str:
    """Return the ratio of two arms' times, with its interval."""
    from keras_matrix.analysis.stats.blocks import of_logs

    ratio = of_logs([math.log(a / b) for a, b in zip(numerators_s, denominators_s, strict=True)])
    assert ratio is not None
    return f"{ratio.centre:.3f} [{ratio.low:.3f} {ratio.high:.3f}]"


def main() -> None:
    """Measure the named backends and print a table."""
    from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
    from keras_matrix.records.fc.spec import FcProblem
    from lab import fc_layers

    # For each table: its arms, the heads of its columns, the cells of a row, and the default problem.
    tables = {
        "steps": (arms, HEAD, rows, (2048, 512, 18)),
        "layers": (fc_layers.arms, fc_layers.HEAD, fc_layers.rows, (1024, 128, 40)),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=tables, nargs="?", default="steps")
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--weight-size", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    make_arms, head, row, default = tables[args.table]
    size, batch, rounds = (
        argument or fallback
        for argument, fallback in zip((args.weight_size, args.batch_size, args.rounds), default, strict=True)
    )
    if rounds < MIN_BLOCKS:
        parser.error(f"--rounds: must be at least {MIN_BLOCKS}, of fewer there is no interval, got {rounds}")
    task = FcProblem(level=LEVEL, weight_size=size, batch_size=batch, precision=args.dtype)
    if args.child:
        print(json.dumps(interleaved(make_arms(args.backend[-1], task), rounds)))
        return
    print(f"{size} wide, batch {batch}, {args.dtype}\n| backend | {' | '.join(head)} | rounds |")
    print("|---|" + "---:|" * (len(head) + 1))
    for backend in args.backend or BACKENDS:
        times_s = in_child(backend, [*sys.argv[1:], "--child"])
        print(f"| {' | '.join([backend, *row(times_s, task)])} | {rounds} |", flush=True)


def in_child(backend: str, arguments: list[str]) -> dict[str, list[float]]:
    """Return the measurements of a backend in a separate process."""
    command = [sys.executable, "-m", "lab.fc", *arguments, "--backend", backend]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    times_s: dict[str, list[float]] = json.loads(completed.stdout.splitlines()[-1])
    return times_s


if __name__ == "__main__":
    main()
