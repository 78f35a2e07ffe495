"""Which notifications are due: one thread per change point, whatever arrives later."""

from __future__ import annotations

import random

import pytest

from keras_matrix.analysis.history.change_points import Assessment, Notes, assess
from keras_matrix.analysis.history.sessions import CellSession, History
from keras_matrix.analysis.stats.blocks import geometric
from keras_matrix.runner.notify.notice import CLOSING, Event, Thread, due, history_key
from tests.sessions import noisy, run_name

STEADY = noisy(0.010, 20)


def history(values: list[float], host: str = "0" * 16) -> History:
    sessions = tuple(
        CellSession(run_name(number), geometric([value] * 3), 0.001, {}, {}) for number, value in enumerate(values)
    )
    return History("a" * 16, host, ("cpu", "cpu:0"), {"workload": "x", "backend": "jax"}, sessions)


def assessed(values: list[float], notes: Notes = Notes()) -> Assessment:  # noqa: B008
    return assess(history(values), notes)


SLOWER = assessed([*STEADY, *noisy(0.011, 10, seed=5)])


def thread(one: Assessment, run: int = 20, last: Event = Event.OPENED, **changes: object) -> Thread:
    found = {"number": 1, "history": history_key(one.history), "run_id": run_name(run), "slower_by": 1.1}
    return Thread(**{**found, "last": last, "events": 1, "is_open": last not in CLOSING, **changes})  # type: ignore[arg-type]


def events(one: Assessment, *threads: Thread) -> list[str]:
    return [str(found.event) for found in due(one, threads)]


def test_open_change_without_a_thread_opens_one() -> None:
    assert events(SLOWER) == ["opened"]


@pytest.mark.parametrize("run", range(18, 23))
def test_change_keeps_its_thread_if_it_moved_by_up_to_two_sessions(run: int) -> None:
    assert events(SLOWER, thread(SLOWER, run)) == []


@pytest.mark.parametrize("run", [17, 23])
def test_thread_three_sessions_away_belongs_to_another_change(run: int) -> None:
    assert events(SLOWER, thread(SLOWER, run))[0] == "opened"


def test_position_is_known_even_if_the_run_that_named_it_was_removed() -> None:
    sessions = [session for session in SLOWER.history.sessions if session.run_id != run_name(20)]
    one = assess(History("a" * 16, "0" * 16, ("cpu", "cpu:0"), {}, tuple(sessions)))
    assert events(one, thread(SLOWER)) == []


def test_thread_of_another_machine_does_not_count() -> None:
    other = Assessment(history([0.01], "1" * 16), (), (), None)
    assert events(SLOWER, thread(other)) == ["opened"]


@pytest.mark.parametrize(("stated", "expected"), [(1.10, []), (1.09, []), (1.08, ["grown"]), (1.05, ["grown"])])
def test_growth_by_a_quarter_is_an_event(stated: float, expected: list[str]) -> None:
    assert events(SLOWER, thread(SLOWER, slower_by=stated)) == expected


def test_growth_of_less_than_two_per_cent_is_none() -> None:
    one = assessed([*STEADY, *noisy(0.01028, 40, seed=5)])
    assert events(one, thread(one, slower_by=1.011)) == []


@pytest.mark.parametrize("last", [Event.RECOVERED, Event.INTENDED, Event.GONE])
def test_thread_that_was_closed_here_is_reopened_if_the_change_is_open_after_all(last: Event) -> None:
    assert events(SLOWER, thread(SLOWER, last=last)) == ["reopened"]


@pytest.mark.parametrize("last", [Event.OPENED, Event.GROWN, Event.REOPENED, Event.DUPLICATE])
def test_thread_that_a_person_closed_stays_closed(last: Event) -> None:
    assert events(SLOWER, thread(SLOWER, last=last, is_open=False, slower_by=1.02)) == []


def test_oldest_thread_of_a_change_counts_and_open_duplicates_are_closed() -> None:
    threads = [thread(SLOWER, number=9), thread(SLOWER, 21, number=4), thread(SLOWER, number=7, is_open=False)]
    [found] = due(SLOWER, threads)
    assert (found.event, found.thread, found.original) == (Event.DUPLICATE, threads[0], threads[1])


def test_repaired_change_recovers_its_thread_and_opens_none() -> None:
    one = assessed([*STEADY, *noisy(0.011, 10, seed=5), *noisy(0.010, 10, seed=6)])
    assert events(one, thread(one)) == ["recovered"]
    assert events(one) == []
    assert events(one, thread(one, last=Event.RECOVERED)) == []


def test_change_near_the_threshold_that_is_not_found_tonight_is_not_gone() -> None:
    values = [*STEADY, *noisy(0.01012, 10, seed=5)]
    one = assessed(values)
    assert (one.changes, events(one, thread(one))) == ((), [])


def test_change_without_any_trace_left_is_gone_if_its_session_is_there() -> None:
    one = assessed(noisy(0.010, 30))
    assert events(one, thread(one)) == ["gone"]
    assert events(one, thread(one, 50)) == []
    assert events(one, thread(one, last=Event.GONE)) == []


def test_night_after_night_a_change_gets_one_thread_although_its_position_moves() -> None:
    """Twelve noisy histories, night by night: at most one is named anew because it moved further."""
    opened = []
    for seed in range(12):
        noise = random.Random(seed)
        values = [0.01 * (1.06 if night >= 20 else 1) * noise.lognormvariate(0, 0.02) for night in range(45)]
        threads: list[Thread] = []
        for nights in range(21, 46):
            one = assessed(values[:nights])
            for found in due(one, threads):
                if found.event is Event.OPENED and found.change:
                    new = thread(one, number=len(threads) + 1, run_id=found.change.run_id, slower_by=found.slower_by)
                    threads.append(new)
        opened.append(len(threads))
    assert opened.count(1) >= 11
    assert max(opened) <= 2
