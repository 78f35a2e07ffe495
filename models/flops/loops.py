"""Telling the step that Keras's loop throws away from the others: needed where a count watches operations as they run.

On TensorFlow and PyTorch, Keras runs a loop's first step once more before the loop, to see the shape of its output.
That step is no work of the model's, and a compiled training step does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from keras.src import backend


@contextmanager
def around_thrown_away_steps(around: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Within, enter `around()` for every step of a loop whose output nobody uses."""
    plain = backend.rnn

    def rnn(step: Any, *args: Any, unroll: bool = False, **kwargs: Any) -> Any:
        seen = unroll  # an unrolled loop runs each step once

        def told(*inputs: Any) -> Any:
            nonlocal seen
            if seen:
                return step(*inputs)
            seen = True
            with around():
                return step(*inputs)

        return plain(told, *args, unroll=unroll, **kwargs)

    backend.rnn = rnn
    try:
        yield
    finally:
        backend.rnn = plain
