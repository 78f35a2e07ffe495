"""Writes the site of all stored runs: the warehouse is brought up to date; each run gets a page from its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from keras_matrix.dashboards.report import site
from keras_matrix.records import findings
from keras_matrix.records.store import Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.service.stored import (
    chosen_run,
    findings_of,
    page_of,
    unread_runs,
    update_findings,
)
from keras_matrix.runner.service.upload import Upload, explained, send


def publish(folder: Path, site_folder: Path, last_count: int) -> tuple[int, list[str]]:
    """Bring the local warehouse up to date and write the site from it; return its pages, and what is left out."""
    chosen_run(folder, None)  # raises if there is no run
    check_range("--last", last_count, 1)
    problems = [str(unread_file) for unread_file in unread_runs(folder, None)]
    with explained():
        _with_findings(Results(folder).runs()[-last_count:])
        send(Upload("local"), folder)
        pages = site.publish(site_folder, folder, _rendered(Results(folder).runs()[-last_count:], problems), problems)
    return pages, problems


def _with_findings(runs: Sequence[Run]) -> None:
    """Compute the findings of the runs that have none, so that they are pushed."""
    for run in runs:
        with suppress(StoreFailure):  # named when its page is rendered
            if findings.load(run) is None:
                update_findings(run)


def _rendered(runs: Sequence[Run], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each run that can be shown with its page, made from its records; add a line for each problem.

    The page in the run's folder is not read: it may be from somebody else, with a script of theirs, or a link.
    """
    for run in runs:
        try:
            shown_findings = findings_of(run)
            page = page_of(shown_findings)
        except StoreFailure as error:
            problems.append(str(error))
            continue
        problems += map(str, shown_findings.run_context.unread)
        try:
            findings.load(run)
        except StoreFailure as error:  # the page has its own, computed from the records
            problems.append(str(error))
        yield run.run_id, page
