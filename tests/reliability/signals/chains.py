"""Chains of starts of one run, each stopped at a moment; the last one completes the run."""

from __future__ import annotations

import shutil
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.records.schema import HARMLESS
from keras_matrix.records.store import Results
from tests.reliability.signals.moments import KINDS, PHASES, Moment
from tests.reliability.signals.runs import FULL, Matrix, Place, Stopped

LONGEST = 3


@dataclass(slots=True)
class Row:
    """The starts that one kind of signal stopped."""

    moments: int = 0
    codes: dict[int, int] = field(default_factory=dict)
    left_running: int = 0
    longest_exit_s: float = 0.0
    longest_gone_s: float = 0.0

    def add(self, stopped: Stopped) -> None:
        """Count a start."""
        self.moments += 1
        self.codes[stopped.code] = self.codes.get(stopped.code, 0) + 1
        self.left_running += any(text.startswith("still running") for text in stopped.problems)
        self.longest_exit_s = max(self.longest_exit_s, stopped.exit_s)
        self.longest_gone_s = max(self.longest_gone_s, stopped.gone_s)


@dataclass(slots=True)
class Tally:
    """All starts by kind and by phase, the runs that were resumed and complete, and what is wrong."""

    rows: dict[str, Row] = field(default_factory=lambda: {kind: Row() for kind in KINDS})
    phases: dict[str, int] = field(default_factory=lambda: {phase.name: 0 for phase in PHASES})
    completed: int = 0
    kept_records: int = 0
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the tally as JSON."""
        return {"moments": sum(row.moments for row in self.rows.values()), **asdict(self)}


def stop_at(moments: Sequence[Moment], folder: Path, report: Callable[[str], None], matrix: Matrix = FULL) -> Tally:
    """Stop runs at these moments, several one after the other in each run, and complete every run."""
    tally, left = Tally(), deque(moments)
    while left:
        place = Place(folder / f"signals-{uuid.uuid4().hex}", matrix)
        if not _chain(place, left, tally, report):
            tally.problems.append(f"{left.popleft().phase.name}: a new run ended before this moment")
        _complete(place, tally)
        shutil.rmtree(place.results.parent)
    return tally


def _chain(place: Place, left: deque[Moment], tally: Tally, report: Callable[[str], None]) -> int:
    """Stop the run of a place at the next moments; return at how many. The moment that it did not reach is left."""
    for number in range(LONGEST):
        if not left or place.is_complete() or (stopped := place.stop(left[0])) is None:
            return number
        moment = left.popleft()
        tally.rows[moment.kind].add(stopped)
        tally.phases[moment.phase.name] += 1
        where = f"{moment.kind}, {moment.phase.name} + {moment.delay_s:.3f} s"
        tally.problems += [f"{where}: {problem}" for problem in stopped.problems]
        report(f"{where}: exit code {stopped.code} after {stopped.exit_s:.2f} s, all gone after {stopped.gone_s:.2f} s")
    return LONGEST


def _complete(place: Place, tally: Tally) -> None:
    """Run the rest of a place, and check that nothing was lost, changed or measured twice."""
    before = place.records()
    keys = place.keys()
    code, messages = (0, "") if place.is_complete() else place.finish()
    after = place.records()
    problems = [] if code == 0 else [f"resumed: exit code {code}: {messages[-2000:]}"]
    problems += [f"resumed: changed record: {name}" for name in before if after.get(name) != before[name]]
    again = [name for name in after.keys() - before.keys() if name.rsplit(".", 2)[0] in keys]
    problems += [f"resumed: measured again: {name}" for name in again]
    problems += [f"resumed: left: {path}" for path in place.leftovers()]
    runs = Results(place.results).runs()
    if len(runs) != 1 or not place.is_complete():
        problems.append(f"resumed: {len(runs)} runs, the last one with {len(place.keys())} of {place.repeats} repeats")
    problems += [f"{r.key}: {r.status}: {r.reason}" for run in runs for r in run.load()[0] if r.status not in HARMLESS]
    tally.problems += problems
    tally.completed += not problems
    tally.kept_records += len(before)


def table(tally: Tally) -> list[str]:
    """Return the tally as lines."""
    lines = [f"{'signal':14}{'moments':>9}{'left running':>14}{'longest exit':>14}{'all gone':>10}  exit codes"]
    for kind, row in tally.rows.items():
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(row.codes.items()))
        times = f"{row.longest_exit_s:>12.2f} s{row.longest_gone_s:>8.2f} s"
        lines.append(f"{kind:14}{row.moments:>9}{row.left_running:>14}{times}  {codes}")
    lines.append("phases: " + ", ".join(f"{phase.name} {tally.phases[phase.name]}" for phase in PHASES))
    lines.append(f"resumed and complete: {tally.completed} runs; {tally.kept_records} earlier records unchanged")
    return [*lines, *tally.problems]
