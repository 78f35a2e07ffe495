"""Hostile names, titles, messages and output are inert in a real browser, on every page that the project writes.

Two walls: the templates escape everything, and each page's policy admits only its own style and script. Both are tried:
the pages as they are, and pages from templates that escape nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.comparison.versus import versus
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.guard import Guard
from keras_matrix.dashboards.live.app.hosts import listen_address
from keras_matrix.dashboards.live.app.serve import port_of
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.report import comparison_page, history_page, notebook, page, roofline_page, site
from keras_matrix.records.schema import Evidence, Status
from keras_matrix.records.store import Results
from tests.conftest import MACHINE, make_record, make_settings
from tests.dashboards.boards import stored, warehouse_of
from tests.dashboards.charts.test_roofline import found
from tests.dashboards.report.test_comparison_page import RULE, side, view
from tests.dashboards.report.test_history_page import assessed
from tests.dashboards.report.test_history_page import view as history_view
from tests.dashboards.test_browser import look

pytestmark = pytest.mark.browser
# Each runs if it is taken for markup, an attribute, an address, a style or a part of a script.
ATTACK = (
    "\"'></title></style></pre></svg><script>window.attacked='script'</script>"
    "<img src=x onerror=\"window.attacked='image'\"><svg onload=\"window.attacked='drawing'\"></svg>"
    "<iframe srcdoc=\"<script>parent.attacked='frame'</script>\"></iframe><base href='//evil.example/'>"
    "<style>body{display:none}</style><a href=\"javascript:attacked='link'\">x</a>{{ 7*7 }}${attacked='text'}"
)
STATE = """
const own = e => [...e.attributes].map(a => a.name);
return {
    attacked: window.attacked ?? null,
    elements: document.querySelectorAll('img, iframe, base, object, embed, svg[onload]').length,
    handlers: [...document.querySelectorAll('*')].flatMap(own).filter(name => name.startsWith('on')),
    links: [...document.querySelectorAll('a')].map(a => a.protocol).filter(p => !['http:', 'file:', ''].includes(p)),
    scripts: document.scripts.length,
    visible: getComputedStyle(document.body).display !== 'none',
    base: document.baseURI === document.URL,
};
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Some nights of a workload with that name, whose failures printed it too."""
    return stored(tmp_path_factory.mktemp("hostile") / "results", nights=3, other=ATTACK)


def report() -> str:
    """Return the report of a run with that text in every field that has a text."""
    settings = make_settings(workload=ATTACK, params={"value": ATTACK})
    machine = replace(MACHINE, cpu_model=ATTACK, gpus=[ATTACK], kernel=ATTACK, machine_type=ATTACK, os=ATTACK)
    good = make_record(0.01, settings=settings, machine=machine, versions={ATTACK: ATTACK}, warnings=[f"{ATTACK}: x"])
    evidence = Evidence(signal=9, exception=ATTACK, result_problem=ATTACK, output_tail=ATTACK)
    bad = replace(good, repeat=1, status=Status.ERROR, reason=ATTACK, evidence=evidence)
    about = {"matrix_text": ATTACK, "command": [ATTACK], "matrix_path": ATTACK, "versions": {ATTACK: ATTACK}}
    return page.render([good, bad], result_table(table([good, bad])), about)


def written(folder: Path, results: Results) -> dict[str, Path]:
    """Write every kind of page, and return their paths."""
    compared = versus(side(1.0, 0, workload=ATTACK, keras="1"), side(1.2, 1, workload=ATTACK, keras=ATTACK), RULE)
    heading = roofline_page.Heading(ATTACK, ATTACK, ATTACK)
    records = [make_record(0.01, number, settings=make_settings(workload=ATTACK)) for number in range(3)]
    texts = {
        "report": report(),
        "comparison": comparison_page.page(view(compared)),
        "history": history_page.render([history_view(assessed([0.01, 0.02] * 9), ATTACK)], [ATTACK]),
        "roofline": roofline_page.render_page(found(name=ATTACK), heading),
        "notebook": notebook.render(records, result_table(table(records)), 0),
    }
    paths = {name: folder / f"{name}.html" for name in texts}
    for name, text in texts.items():
        page.write(paths[name], text)
    site.publish(folder / "site", results.root, [])
    [cell, *_] = sorted((folder / "site" / "cells").iterdir())
    return paths | {"site": folder / "site" / "index.html", "cell": cell}


KINDS = ("report", "comparison", "history", "roofline", "notebook", "site", "cell")
WITH_SCRIPT = ("site", "cell")


@pytest.fixture(scope="module")
def pages(results: Results, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    warehouse_of(results).close()
    return written(tmp_path_factory.mktemp("pages"), results)


@pytest.fixture(scope="module")
def unescaped(results: Results, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same pages from templates that escape nothing."""
    warehouse_of(results).close()
    made = page.templates().overlay(autoescape=False)
    made.globals.update(page.templates().globals)
    made.cache.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "templates", lambda: made)
        return written(tmp_path_factory.mktemp("unescaped"), results)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_texts_are_shown_and_nothing_else(browser: Any, pages: dict[str, Path], kind: str) -> None:
    """Mutation: `templates` with `autoescape=False`."""
    look(browser, pages[kind])
    assert browser.execute_script(STATE) == {
        "attacked": None,
        "elements": 0,
        "handlers": [],
        "links": [],
        "scripts": int(kind in WITH_SCRIPT),
        "visible": True,
        "base": True,
    }
    shown = browser.execute_script("return document.documentElement.textContent")
    assert ("window.attacked='script'" in shown) == (kind != "cell")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("notebook", "cell")])
