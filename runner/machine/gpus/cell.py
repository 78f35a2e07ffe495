"""The GPUs of one cell: each is read at both ends of every measured epoch.

The values of a GPU that cannot be read are None, with the reason; a GPU that NVML reports lost is evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.schema import GpuEpochs
from keras_matrix.runner.machine.gpus.nvml import GpuLost
from keras_matrix.runner.machine.gpus.readings import (
    GpuProperties,
    GpuReading,
    ReadableGpu,
    Unreadable,
    open_gpu,
    over_epochs,
    readable,
)

Open = Callable[[str], ReadableGpu | Unread]


class CellGpus:
    """The GPUs with these names, as in `CUDA_VISIBLE_DEVICES`. `begin` and `end` alternate."""

    def __init__(self, names: Sequence[str], open_gpu: Open = open_gpu) -> None:
        self._names = names
        self._found = [open_gpu(name) for name in names]
        self._identities = [one.identity() if isinstance(one, ReadableGpu) else GpuProperties() for one in self._found]
        self._before: list[GpuReading | None] = []
        self._ends: list[list[tuple[GpuReading, GpuReading]]] = [[] for _ in names]

    @property
    def sampled(self) -> tuple[ReadableGpu | Unreadable, ...]:
        """The GPUs to sample while the cell works: empty if no GPU can be read."""
        return readable(self._found)

    def begin(self) -> None:
        """Read before an epoch, while the cell rests."""
        self._before = [one.read() if isinstance(one, ReadableGpu) else None for one in self._found]

    def go(self) -> None:
        """Read the energy once more, as the epoch begins."""
        self._before = [
            one.with_energy_now(before) if isinstance(one, ReadableGpu) and before else None
            for one, before in zip(self._found, self._before, strict=False)
        ]

    def end(self) -> None:
        """Read after the epoch."""
        befores, self._before = self._before, []
        for one, before, ends in zip(self._found, befores, self._ends, strict=False):
            if isinstance(one, ReadableGpu) and before is not None:
                ends.append((before, one.read()))

    def epochs(self) -> list[GpuEpochs | None]:
        """Return a record's figures of each GPU, in the order of their names; None for one without a reading."""
        return [
            over_epochs(ends, identity) if ends else None
            for identity, ends in zip(self._identities, self._ends, strict=True)
        ]

    @property
    def lost(self) -> str | None:
        """NVML's message about a lost GPU; None if it reports no lost GPU."""
        for name, one in zip(self._names, self._found, strict=True):
            text = one.lost if isinstance(one, ReadableGpu) else one.why if isinstance(one, GpuLost) else None
            if text is not None:
                return f"GPU {name}: {text.removeprefix('NVML: ')}"
        return None

    @property
    def unread(self) -> str | None:
        """What could not be read and why, except values that a GPU does not provide; None if all was read."""
        problems = []
        for name, one in zip(self._names, self._found, strict=True):
            if isinstance(one, Unread):
                problems.append(f"GPU {name}: {one.why}")
            elif one.not_permitted:
                problems.append(f"GPU {name}: NVML: Insufficient Permissions: {', '.join(one.not_permitted)}")
        return "; ".join(problems) or None
