"""The live dashboard of a warehouse with costs per query: what is read, when, and what visitors see meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest

from keras_matrix.dashboards.live.app.application import Application, statements
from keras_matrix.dashboards.live.app.needed import Needed, needed
from keras_matrix.dashboards.live.app.refreshed import RETRY_S, RefreshClocks, Refreshed, RefreshPolicy, Snapshot
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.live.questions import DashboardFilter, answer, questions
from keras_matrix.uploader.errors import NotAllowed, Unreachable, WarehouseFailure
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.warehouse import QueryResult, Scalar
from tests.dashboards.boards import HOSTILE, NIGHTS, all_nights, cell_of, stored, warehouse_of
from tests.fakes.warehouse import FakeWarehouse

PERIOD_S = 600.0
FIRST_DAY = "2026-01-01"
NOON = datetime(2026, 1, 20, 12, tzinfo=UTC)
VISITS = [
    *(("/", f"workload={name}&backend={backend}") for name in ("", "mnist_mlp", "x") for backend in ("", "jax")),
    *(("/", f"since=2026-01-{day:02}") for day in (1, 30)),
    *(("/cell", f"id={cell_of(backend)}") for backend in ("tensorflow", "jax")),
    *(("/cell", f"id={number:016x}") for number in range(2)),
    ("/", "workload=0"),
    ("/health", ""),
]


@cache
def read_by_questions() -> Needed:
    """What the dashboard reads; to find it in the SQL takes half a second."""
    return needed(statements())


@dataclass(slots=True)
class Counting(FakeWarehouse):
    """Answers from another warehouse and counts; `refusals` are raised, one per query, None for an answer."""

    behind: LocalWarehouse | None = None
    asked: list[tuple[str, Mapping[str, Scalar]]] = field(default_factory=list)
    refusals: list[Exception | None] = field(default_factory=list)

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Answer, or fail as planned."""
        self.asked.append((sql, dict(parameters or {})))
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal
        assert self.behind is not None
        return self.behind.query(sql, parameters)

    def tables(self) -> list[str]:
        """Return the table that each query read, in order."""
        return [re.findall(r"FROM (\w+)", sql)[0] for sql, _ in self.asked]


@dataclass
class Visit:
    """A dashboard on a counting warehouse, with clocks that a test sets and refreshes that it can delay."""

    warehouse: Counting
    terms: RefreshPolicy = RefreshPolicy(PERIOD_S, FIRST_DAY)
    now_s: float = 0.0
    delayed: list[Callable[[], None]] | None = None

    def __post_init__(self) -> None:
        times = RefreshClocks(
            now=lambda: NOON + timedelta(seconds=self.now_s),
            clock=lambda: self.now_s,
            start=lambda work: work() if self.delayed is None else self.delayed.append(work),
            first_wait_s=0.0,
        )
        self.source = Refreshed(self.warehouse, read_by_questions(), self.terms, times)
        self.application = Application(self.source)

    def __call__(self, path: str = "/", query: str = "") -> tuple[str, str]:
        """Return status and body of a page."""
        status: list[str] = []
        environ = {"PATH_INFO": path, "QUERY_STRING": query}
        [body] = self.application(environ, lambda sent, headers: status.append(sent))
        return status[0], body.decode()


@pytest.fixture(scope="module")
def behind() -> LocalWarehouse:
    return all_nights()[1]


@pytest.fixture(scope="module")
def one_night(tmp_path_factory: pytest.TempPathFactory) -> LocalWarehouse:
    """For tests of when rows are read: a page of all nights takes three times as long."""
    return warehouse_of(stored(tmp_path_factory.mktemp("night") / "results", nights=1))


@pytest.fixture
def visit(one_night: LocalWarehouse) -> Visit:
    return Visit(Counting("bigquery://a-project.data", behind=one_night))


@pytest.fixture
def read() -> Needed:
    return read_by_questions()


def test_visitors_with_different_choices_cost_three_queries_per_period(visit: Visit) -> None:
    assert len(set(VISITS)) == 14
    for period, visits in ((1, VISITS), (2, VISITS[:5])):
        for path, query in visits:
            assert visit(path, query)[0] == "200 OK"
            visit.now_s += (PERIOD_S - 1) / len(VISITS)
        assert sorted(visit.warehouse.tables()) == sorted(["runs", "cells", "findings"] * period)
        visit.now_s = period * PERIOD_S


def test_every_query_is_bounded_by_the_day(visit: Visit) -> None:
    visit()
    assert [parameters for _, parameters in visit.warehouse.asked] == [{"since": FIRST_DAY}] * 3
    assert {sql.partition(" WHERE ")[2] for sql, _ in visit.warehouse.asked} == {"day >= CAST(@since AS DATE)"}


def test_without_a_visitor_nothing_is_read(visit: Visit) -> None:
    assert visit("/health") == ("200 OK", "<!doctype html><title>ok</title><p>ok")
    assert visit("/nothing")[0] == "404 Not Found"
    visit.now_s = 10 * PERIOD_S
    assert visit.warehouse.asked == []


