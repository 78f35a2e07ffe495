"""Stages of fc_pipeline in one process: an array that one sends waits in a queue until the next receives it.

The first halves of all stages run one after the other and then, from the last, their second halves, so that every
received array exists. If calls are asynchronous, or only traced, the work itself overlaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from keras_matrix.models.fc.interface import Stage, Tensor
from keras_matrix.models.fc.programs import Batch, Result, pipeline_back, pipeline_forward
from keras_matrix.records.fc.spec import FcProblem

Boxes = dict[tuple[int, int], deque[Tensor]]
Place = Callable[[int], AbstractContextManager[Any]]


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

    def _send(self, x: Tensor, to: int) -> None:
        self._boxes.setdefault((self.rank, to), deque()).append(x)


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
