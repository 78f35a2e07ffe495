"""The clock of a cell: monotonic seconds. Nothing else in the cell reads the time."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

monotonic: Clock = time.perf_counter
