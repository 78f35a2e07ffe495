"""Overhead of each part of Keras's step over the native loop: `lab/run fc layers`.

Five arms train the same stack from the same weights on the same batch, interleaved, each an epoch of `STEPS` steps.
Each adds one part of Keras to the one before:

    native       the program of fc_data
    layers       the forward pass by a model of `Dense` layers; loss, gradients and update as in the native loop
    optimizer    the update by `keras.optimizers.SGD`
    train_step   the model's own step, as `fit` has it compiled: its loss, its tracking and metrics, a batch an iterator
                 gives
    fit          an epoch of `fit`, as a cell of fc_keras times it: its data adapter, its callbacks, its end

The ratio of two neighbours is the cost of that part; their product is the ratio of Keras's layers to the native step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lab.fc import RATE, Arm, clocked, share

if TYPE_CHECKING:
    from keras_matrix.records.fc.spec import FcProblem

STEPS = 10  # of an epoch, as of `runner fc`
SEED = 0
RUNGS = ("native", "layers", "optimizer", "train_step", "fit")
NEIGHBOURS = tuple(zip(RUNGS[1:], RUNGS, strict=False))
HEAD = ("native step, ms", *(f"{rung} / {before}" for rung, before in NEIGHBOURS), "fit / native")
# How far the losses of two rungs may be apart after one step: sums in single precision, in another order.
SAME_LOSS = 1e-3
# Runs steps and returns their loss, after which every device is idle.
Run = Callable[[int], float]


def arms(backend: str, task: FcProblem) -> dict[str, Arm]:
    """Return an epoch of each rung. Ends the script if they do not do the same work."""
    from keras_matrix.models.fc.native import assemble, reserve
    from keras_matrix.models.fc.worker_group import WorkerSpec
    from keras_matrix.runner.cell import backends

    if task.precision != "float32":
        raise SystemExit(f"--dtype: must be float32 for layers, got {task.precision}")
    reserve(backend, 1, "cpu")
    adapter = backends.load(backend)
    worker_group = assemble(backend, WorkerSpec(task.changed(mode="fc_data"), SEED))

    def native(steps: int) -> float:
        worker_group.run(steps)
        return worker_group.loss()

    runs: dict[str, Run] = {"native": native}
    for rung in RUNGS[1:-1]:
        runs[rung] = RUNS[backend](rung, *ready(task, adapter))
    refuse_other_work({rung: run(1) for rung, run in runs.items()})  # Keras reports the mean over the steps so far
    for run in runs.values():
        run(STEPS)
    model, _, source = ready(task, adapter)
    return {rung: clocked(partial(run, STEPS)) for rung, run in runs.items()} | {"fit": fitted(model, source, adapter)}


def ready(task: FcProblem, adapter: Any) -> tuple[Any, Any, Any]:
    """Return a model that has taken a step of `fit`, at the task's weights; the batch, and an endless source of it."""
    from keras_matrix.models.fc.worker_group import draw_batch, draw_weights
    from keras_matrix.models.registry import load
    from keras_matrix.models.workload import Request

    model = load("fc")(Request({"level": task.level, "weight_size": task.weight_size}, "synthetic", None)).model
    batch = adapter.resident(draw_batch(task, SEED))
    source = adapter.endless([batch])
    model.fit(source, steps_per_epoch=1, epochs=1, verbose=0, shuffle=False)
    model.set_weights(list(draw_weights(task, SEED)))
    model.reset_metrics()
    return model, batch, source


def refuse_other_work(losses: dict[str, float]) -> None:
    """End the script if a rung's loss is not the native loop's."""
    for rung, loss in losses.items():
        if not abs(loss / losses["native"] - 1) <= SAME_LOSS:
            raise SystemExit(f"{rung} does other work than native: its loss is {loss:g}, not {losses['native']:g}")


def fitted(model: Any, source: Any, adapter: Any) -> Arm:
    """Return an epoch of `fit`: the second of two, since only the first of a call makes the iterator."""
    from keras_matrix.runner.cell.loop import Stretch
    from keras_matrix.runner.cell.phases import fit_epochs

    return lambda: fit_epochs(model, source, adapter, Stretch(STEPS, 2)).times_s[-1]


