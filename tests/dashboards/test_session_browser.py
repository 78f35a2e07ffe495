"""The live page of a session at several machines in a real browser: it fits the screen and is accessible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.live.session import SessionReader
from keras_matrix.records.instruments import placements
from keras_matrix.records.instruments.placements import Placement, Placements
from tests.dashboards.boards import HOSTILE, stored, warehouse_of
from tests.dashboards.chromium import serious_faults, smallest_letters
from tests.dashboards.live.test_session import BEGUN, A, B, begun, records
from tests.dashboards.test_browser import look

pytestmark = pytest.mark.browser
WORK = "mnist_mlp batch_size=128 image_size=96 #12: tensorflow, jax, torch"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    results = stored(folder / "results", nights=2)
    warehouse = warehouse_of(results)
    run = begun(results.root, records(), number=40)
    names = [Placement("gpu-node-1.example.org", A.host_id, WORK, BEGUN), Placement("gpu-node-2", B.host_id)]
    placements.keep(run, Placements([*names, Placement(HOSTILE, None, WORK, BEGUN)]))
    application = Application(Live(warehouse, session=SessionReader(results.root).current))
    [body] = application({"PATH_INFO": "/"}, lambda status, headers: None)
    path = folder / "live.html"
    path.write_bytes(body)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
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
