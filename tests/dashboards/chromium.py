"""Headless Chromium for the browser tier and for `ci/warehouse_figures.py`."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LOGS = {"browser": "ALL", "performance": "ALL"}


def missing() -> str | None:
    """Return what is not here of what a browser needs, None where all is."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed"
    if shutil.which("chromedriver") is None or not any(map(shutil.which, NAMES)):
        return "Chromium or chromedriver is not installed: ci/browser installs them"
    return None


@contextmanager
def started(profile: Path) -> Iterator[Any]:
    """Start a browser with a profile of its own; nothing may be `missing`."""
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
