"""The dashboard: every panel is drawn, hostile text is escaped, links have targets; live and as files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from keras_matrix.dashboards.live import page as dashboard
from keras_matrix.dashboards.live import panels
from keras_matrix.dashboards.live.app import application as served
from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.live.page import Frame, RunCounts
from keras_matrix.dashboards.live.questions import DashboardFilter, questions
from keras_matrix.dashboards.report import site
from keras_matrix.records.identity import cell_id
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.service.stored import update_findings
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.conftest import make_record, make_settings
from tests.dashboards.boards import HOSTILE, NIGHTS, all_nights, cell_of, plain_pages, stored, warehouse_of
from tests.fakes.warehouse import FakeWarehouse
from tests.sessions import run_name, store_session


class Elements(HTMLParser):
    """Lists elements, attributes and links of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.attributes: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.links += [value for name, value in attrs if name == "href" and value and tag == "a"]


@pytest.fixture
def results() -> Results:
    return all_nights()[0]


@pytest.fixture(scope="module")
def warehouse() -> LocalWarehouse:
    return all_nights()[1]


@pytest.fixture(scope="module")
def page(warehouse: LocalWarehouse) -> str:
    shown = dashboard.panels_of(warehouse, questions().values(), DashboardFilter())
    return dashboard.render(shown, Frame("All", "Everything.", lambda cell_id: f"cells/{cell_id}.html"))


def test_every_question_is_a_section_with_its_query(page: str) -> None:
    for name, question in questions().items():
        assert f'<section id="{name}"' in page
        assert question.title in page
    assert page.count('<details class="sql">') == len(questions())


def test_hostile_text_creates_no_element(page: str) -> None:
    names = Elements(page).names
    assert names.count("img") == 0
    assert names.count("script") == 1
    assert HOSTILE not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_policy_admits_only_the_hashes_of_style_and_script(page: str) -> None:
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe" not in policy
    assert " style=" not in page
    assert not re.search(r"\son[a-z]+=", re.sub(r"<pre.*?</pre>", "", page, flags=re.S).replace("onerror=", ""))


def test_heat_map_marks_the_fastest_and_shades_the_others(warehouse: LocalWarehouse) -> None:
    found = panels.panel(
        questions()["matrix"], dashboard.answer(warehouse, questions()["matrix"], DashboardFilter()).dicts()
    )
    row = next(row for row in found.heat if row.title.startswith("mnist_mlp"))
    assert found.backends == ["tensorflow", "jax", "torch"]
    assert [cell.shade for cell in row.cells] == [0, 4, 4]
    assert [cell.fastest for cell in row.cells] == [True, False, False]
    hostile = next(row for row in found.heat if row.workload == HOSTILE)
    assert hostile.cells[2].text == "timeout"


def test_panel_of_a_failed_query_shows_the_error() -> None:
    shown = dashboard.panels_of(FakeWarehouse(), questions().values(), DashboardFilter())
    assert {one.kind for one in shown} == {"problem"}
    page = dashboard.render(shown, Frame("All", "", str))
    assert page.count("the fake warehouse runs no queries") == len(questions())


def test_panel_without_rows_has_a_notice_instead_of_a_picture(tmp_path: Path) -> None:
    empty = LocalWarehouse(tmp_path)
    empty.create()
    shown = dashboard.panels_of(empty, questions().values(), DashboardFilter())
    assert {one.count for one in shown} == {0}
    page = dashboard.render(shown, Frame("All", "", str))
    assert page.count("No rows match the selection.") == len(questions())
    assert not {"figure", "table", "use"} & set(Elements(page).names)


def test_empty_warehouse_has_one_notice_and_no_questions(tmp_path: Path) -> None:
    empty = LocalWarehouse(tmp_path)
    empty.create()
    assert dashboard.run_counts(empty) == RunCounts(0, 0)
    [body] = Application(Live(empty))({"PATH_INFO": "/"}, lambda status, headers: None)
    for page in (body.decode(), site.index(empty, set())):
        assert page.count("Nothing was measured yet") == 1
        assert not {"section", "figure", "table", "nav"} & set(Elements(page).names)
    assert "script" not in Elements(site.index(empty, set())).names


