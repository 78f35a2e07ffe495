"""The published site in a real browser, opened from disk: legible, usable by keyboard, accessible."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.dashboards.live import page
from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.live.page import Frame
from keras_matrix.dashboards.live.questions import DashboardFilter, questions
from keras_matrix.dashboards.report import site
from keras_matrix.records.store import Results
from tests.dashboards.boards import HOSTILE, cell_of, plain_pages, stored, warehouse_of
from tests.dashboards.chromium import on_screens, outlined_by_keyboard, serious_faults, smallest_letters
from tests.dashboards.test_browser import look
from tests.sessions import run_name

pytestmark = pytest.mark.browser

# The folder for the pictures of docs/dashboards.md; update them with: SCREENSHOTS=docs/images ci/browser -k picture_of
SCREENSHOTS = os.environ.get("SCREENSHOTS")
# That of calls is of a measured run: RESULTS=FOLDER SCREENSHOTS=docs/images ci/browser -k 'picture_of and calls'
MEASURED = os.environ.get("RESULTS")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return stored(tmp_path_factory.mktemp("boards") / "results")


@pytest.fixture(scope="module")
def published(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    warehouse_of(results).close()
    folder = tmp_path_factory.mktemp("site")
    site.publish(folder, results.root, plain_pages(results.runs()))
    return folder


@pytest.fixture(scope="module")
def whole(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One page with every question, including the trends."""
    path = tmp_path_factory.mktemp("whole") / "board.html"
    shown = page.panels_of(warehouse_of(results), questions().values(), DashboardFilter())
    path.write_text(page.render(shown, Frame("All runs", "Every question.", lambda cell: f"cells/{cell}.html")))
    return path


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_site_opens_without_console_messages_and_fits_the_screen(
    browser: Any, whole: Path, width: int, scheme: str
) -> None:
    look(browser, whole, scheme, width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [400, 1600])
