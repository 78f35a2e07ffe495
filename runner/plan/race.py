"""Implements `runner tune`: after each block, which candidates the next one has, until the races are decided.

`analysis.tuning` says who is left. The blocks after those of the races are the confirmation: the winners against the
default, in blocks that no race has seen, so that the gain which is printed is not that of the luckiest candidate.

The budget is a limit of time by the clock, over all starts of the session together. A block is started only if the
budget suffices for it and for a confirmation after it. What was spent is stored after each block, with the first block
of the confirmation, so that a continued session ends as one that was never interrupted. A start that is killed does not
count the time of its last block.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.analysis.tuning import Candidates, Races, races
from keras_matrix.records.codec import CodecError, decode, to_json
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Run
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.plan.session import Session

FILE = "race.json"  # in the folder of a run
MOST_CONFIRMING = 10  # blocks of the confirmation, if the budget allows; an interval needs `MIN_BLOCKS`


class Ending(StrEnum):
    """Why the races ended."""

    DECIDED = "decided"
    BUDGET = "budget spent"
    FAILED = "no candidate left"


@dataclass(frozen=True, slots=True)
class RaceProgress:
    """What is stored of a race: the time spent and that of a process, in seconds; why it ended; its confirmation.

    The confirmation has `confirming_blocks` blocks of the candidates `confirming`, from the repeat `confirmed_from` on.
    """

    elapsed_s: float = 0.0
    process_s: float = 0.0
    ending: Ending | None = None
    confirmed_from: int | None = None
    confirming: tuple[str, ...] = ()
    confirming_blocks: int = 0


def race_progress(run: Run) -> RaceProgress:
    """Return the stored progress of a race; that of its start if the file is missing or cannot be read."""
    document = run.load_object(FILE)
    if document is None:
        return RaceProgress()
    try:
        return decode(RaceProgress, document, FILE)
    except CodecError as error:
        run.note_unread(run.folder / FILE, error)
        return RaceProgress()


class RaceBlocks:
    """Decides after each block of a race what its session measures next."""

    def __init__(
        self,
        session: Session,
        cells: Sequence[Cell],
        candidates: Candidates,
        budget_s: float | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session, self._cells, self._candidates = session, cells, candidates
        self._budget_s = math.inf if budget_s is None else budget_s
        self._clock, self._looked_s = clock, clock()
        self._progress = race_progress(session.first)
        self._processes = len(session.pending)  # of the block that ends at the next look

    def more(self) -> list[PlannedRepeat]:
        """Return the next block, of the races or of the confirmation; empty at the end."""
        self._count_time()
        records = self._session.records("")
        repeats = self._next_of_races(records) if self._progress.ending is None else []
        return repeats or self._next_confirming(records)

    def why(self) -> dict[str, str]:
        """Return why no further blocks were added, by the cell_id of the first candidate."""
        return {self._cells[0].cell_id: str(self._progress.ending)}

    def _next_of_races(self, records: Sequence[Record]) -> list[PlannedRepeat]:
        """Return the next block of the races; empty at their end, with the confirmation stored."""
        done = _done(records)
        # A block is begun only when the one before it is complete.
        for repeat in itertools.count(max((record.repeat for record in records), default=0)):
            state = races(records, self._candidates, before=repeat)
            left = state.to_measure if repeat else frozenset(self._candidates.settings)
            missing = [cell_id for cell_id in left if (cell_id, repeat) not in done]
            if not left or (missing and repeat and not self._suffices(len(missing))):
                self._end(state, repeat, Ending.BUDGET if left else None)
                return []
            if missing:
                return self._planned(repeat, missing)
        raise AssertionError

    def _suffices(self, count: int) -> bool:
        """Return whether the budget suffices for a block of `count` processes and the confirmation after it."""
        sides = 3 if self._candidates.has_others else 2
        needed_s = (count + MIN_BLOCKS * sides) * self._progress.process_s
        return self._progress.elapsed_s + needed_s <= self._budget_s

    def _end(self, state: Races, repeat: int, ending: Ending | None) -> None:
        """Store the end of the races and their confirmation, which begins with this repeat.

        There is none if the default is the only winner, or failed.
        """
        default = self._candidates.default
        winners = dict.fromkeys(race.leader for race in (state.equal, state.overall) if race is not None)
        others = [cell_id for cell_id in winners if cell_id != default]
        chosen = (default, *others) if others and default not in state.failed else ()
        count = 0
        if chosen:
            left_s, block_s = self._budget_s - self._progress.elapsed_s, len(chosen) * self._progress.process_s
            fitting = left_s / block_s if block_s else math.inf
            count = max(MIN_BLOCKS, math.floor(min(MOST_CONFIRMING, fitting)))
        self._store(
            ending=ending or (Ending.DECIDED if winners else Ending.FAILED),
            confirmed_from=repeat,
            confirming=chosen,
            confirming_blocks=count,
        )

    def _next_confirming(self, records: Sequence[Record]) -> list[PlannedRepeat]:
        done, first = _done(records), self._progress.confirmed_from or 0
        for repeat in range(first, first + self._progress.confirming_blocks):
            if missing := [cell_id for cell_id in self._progress.confirming if (cell_id, repeat) not in done]:
                return self._planned(repeat, missing)
        return []

    def _planned(self, repeat: int, cell_ids: Collection[str]) -> list[PlannedRepeat]:
        """Return a repeat of these candidates, in an order that earlier blocks say nothing about: a race assumes it."""
        repeats = [PlannedRepeat(cell, repeat) for cell in self._cells if cell.cell_id in cell_ids]
        Random(f"{self._session.seed}:{repeat}:race").shuffle(repeats)
        self._processes = len(repeats)
        return repeats

    def _count_time(self) -> None:
        """Store the time since the last look, which the block before took."""
        now_s = self._clock()
        taken_s, self._looked_s = now_s - self._looked_s, now_s
        process_s = taken_s / self._processes if self._processes else self._progress.process_s
        self._store(elapsed_s=self._progress.elapsed_s + taken_s, process_s=process_s)

    def _store(self, **changes: Any) -> None:
        self._progress = replace(self._progress, **changes)
        self._session.first.store_object(FILE, to_json(self._progress))


def _done(records: Sequence[Record]) -> set[tuple[str, int]]:
    return {(record.cell_id, record.repeat) for record in records}
