"""What a stream of batches is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras_matrix.runner.cell.piped.timers import Timers


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A request for a stream of a source's batches.

    `source` is anything that `fit` reads more than once. With `drops_partial`, batches with fewer than `batch_size`
    samples are left out. With `timers`, the time of each draw is recorded.
    """

    model: Any
    source: Any
    batch_size: int
    drops_partial: bool = False
    timers: Timers | None = None
