"""Lets a function draw the batches of a source for `fit`, around each draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from keras_matrix.runner.cell.piped.stream import StreamAdapter

Draw = Callable[[], Any]


def with_draws(source: Any, around: Callable[[Draw], Any]) -> Any:
    """Return a source whose batches `around` draws; a TensorFlow data set unchanged, which a compiled step draws from.

    `around` is called with the function that draws the next batch, and returns the batch.
    """
    if isinstance(source, StreamAdapter):
        return source.with_batches(lambda batches: _drawn(iter(batches), around))
    return _drawn(source, around) if isinstance(source, Iterator) else source


def _drawn(batches: Iterator[Any], around: Callable[[Draw], Any]) -> Iterator[Any]:
    while True:
        yield around(batches.__next__)
