"""Injects the faults of `records.injected_faults`, which test whether the program detects and identifies them.

The first epoch of first-epoch:SHARE ends with matrix products that take SHARE of its time; variance is like slower.
Faults are real work of the backend, never a sleep, and use the machine like the model does. The slowdown of a step
depends on its bottleneck; `runner selftest` measures it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keras_matrix.models.workload import UnsupportedWorkload
from keras_matrix.records.injected_faults import parse, scattered_share
from keras_matrix.records.settings import BACKWARD, KERAS_CALLS, NATIVE, ON_BATCH, Settings

if TYPE_CHECKING:
    from keras_matrix.models.workload import Built

TRAINING_PER_FORWARD = 3
SIDE = 256
# Number of matrix products in a unit of work, for faults whose work is given as a duration.
ROUND = 16
PHASES = {"fit": "train", "predict": "predict"}

Renew = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The cell into which a fault is injected: its settings, the number of its repeat, and its clock in seconds."""

    settings: Settings
    repeat: int
    clock: Callable[[], float]


def plant(workload: Built, fault: str, circumstances: Circumstances) -> Built:
    """Return the workload with an injected fault.

    Raises `UnknownFault`, and `UnsupportedWorkload` if the fault does not apply to such a cell.
    """
    kind, value = parse(fault)
    return PLANTERS[kind](workload, value, circumstances)


def _slower(workload: Built, share: float, circumstances: Circumstances) -> Built:
    graph = _graph(workload)
    if circumstances.settings.call == NATIVE:
        raise UnsupportedWorkload(f"slower, variance: call: {NATIVE} runs no layer of Keras; set another call")
    if not getattr(graph, "inputs", None):
        raise UnsupportedWorkload("slower, variance: only a model that is a graph of layers can be given another layer")
    passes = TRAINING_PER_FORWARD if circumstances.settings.phase in BACKWARD else 1
    step_flops = passes * circumstances.settings.batch_size * _forward_flops(workload)
    products = max(1, round(share * step_flops / (2 * SIDE**3)))
    return replace(workload, model=_burdened(workload.model, graph, products))


def _graph(workload: Built) -> Any:
    """Return the graph of layers of the workload's model; that of a Sequential is made for its samples."""
    import keras

    model = workload.model
    if not isinstance(model, keras.Sequential):
        return model
    if model._functional is None:
        model(workload.samples(1, 0)[0])
    return model._functional


def _variance(workload: Built, share: float, circumstances: Circumstances) -> Built:
    own_share = scattered_share(share, circumstances.repeat)
    return _slower(workload, own_share, circumstances) if own_share else workload


def _copy(workload: Built, mebibytes: float, circumstances: Circumstances) -> Built:
    from keras import ops

    halves = ops.ones((2, max(1, round(mebibytes * 2**20 / 8))), "float32")

    def copy(renew: Renew) -> None:
        # Concatenation writes the entire tensor on every backend; their copy operation may only create a view.
        copied = ops.concatenate([halves[0], halves[1]])
        # Otherwise JAX would run it asynchronously, outside of the measured time.
        getattr(copied, "block_until_ready", lambda: None)()

    _before_each_step(workload.model, circumstances.settings, copy)
    return workload


def _recompile(workload: Built, interval: float, circumstances: Circumstances) -> Built:
    import keras

    settings, model, steps = circumstances.settings, workload.model, itertools.count(1)
    on_torch = keras.backend.backend() == "torch"
    if settings.eager or (on_torch and settings.jit is not True and settings.league != "matched"):
        raise UnsupportedWorkload(
            f"recompile: not applicable: {settings.backend} runs this cell eagerly and compiles nothing; set jit: true"
        )

    def recompile(renew: Renew) -> None:
        if next(steps) % interval == 0:
            _forget_compiled(model, settings.phase, on_torch)
            renew()

    _before_each_step(model, settings, recompile)
    return workload


def _forget_compiled(model: Any, phase: str, on_torch: bool) -> None:
    """Force the backend to compile again: JAX identifies a step function by identity, torch by its code."""
    if on_torch:
        import torch

        torch.compiler.reset()
        return
    plain_step = getattr(type(model), f"{PHASES[phase]}_step")
    setattr(model, f"{PHASES[phase]}_step", lambda *arguments: plain_step(model, *arguments))