@pytest.fixture(scope="module")
def snapshot(behind: LocalWarehouse) -> Snapshot:
    filled = Snapshot(read_by_questions(), FIRST_DAY)
    filled.fill(behind)
    return filled


@pytest.mark.parametrize("name", list(questions()))
def test_snapshot_answers_every_question_like_the_warehouse(
    behind: LocalWarehouse, snapshot: Snapshot, name: str
) -> None:
    for choice in (
        DashboardFilter(),
        DashboardFilter(backend="jax"),
        DashboardFilter(since="2026-01-05"),
        DashboardFilter(cell=cell_of("torch")),
    ):
        from_warehouse = answer(behind, questions()[name], choice)
        assert answer(snapshot, questions()[name], choice) == from_warehouse
    assert answer(snapshot, questions()[name], DashboardFilter()).rows


def test_only_columns_that_a_question_reads_are_needed(read: Needed) -> None:
    assert set(read.columns) == {"runs", "cells", "findings"}
    assert "benchmarks" not in read.views
    assert {"day", "run_id", "fault", "matrix_path"} <= set(read.columns["runs"])
    assert not {"matrix_text", "row_hash", "machine_kernel", "versions"} & set(read.columns["runs"])
    assert len(read.columns["cells"]) < 25
    assert "method" not in read.columns["findings"]


def test_columns_are_found_through_views_stars_and_aliases() -> None:
    assert needed(["SELECT f.said FROM latest_findings AS f"]).columns == {
        "findings": ("day", "run_id", "revision", "said")
    }
    through_cte = "WITH a AS (SELECT * FROM runs) SELECT a.arm AS workload FROM a"
    assert needed([through_cte]) == Needed({"runs": ("day", "arm")}, ())
    assert needed(["SELECT 1 AS one"]) == Needed({}, ())


def test_page_shows_age_and_first_day_of_its_rows(visit: Visit) -> None:
    origin = "Read from bigquery://a-project.data {}, on 20 January 2026, 12:00 UTC: the runs since 2026-01-01."
    for now_s, age in ((0.0, "less than a minute ago"), (59.0, "less than a minute ago"), (130.0, "2 minutes ago")):
        visit.now_s = now_s
        for path in ("/", "/cell"):
            assert origin.format(age) in visit(path, f"id={cell_of('jax')}")[1]


def test_last_90_days_are_read_by_default(behind: LocalWarehouse) -> None:
    visit = Visit(Counting(behind=behind), RefreshPolicy(PERIOD_S))
    visit()
    assert {parameters["since"] for _, parameters in visit.warehouse.asked} == {"2025-10-22"}


def test_visitor_can_only_restrict_the_days(behind: LocalWarehouse) -> None:
    visit = Visit(Counting(behind=behind), RefreshPolicy(PERIOD_S, "2026-01-05"))
    for asked, shown in (("", "2026-01-05"), ("2000-01-01", "2026-01-05"), ("2026-01-09", "2026-01-09")):
        page = visit("/", f"since={asked}")[1]
        assert f'value="{shown}" min="2026-01-05"' in page
    cell = visit("/cell", f"id={cell_of('jax')}&since=2000-01-01")[1]
    assert cell.count('<use class="mark s1"') == NIGHTS - 4


def test_a_failed_refresh_shows_the_old_rows_with_a_notice_and_the_next_one_removes_it(visit: Visit) -> None:
    fresh = visit()[1]
    visit.now_s = PERIOD_S + 60
    visit.warehouse.refusals = [NotAllowed("the right bigquery.jobs.create is missing <b>")]
    status, page = visit()
    assert status == "200 OK"
    assert (
        "These rows were read on 20 January 2026, 12:00 UTC. Reading newer ones has failed since 20 January 2026, "
        "12:11 UTC: the right bigquery.jobs.create is missing &lt;b&gt;"
    ) in page
    assert page.count("<tr") == fresh.count("<tr")
    assert "has failed since" in visit("/cell", f"id={cell_of('jax')}")[1]
    visit.now_s += RETRY_S
    assert "has failed since" not in visit()[1]


def test_pages_before_the_first_successful_reading_have_status_503_and_the_reason(visit: Visit) -> None:
    visit.warehouse.refusals = [Unreachable("no answer within 15 s")]
    for path in ("/", "/cell", "/health"):
        status, page = visit(path, f"id={cell_of('jax')}")
        assert status == "503 Service Unavailable"
        assert ("no answer within 15\u00a0s" in page) is (path != "/health")
    assert len(visit.warehouse.asked) == 1
    visit.now_s = RETRY_S
    assert visit()[0] == "200 OK"
    assert visit("/health")[0] == "200 OK"


