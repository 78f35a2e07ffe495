"""The moments at which a run is stopped: an event that is visible from outside, then a random delay."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.store import Results


@dataclass(frozen=True, slots=True)
class Seen:
    """What is visible of a run: whether its process has a child, its scratch folders, and its records."""

    has_child: bool
    scratch: frozenset[str]
    written: frozenset[str]
    published: frozenset[str]

    def since(self, before: Seen) -> Seen:
        """Return what was not there before."""
        return Seen(
            self.has_child,
            self.scratch - before.scratch,
            self.written - before.written,
            self.published - before.published,
        )


NOTHING = Seen(has_child=False, scratch=frozenset(), written=frozenset(), published=frozenset())


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a run: how often its event has happened, and the largest delay after it, in seconds."""

    name: str
    events: Callable[[Seen], int]
    delay_s: tuple[float, float]
    most: int = 1


END = "end"  # the event is the last record of the run
PHASES = (
    Phase("start", lambda seen: 1, (0.0, 0.6)),
    Phase("server start", lambda seen: seen.has_child, (0.0, 0.1)),
    Phase("import", lambda seen: seen.has_child, (0.1, 1.5)),
    Phase("measuring", lambda seen: len(seen.scratch), (0.0, 0.5), most=3),
    Phase("publishing", lambda seen: len(seen.written), (0.0, 0.0), most=2),
    Phase("between cells", lambda seen: len(seen.published), (0.0, 0.03), most=3),
    Phase(END, lambda seen: 0, (0.0, 0.25)),  # the report of a run takes a little longer
)
KINDS = {
    "SIGINT": signal.SIGINT,
    "SIGINT twice": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "SIGHUP": signal.SIGHUP,
}
SECOND_DELAY_S = 0.05


@dataclass(frozen=True, slots=True)
class Moment:
    """When and how a run is stopped; `second_s` is the delay of a second signal."""

    phase: Phase
    kind: str
    count: int
    delay_s: float
    second_s: float | None

    @property
    def number(self) -> signal.Signals:
        """The signal."""
        return KINDS[self.kind]


def moments(number: int, chance: random.Random) -> list[Moment]:
    """Return this many moments: each phase and each kind of signal as often as possible, in random order."""
    pairs = [(phase, kind) for phase in PHASES for kind in KINDS]
    found: list[tuple[Phase, str]] = []
    while len(found) < number:
        found += chance.sample(pairs, len(pairs))
    return [_drawn(phase, kind, chance) for phase, kind in found[:number]]


def _drawn(phase: Phase, kind: str, chance: random.Random) -> Moment:
    second_s = chance.uniform(0, SECOND_DELAY_S) if kind.endswith("twice") else None
    return Moment(phase, kind, chance.randint(1, phase.most), chance.uniform(*phase.delay_s), second_s)


def look(pid: int, results: Path) -> Seen:
    """Return what is visible of the newest run of a results folder, and of its runner."""
    run = Results(results).latest()
    names = list(_names(run.folder / "records")) if run else []
    scratch = [name for name in _names(run.folder / "work") if name.count(".") == 2] if run else []
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        has_child = bool(children.read_text(encoding="ascii"))
    except OSError:
        has_child = False
    return Seen(
        has_child,
        frozenset(scratch),
        frozenset(name for name in names if name.endswith(".tmp")),
        frozenset(name for name in names if name.endswith(".json")),
    )


def _names(folder: Path) -> Iterator[str]:
    try:
        yield from (path.name for path in folder.iterdir())
    except OSError:
        return
