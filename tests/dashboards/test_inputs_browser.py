"""The section on input in a real browser: no overlaps, no clipping, legible and accessible in both colour schemes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.views.result_table import result_table
from tests.dashboards.chromium import on_screens, serious_faults, smallest_letters
from tests.dashboards.test_browser import _luminance, look
from tests.dashboards.test_parallel_browser import OUTSIDE, TOUCHING, _channels

pytestmark = pytest.mark.browser

COVERED = """
const found = [];
for (const strip of document.querySelectorAll('#input .wide-names .strip:not(.scale)')) {
  const all = ['.who', '.plot', '.note'].map(q => strip.querySelector(q).getBoundingClientRect());
  for (const [i, p] of all.entries()) for (const q of all.slice(i + 1))
    if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1)
      found.push(strip.textContent.slice(0, 80));
}
return found;
"""
CLIPPED = """
return [...document.querySelectorAll('#input :is(th, td, dd, dt, .who, .note, p, h3)')]
  .filter(e => e.getClientRects().length && e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 120));
"""


@pytest.fixture(scope="module")
def inputs_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from keras_matrix.analysis.comparison.context import RunContext
    from keras_matrix.analysis.comparison.table import table
    from keras_matrix.analysis.stalls.analysis import reports
    from keras_matrix.analysis.stalls.report import SpeedupVerdict, StallReport, VerifiedAdvice
    from keras_matrix.dashboards.report import page
    from tests.analysis.stalls.pretended import Pretended, base_settings, records
    from tests.dashboards.charts.test_input_workers import plain

    pipelines = {
        "tensorflow": Pretended(prepare_s=0.004, prepare_cpu_s=0.004, cold_fetch_s=0.001, storage_bytes=3_200_000),
        "jax": Pretended(prepare_s=0.004, prepare_cpu_s=0.004, wait_share=0.2, cold_fetch_s=0.006, reads=64),
        "torch": Pretended(copy_s=0.02, prepare_s=0.001),
    }

    def applied(one: StallReport) -> StallReport:
        done = [
            VerifiedAdvice(a.change, a.text, "0" * 16, a.speed_up, a.speed_up, SpeedupVerdict.AS_PREDICTED)
            for a in one.advice
        ]
        curve = [abs(place * 7 % 40 / 10 - 0.5) for place in range(100)]
        return replace(one, verified=done[:1], queue_sizes=curve, queue_capacity=4)

    made = [r for name, one in pipelines.items() for r in records(one, settings=base_settings(backend=name))]
    found = [applied(one) for one in reports(made)]
    failed = replace(found[0], bottleneck=None, parts=[], queue_sizes=[], reason="cold arm: crash: signal 11")
    made += [record for name in pipelines for record in plain(name, batch_size=64)]
    path = tmp_path_factory.mktemp("inputs") / "report.html"
    page.write(path, page.render(made, result_table(table(made), RunContext(stalls=(*found, failed))), {}))
    return path


@pytest.mark.parametrize("width", [360, 768, 1400])
def test_labels_do_not_overlap_and_nothing_is_clipped(browser: Any, inputs_page: Path, width: int) -> None:
    look(browser, inputs_page, width=width)
    browser.execute_script("document.querySelectorAll('#input details').forEach(one => { one.open = true })")
    assert browser.execute_script("return document.querySelectorAll('#input svg.plot text').length") > 40
    assert browser.execute_script("return document.querySelectorAll('#input .entry').length") == 4
    assert browser.execute_script(TOUCHING.replace("#parallel", "#input")) == []
    assert browser.execute_script(OUTSIDE.replace("#parallel", "#input")) == []
    assert browser.execute_script(COVERED) == []
    assert browser.execute_script(CLIPPED) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


@on_screens(400, 1400)
def test_section_has_no_serious_accessibility_problem(browser: Any, inputs_page: Path, scheme: str, width: int) -> None:
    look(browser, inputs_page, scheme, width)
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert serious_faults(browser) == []
    assert smallest_letters(browser) >= 9
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('#input svg[role=img]')]"
        ".filter(e => !e.getAttribute('aria-label') && !e.querySelector(':scope > title')).length"
    )
    assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shares_on_the_parts_of_a_bar_are_legible(browser: Any, inputs_page: Path, scheme: str) -> None:
    """Contrast between a share and the colour of its part on the background."""
    look(browser, inputs_page, scheme)
    paper, ink, parts = browser.execute_script(
        "const of = (e, p) => getComputedStyle(e)[p];"
        "const bars = [...document.querySelectorAll('#input .keys rect:not(.stall-not-resolved)')];"
        "return [of(document.body, 'backgroundColor'), of(document.querySelector('#input-split .plot text'), 'fill'),"
        "bars.map(e => [of(e, 'fill'), +of(e, 'fillOpacity')])]"
    )
    assert len(parts) == 5
    for fill, opacity in parts:
        mixed = [f * opacity + p * (1 - opacity) for f, p in zip(_channels(fill), _channels(paper), strict=True)]
        ground, letters = _luminance(f"rgb({','.join(map(str, mixed))})"), _luminance(ink)
        assert (max(ground, letters) + 0.05) / (min(ground, letters) + 0.05) > 4.5


def test_parts_of_a_bar_do_not_overlap_and_a_keyboard_opens_the_table(browser: Any, inputs_page: Path) -> None:
    look(browser, inputs_page)
    gaps = browser.execute_script(
        "return [...document.querySelectorAll('#input-split .strip .plot')].flatMap(p => {"
        "const r = [...p.querySelectorAll('rect[width]')].map(e => e.getBoundingClientRect());"
        "return r.slice(1).map((e, at) => e.left - r[at].right);})"
    )
    assert gaps
    assert all(abs(gap) < 2.5 for gap in gaps)
    box = browser.find_element("css selector", "#input details")
    box.find_element("tag name", "summary").send_keys("\n")
    assert box.find_element("tag name", "table").is_displayed()
