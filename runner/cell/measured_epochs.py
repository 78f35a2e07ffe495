"""What surrounds a cell's kept epochs: whose turn it is, what the backend compiles and holds meanwhile.

Promise: nothing is read or counted between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_matrix.models.process.garbage_collection import settle
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.interleaving import Turns
from keras_matrix.runner.cell.loop import Stretch

MEASURED_EPOCHS, PROCESS = "measured_epochs", "process"


class Compiling:
    """How many programs the backend traced or compiled during the kept epochs, and in how many places it cut them.

    Read before these epochs and after; between them nothing else runs: the process rests.
    """

    def __init__(self, adapter: BackendAdapter) -> None:
        self._adapter = adapter
        self._before: tuple[int | None, int | None] = None, None
        self.count: int | None = None
        self.graph_breaks: int | None = None

    def begin(self) -> None:
        """The kept epochs begin."""
        self._before = self._adapter.compilations(), self._adapter.graph_breaks()

    def end(self) -> None:
        """The kept epochs are over."""
        self.count = _more(self._before[0], self._adapter.compilations())
        self.graph_breaks = _more(self._before[1], self._adapter.graph_breaks())


def _more(before: int | None, after: int | None) -> int | None:
    """Return by how much a count grew; a count that began meanwhile grew from 0."""
    return None if after is None else after - (before or 0)


@dataclass(slots=True)
class Allocated:
    """What the framework's allocator has in use on the device, read where the device is idle between two epochs.

    `peak_bytes` is its peak at the end of the measured epochs, `peak_span` what that covers: these epochs where the
    backend can begin its peak anew before them, else the process up to their end. On a CPU all are empty.
    """

    adapter: BackendAdapter
    sizes_bytes: list[int] = field(default_factory=list)
    peak_bytes: int | None = None
    peak_span: str | None = None

    def begin(self) -> None:
        """The measured epochs begin."""
        if (is_reset := self.adapter.reset_peak_device_memory()) is not None:
            self.peak_span = MEASURED_EPOCHS if is_reset else PROCESS

    def end(self) -> None:
        """The measured epochs are over."""
        self.note()
        self.peak_bytes = self.adapter.peak_device_memory_bytes()

    def note(self) -> None:
        """Read it once more; on a CPU there is nothing to read."""
        if (held := self.adapter.device_memory_bytes()) is not None:
            self.sizes_bytes.append(held)


@dataclass(frozen=True, slots=True)
class MeasuredEpochs:
    """What surrounds the kept epochs: whose turn it is, what is compiled meanwhile, what the device holds."""

    turns: Turns
    compiling: Compiling
    allocated: Allocated

    def stretch(self, settings: Settings, steps: int) -> Stretch:
        """Return the epochs of a cell: the discarded ones at once, each kept one in its turn."""

        def before(epoch: int) -> None:
            if epoch == settings.discard:
                settle()
                self.compiling.begin()
                self.allocated.begin()
            if epoch >= settings.discard:
                self.allocated.note()
                self.turns.rest()

        return Stretch(steps, settings.epochs, settings.discard, before)

    def end(self) -> None:
        """Note that they are over, and rest."""
        self.compiling.end()
        self.allocated.end()
        self.turns.rest()
