"""Measures the time of the collectives of a compiled step with the backend's own profiler, in separate epochs.

Collectives inside a compiled program cannot be timed from outside, so the profiler's events are read. The steps of
these epochs include the unknown cost of the profiler.

On a CPU a collective is an event of the host's threads. On a GPU the host only launches it: the time is that of a
kernel on a stream of a device plane, whose statistic `hlo_op` (JAX) or `tf_op` (TensorFlow) is the operation
(`StatType` in tsl/profiler/utils/xplane_schema.h). If an accelerator has events, those of the host are launches and are
not read. NCCL's kernels and copies from GPU to GPU are communication, whatever their operation. Copies between GPUs
without a direct connection, through the host's memory, are not detected.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.traces.neutral import covered
from keras_matrix.records.traces.xspace.reader import DERIVED
from keras_matrix.records.traces.xspace.xplane import UNTOLD, Events, Places, Plane, PlaneLine, planes

InsideS = Callable[[Callable[[], None]], float]
"""Runs a function under the profiler; returns the seconds inside collectives, the mean over the workers."""
ACCELERATORS = ("/device:GPU:", "/device:TPU:")
# NCCL before 2.19 named its kernels ncclKernel_..., since then ncclDevKernel_... (src/device/generate.py).
COMMUNICATION_KERNEL = re.compile(r"^(?:void )?nccl\w*Kernel|^MemcpyP2P$")
# The name scope of the operations of TensorFlow's collectives; the number of workers that wait for one follows.
SCOPE = "collective_of_"
COLLECTIVE = re.compile(rf"{SCOPE}(\d+)")


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


def jax_collectives_s(planes: Sequence[Plane], names: Container[str]) -> float:
    """Return the seconds in instructions with these names, the mean over the devices."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for plane, line in _lines(planes):
        events = line.events()
        ops, words = events.words("hlo_op")
        named = np.isin(ops, [at for at, word in enumerate(words) if word in names])
        kinds = _kinds(plane, names.__contains__)
        its = named | (ops == UNTOLD) & np.isin(events.kinds, kinds) | _kernels(plane, events)
        ordinals, known = events.numbers("device_ordinal")
        columns = (ordinals, known, events.start_ns, events.end_ns)
        for ordinal, is_known, start_ns, end_ns in zip(*(column[its].tolist() for column in columns), strict=True):
            device = str(ordinal) if is_known and not _is_accelerator(plane) else plane.name
            spans.setdefault(device, []).append((start_ns, end_ns))
    return sum(map(covered, spans.values())) / 1e9 / max(1, len(spans))


def tensorflow_collectives_s(planes: Sequence[Plane], workers: int) -> float:
    """Return the seconds in operations in the scope of a collective, the mean over the workers.

    An operation starts when its inputs are ready, so that waiting for another worker is not included.
    """
    inside_s = 0.0
    for plane, line in _lines(planes):
        events = line.events()
        waiting = _waiting_by_operation(events) if _is_accelerator(plane) else _waiting_by_name(plane, events)
        waiting = np.where(_kernels(plane, events) & (waiting == 0), 1, waiting)
        inside_s += float(((events.end_ns - events.start_ns) * waiting).sum()) / 1e9 / workers
    return inside_s


def _lines(planes: Sequence[Plane]) -> Iterator[tuple[Plane, PlaneLine]]:
    """Yield the lines with work: streams of the accelerators, or without any the host's threads."""
    on_devices = [plane for plane in planes if _is_accelerator(plane) and any(line.begins.size for line in plane.lines)]
    for plane in on_devices or planes:
        for line in plane.lines:
            if not (on_devices and line.name.startswith(DERIVED)):
                yield plane, line


def _is_accelerator(plane: Plane) -> bool:
    return plane.name.startswith(ACCELERATORS)


def _kinds(plane: Plane, wanted: Callable[[str], object]) -> list[int]:
    return [kind for kind, name in plane.event_names.items() if wanted(name)]


def _kernels(plane: Plane, events: Events) -> NDArray[np.bool_]:
    """Return which events of a device are kernels that communicate, whatever operation launched them."""
    kinds = _kinds(plane, COMMUNICATION_KERNEL.search) if _is_accelerator(plane) else []
    return np.isin(events.kinds, kinds)


def _waiting_by_operation(events: Events) -> Places:
    """Return for each kernel how many workers wait for it, by the operation that it belongs to."""
    ops, words = events.words("tf_op")
    return np.array([*_waiting(words), 0], np.int64)[ops]  # UNTOLD is -1, the last


def _waiting_by_name(plane: Plane, events: Events) -> Places:
    """Return for each event of the host how many workers wait for it, by its name."""
    kinds, which = np.unique(events.kinds, return_inverse=True)
    return np.array([*_waiting(plane.event_names.get(kind, "") for kind in kinds.tolist()), 0], np.int64)[which]


def _waiting(names: Iterable[str]) -> list[int]:
    return [int(match[1]) if (match := COLLECTIVE.search(name)) else 0 for name in names]