def test_runs_without_findings_are_counted_in_a_notice(tmp_path: Path) -> None:
    results = stored(tmp_path / "results", nights=3)
    for run in results.runs()[:2]:
        (run.folder / "findings.json").unlink()
    warehouse = warehouse_of(results)
    assert dashboard.run_counts(warehouse) == RunCounts(3, 2)
    page = site.index(warehouse, set())
    assert "2 of 3 runs have no findings and appear only" in page
    assert '<section id="failures"' in page


def test_questions_that_need_no_findings_are_shown_without_any(tmp_path: Path) -> None:
    results = stored(tmp_path / "results", nights=1)
    (results.runs()[0].folder / "findings.json").unlink()
    warehouse = warehouse_of(results)
    shown = {
        one.question.name: one.count for one in dashboard.panels_of(warehouse, questions().values(), DashboardFilter())
    }
    assert {name for name, count in shown.items() if count} == {"failures", "machines", "runs"}


def test_failing_warehouse_is_queried_once_and_the_page_shows_why() -> None:
    statuses: list[str] = []
    warehouse = FakeWarehouse(address="<b>fake</b>")
    for path, query in (("/", ""), ("/cell", f"id={cell_of('jax')}")):
        environ = {"PATH_INFO": path, "QUERY_STRING": query}
        [body] = Application(Live(warehouse))(environ, lambda status, headers: statuses.append(status))
        assert body.decode().count("the fake warehouse runs no queries") == 1
        assert "&lt;b&gt;fake&lt;/b&gt; does not answer" in body.decode()
    assert statuses == ["503 Service Unavailable"] * 2


@pytest.fixture(scope="module")
def ask(warehouse: LocalWarehouse) -> Callable[..., tuple[str, str]]:
    application = Application(Live(warehouse))

    def asked(path: str, query: str = "") -> tuple[str, str]:
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ |= {"PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": io.BytesIO()}
        statuses: list[str] = []
        body = b"".join(application(environ, lambda status, headers: statuses.append(status)))
        return statuses[0], body.decode()

    return asked


def test_address_of_the_live_dashboard_contains_the_choice(ask: Callable[..., tuple[str, str]]) -> None:
    status, page = ask("/", "backend=jax&since=2026-01-03")
    assert status == "200 OK"
    assert "<option selected>jax</option>" in page
    assert 'value="2026-01-03"' in page
    assert f"/cell?id={cell_of('jax')}&amp;since=2026-01-03" in page
    assert cell_of("torch") not in page


def test_page_of_a_cell_shows_its_time_series(ask: Callable[..., tuple[str, str]]) -> None:
    status, page = ask("/cell", f"id={cell_of('jax')}")
    assert status == "200 OK"
    assert page.count('<use class="mark s1"') == NIGHTS
    assert "+50" in page


def test_page_of_a_cell_has_its_name_and_ways_back_and_no_link_to_itself(ask: Callable[..., tuple[str, str]]) -> None:
    cell = cell_of("jax")
    _, page = ask("/cell", f"id={cell}")
    assert "<title>Keras Benchmark Matrix: mnist_mlp on jax</title>" in page
    assert "<h1>mnist_mlp on jax</h1>" in page
    newest = run_name(NIGHTS - 1)
    assert f'<li><a href="/">All questions</a></li><li><a href="/#runs">Run {newest}</a></li>' in page
    assert f"`runner report --run {newest}`" in page
    assert f'href="/cell?id={cell}' not in page
    assert "cpu cpu" not in page
    assert "· cpu:0<" in page
    assert "the query, 12 rows" in page


def test_page_of_a_cell_keeps_the_chosen_days_on_the_way_back(ask: Callable[..., tuple[str, str]]) -> None:
    _, page = ask("/cell", f"id={cell_of('jax')}&since=2026-01-12")
    assert '<a href="/?since=2026-01-12">All questions</a>' in page
    assert "the query, 1 row<" in page