def torch_run(rung: str, model: Any, batch: Any, source: Any) -> Run:
    """Return the steps of a rung, run eagerly."""
    import torch

    x, labels = batch
    iterator = iter(source)

    def step(update: Callable[[Any, Any], None]) -> Any:
        model.zero_grad()
        loss = ((model(x, training=True) - labels) ** 2).sum()
        loss.backward()
        variables = model.trainable_weights
        with torch.no_grad():
            update([variable.value.grad for variable in variables], variables)
        return loss.detach()

    def natively(gradients: Any, variables: Any) -> None:
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.value.sub_(gradient, alpha=RATE)

    steps = {
        "layers": partial(step, natively),
        "optimizer": partial(step, model.optimizer.apply),
        "train_step": lambda: model.train_function([next(iterator)])["loss"],
    }

    def run(count: int) -> float:
        for _ in range(count):
            loss = steps[rung]()
        return float(loss)

    return run


def tensorflow_run(rung: str, model: Any, batch: Any, source: Any) -> Run:
    """Return the steps of a rung, each a traced function."""
    import tensorflow as tf

    x, labels = batch
    variables, iterator = model.trainable_weights, iter(source)

    def step(update: Callable[[Any, Any], None]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True) - labels))
        update(tape.gradient(loss, variables), variables)
        return loss

    def natively(gradients: Any, variables: Any) -> None:
        for variable, gradient in zip(variables, gradients, strict=True):
            rate = tf.constant(RATE, gradient.dtype)
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.value.handle, alpha=rate, delta=gradient)

    steps = {
        "layers": tf.function(partial(step, natively), autograph=False),
        "optimizer": tf.function(partial(step, model.optimizer.apply), autograph=False),
        "train_step": lambda: model.train_function(iterator)["loss"],
    }

    def run(count: int) -> float:
        for _ in range(count):
            loss = steps[rung]()
        tf.test.experimental.sync_devices()
        return float(loss)

    return run


def jax_run(rung: str, model: Any, batch: Any, source: Any) -> Run:
    """Return the steps of a rung, each a compiled function of all that it changes."""
    import jax

    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    variables = [[variable.value for variable in group] for group in (*groups, model.metrics_variables)]
    state = tuple(jax.tree.map(jax.numpy.copy, variables))  # given away at each step
    iterator = iter(source)

    def loss_of(trainable: Any, fixed: Any, batch: Any) -> Any:
        output, _ = model.stateless_call(trainable, fixed, batch[0], training=True)
        return jax.numpy.sum(jax.numpy.square(output - batch[1]))

    def step(update: Callable[[Any, Any, Any], Any], state: Any, batch: Any) -> Any:
        trainable, fixed, kept, metrics = state
        loss, gradients = jax.value_and_grad(loss_of)(trainable, fixed, batch)
        trainable, kept = update(kept, gradients, trainable)
        return {"loss": loss}, (trainable, fixed, kept, metrics)

    def natively(kept: Any, gradients: Any, trainable: Any) -> Any:
        return [weight - RATE * gradient for weight, gradient in zip(trainable, gradients, strict=True)], kept

    def compiled(update: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
        jitted = jax.jit(partial(step, update), donate_argnums=0)
        return lambda state: jitted(state, batch)

    steps = {
        "layers": compiled(natively),
        "optimizer": compiled(model.optimizer.stateless_apply),
        "train_step": lambda state: model.train_function(state, iterator),
    }

    def run(count: int) -> float:
        nonlocal state
        for _ in range(count):
            logs, state = steps[rung](state)
        jax.block_until_ready(state)
        return float(logs["loss"])

    return run


RUNS = {"tensorflow": tensorflow_run, "jax": jax_run, "torch": torch_run}


def rows(times_s: dict[str, list[float]], task: FcProblem) -> list[str]:
    """Return the cells of a row: the native step, the ratio of each part to the one before, and of all of them."""
    step_s = statistics.median(times_s["native"]) / STEPS
    neighbours = [share(times_s[rung], times_s[before]) for rung, before in NEIGHBOURS]
    return [f"{step_s * 1e3:.2f}", *neighbours, share(times_s["fit"], times_s["native"])]
