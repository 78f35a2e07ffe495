"""Measures the time of the collectives of a compiled step with the backend's own profiler, in separate epochs.

Collectives inside a compiled program cannot be timed from outside, so the profiler's events are read. The steps of
these epochs include the unknown cost of the profiler.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.traces.xspace.xplane import Plane, planes

InsideS = Callable[[Callable[[], None]], float]
"""Runs a function under the profiler; returns the seconds inside collectives, the mean over the workers."""


def by_profiling(inside_s: InsideS, run: Callable[[int], None], steps: int, epochs: int) -> Communication | None:
    """Return the times of a step over a number of epochs; None if the profiler recorded no collective.

    `run` takes the number of steps and returns with every device idle.
    """
    step_times_s: list[float] = []
    compute_times_s: list[float] = []

    def timed() -> None:
        begun_s = perf_counter()
        run(steps)
        step_times_s.append((perf_counter() - begun_s) / steps)

    for _ in range(epochs + 1):
        seen_s = inside_s(timed) / steps
        if not seen_s:
            return None
        compute_times_s.append(step_times_s[-1] - seen_s)
    # The first epoch includes the start of the profiler.
    return Communication(TimingMethod.PROFILED, step_times_s[1:], compute_times_s[1:])


def seen_by(backend: str, run: Callable[[], None]) -> list[Plane]:
    """Run a function under the profiler of JAX or TensorFlow; return the planes of its file."""
    from keras_matrix.models.profiling import load, recorded

    with tempfile.TemporaryDirectory(prefix="seen-") as folder:
        path = Path(folder) / "seen"
        with recorded(load(backend), path):
            run()
        return list(planes(path.read_bytes()))
