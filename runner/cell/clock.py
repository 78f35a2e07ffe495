"""The clock of a cell in monotonic seconds, which all of the cell's timings use."""

from __future__ import annotations

from collections.abc import Callable

from keras_matrix.records.host.platform import PLATFORM

Clock = Callable[[], float]

monotonic: Clock = PLATFORM.clock
