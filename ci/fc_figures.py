"""How much of its own matrix products' rate a step of the FC modes reaches: the figures that docs/fc.md states.

    .venv/bin/python ci/fc_figures.py [--backend NAME] [--weight-size N] [--batch-size N] [--dtype NAME] [--rounds N]

Per backend one child process, in which the arms take turns, a step at a time, in an order that rotates: the products
alone (every product of a step, on arrays of its own, each waited for), the update of the weights alone (which only
moves bytes), the manual step, the automatic step. Ratios are of neighbours in a round; intervals are Student's over
rounds.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BACKENDS = ("tensorflow", "jax", "torch")
LEVEL = 10
STEPS = ("fc_single_manual", "fc_data")
RATE = 1e-6


def child(backend: str, weight_size: int, batch_size: int, dtype: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each arm in each round."""
    from models.fc.crew import Order, assemble, reserve
    from records.fc import Task

    reserve(backend, 1, "cpu")
    arms: dict[str, Callable[[], object]] = {
        "products": products(weight_size, batch_size, dtype),
        "update": UPDATES[backend](weight_size, dtype),
    }
    for mode in STEPS:
        task = Task(mode, level=LEVEL, weight_size=weight_size, batch_size=batch_size, precision=dtype)
        crew = assemble(backend, Order(task, 0))
        arms[mode] = lambda crew=crew: crew.run(1)  # type: ignore[misc]
    for arm in arms.values():
        arm(), arm()
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        names = list(arms)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun_s = time.perf_counter()
            arms[name]()
            taken[name].append(time.perf_counter() - begun_s)
    return taken


def products(size: int, batch: int, dtype: str) -> Callable[[], None]:
    """Return what runs every matrix product of one step, as the step does, and waits for each."""
    import keras
    import numpy as np
    from keras import ops

    draw = np.random.default_rng(0).standard_normal
    # Elsewhere an operation has ended when it returns.
    wait = importlib.import_module("jax").block_until_ready if keras.backend.backend() == "jax" else lambda made: made

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
    """Return what changes the square weights in place, as the step of PyTorch does."""
    import torch

    weights, gradients = (torch.randn(LEVEL, size, size).to(getattr(torch, dtype)) for _ in range(2))

    def run() -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=RATE)

    return run


def jax_update(size: int, dtype: str) -> Callable[[], None]:
    """Return what gives the square weights anew, as the step of JAX does."""
    import jax

    gradients = [jax.numpy.ones((size, size), dtype) for _ in range(LEVEL)]
    weights = [jax.numpy.zeros((size, size), dtype) for _ in range(LEVEL)]
    step = jax.jit(lambda old, given: [w - RATE * g for w, g in zip(old, given, strict=True)], donate_argnums=0)

    def run() -> None:
        nonlocal weights
        weights = jax.block_until_ready(step(weights, gradients))

    return run


def tensorflow_update(size: int, dtype: str) -> Callable[[], None]:
    """Return what changes the square weights in place, as the step of TensorFlow does."""
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


def told(backend: str, taken: dict[str, list[float]], flops: int) -> str:
    """Return a row of the table: the products' rate, and what each step reaches of it, alone and with the update."""
    centre = statistics.median(taken["products"])
    both = [sum(pair) for pair in zip(taken["products"], taken["update"], strict=True)]
    cells = [backend, f"{flops / centre / 1e9:.0f}"]
    cells += [_share(whole, taken[mode]) for whole in (taken["products"], both) for mode in STEPS]
    cells.append(_share(taken["fc_single_manual"], taken["fc_data"]))
    return f"| {' | '.join(cells)} | {len(taken['products'])} |"


def _share(these: list[float], those: list[float]) -> str:
    from analysis.statistics import of_logs

    found = of_logs([math.log(a / b) for a, b in zip(these, those, strict=True)])
    assert found is not None
    return f"{found.centre:.3f} [{found.low:.3f} {found.high:.3f}]"


def main() -> None:
    """Measure the backends named and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--weight-size", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--child", choices=BACKENDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = (args.weight_size, args.batch_size, args.dtype, args.rounds)
    if args.child:
        print(json.dumps(child(args.child, *sizes)))
        return
    from records.fc import Task, flops_per_step

    flops = flops_per_step(Task(level=LEVEL, weight_size=args.weight_size, batch_size=args.batch_size))
    print(
        "| backend | products, GFLOP/s | of it: manual | autodiff | with the update: manual | autodiff "
        "| manual / autodiff | rounds |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for backend in args.backend or BACKENDS:
        command = [sys.executable, __file__, "--child", backend, "--weight-size", str(sizes[0])]
        command += ["--batch-size", str(sizes[1]), "--dtype", sizes[2], "--rounds", str(sizes[3])]
        found = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "KERAS_BACKEND": backend}
        )
        print(told(backend, json.loads(found.stdout.splitlines()[-1]), flops), flush=True)


if __name__ == "__main__":
    main()
