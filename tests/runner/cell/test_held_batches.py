"""How many batches of a pipeline are held in memory for feeds that do not read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_matrix.runner.cell.batches import HELD_BYTES, held_batches


class Pipeline:
    """A pipeline of equal batches; `asked` lists how many were requested."""

    def __init__(self, batch_bytes: int, batches_per_pass: int | None) -> None:
        self.batches_per_pass, self._size, self.asked = batches_per_pass, batch_bytes, list[int]()

    def in_memory(self, batches: int) -> list[Any]:
        self.asked.append(batches)
        return [({"image": np.zeros(self._size - 4, np.uint8)}, np.zeros(1, np.int32))] * batches


@pytest.mark.parametrize(
    ("batch_bytes", "batches_per_pass", "steps", "expected"),
    [
        (100, 10, 50, 10),  # one pass
        (100, None, 50, 50),  # an epoch
        (100, 10, 3, 3),
        (HELD_BYTES // 4, 10, 50, 4),
        (HELD_BYTES * 2, 10, 50, 2),  # at least two, so that a step does not train on the batch of the one before
        (100, 1, 50, 2),
        (100, 10, 1, 1),
    ],
)
def test_batches_held_are_those_of_an_epoch_within_a_pass_and_a_limit_of_memory(
    batch_bytes: int, batches_per_pass: int | None, steps: int, expected: int
) -> None:
    pipeline: Any = Pipeline(batch_bytes, batches_per_pass)
    assert len(held_batches(pipeline, steps)) == expected
