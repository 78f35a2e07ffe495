"""The clocks of all GPUs of a cell, locked for cells that ask for it and given back before any other cell runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from keras_matrix.records.settings import Settings
from keras_matrix.runner.host.gpus.readings import HeldClocks, open_gpu


class CellClocks:
    """One `HeldClocks` for each GPU that a cell had so far; `held_clocks` makes it from the GPU's index or UUID."""

    def __init__(
        self, held_clocks: Callable[[str], HeldClocks] = lambda gpu: HeldClocks(partial(open_gpu, gpu))
    ) -> None:
        self._held_clocks = held_clocks
        self._of_gpu: dict[str, HeldClocks] = {}

    def suit(self, settings: Settings, gpus: Sequence[str]) -> str | None:
        """Lock or release the clocks of these GPUs as the cell asks, and release all others; return a refusal."""
        for gpu in self._of_gpu.keys() - set(gpus):
            self._of_gpu[gpu].release()
        for gpu in gpus:
            held = self._of_gpu.setdefault(gpu, self._held_clocks(gpu))
            if refused := held.suit(settings):
                return refused
        return None

    def release(self) -> None:
        """Give all clocks back."""
        for held in self._of_gpu.values():
            held.release()