def test_cells_of_one_workload_have_pages_with_different_names(tmp_path: Path) -> None:
    records = [
        make_record(0.01 * size, r, settings=make_settings(batch_size=size)) for size in (1, 2) for r in range(5)
    ]
    update_findings(Run(store_session(tmp_path, run_name(0), records)))
    warehouse = warehouse_of(Results(tmp_path))
    names = [
        dashboard.cell_heading(warehouse, cell_id(make_settings(batch_size=size))).rpartition(" on ")[0]
        for size in (1, 2)
    ]
    assert names == ["mnist_mlp batch_size=1", "mnist_mlp batch_size=2"]


def test_cell_without_a_session_is_named_by_its_identifier(ask: Callable[..., tuple[str, str]]) -> None:
    _, page = ask("/cell", f"id={'0' * 16}")
    assert f"<h1>Cell {'0' * 16}</h1>" in page


def test_page_of_a_cell_on_a_site_leads_back_to_the_report_of_its_run(warehouse: LocalWarehouse) -> None:
    newest = run_name(NIGHTS - 1)
    page = site.cell_page(warehouse, cell_of("jax"), {newest})
    assert f'<a href="../runs/{newest}.html">Report of run {newest}</a>' in page
    assert f"../runs/{newest}.html" not in site.cell_page(warehouse, cell_of("jax"))


@pytest.mark.parametrize("path", ["/cell", "/nothing", "/../etc/passwd"])
def test_unknown_page_is_not_found(ask: Callable[..., tuple[str, str]], path: str) -> None:
    assert ask(path, "id=' OR 1=1")[0] == "404 Not Found"


def test_hostile_choice_finds_nothing_and_is_escaped(ask: Callable[..., tuple[str, str]]) -> None:
    status, page = ask("/", "workload=%3Cscript%3Ealert(1)%3C/script%3E'%20OR%201=1")
    assert status == "200 OK"
    assert "<script>alert(1)" not in page


def test_health_reports_whether_the_warehouse_answers(ask: Callable[..., tuple[str, str]]) -> None:
    assert ask("/health")[0] == "200 OK"
    statuses: list[str] = []
    Application(Live(FakeWarehouse()))({"PATH_INFO": "/health"}, lambda status, headers: statuses.append(status))
    assert statuses == ["503 Service Unavailable"]


def test_pages_forbid_caching_sniffing_framing_and_referrers(warehouse: LocalWarehouse) -> None:
    for path in ("/", "/nothing", "/health"):
        sent: dict[str, str] = {}
        [body] = Application(Live(warehouse))({"PATH_INFO": path}, lambda status, headers: sent.update(headers))  # noqa: B023
        assert sent == {
            "Content-Type": "text/html; charset=utf-8",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Content-Length": str(len(body)),
        }


def test_number_of_cached_answers_is_limited(warehouse: LocalWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MOST_CACHED", 20)
    application = Application(Live(warehouse))
    for number in range(4):
        application({"PATH_INFO": "/", "QUERY_STRING": f"workload={number}"}, lambda status, headers: None)
        assert len(application._cached) <= 20


def test_answers_are_cached_until_they_expire(warehouse: LocalWarehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], [0]
    application = Application(Live(warehouse, clock=lambda: now[0]))
    query = warehouse.query

    def counting(*args: Any) -> Any:
        asked[0] += 1
        return query(*args)

    monkeypatch.setattr(LocalWarehouse, "query", lambda self, *args: counting(*args))
    environ = {"PATH_INFO": "/", "QUERY_STRING": ""}
    for seconds, times in ((0.0, 1), (10.0, 1), (31.0, 2)):
        now[0] = seconds
        application(environ, lambda status, headers: None)
        assert asked[0] == times * len({"run_counts", "choices", *questions()} - {"trend"})


def test_every_link_of_the_published_site_leads_to_a_page(tmp_path: Path, results: Results) -> None:
    folder = tmp_path / "site"
    (folder / "cells").mkdir(parents=True)
    (folder / "cells" / "gone.html").write_text("")
    count = site.publish(folder, results.root, plain_pages(results.runs()[-3:]))
    pages = sorted(folder.rglob("*.html"))
    assert len(pages) == count
    assert (folder / ".nojekyll").exists()
    for path in pages:
        for link in Elements(path.read_text()).links:
            assert link.startswith("#") or (path.parent / link).resolve() in pages, (path, link)
