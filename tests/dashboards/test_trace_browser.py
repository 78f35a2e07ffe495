"""A trace's own page in a real browser: it fits, is legible and accessible, in both sizes and colour schemes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.traces.neutral import TrackKind
from tests.dashboards.chromium import look, serious_faults, smallest_letters
from tests.dashboards.report.test_trace_page import page_of
from tests.records.traces.synthetic import span

pytestmark = pytest.mark.browser

DRAWN = """
const shown = [...document.querySelectorAll('svg.timeline')].filter(e => e.getClientRects().length);
const box = shown[0].getBoundingClientRect();
return {
    pictures: shown.length,
    bars: shown[0].querySelectorAll('rect.bar').length,
    outside: [...shown[0].querySelectorAll('rect, text')].map(e => e.getBoundingClientRect())
        .filter(e => e.left < box.left - 1 || e.right > box.right + 1 || e.bottom > box.bottom + 1).length,
    wider: document.documentElement.scrollWidth > window.innerWidth,
    colours: new Set([...shown[0].querySelectorAll('rect.bar')].map(e => getComputedStyle(e).fill)).size,
};
"""


@pytest.fixture(scope="module")
def trace_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    spans = [span("step 1", 0, 100, TrackKind.STEPS, step=1)]
    spans += [span("aten::mm", 10 * at, 8, TrackKind.HOST, step=1, phase="forward") for at in range(9)]
    spans += [span("ncclDevKernel_AllReduce", 120, 70, TrackKind.COMMUNICATION, step=1)]
    spans += [span(f"sgemm{at}", 60 + 20 * at, 19, step=1, phase="backward") for at in range(6)]
    path = folder / "page.html"
    path.write_text(page_of(folder, spans, "a_file_with_a_rather_long_name.pt.trace.json.gz"), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (390, 900)])
def test_page_of_a_trace_fits_and_is_legible(
    browser: Any, trace_page: Path, size: tuple[int, int], scheme: str
) -> None:
    look(browser, trace_page.as_uri(), size, scheme)
    drawn = browser.execute_script(DRAWN)
    assert drawn == {"pictures": 1, "bars": 16, "outside": 0, "wider": False, "colours": 3}
    assert smallest_letters(browser) >= 11
    assert serious_faults(browser) == []
