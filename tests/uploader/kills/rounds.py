"""Rounds of pushes into one warehouse: sequential ones that are killed, and concurrent ones with overlapping folders.

After each round every push has run to its end, so that the warehouse must hold every row once.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.uploader.kills.pushes import NEVER, Kill, Outcome, Unfinished
from tests.uploader.kills.targets import Target
from tests.uploader.reader.compare import compare
from tests.uploader.reader.expected import expected_rows
from tests.uploader.stored import store_run

TRIES = 25  # of a push that meets only retryable errors
MACHINES = 8
ROUNDS_A_COMPARISON = 25
TRY_AGAIN = 3


@dataclass(slots=True)
class Tally:
    """Counts of kills and pushes of one warehouse, and the differences found."""

    kills: int = 0
    known: int = 0
    boundaries: set[int] = field(default_factory=set)
    every_boundary: bool = False
    pushes: int = 0
    at_once: int = 0
    rows: int = 0
    differences: dict[str, None] = field(default_factory=dict)
    stopped: str = ""

    def number(self, kind: str) -> int:
        """Return the number of differences of a kind."""
        return sum(1 for line in self.differences if line.startswith(f"{kind}:"))

    @property
    def good(self) -> bool:
        """Whether every row was stored once, unaltered, after every round."""
        return not self.differences and not self.stopped


@dataclass(slots=True)
class Rounds:
    """A warehouse, the folders that are pushed into it, and the tally."""

    target: Target
    folder: Path
    chance: random.Random
    report: Callable[[str], None] = lambda line: None
    tally: Tally = field(default_factory=Tally)
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=8))
    nights: Iterator[int] = field(default_factory=count)

    def begin(self) -> None:
        """Create the warehouse, and push into it twice to count the boundaries of a push of one new run."""
        self.target.make()
        for _ in range(2):  # the first push also creates folders
            self.add_run(self.folder / "alone")
            self.tally.known = self.finish(self.folder / "alone").boundaries

    def add_run(self, root: Path) -> Path:
        """Store one more run of one cell and one or two processes."""
        return store_run(root, next(self.nights), count=self.chance.choice((1, 2))).folder

    def push(self, results: Path, kill: Kill = NEVER) -> Outcome:
        """Push a folder and count the push."""
        return self.counted(kill, self.target.push(results, kill))

    def counted(self, kill: Kill, outcome: Outcome) -> Outcome:
        """Count a push. Raises `Unfinished` for a permanent failure."""
        self.tally.pushes += 1
        if outcome.killed:
            self.tally.kills += 1
            if kill.boundary is not None:
                self.tally.boundaries.add(kill.boundary)
        elif outcome.code == 0:
            self.recent_s.append(outcome.took_s)
        elif outcome.code != TRY_AGAIN:
            raise Unfinished(f"{self.target.name}: exit code {outcome.code}: {outcome.message}")
        return outcome

    def finish(self, results: Path) -> Outcome:
        """Push a folder until no batch is pending."""
        outcome = self.push(results)
        for _ in range(TRIES):
            if outcome.code == 0:
                return outcome
            outcome = self.push(results)
        raise Unfinished(f"{self.target.name}: not done after {TRIES} pushes: {outcome.message}")

    def moment(self) -> Kill:
        """Return a random moment of a push."""
        return Kill(after_s=self.chance.uniform(0, max(self.recent_s)))

    def compare(self) -> None:
        """Compare the warehouse with all folders, and record the differences."""
        tally, folders = self.tally, [self.folder / name for name in ("alone", "shared")]
        found = compare(expected_rows(path for path in folders if path.exists()), self.target.found())
        tally.rows = found.expected
        tally.differences |= dict.fromkeys(found.differences)
        done = f"{self.target.name}: {tally.kills} kills, {tally.pushes} pushes, {tally.rows:,} rows"
        self.report(f"{done}: {len(tally.differences)} differences")


def kill_one_by_one(rounds: Rounds, kills: int, *, every_boundary: bool) -> None:
    """Kill pushes of one folder, and half of those that follow; then push to completion.

    Ends after a number of kills; if every boundary is required, not before each of them had one.
    """
    tally, results = rounds.tally, rounds.folder / "alone"
    for number, kill in enumerate(_kills(rounds), start=1):
        if tally.kills >= kills and (tally.every_boundary or not every_boundary):
            break
        rounds.add_run(results)
        outcome = rounds.push(results, kill)
        if kill.boundary is not None and kill.boundary >= rounds.tally.known and not outcome.killed:
            tally.every_boundary = True
        if rounds.chance.random() < 0.5:
            rounds.push(results, rounds.moment())
        rounds.finish(results)
        if number % ROUNDS_A_COMPARISON == 0:
            rounds.compare()
    rounds.compare()


def _kills(rounds: Rounds) -> Iterator[Kill]:
    """Yield every known boundary in random order, further ones until a push reaches none, then random moments."""
    for boundary in rounds.chance.sample(range(rounds.tally.known), rounds.tally.known):
        yield Kill(boundary)
    for boundary in count(rounds.tally.known):
        if rounds.tally.every_boundary:
            break
        yield Kill(boundary)
    while True:
        yield rounds.moment()


def push_at_once(rounds: Rounds, pushes: int) -> None:
    """Push overlapping folders with 3 to 8 concurrent processes, some of them killed, until enough were started."""
    number = 0
    while rounds.tally.at_once < pushes:
        number += 1
        chosen = rounds.chance.sample(range(MACHINES), k=rounds.chance.randint(3, MACHINES))
        machines = [rounds.folder / f"machine-{one}" for one in chosen]
        _share(rounds, machines)
        for machine in machines:
            if rounds.chance.random() < 0.3:  # its rows are then in other batches than in a later push
                rounds.push(machine, rounds.chance.choice((NEVER, rounds.moment())))
        _share(rounds, machines)
        _all_at_once(rounds, machines)
        if number % ROUNDS_A_COMPARISON == 0:
            rounds.compare()
    rounds.compare()


def _share(rounds: Rounds, machines: Sequence[Path]) -> None:
    """Store a run and copy it to some machines, partly or not at all to the others; give some a separate run."""
    for machine in machines:
        machine.mkdir(parents=True, exist_ok=True)
    for receivers in (machines, rounds.chance.sample(machines, 1)):
        run = rounds.add_run(rounds.folder / "shared")
        complete = rounds.chance.choice(receivers)
        for machine in receivers:
            part = 1.0 if machine == complete else rounds.chance.random()
            if part > 0.4:
                shutil.copytree(run, machine / run.name)
            elif part > 0.2:  # as if the run had been copied before it was finished
                ignored = shutil.ignore_patterns("findings.json", "*.1.0.json")
                shutil.copytree(run, machine / run.name, ignore=ignored)


def _all_at_once(rounds: Rounds, machines: Sequence[Path]) -> None:
    """Push from all machines concurrently, and repeat those that were killed or failed, until all complete."""
    waiting = list(machines)
    with ThreadPoolExecutor(len(machines)) as threads:
        for number in range(TRIES):
            kills = [_perhaps(rounds) if number < 2 else NEVER for _ in waiting]
            ended = list(threads.map(rounds.target.push, waiting, kills))
            outcomes = [rounds.counted(kill, outcome) for kill, outcome in zip(kills, ended, strict=True)]
            rounds.tally.at_once += len(waiting) if len(waiting) > 1 else 0
            messages = [outcome.message for outcome in outcomes if outcome.code]
            waiting = [one for one, outcome in zip(waiting, outcomes, strict=True) if outcome.code]
            if not waiting:
                return
    raise Unfinished(f"{rounds.target.name}: {len(waiting)} machines not done after {TRIES} pushes: {messages}")


def _perhaps(rounds: Rounds) -> Kill:
    return rounds.moment() if rounds.chance.random() < 0.3 else NEVER
