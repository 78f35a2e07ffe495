"""The pictures of the FC modes and of several devices in a browser: no overlaps, no clipping, both colour schemes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.views.result_table import result_table
from tests.dashboards.test_browser import _luminance, look

pytestmark = pytest.mark.browser

TOUCHING = """
const found = [];
for (const picture of document.querySelectorAll('#parallel svg.plot, #devices svg.plot')) {
  const all = [...picture.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
  for (const [i, [a, p]] of all.entries()) for (const [b, q] of all.slice(i + 1))
    if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2)
      found.push(a + ' / ' + b);
}
return found;
"""
OUTSIDE = """
const w = document.documentElement.clientWidth;
return [...document.querySelectorAll('#parallel *, #devices *')]
  .filter(e => { const r = e.getBoundingClientRect(); return r.width && (r.right > w + 0.5 || r.left < -0.5); })
  .map(e => e.outerHTML.slice(0, 120));
"""


@pytest.fixture(scope="module")
def parallel_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from keras_matrix.analysis.comparison.table import table
    from keras_matrix.dashboards.report import page
    from keras_matrix.records.fc.spec import FcProblem
    from tests.synthetic_devices import device_records, scaled_run
    from tests.synthetic_fc import fc_records, made_up_run

    path = tmp_path_factory.mktemp("parallel") / "report.html"
    # A wide sweep, too: with thirteen batch sizes the fields are too narrow for their long labels.
    wide = [
        record
        for power in range(1, 14)
        for mode, seconds in (("fc_data_manual", 0.1), ("fc_model_manual", 0.001 * 2**power))
        for record in fc_records(FcProblem(mode=mode, workers=2, batch_size=2**power), "torch", [seconds])
    ]
    divided = scaled_run() + device_records(2, [0.1] * 5, "jax", distribution="model")
    records = made_up_run() + wide + divided
    page.write(path, page.render(records, result_table(table(records)), {}))
    return path


@pytest.mark.parametrize("width", [360, 400, 768, 1280, 1600])
def test_labels_do_not_overlap_and_are_not_clipped(browser: Any, parallel_page: Path, width: int) -> None:
    look(browser, parallel_page, width=width)
    assert browser.execute_script("return document.querySelectorAll('#parallel svg.plot text').length") > 40
    assert browser.execute_script("return document.querySelectorAll('#devices svg.plot .mark').length") == 9 + 2
    assert browser.execute_script(TOUCHING) == []
    assert browser.execute_script(OUTSIDE) == []
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_on_fields_are_legible(browser: Any, parallel_page: Path, scheme: str) -> None:
    """Contrast between the labels and the strongest colour of a field on the background."""
    look(browser, parallel_page, scheme)
    colours = browser.execute_script(
        "const of = (q, p) => getComputedStyle(document.querySelector(q))[p];"
        "return [of('body', 'backgroundColor'), of('.times', 'fill'), of('.field.data', 'fill'), "
        "of('.field.model', 'fill'), "
        "Math.max(...[...document.querySelectorAll('.field')].map(e => +e.getAttribute('fill-opacity')))]"
    )
    paper, ink, *fields, opacity = colours
    for field in fields:
        mixed = [f * opacity + p * (1 - opacity) for f, p in zip(_channels(field), _channels(paper), strict=True)]
        ground, letters = _luminance(f"rgb({','.join(map(str, mixed))})"), _luminance(ink)
        assert (max(ground, letters) + 0.05) / (min(ground, letters) + 0.05) > 4.5


def _channels(colour: str) -> list[float]:
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