def _first_epoch(workload: Built, share: float, circumstances: Circumstances) -> Built:
    if circumstances.settings.phase != "fit" or not circumstances.settings.discard:
        raise UnsupportedWorkload(
            "first-epoch: needs phase: fit and a discarded first epoch, discard: 1 or more; "
            f"got phase: {circumstances.settings.phase}, discard: {circumstances.settings.discard}"
        )
    import keras

    plain_fit, work, clock = workload.model.fit, _Products(circumstances.clock), circumstances.clock

    class Beginning(keras.callbacks.Callback):  # type: ignore[misc]
        """Precedes the callback that times epochs, so that its work is within the first epoch."""

        begun_s = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begun_s = clock()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 0:
                work.run(share * (clock() - self.begun_s))

    def fit(*arguments: Any, callbacks: Any = (), **named: Any) -> Any:
        return plain_fit(*arguments, callbacks=[Beginning(), *callbacks], **named)

    workload.model.fit = fit
    return workload


class _Products:
    """Matrix products of the backend that take a given time on an undisturbed machine."""

    def __init__(self, clock: Callable[[], float]) -> None:
        from keras import ops

        self._matrix = ops.ones((SIDE, SIDE), "float32") / SIDE
        self._round_s = min(self._timed(clock) for _ in range(5))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / self._round_s)):
            self._round()

    def _timed(self, clock: Callable[[], float]) -> float:
        begun_s = clock()
        self._round()
        return clock() - begun_s

    def _round(self) -> None:
        from keras import ops

        grown = self._matrix
        for _ in range(ROUND):
            grown = ops.matmul(grown, self._matrix)
        ops.convert_to_numpy(grown)  # waits for it


def _before_each_step(model: Any, settings: Settings, work: Callable[[Renew], None]) -> None:
    """Call `work` before each step (or predict call), with a function that creates the step's function again.

    Raises `UnsupportedWorkload` for a call that has no such function.
    """
    if settings.call not in KERAS_CALLS:
        raise UnsupportedWorkload(
            f"copy, recompile: need a step that Keras makes, got call: {settings.call}; set call: {ON_BATCH}"
        )
    name = f"{PHASES[settings.phase]}_function"
    plain_make: Callable[..., Any] = getattr(model, f"make_{name}")
    plain_function: Callable[..., Any] | None = None

    def stepping(*arguments: Any) -> Any:
        work(renew)
        assert plain_function is not None
        return plain_function(*arguments)

    def renew() -> None:
        nonlocal plain_function
        plain_make(force=True)
        plain_function = getattr(model, name)
        setattr(model, name, stepping)

    def make(force: bool = False) -> Any:
        if force or getattr(model, name) is None:
            renew()
        return stepping

    setattr(model, f"make_{name}", make)


def _forward_flops(workload: Built) -> float:
    """Return the FLOPs of one sample's forward pass.

    If they cannot be counted: two operations per weight, which is exact for dense layers and a lower bound for others.
    """
    import keras

    from keras_matrix.models import flops

    try:
        return float(flops.load(keras.backend.backend()).forward(workload.model, workload.samples(1, 0)[0]))
    except NotImplementedError:
        return 2.0 * float(sum(math.prod(weight.shape) for weight in workload.model.trainable_weights))


def _burdened(model: Any, graph: Any, products: int) -> Any:
    """Return the same model, compiled alike, with additional matrix products that do not change its output."""
    import keras
    import numpy as np
    from keras import ops

    numbers = np.random.default_rng(0).normal(0, SIDE**-0.5, (SIDE, SIDE))

    class Burden(keras.layers.Layer):  # type: ignore[misc]
        """Adds a value far below rounding to its input, which takes `products` matrix products to compute."""

        def call(self, inputs: Any) -> Any:
            # No weights: the model's own work must not change. Without the input, a compiler would compute it once.
            matrix = ops.cast(ops.convert_to_tensor(numbers), inputs.dtype)
            grown = matrix * (1.0 + ops.mean(ops.stop_gradient(inputs)))
            for _ in range(products):
                grown = ops.tanh(ops.matmul(grown, matrix))
            return inputs + ops.cast(ops.mean(grown), inputs.dtype) * 1e-30

    burdened = keras.Model(graph.input, Burden()(graph.outputs[0]), name=model.name)
    settings = keras.saving.deserialize_keras_object(model.get_compile_config())
    burdened.compile(**{key: value for key, value in settings.items() if value is not None})
    return burdened


PLANTERS: dict[str, Callable[[Built, float, Circumstances], Built]] = {
    "slower": _slower,
    "copy": _copy,
    "recompile": _recompile,
    "first-epoch": _first_epoch,
    "variance": _variance,
}
