"""What surrounds a cell's kept epochs: whose turn it is, and what the backend compiles meanwhile.

Promise: nothing is read or counted between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from records.settings import Settings
from runner.cell.backends import Plug
from runner.cell.loop import Stretch
from runner.cell.turns import Turns


class Compiling:
    """How many programs the backend traced or compiled during the kept epochs: read before them and after.

    Between them nothing else runs: the process rests.
    """

    def __init__(self, plug: Plug) -> None:
        self._plug = plug
        self._before: int | None = None
        self.count: int | None = None

    def begin(self) -> None:
        """The kept epochs begin."""
        self._before = self._plug.compilations()

    def end(self) -> None:
        """The kept epochs are over."""
        after = self._plug.compilations()
        self.count = None if after is None else after - (self._before or 0)


@dataclass(frozen=True, slots=True)
class Kept:
    """What surrounds the kept epochs: whose turn it is, and what is compiled meanwhile."""

    turns: Turns
    compiling: Compiling

    def stretch(self, settings: Settings, steps: int) -> Stretch:
        """Return the epochs of a cell: the discarded ones at once, each kept one in its turn."""

        def before(epoch: int) -> None:
            if epoch == settings.discard:
                self.compiling.begin()
            if epoch >= settings.discard:
                self.turns.rest()

        return Stretch(steps, settings.epochs, settings.discard, before)

    def end(self) -> None:
        """Note that they are over, and rest."""
        self.compiling.end()
        self.turns.rest()
