"""The clocks of all GPUs of a cell, locked for cells that request it and released before any other cell runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.settings import Settings
from keras_matrix.runner.machine.gpus.readings import ReadableGpu, open_gpu


class CellClocks:
    """The GPUs whose clocks are locked; `open_gpu` opens one by its index or UUID."""

    def __init__(self, open_gpu: Callable[[str], ReadableGpu | Unread] = open_gpu) -> None:
        self._open = open_gpu
        self._locked: dict[str, ReadableGpu] = {}

    def suit(self, settings: Settings, gpus: Sequence[str]) -> str | None:
        """Lock the clocks of these GPUs if the cell requests it, and release all others; return a refusal."""
        wanted = gpus if settings.clocks == "locked" else ()
        for gpu in self._locked.keys() - set(wanted):
            self._locked.pop(gpu).unlock()
        for gpu in [one for one in wanted if one not in self._locked]:
            found = self._open(gpu)
            refused = found.why if isinstance(found, Unread) else found.lock()
            if isinstance(found, Unread) or refused is not None:
                return (
                    f"clocks: locked: the GPU's clocks cannot be locked here: {refused}; it takes root (or the "
                    "capability SYS_ADMIN) and a GPU from Volta on; lock them with nvidia-smi -lgc and set clocks: free"
                )
            self._locked[gpu] = found
        return None

    def release(self) -> None:
        """Release all clocks."""
        while self._locked:
            self._locked.popitem()[1].unlock()
