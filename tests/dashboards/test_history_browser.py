"""The page of histories in a real browser, opened from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.dashboards.report import history_page
from keras_matrix.dashboards.report import page as report
from tests.dashboards.report.test_history_page import HOSTILE, assessed, view
from tests.dashboards.test_browser import look
from tests.sessions import noisy, run_name

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = [*noisy(0.0101, 30), *noisy(0.0113, 20, seed=5), None, *noisy(0.0094, 12, seed=6)]
    views = [
        view(assessed(values, {run_name(51): HOSTILE}), HOSTILE),
        view(assessed([0.2]), "one session alone"),
        view(assessed([None]), "never measured"),
    ]
    path = tmp_path_factory.mktemp("page") / "history.html"
    report.write(path, history_page.render(views, ["a remark"]))
    return path


@pytest.mark.parametrize("width", [320, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_without_console_messages_and_fits_the_screen(
    browser: Any, page: Path, width: int, scheme: str
) -> None:
    look(browser, page, scheme, width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 1280])
def test_every_dot_is_within_its_picture(browser: Any, page: Path, width: int) -> None:
    look(browser, page, width=width)
    dots = browser.execute_script(
        "return [...document.querySelectorAll('.series .plot use')].map(e => {"
        "const d = e.getBoundingClientRect(), p = e.ownerSVGElement.getBoundingClientRect();"
        "return d.width > 4 && d.left >= p.left && d.right <= p.right && d.top >= p.top && d.bottom <= p.bottom + 1;"
        "})"
    )
    assert len(dots) == 63
    assert all(dots)


@pytest.mark.parametrize("width", [320, 1280])
def test_dates_and_labels_of_a_picture_do_not_overlap(browser: Any, page: Path, width: int) -> None:
    look(browser, page, width=width)
    overlapping = browser.execute_script(
        "const found = [];"
        "for (const svg of document.querySelectorAll('.series svg')) {"
        "  const texts = [...svg.querySelectorAll('text')].filter(t => t.getBoundingClientRect().width);"
        "  texts.forEach((s, i) => texts.slice(i + 1).forEach(t => {"
        "    const a = s.getBoundingClientRect(), b = t.getBoundingClientRect();"
        "    if (a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2)"
        "      found.push(s.textContent + ' and ' + t.textContent);"
        "  }));"
        "} return found"
    )
    assert overlapping == []


def test_hostile_names_and_notes_create_no_element(browser: Any, page: Path) -> None:
    look(browser, page)
    assert browser.execute_script("return document.querySelectorAll('img, script').length") == 0
    assert browser.execute_script("return document.querySelector('h3').textContent") == HOSTILE
