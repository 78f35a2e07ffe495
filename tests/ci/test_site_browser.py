"""The documentation site in a real browser: without accessibility problems, another host or a sideways scroll."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.dashboards import chromium
from tests.dashboards.chromium import serious_faults

pytestmark = pytest.mark.browser

SITE = Path(__file__).parents[2] / "build" / "site"
PAGES = ("index", "reference/statuses", "schema", "traces")
WIDTHS = (400, 1600)
SCHEMES = {"light": "default", "dark": "slate"}


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the built site on the loopback interface; a search does not work from disk."""
    if not SITE.is_dir():
        pytest.skip("build/site is missing: ci/docs build")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def look(browser: Any, url: str, width: int = 1600, scheme: str = "light") -> None:
    """Open a page with a screen width and a colour scheme."""
    chromium.look(browser, url, (width, 900), scheme)


@chromium.on_screens(*WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible(browser: Any, address: str, name: str, width: int, scheme: str) -> None:
    look(browser, f"{address}/{name}.html", width, scheme)
    assert browser.execute_script("return document.body.dataset.mdColorScheme") == SCHEMES[scheme]
    assert serious_faults(browser) == []


def test_no_page_scrolls_sideways_on_a_phone(browser: Any, address: str) -> None:
    widths = {}
    for path in sorted(SITE.rglob("*.html")):
        name = str(path.relative_to(SITE))
        look(browser, f"{address}/{name}", min(WIDTHS))
        widths[name] = browser.execute_script("return document.documentElement.scrollWidth")
    assert {name: one for name, one in widths.items() if one > min(WIDTHS)} == {}
    assert len(widths) > len(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_page_loads_nothing_from_another_host(browser: Any, address: str, name: str) -> None:
    look(browser, f"{address}/{name}.html")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert f"{address}/stylesheets/extra.css" in asked
    assert {url for url in asked if not url.startswith((address, "data:", "blob:", "chrome:"))} == set()
    assert browser.get_log("browser") == []


def test_keyboard_reaches_skip_link_search_tabs_and_navigation_with_a_visible_focus(browser: Any, address: str) -> None:
    look(browser, f"{address}/traces.html")
    reached = []
    for _ in range(20):
        press(browser, "TAB")
        reached.append(
            browser.execute_script(
                # The focus of a hidden radio button is shown by the label after it.
                "const e = document.activeElement, shown = e.type == 'radio' ? e.nextElementSibling : e;"
                "return [e.className.split(' ')[0], getComputedStyle(shown).outlineStyle]"
            )
        )
    assert {outline for _, outline in reached} == {"auto"}
    names = list(dict.fromkeys(name for name, _ in reached))
    assert names[:4] == ["md-skip", "md-header__button", "md-option", "md-search__button"]
    assert {"md-tabs__link", "md-nav__link"} <= set(names)


def test_skip_link_moves_the_focus_to_the_content(browser: Any, address: str) -> None:
    look(browser, f"{address}/traces.html")
    press(browser, "TAB")
    press(browser, "ENTER")
    assert browser.execute_script("return location.hash.slice(1) && document.querySelector(location.hash) != null")
    press(browser, "TAB")
    assert browser.execute_script("return document.activeElement.closest('article') != null")


def test_search_finds_a_page_by_keyboard(browser: Any, address: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    look(browser, f"{address}/index.html")
    browser.find_element("class name", "md-search__button").send_keys("\n")
    press(browser, "r", "o", "o", "f", "l", "i", "n", "e")
    WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(RESULTS))
    assert "Traces and roofline" in browser.execute_script(RESULTS)


# The dialog of the search has a shadow tree of its own.
RESULTS = (
    "return [...document.querySelectorAll('*')].filter(e => e.shadowRoot)"
    ".map(e => e.shadowRoot.textContent).join(' ').match(/Traces and roofline/)?.[0] ?? ''"
)


def press(browser: Any, *keys: str) -> None:
    """Press keys, one after another: letters, or names of Selenium's keys."""
    from selenium import webdriver
    from selenium.webdriver.common.keys import Keys

    webdriver.ActionChains(browser).send_keys(*(getattr(Keys, key, key) for key in keys)).perform()
