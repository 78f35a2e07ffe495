"""The comparisons of a session that wait for a place: which one a place takes next. Several threads may use it.

All blocks of a comparison run at one place, its home, which is the first that takes one: the speed of its cells is then
that of one machine. A spread comparison has no home: each block runs where there is room. The order is the plan's. A
comparison that the infrastructure failed goes elsewhere, if there is another place that fits.

Promise: taking an item costs the same for any number of comparisons; only a change of the places costs more.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from keras_matrix.runner.plan.plan import PlannedRepeat


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

    def refit(self, fitting: Callable[[Item], frozenset[str]]) -> None:
        """Ask for every waiting item again which places can run it."""
        with self._changed:
            self._rebuild(fitting)

    def take(self, place: str) -> Item | None:
        """Return the next item for a place; None if nothing that waits may run there."""
        with self._changed:
            if self._stopped or (found := self._next(place)) is None:
                return None
            self._waiting -= 1
            self._working += 1
            return found

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

    def _rebuild(self, fitting: Callable[[Item], frozenset[str]] | None = None) -> None:
        """Sort all items again into the queues of the places that may take them."""
        waiting = self._items()
        self._free.clear()
        self._own.clear()
        self._waiting = 0
        for item in waiting:
            self._add(item if fitting is None else replace(item, fitting=fitting(item)))
        self._changed.notify_all()

    def _candidates(self, item: Item) -> frozenset[str]:
        """Return the present places that may run an item: where its comparison has not failed, or else all that fit."""
        there = item.fitting & self._places
        return there - self._failed.get(item.group, frozenset()) or there

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
        free = [queue for places, queue in self._free.items() if queue and place in places]
        return [queue for queue in (self._own[place], *free) if queue]

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
