"""What a notebook shows of a run: the report's picture and a table, both harmless to the rest of the page."""

from __future__ import annotations

import re
from typing import Any

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.charts.picture import Dot
from keras_matrix.dashboards.report import notebook, results
from tests.conftest import make_record, make_settings
from tests.dashboards.charts.drawn import drawn
from tests.dashboards.conftest import HOSTILE
from tests.dashboards.report.test_page import ALLOWED_TAGS, Page


def test_notebook_has_the_picture_of_the_report_and_a_line_for_each_comparison(synthetic: Any) -> None:
    text = notebook.render(synthetic.records, result_table(synthetic.rows, synthetic.run_context), 0)
    plots, _ = results.findings(result_table(synthetic.rows).works)
    page = Page(text)
    assert page.open == []
    assert [tag for tag, _ in page.tags].count("tr") == 1 + len(synthetic.rows)
    for row, plot in zip(synthetic.rows, plots, strict=True):
        assert row.verdict in page.text
        dots = drawn(plot.picture, Dot) if plot.picture else []
        assert all(f'x="{dot.x}"' in text for dot in dots)


def test_every_name_is_escaped(synthetic: Any) -> None:
    page = Page(notebook.render(synthetic.records, result_table(synthetic.rows, synthetic.run_context), 0))
    assert HOSTILE in page.text
    assert {tag for tag, _ in page.tags} <= ALLOWED_TAGS
    assert [name for _, attributes in page.tags for name in attributes if name.startswith("on")] == []


def test_style_applies_only_inside_the_output(synthetic: Any) -> None:
    text = notebook.render(synthetic.records, result_table(synthetic.rows, synthetic.run_context), 0)
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style.startswith(".keras-matrix {")
    assert style.count("{") == style.count("}")
    assert ":root" not in style
    assert not re.search(r"^\s*body {", style, re.MULTILINE)


def test_links_lead_to_no_section_of_a_report(synthetic: Any) -> None:
    page = Page(notebook.render(synthetic.records, result_table(synthetic.rows, synthetic.run_context), 0))
    assert [attributes for tag, attributes in page.tags if tag == "a"] == []


def test_run_without_records_says_so() -> None:
    assert "nothing was measured yet" in Page(notebook.render([], result_table([]), 0)).text


def test_of_many_comparisons_the_first_are_shown_with_the_number_of_the_others() -> None:
    works = [make_settings(batch_size=size) for size in range(1, notebook.SHOWN + 4)]
    records = [make_record(settings=settings) for settings in works]
    page = Page(notebook.render(records, result_table(table(records)), 0))
    assert [tag for tag, _ in page.tags].count("tr") == 1 + notebook.SHOWN
    assert "3 more rows are in the report" in page.text
