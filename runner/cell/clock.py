"""The clock of a cell in monotonic seconds, which all of the cell's timings use."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

monotonic: Clock = time.perf_counter
