"""The context of a cell's measured epochs: its turns, and the backend's compilations and memory meanwhile.

Nothing is read or counted between two steps.
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
    """The number of programs that the backend traced or compiled during the measured epochs, and of graph breaks.

    Read before and after these epochs; between them the process rests.
    """

    def __init__(self, adapter: BackendAdapter) -> None:
        self._adapter = adapter
        self._before: tuple[int | None, int | None] = None, None
        self.count: int | None = None
        self.graph_breaks: int | None = None

    def begin(self) -> None:
        """Read before the measured epochs."""
        self._before = self._adapter.compilations(), self._adapter.graph_breaks()

    def end(self) -> None:
        """Read after the measured epochs."""
        self.count = _more(self._before[0], self._adapter.compilations())
        self.graph_breaks = _more(self._before[1], self._adapter.graph_breaks())


def _more(before: int | None, after: int | None) -> int | None:
    """Return a count's growth; a count that began meanwhile grew from 0."""
    return None if after is None else after - (before or 0)


@dataclass(slots=True)
class Allocated:
    """The memory that the framework's allocator has in use on the device, read while it is idle between two epochs.

    `peak_bytes` is its peak at the end of the measured epochs, `peak_span` what that covers: these epochs if the
    backend can reset its peak before them, else the process up to their end. On a CPU all are empty.
    """

    adapter: BackendAdapter
    sizes_bytes: list[int] = field(default_factory=list)
    peak_bytes: int | None = None
    peak_span: str | None = None

    def begin(self) -> None:
        """Reset the peak before the measured epochs."""
        if (is_reset := self.adapter.reset_peak_device_memory()) is not None:
            self.peak_span = MEASURED_EPOCHS if is_reset else PROCESS

    def end(self) -> None:
        """Read after the measured epochs."""
        self.note()
        self.peak_bytes = self.adapter.peak_device_memory_bytes()

    def note(self) -> None:
        """Read it once more, except on a CPU."""
        if (size_bytes := self.adapter.device_memory_bytes()) is not None:
            self.sizes_bytes.append(size_bytes)


@dataclass(frozen=True, slots=True)
class MeasuredEpochs:
    """The context of the measured epochs: the process's turns, the compilations, the device's memory."""

    turns: Turns
    compiling: Compiling
    allocated: Allocated

    def stretch(self, settings: Settings, steps: int) -> Stretch:
        """Return the epochs of a cell: the discarded ones at once, each measured one in its turn."""

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
        """Read after the last measured epoch, and rest."""
        self.compiling.end()
        self.allocated.end()
        self.turns.rest()
