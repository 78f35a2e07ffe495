"""The page in a real browser, opened from disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import chromium
from tests.dashboards.chromium import on_screens, outlined_by_keyboard, serious_faults, smallest_letters

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(synthetic: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from keras_matrix.dashboards.report import page as report

    path = tmp_path_factory.mktemp("page") / "report.html"
    report.write(path, synthetic.html)
    return path


def look(browser: Any, page: Path, scheme: str = "light", width: int = 1280) -> None:
    """Open the page from disk with a screen width and a colour scheme."""
    chromium.look(browser, page.as_uri(), (width, 800), scheme)


def test_page_opens_from_disk_without_console_messages(browser: Any, page: Path) -> None:
    look(browser, page)
    assert browser.title == "Keras Benchmark Matrix: 6 workloads on tensorflow, jax and torch"
    assert browser.get_log("browser") == []


def test_page_loads_nothing(browser: Any, page: Path) -> None:
    look(browser, page)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    # The browser's start page may still be loading its internal resources.
    assert {url for url in asked if not url.startswith(("data:", "chrome:"))} == {page.as_uri()}


def test_policy_admits_the_style_sheet(browser: Any, page: Path) -> None:
    look(browser, page)
    assert browser.execute_script("return document.styleSheets.length") == 1
    assert browser.execute_script("return getComputedStyle(document.querySelector('.finding')).display") == "grid"


def test_first_screen_of_a_phone_has_the_answer_and_a_picture(browser: Any, page: Path) -> None:
    chromium.look(browser, page.as_uri(), (390, 844), "light")
    ends = browser.execute_script(
        "return ['h1', '.answer', '.finding', '.finding svg.plot'].map(each => {"
        "const box = document.querySelector(each).getBoundingClientRect(); return [box.top, box.bottom]; })"
    )
    assert [top for top, _ in ends] == sorted(top for top, _ in ends)
    assert max(bottom for _, bottom in ends) < 844


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_page_fits_the_width_of_the_screen(browser: Any, page: Path, width: int) -> None:
    look(browser, page, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    beyond = browser.execute_script(
        "const w = document.documentElement.clientWidth;"
        "return [...document.querySelectorAll('main *, header *')]"
        ".filter(e => { const r = e.getBoundingClientRect(); return r.width && (r.right > w + 0.5 || r.left < -0.5); })"
        ".map(e => e.outerHTML.slice(0, 120))"
    )
    assert beyond == []


def test_dark_preference_changes_colours_and_both_schemes_are_legible(browser: Any, page: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        look(browser, page, scheme)
        style = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        seen[scheme] = browser.execute_script(style)
        paper, ink = (_luminance(colour) for colour in seen[scheme])
        assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 7
        assert (paper > ink) == (scheme == "light")
    assert seen["light"] != seen["dark"]


def _luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_hostile_names_create_no_element_and_run_no_script(browser: Any, page: Path, hostile_name: str) -> None:
    look(browser, page)
    assert browser.execute_script("return document.querySelectorAll('img, script').length") == 0
    titles = browser.execute_script("return [...document.querySelectorAll('h3')].map(e => e.textContent)")
    assert hostile_name in titles


@pytest.mark.parametrize("width", [360, 1280])
def test_every_dot_has_a_size_and_is_within_its_picture(browser: Any, page: Path, synthetic: Any, width: int) -> None:
    look(browser, page, width=width)
    dots = browser.execute_script(
        "return [...document.querySelectorAll('#epochs .plot :is(circle, rect:not([width]), use[x])')].map(e => {"
        "const d = e.getBoundingClientRect(), p = e.closest('.plot').getBoundingClientRect();"
        "return d.width > 4 && d.left >= p.left && d.right <= p.right && "
        "d.top >= p.top - 1 && d.bottom <= p.bottom + 1;"
        "})"
    )
    assert len(dots) == sum(len(record.times.epoch_times_s) for record in synthetic.records)
    assert all(dots)


@pytest.mark.parametrize("width", [360, 1280])
def test_dots_of_a_strip_without_fixed_height_are_centred_and_have_the_shape_of_their_backend(
    browser: Any, page: Path, width: int
) -> None:
    look(browser, page, width=width)
    seen = browser.execute_script(
        "return [...document.querySelectorAll(':is(#start, #memory) .plot :is(circle, rect, use)')].map(d => {"
        "const r = d.getBoundingClientRect(), p = d.closest('.plot').getBoundingClientRect();"
        "const shapes = {s0: 'circle', s1: 'rect', s2: 'use'}, strip = d.closest('.strip').classList[1];"
        "const apart = Math.abs(r.top + r.bottom - p.top - p.bottom) / 2;"
        "return r.width > 4 && apart < 1.5 && shapes[strip] == d.localName;"
        "})"
    )
    assert len(seen) > 20
    assert all(seen)


@pytest.mark.parametrize("width", [360, 1280])
def test_long_name_in_a_trace_table_does_not_overlap_other_columns(browser: Any, page: Path, width: int) -> None:
    look(browser, page, width=width)
    room = browser.execute_script(
        "return [...document.querySelectorAll('#traces tbody th')].map(name => [name.scrollWidth, name.clientWidth])"
    )
    assert room
    assert all(needed <= there for needed, there in room)


@on_screens(400, 1600)
def test_report_has_no_serious_accessibility_problem(browser: Any, page: Path, scheme: str, width: int) -> None:
    look(browser, page, scheme, width)
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert serious_faults(browser) == []
    assert smallest_letters(browser) >= 9


def test_rules_behind_every_strip_are_aligned_with_the_ticks_of_the_scale(browser: Any, page: Path) -> None:
    look(browser, page)
    seen = browser.execute_script(
        "return [...document.querySelectorAll('#epochs figure, #start figure, #memory figure')].map(f => {"
        "const scale = f.querySelector('.scale') || f.closest('section').querySelector('.scale');"
        "const middle = r => (r.left + r.right) / 2;"
        "const ticks = [...scale.querySelectorAll('.tick')].map(e => middle(e.getBoundingClientRect()));"
        "return [...f.querySelectorAll('div.plot')].every(e => {"
        "const s = getComputedStyle(e), r = e.getBoundingClientRect();"
        "const rules = s.backgroundPositionX.split(', ').map(x => r.left + parseFloat(x) / 100 * r.width);"
        "return s.backgroundImage.split('linear-gradient').length - 1 == ticks.length && r.height > 20 &&"
        "rules.every((x, at) => Math.abs(x - ticks[at]) < 1);"
        "})})"
    )
    assert len(seen) > 10
    assert all(seen)


def test_links_and_details_are_reachable_by_keyboard_with_visible_focus(browser: Any, page: Path) -> None:
    look(browser, page)
    reached = outlined_by_keyboard(browser, presses=24)
    assert {"A", "SUMMARY"} <= reached


def test_output_of_a_failure_can_be_expanded(browser: Any, page: Path) -> None:
    look(browser, page)
    box = browser.find_element("css selector", "#failures details")
    assert not box.find_element("tag name", "pre").is_displayed()
    box.find_element("tag name", "summary").click()
    assert "402ms/step" in box.find_element("tag name", "pre").text


def test_the_page_prints(browser: Any, page: Path) -> None:
    look(browser, page)
    assert browser.execute_cdp_cmd("Page.printToPDF", {})["data"].startswith("JVBERi0")


@pytest.fixture(scope="module")
def roofline_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from keras_matrix.dashboards.report import page as report
    from keras_matrix.dashboards.report.roofline_page import Heading, render_page
    from tests.dashboards.charts.test_roofline import found

    path = tmp_path_factory.mktemp("roofline") / "roofline.html"
    report.write(path, render_page(found(), Heading("Run of today", "a CPU", "Peaks measured today.")))
    return path


@pytest.mark.parametrize("width", [360, 1280])
def test_rendered_labels_of_the_roofline_do_not_overlap(browser: Any, roofline_page: Path, width: int) -> None:
    look(browser, roofline_page, width=width)
    touching = browser.execute_script(
        "const all = [...document.querySelectorAll('svg.roofline text')].filter(e => e.getBoundingClientRect().width)"
        ".map(e => [e.textContent, e.getBoundingClientRect()]);"
        "const found = [];"
        "for (const [i, [a, p]] of all.entries()) for (const [b, q] of all.slice(i + 1))"
        "  if (p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom) found.push(a + ' / ' + b);"
        "return [all.length, found];"
    )
    assert touching[0] > 12
    assert touching[1] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_roofline_page_loads_nothing_and_has_no_console_messages(browser: Any, roofline_page: Path) -> None:
    look(browser, roofline_page)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith(("data:", "chrome:"))} == {roofline_page.as_uri()}
