"""A small site over all stored runs: self-contained files that need no server.

    DIR/index.html           every question, with a text filter
    DIR/cells/<cell>.html    one cell over time
    DIR/runs/<run>.html      the report of a run

Pages are replaced atomically, and pages of runs that are no longer shown are removed. Nothing is written outside of
DIR: the path of a page is made only from an identifier that matches its pattern. Every page is rendered from records
and rows: no file of a results folder is copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from keras_matrix.dashboards.live import page as dashboard
from keras_matrix.dashboards.live.page import CellPage, Frame
from keras_matrix.dashboards.live.questions import DashboardFilter, questions
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.identity import CELL_ID, RUN_ID
from keras_matrix.records.text import plural
from keras_matrix.uploader.opening import open_warehouse
from keras_matrix.uploader.warehouse import LOCAL, Warehouse

CELLS = "SELECT DISTINCT cell_id FROM newest_cells ORDER BY cell_id"
NO_JEKYLL = ".nojekyll"  # otherwise GitHub Pages leaves out names that begin with an underscore


def publish(folder: Path, results: Path, pages: Iterable[tuple[str, str]], left_out: Sequence[str] = ()) -> int:
    """Write the site from the local warehouse and the pages of these runs; return the number of its pages.

    `left_out` has a line for each file and run that cannot be read; it may grow until `pages` ends.
    """
    for name in ("cells", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / NO_JEKYLL).touch()
    run_ids = set[str]()
    for run_id, page in pages:
        report.write(_page_path(folder / "runs", RUN_ID, run_id), page)
        run_ids.add(run_id)
    warehouse = open_warehouse(LOCAL, results)
    try:
        cell_ids = [stored_id for stored_id in _cell_ids(warehouse) if CELL_ID.fullmatch(stored_id)]
        notice_if_empty = partial(dashboard.empty_notice, LOCAL, results)
        report.write(folder / "index.html", index(warehouse, run_ids, notice_if_empty, left_out))
        for cell_id in cell_ids:
            page = cell_page(warehouse, cell_id, run_ids)
            report.write(_page_path(folder / "cells", CELL_ID, cell_id), page)
    finally:
        warehouse.close()
    _clear(folder / "cells", set(cell_ids))
    _clear(folder / "runs", run_ids)
    return 1 + len(cell_ids) + len(run_ids)


def index(
    warehouse: Warehouse,
    run_ids: set[str],
    notice_if_empty: Callable[[], str] = lambda: dashboard.EMPTY,
    left_out: Sequence[str] = (),
) -> str:
    """Return the page of all questions; `run_ids` have a page, `notice_if_empty` explains a warehouse without runs."""
    counts = dashboard.run_counts(warehouse)
    asked_questions = [question for question in questions().values() if question.name != "trend"] if counts.runs else []
    panels = dashboard.panels_of(warehouse, asked_questions, DashboardFilter())
    frame = Frame(
        "All runs",
        "Each cell shows its newest run and links to its results over time.",
        link=_links("cells/"),
        run_link=lambda run_id: f"runs/{run_id}.html" if run_id in run_ids else "",
        notices=[
            *counts.notices(notice_if_empty),
            *_without_page(warehouse),
            *(f"Not read: {line}" for line in left_out),
        ],
    )
    return dashboard.render(panels, frame)


def cell_page(warehouse: Warehouse, cell_id: str, run_ids: Collection[str] = ()) -> str:
    """Return the page of one cell over time, with a way back to its newest run if that is one of `run_ids`."""
    panel = dashboard.panel_of(warehouse, questions()["trend"], DashboardFilter(cell=cell_id))
    page = CellPage(cell_id, panel, dashboard.cell_heading(warehouse, cell_id))
    lead_text = (
        f"Cell {cell_id}. One dot a session, with its interval between processes; a vertical stroke where the level "
    )
    path = [("All runs", "../index.html")]
    if page.newest_run in run_ids:
        path.append((f"Report of run {page.newest_run}", f"../runs/{page.newest_run}.html"))
    frame = Frame(page.heading, f"{lead_text}changed.", lambda other: "", home="../index.html", path=path)
    return dashboard.render([panel], frame)


def _cell_ids(warehouse: Warehouse) -> list[str]:
    return [str(row[0]) for row in warehouse.query(CELLS).rows]


def _without_page(warehouse: Warehouse) -> list[str]:
    """Return the notice on cells that cannot have a page: their rows were sent by a program other than `uploader`."""
    unfit = [cell_id for cell_id in _cell_ids(warehouse) if not CELL_ID.fullmatch(cell_id)]
    if not unfit:
        return []
    return [
        f"No page for {plural(len(unfit), 'cell')}: an identifier must be 16 hexadecimal digits, got {unfit[0][:80]!r}."
    ]


def _links(folder: str) -> Callable[[str], str]:
    return lambda cell_id: f"{folder}{cell_id}.html" if CELL_ID.fullmatch(cell_id) else ""


def _page_path(folder: Path, pattern: re.Pattern[str], name: str) -> Path:
    """Return the path of a page. Raises ValueError for a name that does not match: it could lead elsewhere."""
    if not pattern.fullmatch(name):
        raise ValueError(f"the name of a page must match {pattern.pattern}, got {name!r}")
    return folder / f"{name}.html"


def _clear(folder: Path, current: set[str]) -> None:
    for path in folder.glob("*.html"):
        if path.stem not in current:
            with suppress(OSError):
                path.unlink()
