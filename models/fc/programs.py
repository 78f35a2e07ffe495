"""The FC modes: the computation and communication of one worker in one step, in `keras.ops`, for every backend.

A program takes its worker, the problem, this worker's weights, batch and labels, and returns this worker's loss and the
gradients of its weights, empty if it only goes forward. Capital letters in comments: N workers, S `weight_size`,
B `batch_size`. A program of stages has two halves, so that one process can run several stages one after the other.
Stages in one process: an array that one sends waits in a queue until the next receives it.

The parameters of a what-if change the layers: they sleep, are in bfloat16, compiled in blocks, or recomputed.
Without such a parameter this is not used, so that the programs of all other cells are unchanged. A layer in bfloat16
casts its input and its weight, as Keras's `mixed_bfloat16` does; its gradient is that of the float32 weight. The order
of a layer is: product, then sleep; backward: sleep, then the gradients of the product.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from keras import ops

from keras_matrix.models.fc.interface import Loss, Stage, Tensor, Worker, WorkerAxis, scope
from keras_matrix.records.fc import rules
from keras_matrix.records.fc.spec import FcProblem

Batch = tuple[Any, Any]
Result = tuple[Tensor, list[Tensor]]
Program = Callable[[Any, FcProblem, Sequence[Tensor], Batch], Result]
# Applied to a layer's number and gradient as soon as it is computed.
Each = Callable[[int, Tensor], Any]
# Of a batch's columns and a weight's rows; the last argument is the axis along which the product is divided.
Product = Callable[[Tensor, Tensor, int], Tensor]
MS = 1e-3
Boxes = dict[tuple[int, int], deque[Tensor]]
Place = Callable[[int], AbstractContextManager[Any]]


def program(mode: str) -> Program:
    """Return the program of a mode."""
    return PROGRAMS[mode]


# Products.


def _forward(weights: Sequence[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return every layer's input, and the output."""
    inputs = []
    for number, weight in enumerate(weights):
        inputs.append(x)
        with scope("forward", number):
            x = ops.matmul(x, weight)
    return inputs, x


def _loss(output: Tensor, labels: Tensor) -> Tensor:
    return ops.sum(ops.square(output - labels))


def _of_batch(batch: Batch) -> Loss:
    """Return the loss as a function of the weights."""
    x, labels = batch
    return lambda weights: _loss(_forward(weights, x)[1], labels)