def test_live_page_with_a_long_workload_fits_the_screen(
    browser: Any, results: Results, tmp_path: Path, width: int
) -> None:
    [body] = Application(Live(warehouse_of(results)))({"PATH_INFO": "/"}, lambda status, headers: None)
    path = tmp_path / "live.html"
    path.write_bytes(body)
    look(browser, path, width=width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_site_loads_nothing(browser: Any, published: Path) -> None:
    look(browser, published / "index.html")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    mine = (published / "index.html").as_uri()
    assert {url for url in asked if not url.startswith(("data:", "chrome:"))} == {mine}


def test_hostile_names_create_no_element_and_run_no_script(browser: Any, whole: Path) -> None:
    look(browser, whole)
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.execute_script("return document.scripts.length") == 1
    titles = browser.execute_script("return [...document.querySelectorAll('h3')].map(e => e.textContent)")
    assert HOSTILE in titles


@on_screens(400, 1600)
def test_axe_finds_no_serious_problem(browser: Any, whole: Path, scheme: str, width: int) -> None:
    look(browser, whole, scheme, width)
    assert serious_faults(browser) == []


def test_filter_restricts_the_page_and_is_in_its_address(browser: Any, published: Path) -> None:
    look(browser, published / "index.html")
    rows = "return [...document.querySelectorAll('[data-of]')].filter(e => !e.hidden).map(e => e.dataset.of)"
    everything = browser.execute_script(rows)
    browser.find_element("id", "words").send_keys("timeout torch")
    narrowed = browser.execute_script(rows)
    assert 0 < len(narrowed) < len(everything)
    assert all("timeout" in one and "torch" in one for one in narrowed)
    assert browser.current_url.endswith("?show=timeout%20torch")
    browser.get(browser.current_url)
    assert browser.execute_script(rows) == narrowed


def test_links_and_scrolling_tables_are_reachable_by_keyboard_with_visible_focus(browser: Any, whole: Path) -> None:
    look(browser, whole, width=400)
    unreachable = browser.execute_script(
        "return [...document.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth && e.tabIndex < 0).length"
    )
    assert unreachable == 0
    look(browser, whole, width=1600)
    reached = outlined_by_keyboard(browser, presses=90)
    assert {"INPUT", "A", "SUMMARY"} <= reached


@pytest.mark.parametrize("width", [400, 1600])
def test_every_dot_is_within_its_picture_and_labels_have_at_least_nine_pixels(
    browser: Any, whole: Path, width: int
) -> None:
    look(browser, whole, width=width)
    dots = browser.execute_script(
        "return [...document.querySelectorAll('.plot :is(circle, rect:not([width]), use[x])')].map(e => {"
        "const d = e.getBoundingClientRect(), p = e.closest('.plot').getBoundingClientRect();"
        "return d.width > 4 && d.left >= p.left - 1 && d.right <= p.right + 1;})"
    )
    assert len(dots) > 40
    assert all(dots)
    assert smallest_letters(browser) >= 9


def test_a_cell_leads_to_its_page_and_a_run_to_its_report(browser: Any, published: Path) -> None:
    look(browser, published / "index.html")
    browser.find_element("css selector", f'.heat a[href$="{cell_of("jax")}.html"]').click()
    assert browser.title == "Keras Benchmark Matrix: mnist_mlp on jax"
    assert browser.execute_script("return document.querySelectorAll('.series .plot use').length") == 12
    browser.find_element("css selector", ".brand a").click()
    browser.find_element("link text", run_name(11)).click()
    assert browser.title == "a run"


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that docs/dashboards.md shows: synthetic nights with plain names, one time series; or a measured run."""
    root = tmp_path_factory.mktemp("pictured") / "results"
    if MEASURED:
        shutil.copytree(MEASURED, root, symlinks=True)
    warehouse = warehouse_of(Results(root) if MEASURED else stored(root, other="cifar10_cnn"))
    one = DashboardFilter(workload="mnist_mlp", backend="jax")
    shown = [page.panel_of(warehouse, q, one if q.name == "trend" else DashboardFilter()) for q in questions().values()]
    path = tmp_path_factory.mktemp("pictured") / "board.html"
    path.write_text(page.render(shown, Frame("All runs", "", lambda cell: f"cells/{cell}.html")))
    return path


@pytest.mark.parametrize("name", list(questions()))
def test_a_picture_of_each_question_can_be_taken(browser: Any, pictured: Path, name: str) -> None:
    look(browser, pictured, width=1100)
    x, y, width, height = browser.execute_script(
        "document.querySelectorAll('.sheet').forEach(e => e.style.contentVisibility = 'visible');"  # beyond the screen
        "const r = document.getElementById(arguments[0]).getBoundingClientRect();"
        "return [r.x + scrollX - 20, r.y + scrollY - 20, r.width + 40, r.height + 40];",
        name,
    )
    clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    shot = base64.b64decode(taken["data"])
    assert shot.startswith(b"\x89PNG")
    if SCREENSHOTS:
        folder = Path(SCREENSHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"dashboard-{name}.png").write_bytes(shot)


def test_page_of_a_thousand_cells_is_small_and_usable_immediately(browser: Any, tmp_path: Path) -> None:
    from keras_matrix.dashboards.live.panels import panel

    matrix = questions()["matrix"]
    rows = [
        {
            "work": f"workload_{number // 4} batch_size={number % 4}",
            "work_id": f"{number:016x}",
            "workload": f"workload_{number // 4}",
            "backend": backend,
            "cell_id": f"{number:015x}{slot}",
            "run_id": run_name(1),
            "step_time_s": 0.01 * (slot + 1),
            "low": 0.0099 * (slot + 1),
            "high": 0.0101 * (slot + 1),
            "status": "ok",
            "failures": None,
            "ratio": float(slot + 1) if slot else None,
            "fastest": "tensorflow",
            "verdict": "tensorflow is fastest: jax takes 2.00x as long, torch 3.00x",
        }
        for number in range(334)
        for slot, backend in enumerate(("tensorflow", "jax", "torch"))
    ]
    path = tmp_path / "thousand.html"
    path.write_text(page.render([panel(matrix, rows)], Frame("A thousand", "", lambda cell: f"cells/{cell}.html")))
    assert path.stat().st_size <= 5 << 20
    look(browser, path)
    ready_ms = browser.execute_script("return performance.getEntriesByType('navigation')[0].domInteractive")
    assert ready_ms <= 1000
