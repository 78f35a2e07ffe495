"""The live page of a session at several machines in a real browser: it fits the screen and is accessible."""

from __future__ import annotations

import threading
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.live.session import SessionReader
from keras_matrix.records.instruments import progress
from keras_matrix.records.instruments.progress import Placement, Placements, Progress, RunningRepeat
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.dashboards import chromium
from tests.dashboards.boards import HOSTILE, stored, warehouse_of
from tests.dashboards.chromium import on_screens, serious_faults, smallest_letters
from tests.dashboards.live.test_session import BEGUN, CELLS, A, B, at, at_one_machine, begun, records
from tests.dashboards.test_browser import look

pytestmark = pytest.mark.browser


class Threads(ThreadingMixIn, WSGIServer):
    """A server that also answers while a connection is open which Chromium has opened in advance."""

    daemon_threads = True


class Quiet(WSGIRequestHandler):
    """A handler that logs no requests."""

    def log_message(self, *message: object) -> None:
        """Drop it."""


WORK = "mnist_mlp batch_size=128 image_size=96 #12: tensorflow, jax, torch"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    results = stored(folder / "results", nights=2)
    warehouse = warehouse_of(results)
    run = begun(results.root, records(), number=40)
    names = [Placement("gpu-node-1.example.org", A.host_id, WORK, BEGUN), Placement("gpu-node-2", B.host_id)]
    progress.keep_placements(run, Placements([*names, Placement(HOSTILE, None, WORK, BEGUN)]))
    application = Application(Live(warehouse, session=SessionReader(results.root).current))
    [body] = application({"PATH_INFO": "/"}, lambda status, headers: None)
    path = folder / "live.html"
    path.write_bytes(body)
    return path


@on_screens(400, 1600)
def test_machines_of_a_session_fit_the_screen_and_are_accessible(
    browser: Any, page: Path, scheme: str, width: int
) -> None:
    look(browser, page, scheme, width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert serious_faults(browser) == []
    assert smallest_letters(browser) >= 11
    rows = browser.execute_script("return [...document.querySelectorAll('#session tbody tr')].map(e => e.innerText)")
    assert len(rows) == 3
    assert any("gpu-node-1.example.org" in row and WORK in row for row in rows)


def test_open_page_loads_itself_anew_when_the_session_goes_on(browser: Any, tmp_path: Path) -> None:
    run = at_one_machine(tmp_path / "results")
    empty = LocalWarehouse(tmp_path / "warehouse")
    empty.create()
    application = Application(Live(empty, session=SessionReader(tmp_path / "results", at(30)).current))
    from selenium.webdriver.support.ui import WebDriverWait

    with make_server("127.0.0.1", 0, application, Threads, Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            chromium.look(browser, f"http://127.0.0.1:{server.server_port}/", (1280, 800), "light")
            assert "repeat 3 runs" not in browser.page_source
            progress.keep(run, Progress(BEGUN, CELLS, [RunningRepeat("f" * 16, "", 2)]))
            WebDriverWait(browser, 20).until(lambda shown: "repeat 3 runs" in shown.page_source)
            assert browser.get_log("browser") == []
            browser.get("about:blank")
        finally:
            server.shutdown()