def _product_gradients(weight: Tensor, x: Tensor, d: Tensor, is_first: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients of a product's weight and, unless it is the first, of its input; d is its output's."""
    gradient = ops.matmul(ops.transpose(x), d)
    return gradient, None if is_first else ops.matmul(d, ops.transpose(weight))


def _backward(
    weights: Sequence[Tensor],
    inputs: list[Tensor],
    d: Tensor,
    is_first: bool,
    each: Each = lambda number, gradient: gradient,
) -> tuple[list[Any], Tensor]:
    """Return the results of `each` for the layers' gradients, and the gradient of their input, unless first.

    Removes each input from the list when it is used, so that its memory is free, as in automatic backpropagation.
    """
    gradients = []
    for number in reversed(range(len(weights))):
        with scope("backward", number):
            gradient, d = _product_gradients(weights[number], inputs.pop(), d, is_first=is_first and number == 0)
        gradients.append(each(number, gradient))
    return gradients[::-1], d


def _by_hand(
    weights: Sequence[Tensor], batch: Batch, each: Each = lambda number, gradient: gradient
) -> tuple[Tensor, list[Any]]:
    x, labels = batch
    inputs, output = _forward(weights, x)
    gradients, _ = _backward(weights, inputs, 2 * (output - labels), True, each)
    return _loss(output, labels), gradients


# One worker.


def fc_single_manual(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Explicit backpropagation."""
    return _by_hand(weights, batch)


# Data parallel: every worker has all weights, and B / N rows of the batch.


def fc_data_ff(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Forward only; nothing is communicated."""
    return _of_batch(batch)(weights), []


def fc_data(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients by autodiff, each summed over the workers: in the backend's way, or after the backward pass."""
    losses = [_loss_of(worker, problem, micro_batch) for micro_batch in micro_batches(problem, batch)]
    has_several_losses = len(losses) > 1
    if problem.overlap == "on":
        if has_several_losses:
            loss, gradients = worker.summed_accumulated_gradient(losses, weights)
        else:
            loss, gradients = worker.summed_gradient(losses[0], weights)
    else:
        loss, local_gradients = (
            worker.accumulated_gradient(losses, weights) if has_several_losses else worker.gradient(losses[0], weights)
        )
        gradients = [worker.all_reduce(gradient) for gradient in worker.after_all(local_gradients)]
    return loss, _reduced(problem, gradients)


def _loss_of(worker: Worker, problem: FcProblem, batch: Batch) -> Loss:
    """Return the loss as a function of the weights, its layers as the parameters of a what-if demand."""
    if is_plain(problem):
        return _of_batch(batch)
    return lambda weights: _loss(layered_output(worker, problem, weights, batch[0]), batch[1])


def fc_data_slice(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients by autodiff; worker k sums the k-th S / N rows of each, then all gather the sums."""
    loss, gradients = worker.gradient(_of_batch(batch), weights)
    summed = [worker.all_gather(worker.reduce_scatter(g, 0), 0) for g in gradients]
    return loss, _reduced(problem, summed)


def fc_data_manual(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients by hand; worker k sums the k-th S / N columns of each; the last layer has one column: a plain sum.

    Each is summed while the next is computed, or all after the backward pass.
    """

    def summed(number: int, gradient: Tensor) -> Tensor:
        if number == len(weights) - 1:
            return worker.all_reduce(gradient)
        return worker.all_gather(worker.reduce_scatter(gradient, 1), 1)

    if problem.overlap == "on":
        loss, begun = _by_hand(
            weights, batch, lambda number, gradient: worker.meanwhile(partial(summed, number, gradient))
        )
        return loss, _reduced(problem, [finish() for finish in begun])
    loss, gradients = _by_hand(weights, batch)
    return loss, _reduced(
        problem, [summed(number, gradient) for number, gradient in enumerate(worker.after_all(gradients))]
    )


def _reduced(problem: FcProblem, gradients: list[Tensor]) -> list[Tensor]:
    """Return the sums over the rows' workers as requested by `reduce`."""
    if problem.reduce == "sum" or problem.data_size == 1:
        return gradients
    return [gradient / problem.data_size for gradient in gradients]


# Model parallel: worker k has S / N rows of every weight and as many columns of the batch, and the labels of B / N
# rows. A product of these is a full-width share of the layer's output; summed and divided into columns it is the next
# input. The last output has one column and is divided into rows.


def fc_model_ff(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Forward only."""
    x, labels = batch
    return _loss(_forward_in_columns(weights, x, _scattered(worker))[1], labels), []


def fc_model(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients by autodiff, through the collectives; one backward pass."""
    x, labels = batch

    def loss(weights: Sequence[Tensor]) -> Tensor:
        return _loss(_forward_in_columns(weights, x, worker.divided_product)[1], labels)

    return worker.gradient(loss, weights)


def fc_model_manual(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients by hand: the pieces of an output's gradient are gathered, everything else is local."""
    x, labels = batch
    inputs, output = _forward_in_columns(weights, x, _scattered(worker))
    d = 2 * (output - labels)
    gradients = []
    for number in reversed(range(len(weights))):
        d = worker.all_gather(d, _axis_of(number, weights))
        with scope("backward", number):
            gradient, d = _product_gradients(weights[number], inputs.pop(), d, is_first=number == 0)
        gradients.append(gradient)
    return _loss(output, labels), gradients[::-1]


def _axis_of(number: int, weights: Sequence[Tensor]) -> int:
    """Return the axis along which a layer's output is divided."""
    return 0 if number == len(weights) - 1 else 1


def _scattered(worker: Worker) -> Product:
    """Return the product of divided arrays, without a gradient."""
    return lambda x, weight, axis: worker.reduce_scatter(ops.matmul(x, weight), axis)


def _forward_in_columns(weights: Sequence[Tensor], x: Tensor, product: Product) -> tuple[list[Tensor], Tensor]:
    """Return this worker's piece of every layer's input, and of the output."""
    inputs = []
    for number, weight in enumerate(weights):
        inputs.append(x)
        with scope("forward", number):
            x = product(x, weight, _axis_of(number, weights))
    return inputs, x


# Hybrid: the workers form `data_size` rows and `model_size` columns. A row of workers has a part of the batch's rows
# and divides the model among its columns; all workers of a column have the same piece of the weights.


def fc_hybrid(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Like `fc_model` along a row, with its batch; then each gradient is summed over the column."""
    loss, gradients = fc_model(worker.along(WorkerAxis.MODEL), problem, weights, batch)
    column = worker.along(WorkerAxis.DATA)
    return loss, _reduced(problem, [column.all_reduce(gradient) for gradient in gradients])


# Pipeline: every worker has some of the layers. A micro-batch has B / `micro_batches` rows; all go forward, then all
# go backward, the last first, and their gradients are summed. (Huang et al., "GPipe", 2019.)


@dataclass(frozen=True, slots=True)
class Halfway:
    """The retained arrays of a stage's micro-batches: its layers' inputs; in the last also losses and gradients."""

    inputs: list[list[Tensor]]
    losses: list[Tensor]
    ends: list[Tensor]


def fc_pipeline(stage: Stage, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients of one stage's layers by hand."""
    return pipeline_back(stage, problem, weights, pipeline_forward(stage, problem, weights, batch))


def pipeline_forward(stage: Stage, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Halfway:
    """Receive each micro-batch from the previous stage and send its output to the next; the last computes the loss."""
    is_first, is_last = stage.rank == 0, stage.rank == stage.size - 1
    batches = _micro_batches(batch[0], problem) if is_first else []
    labels = _micro_batches(batch[1], problem) if is_last else []
    half = Halfway([], [], [])
    for number in range(problem.micro_batches):
        x = batches[number] if is_first else stage.receive(weights[0], _micro_shape(problem), stage.rank - 1)
        inputs, output = stage.compiled(_forward)(weights, x)
        half.inputs.append(inputs)
        if is_last:
            loss, d = stage.compiled(_end)(output, labels[number])
            half.losses.append(loss)
            half.ends.append(d)
        else:
            stage.send(output, stage.rank + 1)
    return half


def pipeline_back(stage: Stage, problem: FcProblem, weights: Sequence[Tensor], half: Halfway) -> Result:
    """Receive each output's gradient from the next stage and send the input's to the previous one."""
    is_first, is_last = stage.rank == 0, stage.rank == stage.size - 1
    backward = stage.compiled(_backward_of_first if is_first else _backward_of_others)
    total: list[Tensor] | None = None
    for number in reversed(range(problem.micro_batches)):
        d = half.ends[number] if is_last else stage.receive(weights[0], _micro_shape(problem), stage.rank + 1)
        gradients, d = backward(weights, half.inputs[number], d)
        if not is_first:
            stage.send(d, stage.rank - 1)
        total = gradients if total is None else stage.compiled(_added)(total, gradients)
    return sum(half.losses, start=0.0), total or []


def _micro_batches(part: Tensor, problem: FcProblem) -> list[Tensor]:
    return list(ops.split(part, problem.micro_batches, axis=0)) if problem.micro_batches > 1 else [part]


def _micro_shape(problem: FcProblem) -> tuple[int, int]:
    return problem.batch_size // problem.micro_batches, problem.weight_size


def _end(output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient."""
    return _loss(output, labels), 2 * (output - labels)


def _added(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(some, others, strict=True)]


_backward_of_first, _backward_of_others = (partial(_backward, is_first=is_first) for is_first in (True, False))


# Sharded: every worker has S / N rows of every weight, gathers the complete weight only for a product, and has B / N
# rows of the batch.


def fc_zero(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients by hand; weights are gathered in the forward and again in the backward pass; worker k sums its rows."""
    x, labels = batch
    inputs = []
    for number, weight in enumerate(weights):
        inputs.append(x)
        with scope("forward", number):
            x = ops.matmul(x, worker.all_gather(weight, 0))
    d = 2 * (x - labels)
    gradients = []
    for number in reversed(range(len(weights))):
        with scope("backward", number):
            gathered = worker.all_gather(weights[number], 0) if number else None
            gradient, d = _product_gradients(gathered, inputs.pop(), d, is_first=number == 0)
        gradients.append(worker.reduce_scatter(gradient, 0))
    return _loss(x, labels), _reduced(problem, gradients[::-1])


# Physics: every worker has `phy_blocks` complete models, each with its own batch of B rows. All copies average the
# first rows of each gradient; the other rows are independent.


def fc_phy(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], batch: Batch) -> Result:
    """Gradients by autodiff of each block's own loss."""
    blocks = problem.phy_blocks
    depth = len(weights) // blocks
    x, labels = (ops.split(array, blocks, axis=0) if blocks > 1 else [array] for array in batch)

    def loss(weights: Sequence[Tensor]) -> Tensor:
        block_weights = [weights[k * depth : (k + 1) * depth] for k in range(blocks)]
        return sum(_of_batch((x[k], labels[k]))(block_weights[k]) for k in range(blocks))

    total, gradients = worker.gradient(loss, weights)
    for number in range(depth):
        _share(worker, problem, gradients, range(number, len(gradients), depth))
    return total, gradients


def _share(worker: Worker, problem: FcProblem, gradients: list[Tensor], same: Sequence[int]) -> None:
    """Average the first rows of the gradients of one layer in all copies, in the list."""
    rows = problem.shared_rows(int(gradients[same[0]].shape[0]))
    if rows == 0 or problem.copies == 1:
        return
    mean = worker.all_reduce(sum(gradients[k][:rows] for k in same)) / problem.copies
    for k in same:
        gradients[k] = ops.concatenate([mean, gradients[k][rows:]], axis=0)


PROGRAMS: dict[str, Program] = {
    "fc_single_manual": fc_single_manual,
    "fc_data_ff": fc_data_ff,
    "fc_data": fc_data,
    "fc_data_slice": fc_data_slice,
    "fc_data_manual": fc_data_manual,
    "fc_model_ff": fc_model_ff,
    "fc_model": fc_model,
    "fc_model_manual": fc_model_manual,
    "fc_hybrid": fc_hybrid,
    "fc_pipeline": fc_pipeline,
    "fc_zero": fc_zero,
    "fc_phy": fc_phy,
}


def is_plain(problem: FcProblem) -> bool:
    """Return whether the layers are plain products."""
    slept = problem.forward_sleep_ms or problem.backward_sleep_ms
    return not (slept or problem.recompute or problem.amp or problem.fuse)


def layered_output(worker: Worker, problem: FcProblem, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the output of all layers."""
    for segment in rules.segments(problem.level + 1, problem.fuse, recompute=problem.recompute):
        first, end = segment[0].start, segment[-1].stop
        run = partial(_segment, worker, problem, segment)
        x = (worker.recomputed(run) if problem.recompute else run)(x, *weights[first:end])
    return ops.cast(x, weights[-1].dtype) if problem.amp else x


def micro_batches(problem: FcProblem, batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the parts of a batch and its labels that are computed one after the other."""
    micro_batch_count = problem.gradient_accumulation
    return (
        list(zip(*(ops.split(array, micro_batch_count, axis=0) for array in batch), strict=True))
        if micro_batch_count > 1
        else [batch]
    )


def _segment(worker: Worker, problem: FcProblem, segment: Sequence[range], x: Tensor, *weights: Tensor) -> Tensor:
    fused, first = rules.blocks(problem.fuse), segment[0].start
    for unit in segment:
        unit_weights = weights[unit.start - first : unit.stop - first]
        run: Callable[..., Any] = partial(_products, problem, unit)
        with scope("forward", unit.start):
            x = (worker.compiled_block(unit, run) if unit in fused else run)(x, *unit_weights)
            if problem.forward_sleep_ms or problem.backward_sleep_ms:
                x = worker.slept(x, problem.forward_sleep_ms * MS, problem.backward_sleep_ms * MS)
    return x


def _products(problem: FcProblem, unit: range, x: Tensor, *weights: Tensor) -> Tensor:
    in_bfloat16 = rules.layers(problem.amp)
    for layer, weight in zip(unit, weights, strict=True):
        dtype = "bfloat16" if layer in in_bfloat16 else problem.precision
        x = ops.matmul(ops.cast(x, dtype), ops.cast(weight, dtype)) if in_bfloat16 else ops.matmul(x, weight)
    return x


class LocalStage(Stage):
    """One of the stages in this process. `fetched` moves an array to its device, `compiled` compiles a function."""

    def __init__(
        self,
        size: int,
        rank: int,
        boxes: Boxes,
        fetched: Callable[[Tensor], Tensor],
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> None:
        super().__init__(size, rank)
        self._boxes, self._fetched, self._compiled = boxes, fetched, compiled

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function, compiled by the backend."""
        return self._compiled(function)

    def receive(self, like: Tensor, shape: tuple[int, int], source: int) -> Tensor:
        """Fetch the oldest array from the source. Raises `ValueError` if it has another shape."""
        x = self._boxes[source, self.rank].popleft()
        if tuple(x.shape) != shape:
            raise ValueError(f"stage {source} sent an array of shape {tuple(x.shape)} to {self.rank}, not {shape}")
        return self._fetched(x)

    def _send(self, x: Tensor, target_rank: int) -> None:
        self._boxes.setdefault((self.rank, target_rank), deque()).append(x)


def in_turn(
    stages: Sequence[Stage],
    problem: FcProblem,
    weights: Sequence[Sequence[Tensor]],
    batches: Sequence[Batch],
    place: Place,
) -> list[Result]:
    """Return the loss and gradients of every stage; `place(rank)` is the context in which a stage's part is built."""
    halves = []
    for rank, stage in enumerate(stages):
        with place(rank):
            halves.append(pipeline_forward(stage, problem, weights[rank], batches[rank]))
    results = []
    for rank in reversed(range(len(stages))):
        with place(rank):
            results.append(pipeline_back(stages[rank], problem, weights[rank], halves[rank]))
    return results[::-1]