def test_policy_alone_stops_scripts_that_reach_a_page(browser: Any, unescaped: dict[str, Path], kind: str) -> None:
    """A part of a notebook has no policy of its own. Mutation: `policy` with `script-src 'unsafe-inline'`."""
    look(browser, unescaped[kind])
    state = browser.execute_script(STATE)
    assert state["elements"] > 0, "the texts must have become elements: otherwise this shows nothing"
    assert (state["attacked"], state["visible"], state["base"]) == (None, True, True)


@contextmanager
def served(results: Results) -> Iterator[tuple[str, list[str]]]:
    """Serve the live dashboard as the command does; yield its address, and the paths that reached the application."""
    from waitress import create_server

    application, reached = Application(Live(warehouse_of(results))), list[str]()

    def counted(environ: Any, start_response: Any) -> Any:
        reached.append(environ["PATH_INFO"])
        return application(environ, start_response)

    server = create_server(Guard(counted, listen_address("127.0.0.1:0", [])), host="127.0.0.1", port=0, threads=2)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port_of(server)}", reached
    finally:
        server.close()
        server.task_dispatcher.shutdown()


def test_live_page_with_hostile_names_and_choices_is_inert(browser: Any, results: Results) -> None:
    """Mutation: `templates` with `autoescape=False`."""
    with served(results) as (address, _):
        browser.get(f"{address}/?workload={quote(ATTACK)}&since={quote(ATTACK)}&backend={quote(ATTACK)}")
        state = browser.execute_script(STATE)
        browser.get("about:blank")
    assert (state["attacked"], state["elements"], state["handlers"], state["links"]) == (None, 0, [], [])


def test_page_of_another_site_reaches_nothing_of_the_live_dashboard(browser: Any, results: Results) -> None:
    """As a frame, an image, a script and a request, from another port of this machine.

    Mutation: `_is_of_another_site` returns False.
    """
    with served(results) as (address, reached), served(results) as (other, _):
        browser.get(f"{other}/health")
        loaded = browser.execute_async_script(
            """
            const [address, done] = arguments, loaded = [];
            const add = (name, key) => new Promise(end => {
                const e = document.createElement(name);
                e.onload = () => { loaded.push(name); end(); };
                e.onerror = end;
                e[key] = address;
                document.body.append(e);
                setTimeout(end, 1500);
            });
            const ask = fetch(address).then(r => r.text()).then(() => loaded.push('fetch'), () => {});
            Promise.all([add('img', 'src'), add('script', 'src'), add('iframe', 'src'), ask]).then(() => {
                let inside = '';
                try { inside = document.querySelector('iframe').contentDocument?.title ?? ''; } catch (error) {}
                done([loaded.filter(name => name != 'iframe'), inside]);
            });
            """,
            f"{address}/",
        )
        named = address.replace("127.0.0.1", "localhost")
        browser.get(named)
        title = browser.title
        browser.get("about:blank")
    assert loaded == [[], ""]
    assert title == "Keras Benchmark Matrix: Dashboard"
    assert [path for path in reached if path != "/favicon.ico"] == ["/"], "only the page that was opened itself"
