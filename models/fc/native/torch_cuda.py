"""PyTorch on a GPU: communication on a CUDA stream next to that of the computation.

A collective of NCCL starts after all earlier work of the current stream, and with `async_op=False` later work of that
stream waits for its end (PyTorch, "Distributed communication package", "Synchronous and asynchronous collective
operations"). Threads do not help: they share the default stream. Instead of a thread, as on a CPU, a GPU therefore uses
a second stream, on which collectives can stay synchronous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from keras_matrix.models.fc.interface import Tensor, Worker
from keras_matrix.models.fc.native.torch_worker import TorchWorker


class CudaWorker(TorchWorker):
    """A worker on a GPU, which communicates on a separate stream while it computes."""

    def __init__(self, size: int, group: Any = None, whole: Worker | None = None) -> None:
        super().__init__(size, group, whole)
        self._stream: Any = None

    def meanwhile(self, communicate: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Communicate on a separate stream, after all work of the current one until now.

        `communicate` is referenced until the current stream waits for the result: the memory of its array must not be
        reused before it has been sent.
        """
        if self.size == 1:
            return Worker.meanwhile(self, communicate)
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            made = communicate()
            done = torch.cuda.Event()
            done.record(self._stream)
        return Pending(communicate, made, done)


class Pending:
    """The result of an asynchronous communication; a call lets the current stream wait for it."""

    def __init__(self, communicate: Callable[[], Tensor], made: Tensor, done: Any) -> None:
        self._communicate, self._made, self._done = communicate, made, done

    def __call__(self) -> Tensor:
        """Return the result, for use on the current stream."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self._done)
        # The other stream owns its memory, and must not reuse it while this one reads it.
        self._made.record_stream(stream)
        return self._made
