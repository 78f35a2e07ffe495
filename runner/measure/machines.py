"""Measures a session at several places at the same time: a thread per place, each with one comparison at a time.

Each thread runs `Scheduler` as a single machine would. What the infrastructure failed is measured again elsewhere,
as a new attempt. A place that is lost, or at which several attempts fail one after the other, gets no more work.

The caller's thread waits, receives signals, and looks for new places.

All blocks of a comparison run at one place, its home, which is the first that takes one: the speed of its cells is then
that of one machine. A spread comparison has no home: each block runs where there is room. The order is the plan's. A
comparison that the infrastructure failed goes elsewhere, if there is another place that fits.

Promise: taking an item costs the same for any number of comparisons; only a change of the places costs more.

A module of its own: it is imported only for sessions at several places.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors.places import Fitting, Place, Places, SessionEnded
from keras_matrix.runner.interrupts import deferring_interrupts
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.observer import Observer
from keras_matrix.runner.measure.scheduler import Attempts, MeasurementContext, Scheduler, remove_kernels
from keras_matrix.runner.plan.plan import PlannedRepeat, comparison_of

# New places are looked for so often, and a comparison that no place can run any more waits so long for one.
LOOK_S = 5.0
WAIT_FOR_PLACE_S = 180.0
# Nodes of a cluster that was just started join one after the other.
WAIT_FOR_NODES_S = 15.0
POLL_S = 0.2
# A place that fails so many comparisons one after the other is not used further.
MOST_FAILURES = 3


def measure(
    context: MeasurementContext,
    repeats: Iterable[PlannedRepeat],
    places: Places,
    more_repeats: Callable[[], list[PlannedRepeat]] = list,
) -> None:
    """Measure `repeats` and publish a record of every attempt; then the blocks that `more_repeats` returns.

    Raises `Interrupted` on a signal and `ExecutorError` if what is left can run at no place, with no process left
    running, and `StoreFailure` if a record cannot be stored.
    """
    context = replace(context, observer=LockedObserver(context.observer))
    runs = {name: arm.run for name, arm in context.arms.items()}
    attempts, pending_repeats = Attempts(runs), list(repeats)
    # What an earlier start has not refused as unsupported fits a machine that is not here now.
    may_refuse = not any(run.load()[0] for run in runs.values())
    try:
        while pending_repeats:
            _Session(context, attempts, places, may_refuse).run(pending_repeats)
            pending_repeats, may_refuse = more_repeats(), False
        remove_kernels(runs.values())
    finally:
        places.stop()
        for arm in context.arms.values():
            arm.executor.close()


class LockedObserver:
    """An observer that several threads may call."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self._lock = observer, threading.Lock()

    def calibrating(self, cell: Cell) -> None:
        """Pass it on."""
        with self._lock:
            self._observer.calibrating(cell)

    def begun(self, planned: PlannedRepeat) -> None:
        """Pass it on."""
        with self._lock:
            self._observer.begun(planned)

    def placed(self, repeats: Sequence[PlannedRepeat], machine: str) -> None:
        """Pass it on."""
        with self._lock:
            self._observer.placed(repeats, machine)

    def interleaving(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Pass it on."""
        with self._lock:
            self._observer.interleaving(repeats)

    def ended(self, planned: PlannedRepeat, record: Record) -> None:
        """Pass it on."""
        with self._lock:
            self._observer.ended(planned, record)


@dataclass(slots=True)
class _Worker:
    """A place and its thread; `error` ended the session."""

    place: Place
    thread: threading.Thread | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Session:
    """Measures planned repeats to their end. `failures` counts, by place, those since its last success."""

    context: MeasurementContext
    attempts: Attempts
    places: Places
    may_refuse: bool
    workers: list[_Worker] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def run(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Measure the repeats, those that can run nowhere as unsupported."""
        queue = WorkQueue(self._items(repeats), self._homes(repeats))
        looked_s, stranded_s = -math.inf, None
        try:
            while not queue.over() and not any(worker.error for worker in self.workers):
                if time.monotonic() - looked_s > LOOK_S:
                    looked_s = time.monotonic()
                    self._begin(queue)
                    stranded_s = self._stranded(queue, stranded_s)
                time.sleep(POLL_S)
        except BaseException:
            self._stop(queue)
            raise
        errors = [worker.error for worker in self.workers if worker.error]
        if errors:
            self._stop(queue)
            raise errors[0]
        self._join()

    def _items(self, repeats: Sequence[PlannedRepeat]) -> list[Item]:
        """Return the comparisons that fit a place; publish the others as unsupported."""
        grouped = itertools.groupby(repeats, key=lambda planned: (planned.repeat, comparison_of(planned.cell)))
        blocks = [(group, tuple(group_repeats)) for (_, group), group_repeats in grouped]
        fitting_by_group = self._fitting(
            {group: [planned.cell for planned in group_repeats] for group, group_repeats in blocks}
        )
        refusing, items = Scheduler(self.context, self.attempts), []
        for order, (group, group_repeats) in enumerate(blocks):
            if (reason := fitting_by_group[group].reason) is not None and self.may_refuse:
                for planned in group_repeats:
                    refusing.refuse(planned, reason)
            else:
                placement = group_repeats[0].cell.placement
                is_spread = placement.across_nodes or placement.across_gpus
                items.append(Item(order, group, group_repeats, fitting_by_group[group].places, is_spread))
        return items

    def _fitting(self, groups: Mapping[Hashable, Sequence[Cell]]) -> dict[Hashable, Fitting]:
        """Return where each comparison can run; nodes that are just joining are waited for, for a short time."""
        begun_s = time.monotonic()
        while True:
            fitting_by_group = {group: self.places.fitting(cells) for group, cells in groups.items()}
            is_known = all(fitting.reason is None or fitting.nowhere for fitting in fitting_by_group.values())
            if is_known or time.monotonic() - begun_s > WAIT_FOR_NODES_S:
                return fitting_by_group
            time.sleep(min(1.0, WAIT_FOR_NODES_S))
            self._places()

    def _places(self) -> Sequence[Place]:
        """Return the places there are; a signal is raised afterwards, since a library may discard exceptions."""
        with deferring_interrupts():
            return self.places.current()

    def _homes(self, repeats: Sequence[PlannedRepeat]) -> dict[Hashable, str]:
        """Return the place of the newest record of each comparison, which an earlier start has measured."""
        groups = {planned.cell.cell_id: planned.cell for planned in repeats}
        return {
            comparison_of(groups[record.cell_id]): record.place
            for arm in self.context.arms.values()
            for record in arm.run.load()[0]
            if record.cell_id in groups and record.status in MEASURED
        }

    def _begin(self, queue: WorkQueue) -> None:
        """Start a thread for each place that has none, and ask again where items fit, if the machines have changed."""
        current = self._places()
        busy_place_ids = {id(worker.place) for worker in self.workers}
        # A machine that has come back begins once the thread of its lost place has ended, which leaves the queue.
        ending = {worker.place.identity for worker in self.workers if worker.thread and worker.thread.is_alive()}
        places = [place for place in current if place.lost() is None]
        if self.places.changed():
            queue.refit(lambda item: self.places.fitting([planned.cell for planned in item.repeats]).places)
        new = [
            _Worker(place)
            for place in places
            if not (
                id(place) in busy_place_ids
                or place.identity in ending
                or self.failures[place.identity] >= MOST_FAILURES
            )
        ]
        for worker in new:  # all of them before any takes an item, whose home may be another one
            queue.join(worker.place.identity)
        for worker in new:
            name = worker.place.name
            worker.thread = threading.Thread(target=self._work, args=(worker, queue), daemon=True, name=name)
            self.workers.append(worker)
            worker.thread.start()

    def _stranded(self, queue: WorkQueue, since_s: float | None) -> float | None:
        """Return since when comparisons wait for a place that is not there. Raises `ExecutorError` after a while."""
        stranded = queue.stranded()
        if not stranded:
            return None
        since_s = time.monotonic() if since_s is None else since_s
        if time.monotonic() - since_s > WAIT_FOR_PLACE_S:
            reasons_text = "; ".join(dict.fromkeys(filter(None, map(self._why_not, self.workers))))
            raise ExecutorError(self.places.none_left(len(stranded), reasons_text))
        return since_s

    def _why_not(self, worker: _Worker) -> str | None:
        """Return why a place gets no more work."""
        failures = self.failures[worker.place.identity]
        failures_text = f"{worker.place.name}: {failures} comparisons failed one after the other"
        return worker.place.lost() or (failures_text if failures >= MOST_FAILURES else None)

    def _may_work(self, place: Place) -> bool:
        return place.lost() is None and self.failures[place.identity] < MOST_FAILURES

    def _work(self, worker: _Worker, queue: WorkQueue) -> None:
        """Measure what fits this place, until there is nothing left or the place is lost."""
        place = worker.place
        try:
            while not queue.over() and self._may_work(place):
                if not queue.await_work(place.identity, POLL_S):
                    continue
                if queue.is_wanted(place.identity):
                    time.sleep(POLL_S)
                else:
                    self._measure_here(place, queue)
        except SessionEnded:
            pass
        except ExecutorError as error:
            self.failures[place.identity] += 1
            if place.lost() is None:
                worker.error = error
        except BaseException as error:  # noqa: BLE001 - raised again by the session's thread
            worker.error = error
        finally:
            queue.lose(place.identity)

    def _measure_here(self, place: Place, queue: WorkQueue) -> None:
        try:
            with queue.wanted(place.parts if len(place.parts) > 1 else ()):
                if not place.acquire(queue.over):
                    return
            arms = {name: replace(arm, executor=place.executor(arm.run)) for name, arm in self.context.arms.items()}
            context = replace(self.context, arms=arms, usable=partial(self._may_work, place), gpus=place.gpus)
            scheduler, block = Scheduler(context, self.attempts), None
            while self._may_work(place) and not queue.is_wanted(place.identity):
                if (item := queue.take(place.identity)) is None:
                    break
                if item.block != block:
                    scheduler.begin_block(item.repeats)
                    block = item.block
                self._compare(place, queue, scheduler, item)
        finally:
            place.release()

    def _compare(self, place: Place, queue: WorkQueue, scheduler: Scheduler, item: Item) -> None:
        """Measure an item; what the infrastructure failed is given back for another place, if there is one."""
        self.context.observer.placed(item.repeats, place.name)
        unmeasured = scheduler.compare(item.repeats) or scheduler.replace_disturbed(item.repeats)
        if unmeasured:
            self.failures[place.identity] += 1
            fitting_places = self.places.fitting(
                [planned.cell for planned in unmeasured]
            ).places  # they may have changed meanwhile
            queue.give_back(replace(item, repeats=tuple(unmeasured), fitting=fitting_places), place.identity)
        else:
            self.failures[place.identity] = 0
            queue.done()

    def _stop(self, queue: WorkQueue) -> None:
        """End all threads and their work."""
        queue.stop()
        self.places.stop()
        self._join()

    def _join(self) -> None:
        for worker in self.workers:
            if worker.thread is not None:
                worker.thread.join()


@dataclass(frozen=True, slots=True)
class Item:
    """A block of a comparison: `order` is its position in the plan, `fitting` the places that can run it."""

    order: int
    group: Hashable
    repeats: tuple[PlannedRepeat, ...]
    fitting: frozenset[str]
    spread: bool = False

    @property
    def block(self) -> int:
        """The number of the block of repeats."""
        return self.repeats[0].repeat


class WorkQueue:
    """The items that wait, those that are being measured, the places, and the home of each comparison."""

    def __init__(self, items: Iterable[Item], homes: Mapping[Hashable, str]) -> None:
        """Take the items and, by group, the places that have measured earlier blocks of a comparison."""
        self._homes = dict(homes)
        self._places: set[str] = set()
        self._failed: dict[Hashable, frozenset[str]] = {}
        self._free: dict[frozenset[str], list[tuple[int, Item]]] = defaultdict(list)
        self._own: dict[str, list[tuple[int, Item]]] = defaultdict(list)
        self._wanted: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._working = 0
        self._waiting = 0
        self._stopped = False
        for item in items:
            self._add(item)

    def join(self, place: str) -> None:
        """Let a place take items."""
        with self._changed:
            self._places.add(place)
            self._rebuild()

    def lose(self, place: str) -> None:
        """Let the comparisons of a place that takes no more items run elsewhere."""
        with self._changed:
            self._places.discard(place)
            self._homes = {group: home for group, home in self._homes.items() if home != place}
            self._rebuild()

    def refit(self, places_of: Callable[[Item], frozenset[str]]) -> None:
        """Ask for every waiting item again which places can run it."""
        with self._changed:
            self._rebuild(places_of)

    def take(self, place: str) -> Item | None:
        """Return the next item for a place; None if nothing that waits may run there."""
        with self._changed:
            if self._stopped or (item := self._next(place)) is None:
                return None
            self._waiting -= 1
            self._working += 1
            return item

    def await_work(self, place: str, timeout_s: float) -> bool:
        """Wait until there is an item for a place; False if there will be none, or after the time limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._has(place) or self._is_over(), timeout_s)
            return not self._is_over() and self._has(place)

    @contextmanager
    def wanted(self, places: Sequence[str]) -> Iterator[None]:
        """Let these single places end what they measure and begin nothing more; a place of several is none of them."""
        with self._changed:
            self._wanted.update(places)
        try:
            yield
        finally:
            with self._changed:
                self._wanted.subtract(places)

    def is_wanted(self, place: str) -> bool:
        """Return whether a place is to begin nothing more, as it is waited for together with others."""
        with self._changed:
            return self._wanted[place] > 0

    def done(self) -> None:
        """An item that was taken is complete."""
        with self._changed:
            self._working -= 1
            self._changed.notify_all()

    def give_back(self, item: Item, failed_at: str) -> None:
        """What is left of an item waits again; its comparison goes on elsewhere, if another place fits."""
        with self._changed:
            self._working -= 1
            self._homes.pop(item.group, None)
            self._failed[item.group] = self._failed.get(item.group, frozenset()) | {failed_at}
            self._add(item)
            self._rebuild()

    def stop(self) -> None:
        """Give out nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def over(self) -> bool:
        """Return whether everything is complete, or the queue is stopped."""
        with self._changed:
            return self._is_over()

    def stranded(self) -> list[Item]:
        """Return the items that can run at none of the present places."""
        with self._changed:
            return [item for item in self._items() if not item.fitting & self._places]

    def _is_over(self) -> bool:
        return self._stopped or not (self._working or self._waiting)

    def _items(self) -> list[Item]:
        return [item for queue in (*self._free.values(), *self._own.values()) for _, item in queue]

    def _rebuild(self, places_of: Callable[[Item], frozenset[str]] | None = None) -> None:
        """Sort all items again into the queues of the places that may take them."""
        waiting_items = self._items()
        self._free.clear()
        self._own.clear()
        self._waiting = 0
        for item in waiting_items:
            self._add(item if places_of is None else replace(item, fitting=places_of(item)))
        self._changed.notify_all()

    def _candidates(self, item: Item) -> frozenset[str]:
        """Return the present places that may run an item: where its comparison has not failed, or else all that fit."""
        present = item.fitting & self._places
        return present - self._failed.get(item.group, frozenset()) or present

    def _home(self, item: Item, candidates: frozenset[str]) -> str | None:
        home = None if item.spread else self._homes.get(item.group)
        return home if home in candidates else None

    def _add(self, item: Item) -> None:
        self._waiting += 1
        candidates = self._candidates(item)
        home = self._home(item, candidates)
        queue = self._free[candidates] if home is None else self._own[home]
        heapq.heappush(queue, (item.order, item))

    def _queues(self, place: str) -> list[list[tuple[int, Item]]]:
        """Return the queues with items for a place; there are as many as there are different needs."""
        free_queues = [queue for places, queue in self._free.items() if queue and place in places]
        return [queue for queue in (self._own[place], *free_queues) if queue]

    def _has(self, place: str) -> bool:
        return any(self._settle(queue, place) for queue in self._queues(place))

    def _next(self, place: str) -> Item | None:
        queues = [queue for queue in self._queues(place) if self._settle(queue, place)]
        if not queues:
            return None
        item = heapq.heappop(min(queues, key=lambda queue: queue[0][0]))[1]
        if not item.spread:
            self._homes.setdefault(item.group, place)
        return item

    def _settle(self, queue: list[tuple[int, Item]], place: str) -> bool:
        """Move items at the head whose comparison has found another home meanwhile; return whether one is left."""
        while queue:
            item = queue[0][1]
            home = self._home(item, self._candidates(item))
            if home is None or home == place:
                return True
            heapq.heappush(self._own[home], heapq.heappop(queue))
            self._changed.notify_all()
        return False
