"""Headless Chromium for the browser tier and for `lab/run warehouse`."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LOGS = {"browser": "ALL", "performance": "ALL"}


def missing() -> str | None:
    """Return the missing requirement of a browser, None if all are available."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed"
    if shutil.which("chromedriver") is None or not any(map(shutil.which, NAMES)):
        return "Chromium or chromedriver is not installed: ci/browser installs them"
    return None


def on_screens(narrow: int, wide: int) -> pytest.MarkDecorator:
    """Try a test with both widths and both schemes for every change, and each width with each scheme at night."""
    night = pytest.mark.nightly(why="each width and each scheme is tried for every change")
    others = [pytest.param(narrow, "dark", marks=night), pytest.param(wide, "light", marks=night)]
    return pytest.mark.parametrize(("width", "scheme"), [(narrow, "light"), (wide, "dark"), *others])


def look(browser: Any, url: str, size: tuple[int, int], scheme: str) -> None:
    """Open a page with a screen of this width and height and a colour scheme; what was logged before is dropped.

    The page before is left first: one that asks its server again and again would log until the new page has come.
    """
    browser.get("about:blank")
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preference = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preference})
    for log in LOGS:
        browser.get_log(log)
    browser.get(url)


def serious_faults(browser: Any) -> list[tuple[str, list[Any]]]:
    """Return the serious and critical accessibility problems of the open page by axe-core; skip if it is missing.

    Scripts of the driver run regardless of the page's policy, which forbids script elements.
    """
    if importlib.util.find_spec("axe_core_python") is None:
        pytest.skip("axe-core-python is not installed: ci/setup")
    [script] = Path(str(resources.files("axe_core_python"))).rglob("axe.min.js")
    browser.execute_script(script.read_text(encoding="utf-8"))
    found = browser.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run(document, {resultTypes: ['violations']}).then(done)"
    )
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in serious]


def smallest_letters(browser: Any) -> float:
    """Return the size in pixels of the smallest visible text of the open page."""
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('svg text, td, th, p, small, dd, dt')]"
        ".filter(e => e.getClientRects().length).map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    return float(min(sizes))


@contextmanager
def started(profile: Path) -> Iterator[Any]:
    """Start a browser with a separate profile; requires that nothing is `missing`."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = next(found for name in NAMES if (found := shutil.which(name)))
    for switch in (*SWITCHES.split(), f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", LOGS)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        with warnings.catch_warnings():
            # Selenium leaves its connection to the driver for the collector to close.
            warnings.simplefilter("ignore", ResourceWarning)
            browser.quit()


def outlined_by_keyboard(browser: Any, presses: int) -> set[str]:
    """Press the tabulator key this many times; return the names of the reached elements, which must show the focus."""
    from selenium import webdriver
    from selenium.webdriver.common import keys

    reached = set()
    for _ in range(presses):
        webdriver.ActionChains(browser).send_keys(keys.Keys.TAB).perform()
        name, outline = browser.execute_script(
            "const e = document.activeElement; return [e.tagName, getComputedStyle(e).outlineStyle]"
        )
        reached.add(name)
        assert outline == "solid"
    return reached
