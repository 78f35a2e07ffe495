"""The energy that the CPUs and their memory use in the measured epochs, by their own counters (RAPL).

    energy = CpuEnergy()
    energy.begin(); energy.follow(); ...; energy.end()      around each stretch that counts, `follow` within it
    energy.package_j, energy.dram_j, energy.package_w, energy.unread

The kernel shows the counters below /sys/class/powercap, also those of AMD's processors: a zone `intel-rapl:N` for each
package, and within it `dram` if the memory is counted. Zones of the same energy in other places are not added: cores
and graphics are parts of a package, `psys` contains the packages, `intel-rapl-mmio` counts them once more.

A counter begins again at 0 after `max_energy_range_uj`, at 100 W after some minutes: so it is read every `FOLLOW_S` in
a long epoch, and wraps at most once between two readings. A counter that moved by more than `MOST_W` was reset.

Guarantee: what is not counted is None, with the reason: a machine without counters, a user who may not read them (since
Linux 5.10 root alone may), a value that is no counter, a counter that was reset, other cells at work on the machine. No
sum leaves out a package, or the memory of one. Limit: the counters are the machine's, not a process's: they include
whatever else ran there, and the power that an idle machine uses.

Sources: of the kernel, Documentation/power/powercap/powercap.rst and drivers/powercap/intel_rapl_common.c. Tested with
trees of files, since no machine with counters was available.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.records.host.system import HERE

FOLDER, ZONES = "/sys/class/powercap", "intel-rapl:*"
PACKAGE, DRAM = "package-", "dram"
MICRO = 1e-6
FOLLOW_S = 10.0
# No package and no memory of one draws this much; a counter that was reset seems to have wrapped at a higher power.
MOST_W = 5_000.0
UPDATE_S = 0.1  # a counter is updated every millisecond or so: within less, one update looks like a high power
NO_COUNTERS = f"this machine shows no energy counters of its CPUs ({FOLDER}/{ZONES})"
SHARED = "other cells were at work on the machine at the same time"


@dataclass(frozen=True, slots=True)
class Zone:
    """One counter: its folder, whether it counts memory, and the value after which it begins at 0 again, if known."""

    folder: str
    is_dram: bool
    range_uj: int | None


def zones(tree: ProcTree = HERE) -> tuple[Zone, ...] | Unread:
    """Return the counters of every package, then those of memory; of memory none unless every package has one.

    `Unread` says why there are none that can be read.
    """
    folders = [f"{FOLDER}/{name}" for name in tree.names(FOLDER, ZONES)]
    names = {folder: tree.text(f"{folder}/name") for folder in folders}
    packages = [folder for folder, name in names.items() if isinstance(name, str) and name.startswith(PACKAGE)]
    if not packages:
        return Unread(NO_COUNTERS, absent=True)
    for folder in packages:
        if isinstance(value := counter(tree, f"{folder}/energy_uj"), Unread):
            return value
    memories = [
        folder
        for folder, name in names.items()
        if name == DRAM and not isinstance(counter(tree, f"{folder}/energy_uj"), Unread)
    ]
    if len(memories) < len(packages):
        memories = []
    return tuple(_zone(tree, folder, is_dram=folder in memories) for folder in [*packages, *memories])


def _zone(tree: ProcTree, folder: str, *, is_dram: bool) -> Zone:
    range_uj = counter(tree, f"{folder}/max_energy_range_uj")
    return Zone(folder, is_dram, None if isinstance(range_uj, Unread) else range_uj)


def counter(tree: ProcTree, path: str) -> int | Unread:
    """Return the value of a counter; a negative one is none."""
    value = tree.number(path)
    if isinstance(value, int) and value < 0:
        return Unread(f"{path} contains {value}, which no counter has")
    return value


def moved(before_uj: int, after_uj: int, range_uj: int | None) -> int | None:
    """Return by how much a counter moved that wraps after `range_uj`; None if it ran backwards."""
    if after_uj >= before_uj:
        return after_uj - before_uj
    return range_uj - before_uj + after_uj if range_uj is not None and before_uj <= range_uj else None


class CpuEnergy:
    """Adds up the energy of the stretches between `begin` and `end`.

    `unread` is why there is no energy, also if a reading fails after others.
    """

    def __init__(self, tree: ProcTree = HERE, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tree, self._clock = tree, clock
        found = zones(tree)
        self._zones: tuple[Zone, ...] = () if isinstance(found, Unread) else found
        self.unread: str | None = found.why if isinstance(found, Unread) else None
        self._used_uj = [0] * len(self._zones)
        self._time_s = 0.0
        self._last: tuple[float, Sequence[int]] | None = None

    def begin(self, *, shared: bool = False) -> None:
        """Begin a stretch; with `shared` other cells work on the machine meanwhile."""
        if shared and self.unread is None:
            self.unread = SHARED
        self._last = self._read()

    def follow(self) -> None:
        """Read within a stretch, if the last reading is old."""
        if self._last is not None and self._clock() - self._last[0] >= FOLLOW_S:
            self._add()

    def end(self) -> None:
        """End the stretch."""
        self._add()
        self._last = None

    @property
    def package_j(self) -> float | None:
        """The energy of all packages in the stretches."""
        return self._sum_j(is_dram=False)

    @property
    def dram_j(self) -> float | None:
        """The energy of the memory; None where it is not counted."""
        return self._sum_j(is_dram=True)

    @property
    def package_w(self) -> float | None:
        """The power of all packages over the stretches."""
        energy_j = self.package_j
        return None if energy_j is None else energy_j / self._time_s

    def _sum_j(self, *, is_dram: bool) -> float | None:
        used_uj = [used for zone, used in zip(self._zones, self._used_uj, strict=True) if zone.is_dram is is_dram]
        return sum(used_uj) * MICRO if used_uj and self.unread is None and self._time_s else None

    def _read(self) -> tuple[float, Sequence[int]] | None:
        """Return the time and every counter; None, with the reason in `unread`, once one cannot be read."""
        if self.unread is not None:
            return None
        values = []
        for zone in self._zones:
            value = counter(self._tree, f"{zone.folder}/energy_uj")
            if isinstance(value, Unread):
                self.unread = value.why
                return None
            values.append(value)
        return self._clock(), values

    def _add(self) -> None:
        """Add what the counters moved since the last reading."""
        before, now = self._last, self._read()
        self._last = now
        if before is None or now is None:
            return
        passed_s = now[0] - before[0]
        for place, zone in enumerate(self._zones):
            change_uj = moved(before[1][place], now[1][place], zone.range_uj)
            if change_uj is None or change_uj * MICRO > MOST_W * max(passed_s, UPDATE_S):
                self.unread = f"{zone.folder}/energy_uj was reset while it was read"
                return
            self._used_uj[place] += change_uj
        self._time_s += passed_s
