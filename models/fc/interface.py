"""What a worker's program asks of a backend: collectives, hand-overs, gradients. Everything else is `keras.ops`.

Promise: with one worker no collective runs. Bytes are counted here, in one place for all backends, of every collective
and hand-over that a program calls: at each step where it runs eagerly, once where it is traced.

Name scopes of a program's computations, by which a trace identifies phase and layer.

JAX and TensorFlow store them in the graph while a step is traced, without cost at run time. On PyTorch, where every
step is Python, they are marks of the profiler, only while it records.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from enum import StrEnum
from typing import Any

from keras import ops
from keras.backend import backend, standardize_dtype

from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.fc.communication import Traffic
from keras_matrix.records.traces.request import LAYER, PHASE

Tensor = Any
Loss = Callable[[Sequence[Tensor]], Tensor]
Context = AbstractContextManager[Any]
Naming = Callable[[str, str], Context]
_NOTHING = nullcontext()


class WorkerAxis(StrEnum):
    """Which workers form a group: those with other rows of the batch, or those with other pieces of the weights."""

    DATA = "data"
    MODEL = "model"


def bytes_of(x: Tensor) -> int:
    """Return the size of an array."""
    return int(math.prod(x.shape)) * ELEMENT_BYTES[standardize_dtype(x.dtype)]


class Worker(ABC):
    """The interface of one of `size` workers to its program; or of the same worker within a group of `size`."""

    def __init__(self, size: int, whole: Worker | None = None) -> None:
        self.size = size
        self.traffic = Traffic()
        self._whole = whole

    def begin_step(self) -> None:
        """Reset the counts."""
        self.traffic = Traffic()

    @abstractmethod
    def along(self, axis: WorkerAxis) -> Worker:
        """Return this worker within its group along an axis; its communication is counted here."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all workers' x."""
        if self.size == 1:
            return x
        self.count("all_reduce_bytes", x)
        return self._all_reduce(x)

    def reduce_scatter(self, x: Tensor, axis: int) -> Tensor:
        """Return this worker's piece, along an axis, of the sum of all workers' x."""
        if self.size == 1:
            return x
        self.count("reduce_scatter_bytes", x)
        return self._reduce_scatter(x, axis)

    def all_gather(self, x: Tensor, axis: int) -> Tensor:
        """Return all workers' pieces, concatenated along an axis."""
        if self.size == 1:
            return x
        self.count("all_gather_bytes", x, self.size)
        return self._all_gather(x, axis)

    def scattered_sum(self, x: Tensor, axis: int) -> Tensor:
        """Like `reduce_scatter`, but differentiable: the gradient is gathered from every worker's piece."""

        @ops.custom_gradient  # type: ignore[untyped-decorator]
        def scattered(x: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
            def gathered(*arguments: Tensor, upstream: Tensor = None) -> Tensor:
                return self.all_gather(arguments[0] if upstream is None else upstream, axis)

            return self.reduce_scatter(x, axis), gathered

        return scattered(x)

    def divided_product(self, x: Tensor, weight: Tensor, axis: int) -> Tensor:
        """Return this worker's piece, along an axis, of the product of a batch in columns and a weight in rows.

        The product is differentiable.
        """
        return self.scattered_sum(ops.matmul(x, weight), axis)

    def summed_gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return this worker's loss and, for weights that all workers hold, the gradient of the sum of all losses."""
        loss_value, gradients = self.gradient(loss, weights)
        return loss_value, [self.all_reduce(gradient) for gradient in gradients]

    def accumulated_gradient(self, losses: Sequence[Loss], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return this worker's loss and gradient of the sum of the losses, computed one after the other."""
        losses_and_gradients = [self.gradient(loss, weights) for loss in losses]
        total, gradients = losses_and_gradients[0]
        for loss, part_gradients in losses_and_gradients[1:]:
            total = total + loss
            gradients = [ops.add(a, b) for a, b in zip(gradients, part_gradients, strict=True)]
        return total, gradients

    def summed_accumulated_gradient(
        self, losses: Sequence[Loss], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Like `accumulated_gradient`, with the gradients summed over the workers along with the last loss."""
        loss, gradients = self.accumulated_gradient(losses, weights)
        return loss, [self.all_reduce(gradient) for gradient in gradients]

    # Layers under the parameters of a what-if (`records.fc.rules.WHAT_IF` says which backends implement them).

    def slept(self, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        """Return x after a sleep; its gradient passes after another one."""
        raise NotImplementedError

    def recomputed(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function that retains only its arguments, and runs again in the backward pass."""
        raise NotImplementedError

    def compiled_block(self, block: range, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a block of layers, compiled as one program; it is always the same function for the same block."""
        raise NotImplementedError

    def after_all(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Return the arrays, so that computations with any of them wait until all are available."""
        return list(arrays) if self.size == 1 else self._after_all(arrays)

    def meanwhile(self, communicate: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Start to communicate; return a function that waits and returns the result.

        If a step is traced, nothing runs yet, and the backend finds the dependencies. Other backends override this.
        """
        communicated = communicate()
        return lambda: communicated

    def count(self, collective: str, x: Tensor, times: int = 1) -> None:
        """Count a collective on an array, or on as many pieces as `times` says."""
        whole, moved_bytes = self._whole or self, bytes_of(x) * times
        traffic = whole.traffic
        if self._whole is None:
            counts = {collective: getattr(traffic, collective) + moved_bytes}
        else:
            sent_bytes = Traffic(**{collective: moved_bytes}).sent_bytes(self.size)
            counts = {"group_sent_bytes": traffic.group_sent_bytes + whole.size // self.size * sent_bytes}
        whole.traffic = replace(traffic, calls=traffic.calls + 1, **counts)

    @abstractmethod
    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return this worker's loss and its gradient, by the backend's automatic differentiation."""

    @abstractmethod
    def _all_reduce(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _reduce_scatter(self, x: Tensor, axis: int) -> Tensor: ...

    @abstractmethod
    def _all_gather(self, x: Tensor, axis: int) -> Tensor: ...

    def _after_all(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Implement `after_all`; an eager backend has nothing to do."""
        return list(arrays)


class Stage(ABC):
    """Worker number `rank` of `size` in a row, each of which sends its result to the next."""

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank
        self.traffic = Traffic()

    def begin_step(self) -> None:
        """Reset the counts."""
        self.traffic = Traffic()

    def send(self, x: Tensor, target_rank: int) -> None:
        """Send an array to a worker, without waiting until it is received."""
        traffic = self.traffic
        counts = {"handed_bytes": traffic.handed_bytes + bytes_of(x), "hand_overs": traffic.hand_overs + 1}
        self.traffic = replace(traffic, **counts)
        self._send(x, target_rank)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function without communication, compiled if the backend compiles."""
        return function

    @abstractmethod
    def receive(self, like: Tensor, shape: tuple[int, int], source: int) -> Tensor:
        """Return the next array from a worker, with a shape, and with the type and device of `like`."""

    @abstractmethod
    def _send(self, x: Tensor, target_rank: int) -> None: ...


def scope(phase: str, layer: int | None = None) -> Context:
    """Return a context that names the operations within it after their phase and the number of their layer."""
    if _naming is None:
        return _NOTHING
    stack = ExitStack()
    stack.enter_context(_naming(PHASE, phase))
    if layer is not None:
        stack.enter_context(_naming(LAYER, layer_name(layer)))
    return stack


def layer_name(number: int) -> str:
    """Return the name of a layer."""
    return f"layer_{number}"


def mark_with(mark: Callable[[str], Context] | None) -> None:
    """Let the profiler of an eager backend mark every scope from now on; None stops this."""
    global _naming  # noqa: PLW0603 - a process has one profiler
    _naming = None if mark is None else lambda kind, name: mark(f"{kind}{name}")


def _of_jax(kind: str, name: str) -> Context:
    import jax

    name_context: Context = jax.named_scope(name)
    return name_context


def _of_tensorflow(kind: str, name: str) -> Context:
    import tensorflow as tf

    # With its final slash the name is absolute; otherwise a second scope with the same name would get a number.
    outer_scope = tf.get_current_name_scope()
    name_context: Context = tf.name_scope(f"{outer_scope}/{name}/" if outer_scope else f"{name}/")
    return name_context


_naming: Naming | None = {"jax": _of_jax, "tensorflow": _of_tensorflow}.get(backend())
