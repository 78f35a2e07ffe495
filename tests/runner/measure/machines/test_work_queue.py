"""Which comparison a place takes next: in the plan's order, always at its home, elsewhere after a failure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from keras_matrix.records.identity import cell_id
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.machines import Item, WorkQueue
from keras_matrix.runner.plan.plan import PlannedRepeat
from tests.conftest import make_settings

BOTH = frozenset({"a", "b"})
SETTINGS = make_settings()
CELL = Cell(SETTINGS, cell_id(SETTINGS), 1, 60.0, None)


def item(order: int, group: str, block: int = 0, fitting: frozenset[str] = BOTH, *, across: bool = False) -> Item:
    return Item(order, group, (PlannedRepeat(CELL, block),), fitting, across)


def made(items: Sequence[Item], homes: Mapping[Hashable, str] | None = None) -> WorkQueue:
    """Return a queue with two places."""
    queue = WorkQueue(items, homes or {})
    queue.join("a")
    queue.join("b")
    return queue


def taken(queue: WorkQueue, places: Sequence[str]) -> list[str]:
    """Return what is taken by these places, one after the other, as the group and block of each."""
    found = (queue.take(place) for place in places)
    return [f"{one.group}{one.block}" if one else "nothing" for one in found]


def test_items_are_taken_in_the_order_of_the_plan() -> None:
    queue = made([item(2, "z"), item(0, "x"), item(1, "y")])
    assert taken(queue, "abab") == ["x0", "y0", "z0", "nothing"]


def test_all_blocks_of_a_comparison_run_at_the_place_that_took_the_first() -> None:
    queue = made([item(0, "x"), item(1, "y"), item(2, "y", 1), item(3, "x", 1)])
    assert taken(queue, "ab") == ["x0", "y0"]
    assert taken(queue, "ab") == ["x1", "y1"]


def test_blocks_across_nodes_run_where_there_is_room() -> None:
    queue = made([item(0, "x", across=True), item(1, "x", 1, across=True)])
    assert taken(queue, "ab") == ["x0", "x1"]


def test_a_place_of_an_earlier_start_is_the_home() -> None:
    queue = made([item(0, "x"), item(1, "y")], {"x": "b"})
    assert taken(queue, "aab") == ["y0", "nothing", "x0"]


def test_only_places_that_fit_get_an_item() -> None:
    queue = made([item(0, "x", fitting=frozenset("b"))])
    assert taken(queue, "ab") == ["nothing", "x0"]


def test_what_failed_goes_elsewhere_and_returns_only_if_there_is_no_other_place() -> None:
    queue = made([item(0, "x")])
    first = queue.take("a")
    assert first is not None
    queue.give_back(first, "a")
    assert taken(queue, "a") == ["nothing"]
    second = queue.take("b")
    assert second is not None
    queue.give_back(second, "b")
    assert taken(queue, "a") == ["x0"]


def test_all_blocks_of_a_comparison_leave_the_place_that_failed_it() -> None:
    queue = made([item(0, "x"), item(1, "x", 1)])
    first = queue.take("a")
    assert first is not None
    queue.give_back(first, "a")
    assert taken(queue, "abb") == ["nothing", "x0", "x1"]


def test_what_failed_at_one_place_returns_there_if_the_other_is_lost() -> None:
    queue = made([item(0, "x")])
    first = queue.take("b")
    assert first is not None
    queue.give_back(first, "b")
    queue.lose("a")
    assert queue.stranded() == []
    assert taken(queue, "b") == ["x0"]


def test_the_comparisons_of_a_lost_place_run_elsewhere() -> None:
    queue = made([item(0, "x"), item(1, "x", 1)])
    assert taken(queue, "a") == ["x0"]
    assert taken(queue, "b") == ["nothing"]
    queue.lose("a")
    assert taken(queue, "b") == ["x1"]


def test_it_is_over_when_everything_that_was_taken_is_complete() -> None:
    queue = made([item(0, "x")])
    assert not queue.over()
    assert taken(queue, "a") == ["x0"]
    assert not queue.over()
    queue.done()
    assert queue.over()
    assert not queue.await_work("a", 10)


def test_a_stopped_queue_gives_out_nothing() -> None:
    queue = made([item(0, "x")])
    queue.stop()
    assert queue.over()
    assert taken(queue, "a") == ["nothing"]


def test_what_fits_no_present_place_is_known_and_a_new_place_takes_it() -> None:
    queue = made([item(0, "x", fitting=frozenset("a")), item(1, "y")])
    assert queue.stranded() == []
    queue.lose("a")
    assert [one.group for one in queue.stranded()] == ["x"]
    queue.join("c")
    queue.refit(lambda one: one.fitting | {"c"})
    assert taken(queue, "c") == ["x0"]
    assert queue.await_work("b", 0)