def test_table_is_not_read_again_after_the_failure_of_another(visit: Visit) -> None:
    visit.warehouse.refusals = [None, WarehouseFailure("would read 11 GiB")]
    visit()
    visit.warehouse.refusals = [WarehouseFailure("would read 11 GiB")]
    visit.now_s = RETRY_S
    visit()
    visit.now_s = 2 * RETRY_S
    assert visit()[0] == "200 OK"
    assert visit.warehouse.tables() == ["runs", "cells", "cells", "cells", "findings"]


def test_incomplete_snapshot_older_than_the_period_is_discarded(visit: Visit) -> None:
    visit.warehouse.refusals = [None, Unreachable("gone")]
    visit()
    visit.now_s = PERIOD_S
    assert visit()[0] == "200 OK"
    assert visit.warehouse.tables() == ["runs", "cells", "runs", "cells", "findings"]


def test_visitors_see_the_previous_rows_during_a_refresh(visit: Visit) -> None:
    visit()
    visit.now_s, visit.delayed = PERIOD_S, []
    for _ in range(10):
        assert "10 minutes ago" in visit()[1]
    assert len(visit.delayed) == 1
    assert len(visit.warehouse.asked) == 3
    visit.delayed[0]()
    assert "less than a minute ago" in visit()[1]
    assert len(visit.warehouse.asked) == 6


def test_slow_first_reading_is_reported_with_status_503(visit: Visit) -> None:
    visit.delayed = []
    for _ in range(3):
        status, page = visit()
        assert status == "503 Service Unavailable"
        assert "The first reading is not complete: reload this page in a minute." in page
    assert visit("/health")[0] == "200 OK"
    assert len(visit.delayed) == 1
    visit.delayed[0]()
    assert visit()[0] == "200 OK"


def test_unexpected_error_ends_only_one_refresh(visit: Visit) -> None:
    visit()
    visit.now_s, visit.warehouse.refusals = PERIOD_S, [KeyError("a bug")]
    with pytest.raises(KeyError):
        visit()
    assert "an unexpected error; see the program&#39;s log" in visit()[1]
    visit.now_s += RETRY_S
    assert "unexpected" not in visit()[1]


def test_failure_to_start_a_thread_is_unreachable(visit: Visit) -> None:
    def refuse(work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    source = Refreshed(visit.warehouse, read_by_questions(), visit.terms, RefreshClocks(lambda: NOON, start=refuse))
    with pytest.raises(Unreachable, match="can't start new thread; end other programs"):
        source.edition()


def test_days_without_a_run_are_reported_with_what_to_do(behind: LocalWarehouse) -> None:
    visit = Visit(Counting("bigquery://a-project.data", behind=behind), RefreshPolicy(PERIOD_S, "2027-01-01"))
    status, page = visit()
    assert status == "200 OK"
    assert "No run since 2027-01-01: " in page
    assert "`uploader push --to bigquery://a-project.data` uploads, `runner dashboard --since DATE` reads" in page
    assert "<section" not in page


def test_snapshot_preserves_numbers_and_texts() -> None:
    columns = {"findings": ("day", "run_id", "estimate", "count", "said", "facts")}
    rows = [
        ("2026-01-02", "a", 0.1 + 0.2, 3, f'"\n\\{HOSTILE}\u2028é', {"mode": "x", "n": 'a"b'}),
        ("2026-01-02", "b", float("nan"), None, None, None),
    ]

    class Given:
        def query(self, sql: str, parameters: Any = None) -> QueryResult:
            return QueryResult(columns["findings"], rows)

    snapshot = Snapshot(Needed(columns, ()), FIRST_DAY)
    snapshot.fill(Given())
    found = snapshot.query(
        "SELECT run_id, estimate, f.count, said, JSON_VALUE(facts, '$.n') AS n FROM findings AS f ORDER BY run_id"
    )
    assert found.rows == [("a", 0.1 + 0.2, 3, rows[0][4], 'a"b'), ("b", None, None, None, None)]


def test_full_temporary_folder_is_named_in_the_failure(
    behind: LocalWarehouse, read: Needed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryDirectory", full)
    with pytest.raises(WarehouseFailure, match=r"\[Errno 28\] No space left on device; check the space"):
        Snapshot(read, FIRST_DAY).fill(behind)


def test_the_local_warehouse_can_be_bounded_by_a_day_too(behind: LocalWarehouse) -> None:
    [body] = Application(Live(behind, "2026-01-05"))({"PATH_INFO": "/"}, lambda status, headers: None)
    assert 'value="2026-01-05" min="2026-01-05"' in body.decode()


def test_the_first_visitor_waits_for_the_reading_in_the_background(behind: LocalWarehouse) -> None:
    source = Refreshed(
        Counting(behind=behind), read_by_questions(), RefreshPolicy(since=FIRST_DAY), RefreshClocks(lambda: NOON)
    )
    assert source.peek() is None
    edition = source.edition()
    assert (edition.number, edition.since) == (1, FIRST_DAY)
    assert source.edition().number == 1
