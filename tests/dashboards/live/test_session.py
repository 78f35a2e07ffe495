"""The dashboard shows the machines of a session that is being measured, from its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.live.session import MeasuredSession, SessionReader
from keras_matrix.records.codec import dumps
from keras_matrix.records.instruments import placements
from keras_matrix.records.instruments.placements import Placement, Placements
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results, Run
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.conftest import MACHINE, make_record, make_settings
from tests.dashboards.boards import HOSTILE
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
    placements.keep(
        run, Placements([at_b, Placement("node a", A.host_id), Placement("new", None, "gru #8: jax", BEGUN)])
    )
    found = session_of(tmp_path)
    assert (found.run_id, found.done, found.planned, found.lost) == (run.run_id, 7, 20, 1)
    assert found.begun == "1 January 2026, 02:00 UTC"
    assert [(one.name, one.measured, one.failed, one.work, one.since) for one in found.nodes] == [
        ("new", 0, 0, "gru #8: jax", "1 January 2026, 02:00 UTC"),
        ("node a", 4, 0, "—", "—"),
        ("node b", 2, 1, "gru #7: jax, torch", "1 January 2026, 02:20 UTC"),
    ]
    heard = {one.name: one.heard for one in found.nodes}
    assert heard["new"] == "1 January 2026, 02:00 UTC"
    assert heard["node a"] == "1 January 2026, 02:17 UTC"
    assert heard["node b"] == "1 January 2026, 02:15 UTC"
    assert {one.hardware for one in found.nodes} == {"—", "2 x a CPU"}


def test_without_placements_machines_are_those_of_the_records(tmp_path: Path) -> None:
    begun(tmp_path, records())
    assert [(one.name, one.work) for one in session_of(tmp_path).nodes] == [("a" * 8, "—"), ("b" * 8, "—")]


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
    placements.keep(run, Placements([Placement(HOSTILE, A.host_id, HOSTILE, BEGUN)]))
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


def test_session_is_read_once_per_edition(tmp_path: Path) -> None:
    empty = LocalWarehouse(tmp_path)
    empty.create()
    asked, now = [0], [0.0]

    def current() -> None:
        asked[0] += 1

    application = Application(Live(empty, clock=lambda: now[0], session=current))
    for seconds, times in ((0.0, 1), (10.0, 1), (31.0, 2)):
        now[0] = seconds
        application({"PATH_INFO": "/"}, lambda status, headers: None)
        assert asked[0] == times
