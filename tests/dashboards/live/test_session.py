"""The dashboard shows a session that is being measured, from its files, and the runs that have ended."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import FRESH_S, EndedRuns, Live, UnreadFiles
from keras_matrix.dashboards.live.session import MeasuredSession, SessionReader, left_s, left_text
from keras_matrix.records.codec import dumps
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments import progress
from keras_matrix.records.instruments.progress import Placement, Placements, PlannedCell, Progress, RunningRepeat
from keras_matrix.records.schema import Harness, Record, Status
from keras_matrix.records.store import Results, Run
from keras_matrix.uploader.errors import WarehouseFailure
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.conftest import MACHINE, make_record, make_settings
from tests.dashboards.boards import HOSTILE, stored
from tests.sessions import run_name, store_session

A, B, C = (replace(MACHINE, host_id=name * 16) for name in "abc")
BEGUN = "2026-01-01T02:00:00+00:00"
HEARD_S = 1767233400  # 2026-01-01 02:10 UTC


def records() -> list[Record]:
    found = [make_record(0.01, repeat, settings=make_settings(), machine=A) for repeat in range(3)]
    found += [make_record(0.01, repeat, settings=make_settings(), machine=B) for repeat in range(3, 5)]
    failed = make_record(None, 5, Status.CRASH, settings=make_settings(), machine=B)
    lost = make_record(None, 6, Status.INFRA, settings=make_settings(), machine=C)
    return [*found, failed, lost, replace(make_record(0.01, 6, settings=make_settings(), machine=A), attempt=1)]


def begun(root: Path, stored: Sequence[Record], number: int = 1) -> Run:
    run = Run(store_session(root, run_name(number), stored, planned=20, started_at=BEGUN))
    for n, name in enumerate(run.record_names()):
        os.utime(run.folder / "records" / name, (HEARD_S + 60 * n, HEARD_S + 60 * n))
    return run


def session_of(root: Path) -> MeasuredSession:
    found = SessionReader(root).current()
    assert found is not None
    return found


def test_machines_show_what_they_measured_and_measure(tmp_path: Path) -> None:
    run = begun(tmp_path, records())
    at_b = Placement("node b", B.host_id, "gru #7: jax, torch", "2026-01-01T02:20:00+00:00")
    progress.keep_placements(
        run, Placements([at_b, Placement("node a", A.host_id), Placement("new", None, "gru #8: jax", BEGUN)])
    )
    found = session_of(tmp_path)
    assert (found.run_id, found.done, found.planned, found.lost) == (run.run_id, 7, 20, 1)
    assert found.begun == "1 January 2026, 02:00 UTC"
    assert [(one.name, one.measured, one.failed, one.work, one.since) for one in found.nodes] == [
        ("new", 0, 0, "gru #8: jax", "1 January 2026, 02:00 UTC"),
        ("node a", 4, 0, "-", "-"),
        ("node b", 2, 1, "gru #7: jax, torch", "1 January 2026, 02:20 UTC"),
    ]
    heard = {one.name: one.heard for one in found.nodes}
    assert heard["new"] == "1 January 2026, 02:00 UTC"
    assert heard["node a"] == "1 January 2026, 02:17 UTC"
    assert heard["node b"] == "1 January 2026, 02:15 UTC"
    assert {one.hardware for one in found.nodes} == {"-", "2 x a CPU"}


def test_without_placements_machines_are_those_of_the_records(tmp_path: Path) -> None:
    begun(tmp_path, records())
    assert [(one.name, one.work) for one in session_of(tmp_path).nodes] == [("a" * 8, "-"), ("b" * 8, "-")]


def test_sessions_at_one_machine_and_finished_ones_are_not_shown(tmp_path: Path) -> None:
    assert SessionReader(tmp_path / "none").current() is None
    begun(tmp_path, records()[:3])
    assert SessionReader(tmp_path).current() is None
    run = begun(tmp_path, records(), number=2)
    reader = SessionReader(tmp_path)
    assert reader.current() is not None
    run.store_object("finished.json", {})
    assert reader.current() is None


def test_runs_of_both_arms_are_one_session(tmp_path: Path) -> None:
    names = {"base": run_name(1), "new": run_name(2)}
    for name in names.values():
        store_session(tmp_path, name, records(), planned=20, started_at=BEGUN, runs=names)
    found = session_of(tmp_path)
    assert (found.run_id, found.done, found.planned) == (run_name(1), 14, 40)


def test_new_records_are_read_and_earlier_ones_are_not_read_again(tmp_path: Path) -> None:
    run = begun(tmp_path, records())
    reader = SessionReader(tmp_path)
    first = reader.current()
    assert first is not None
    for name in run.record_names():
        (run.folder / "records" / name).write_text("damaged")
    more = replace(make_record(0.01, 9, settings=make_settings(), machine=B), run_id=run.run_id)
    (run.folder / "records" / "{}.{}.{}.json".format(*more.key)).write_text(dumps(more))
    second = reader.current()
    assert second is not None
    assert second.done == first.done + 1


@pytest.mark.parametrize("text", ["{", "[]"])
def test_unreadable_run_is_not_shown(tmp_path: Path, text: str) -> None:
    run = begun(tmp_path, records())
    (run.folder / "run.json").write_text(text)
    assert SessionReader(tmp_path).current() is None


def test_page_shows_the_session_before_anything_was_sent(tmp_path: Path) -> None:
    run = begun(tmp_path / "results", records())
    progress.keep_placements(run, Placements([Placement(HOSTILE, A.host_id, HOSTILE, BEGUN)]))
    empty = LocalWarehouse(tmp_path / "warehouse")
    empty.create()
    reader = SessionReader(Results(tmp_path / "results").root)
    [body] = Application(Live(empty, session=reader.current))({"PATH_INFO": "/"}, lambda status, headers: None)
    page = body.decode()
    assert '<section id="session"' in page
    assert "7 of 20 planned repeats have ended; attempts lost with their machine: 1." in page
    assert HOSTILE not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 4  # as text and for the filter, name and work
    [without] = Application(Live(empty))({"PATH_INFO": "/"}, lambda status, headers: None)
    assert "Being measured" not in without.decode()


def test_files_of_the_session_are_read_at_most_every_second(tmp_path: Path) -> None:
    empty = LocalWarehouse(tmp_path)
    empty.create()
    asked, now = [0], [0.0]

    def current() -> None:
        asked[0] += 1

    application = Application(Live(empty, clock=lambda: now[0], session=current))
    for seconds, times in ((0.0, 1), (0.9, 1), (1.0, 2), (1.9, 2), (31.0, 3)):
        now[0] = seconds
        application({"PATH_INFO": "/"}, lambda status, headers: None)
        assert asked[0] == times


CELLS = [
    PlannedCell(cell_id(make_settings()), "jax", "", "mnist_mlp", 5, expected_s=4.0),
    PlannedCell("f" * 16, "torch", "", "gru batch_size=16", 5, expected_s=8.0),
]
STARTED_S = 1767232800  # BEGUN in seconds since 1970


def at(seconds: float) -> Callable[[], datetime]:
    """Return a clock that stands this long after the session began."""
    return lambda: datetime.fromtimestamp(STARTED_S + seconds, UTC)


def at_one_machine(root: Path, count: int = 3, running: Sequence[RunningRepeat] = ()) -> Run:
    """Store a run of which `count` repeats of the first cell have ended, one every 10 s."""
    run = Run(store_session(root, run_name(1), records()[:count], planned=10, started_at=BEGUN))
    for n, name in enumerate(run.record_names()):
        os.utime(run.folder / "records" / name, (STARTED_S + 10 * (n + 1),) * 2)
    progress.keep(run, Progress(BEGUN, CELLS, list(running)))
    return run


def test_session_at_one_machine_shows_its_cells_and_the_time_left(tmp_path: Path) -> None:
    run = at_one_machine(tmp_path, running=[RunningRepeat("f" * 16, "", 0)])
    found = SessionReader(tmp_path, at(30)).current()
    assert found is not None
    assert (found.run_id, found.done, found.planned, found.nodes) == (run.run_id, 3, 10, ())
    assert [(one.title, one.done, one.planned, one.now) for one in found.cells] == [
        ("mnist_mlp", 3, 5, "waits"),
        ("gru batch_size=16", 0, 5, "repeat 1 runs"),
    ]
    # 12 s were expected of the three repeats and they took 30 s; 2 x 4 s and 5 x 8 s are left, at the same pace.
    assert found.left == "about 2 min left"
    assert found.heard == "1 January 2026, 02:00 UTC"


@pytest.mark.parametrize(
    ("now_s", "left"),
    [
        (30, 48 * 2.5),  # the pace is 30 s for 12
        (45, 48 * 2.5 - 15),  # the repeat that runs has taken 15 of the 20 s that its 8 become
        (160, 48 * 8 - 64),  # it takes longer: the pace is now 160 s for 12 + 8, and the others will, too
    ],
    ids=["now", "later", "overdue"],
)
def test_time_left_runs_on_between_records_and_grows_when_it_is_exceeded(now_s: float, left: float) -> None:
    stored = [(STARTED_S + 10.0 * n, make_record(0.01, n)) for n in (1, 2, 3)]
    known = Progress(BEGUN, CELLS, [RunningRepeat("f" * 16, "", 0)])
    assert left_s(known, {("", CELLS[0].cell_id): stored}, STARTED_S + now_s) == pytest.approx(left)


def test_own_duration_of_a_cell_replaces_what_was_expected(tmp_path: Path) -> None:
    timed = make_record(0.01, harness=Harness(wall_time_s=40.0))
    stored = {("", CELLS[0].cell_id): [(STARTED_S + 40.0, timed)]}
    assert left_s(Progress(BEGUN, CELLS), stored, STARTED_S + 40) == pytest.approx(4 * 40 + 5 * 8)


def test_repeats_of_an_earlier_start_do_not_count_for_the_pace(tmp_path: Path) -> None:
    stored = [(STARTED_S - 5000.0 + n, make_record(0.01, n)) for n in range(3)]
    found = left_s(Progress(BEGUN, CELLS), {("", CELLS[0].cell_id): stored}, STARTED_S)
    assert found == pytest.approx(2 * 4 + 5 * 8)


def test_time_left_is_unknown_if_nothing_was_expected() -> None:
    cells = [replace(cell, expected_s=None) for cell in CELLS]
    assert left_s(Progress(BEGUN, cells), {}, STARTED_S) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (20.0, "less than a minute left"),
        (100.0, "about 2 min left"),
        (3700.0, "about 1 h 2 min left"),
    ],
)
def test_time_left_as_text(seconds: float | None, text: str) -> None:
    assert left_text(seconds) == text


def test_session_whose_runner_has_ended_is_not_shown(tmp_path: Path) -> None:
    run = at_one_machine(tmp_path)
    reader = SessionReader(tmp_path)
    assert reader.current() is not None
    progress.remove(run)
    assert reader.current() is None


def test_page_shows_a_session_at_one_machine_with_its_cells(tmp_path: Path) -> None:
    run = at_one_machine(tmp_path / "results")
    hostile = [replace(CELLS[0], title=HOSTILE), CELLS[1]]
    progress.keep(run, Progress(BEGUN, hostile, [RunningRepeat("f" * 16, "", 2)]))
    empty = LocalWarehouse(tmp_path / "warehouse")
    empty.create()
    reader = SessionReader(tmp_path / "results", at(30))
    [body] = Application(Live(empty, session=reader.current))({"PATH_INFO": "/"}, lambda status, headers: None)
    page = body.decode()
    assert "3 of 10 planned repeats have ended, about 2 min left." in page
    assert "<td>gru batch_size=16</td><td>torch</td><td>0 of 5</td><td>0</td><td>repeat 3 runs</td>" in page
    assert "machines of the session" not in page
    assert "Nothing was measured yet" not in page
    assert HOSTILE not in page


def test_state_changes_with_the_session_and_with_the_edition(tmp_path: Path) -> None:
    """The page asks for it every few seconds, and loads itself anew once it differs."""
    empty = LocalWarehouse(tmp_path / "warehouse")
    empty.create()
    run = at_one_machine(tmp_path / "results")
    now, sent = [0.0], [False]
    live = Live(
        empty,
        clock=lambda: now[0],
        session=SessionReader(tmp_path / "results", at(30)).current,
        update=lambda: sent.pop() if sent else False,
    )
    application = Application(live)

    def state() -> str:
        now[0] += 2.0
        [body] = application({"PATH_INFO": "/state"}, lambda status, headers: None)
        return body.decode()

    first = state()
    [page] = application({"PATH_INFO": "/"}, lambda status, headers: None)
    assert f'data-state="{first}"' in page.decode()
    assert state() == first
    progress.keep(run, Progress(BEGUN, CELLS, [RunningRepeat("f" * 16, "", 2)]))
    second = state()
    assert second != first
    sent.append(True)
    assert state() != second


def test_run_that_ends_is_sent_once_and_before_the_next_page(tmp_path: Path) -> None:
    results = stored(tmp_path / "results", nights=1)
    sent: list[int] = []
    update = EndedRuns(results.root, lambda: sent.append(len(results.runs())))
    assert (update(), update(), sent) == (True, False, [1])
    run = begun(results.root, records(), number=40)
    assert (update(), sent) == (False, [1])  # it is still being measured
    run.store_object("finished.json", {})
    assert (update(), update(), sent) == (True, False, [1, 2])


def test_failure_to_send_is_a_notice_and_is_tried_again(tmp_path: Path) -> None:
    empty = LocalWarehouse(tmp_path)
    empty.create()
    failures = [WarehouseFailure("the disk is full")]
    now = [0.0]

    def update() -> bool:
        if failures:
            raise failures.pop()
        return True

    live = Live(empty, clock=lambda: now[0], update=update)
    assert live.edition().notices == ("Runs that have ended since cannot be shown: the disk is full",)
    now[0] = 2.0
    assert (live.edition().notices, live.edition().number) == ((), 2)


def test_page_lists_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Mutation: a run that was read is never read again."""
    results = stored(tmp_path / "results", nights=2)
    first, second = results.runs()
    (results.root / "20260231T000000Z-ffffff").mkdir()
    (results.root / "20260231T000000Z-ffffff" / "run.json").write_text("{}")
    [name, *_] = first.record_names()
    os.truncate(first.folder / "records" / name, 100)
    (second.folder / "records" / "<script>.json").symlink_to("/dev/zero")
    warehouse = LocalWarehouse(tmp_path / "warehouse")
    warehouse.create()
    now = [0.0]
    application = Application(Live(warehouse, clock=lambda: now[0], unread=UnreadFiles(results.root)))

    def notices() -> list[str]:
        now[0] += FRESH_S
        [body] = application({"PATH_INFO": "/"}, lambda status, headers: None)
        return re.findall('<p class="lead notice">(Not read: .*?)</p>', body.decode())

    lines = notices()
    assert [line.partition(": ")[2].rpartition(": ")[0].partition(":")[0] for line in lines] == [
        "20260231T000000Z-ffffff",
        f"{first.run_id}/records/{name}",
        f"{second.run_id}/records/&lt;script&gt;.json",
    ]
    assert notices() == lines
    [other, *_] = second.record_names()[1:]
    os.truncate(second.folder / "records" / other, 100)
    assert [f"{second.run_id}/records/{other}: not strict JSON" in line for line in notices()].count(True) == 1


def test_many_files_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    results = stored(tmp_path / "results", nights=1)
    for number in range(25):
        (results.runs()[0].folder / "records" / f"{number:02}.json").write_text("{}")
    lines = UnreadFiles(results.root)()
    assert (len(lines), lines[-1]) == (21, "and 5 other files")
