"""Detects the discarded step of Keras's loops, for counts of operations as they run.

On TensorFlow and PyTorch, Keras runs a loop's first step once more before the loop, to find the shape of its output.
That step is not part of the model's work, and a compiled training step omits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from keras.src import backend


@contextmanager
def around_thrown_away_steps(make_context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter `around()` for every loop step whose output is discarded."""
    plain_rnn = backend.rnn

    def rnn(step: Any, *args: Any, unroll: bool = False, **kwargs: Any) -> Any:
        seen = unroll  # an unrolled loop runs each step once

        def watched(*inputs: Any) -> Any:
            nonlocal seen
            if seen:
                return step(*inputs)
            seen = True
            with make_context():
                return step(*inputs)

        return plain_rnn(watched, *args, unroll=unroll, **kwargs)

    backend.rnn = rnn
    try:
        yield
    finally:
        backend.rnn = plain_rnn
