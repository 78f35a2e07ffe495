"""Rows that another program sent: their texts are escaped, and their identifiers name no file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.dashboards.report import site
from keras_matrix.records.identity import CELL_ID
from keras_matrix.records.store import Results
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.rows import hashed
from keras_matrix.uploader.schema import CELLS, FINDINGS, RUNS, ColumnMode, Table, Type
from tests.dashboards.boards import HOSTILE, plain_pages, stored
from tests.dashboards.live.test_page import Elements

BREAKING_OUT = f"\"'>{HOSTILE}"
ESCAPING = "../../../escaped"
# These decide which rows a question shows, so their values are unchanged.
STEERING = {"run_id", "at_run_id", "kind", "metric", "finding_id", "status", "verdict", "fault", "source"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two nights whose rows in the warehouse have hostile texts in every column."""
    found = stored(tmp_path_factory.mktemp("hostile") / "a" / "b" / "c" / "results", nights=2)
    outbox = Outbox(found.root / "honest")
    honest = LocalWarehouse(found.root / "honest" / "warehouse")
    honest.create()
    push(found, honest, outbox)
    hostile = LocalWarehouse(found.root / "warehouse")
    hostile.create()
    with outbox.locked():
        for table in (RUNS, CELLS, FINDINGS):
            answer = honest.query(f"SELECT {', '.join(one.name for one in table.columns)} FROM {table.name}")
            hostile.merge(outbox.seal(table, [_line(table, row) for row in answer.dicts()]))
    return found


def _line(table: Table, row: dict[str, Any]) -> str:
    kept = {name: _hostile(table, name, value) for name, value in row.items() if value is not None}
    del kept["row_hash"]
    return hashed(json.dumps(kept, default=str))


def _hostile(table: Table, name: str, value: Any) -> Any:
    column = table.column(name)
    if name == "cell_id":
        return f"{ESCAPING}{value}"
    if name in STEERING or column.type not in (Type.STRING, Type.JSON):
        return value
    if isinstance(value, dict):
        return {key: f"{one}{BREAKING_OUT}" if isinstance(one, str) else one for key, one in value.items()}
    if column.mode is ColumnMode.REPEATED:
        return [f"{one}{BREAKING_OUT}" for one in value]
    return f"{value}{BREAKING_OUT}"


def pages(results: Results, folder: Path) -> Iterator[str]:
    """Yield the pages of the site, then those of the live dashboard."""
    site.publish(folder, results.root, plain_pages(results.runs()))
    yield from (path.read_text() for path in sorted(folder.rglob("*.html")))
    application = Application(Live(LocalWarehouse(results.root / "warehouse")))
    for path, query in (("/", ""), ("/cell", f"id={'0' * 16}")):
        environ = {"PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": "GET", "HTTP_HOST": "localhost"}
        [body] = application(environ, lambda status, headers: None)
        yield body.decode()


def test_hostile_cell_id_in_the_warehouse_creates_no_file_and_no_link(results: Results, tmp_path: Path) -> None:
    above = results.root.parents[3]
    folder = above / "site"
    before = {path for path in above.rglob("*.html") if folder not in path.parents}
    site.publish(folder, results.root, [])
    assert {path for path in above.rglob("*.html") if folder not in path.parents} == before
    assert [path.relative_to(folder) for path in folder.rglob("*.html")] == [Path("index.html")]
    index = (folder / "index.html").read_text()
    assert "an identifier must be 16 hexadecimal digits, got &#39;../../../escaped" in index
    assert [link for link in Elements(index).links if not link.startswith("#")] == []


def test_a_page_is_not_written_under_an_unchecked_name(tmp_path: Path) -> None:
    for name in ("../x", "/x", "x", "0" * 16 + "\n", ""):
        with pytest.raises(ValueError, match="the name of a page must match"):
            site._page_path(tmp_path, CELL_ID, name)
    assert site._page_path(tmp_path, CELL_ID, "0" * 16) == tmp_path / f"{'0' * 16}.html"


def test_texts_of_rows_are_escaped(results: Results, tmp_path: Path) -> None:
    shown = list(pages(results, tmp_path / "site"))
    assert len(shown) == 5  # the index, two runs, the overview and a cell
    for page in shown:
        elements = Elements(page)
        assert elements.names.count("img") == 0
        assert elements.names.count("script") <= 1
        assert HOSTILE not in page
        assert {name for name in elements.attributes if name.startswith("on")} == set()
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown[0]
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown[3]
