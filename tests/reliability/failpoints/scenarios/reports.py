"""Publishing single records, findings and pages, and reading results of old schema versions."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from keras_matrix.records import findings
from keras_matrix.records.schema import Record
from keras_matrix.records.store import RECORD_NAME, Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.cli.main import main
from tests.conftest import make_record
from tests.fakes.executor import PRETENDED
from tests.old_results import BY_VERSION, copied
from tests.reliability.failpoints.scenario import Scenario
from tests.reliability.failpoints.scenarios.runs import incomplete, measure, prepare
from tests.sessions import run_name, store_session
from tests.uploader.reader.actual import local_rows
from tests.uploader.stored import uploader

PUBLISHED = 4


def prepare_session(folder: Path) -> None:
    """Store a run with one record and a file that is none."""
    run = store_session(folder / "results", run_name(0), [_record(0)])
    (run / "usage").mkdir()


def publish(folder: Path) -> int:
    """Publish the records that are missing, each with its usage series."""
    results = Results(folder / "results")
    try:
        results.open_for_writing()
        run = Run(results.root / run_name(0))
        run.clear_leftovers()
        there = {record.repeat for record in run.load()[0]}
        for repeat in sorted(set(range(PUBLISHED)) - there):
            assert PRETENDED.usage_series is not None
            run.store_usage_series(_record(repeat), PRETENDED.usage_series)
            run.publish(_record(repeat))
    except (StoreFailure, OSError) as error:
        print(f"runner: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


def not_published(folder: Path) -> list[str]:
    """Return which records are missing, and which have no usage series."""
    run = Results(folder / "results").runs()[0]
    records = run.load()[0]
    found = [record.repeat for record in records]
    lines = [f"lost: repeat {repeat}" for repeat in range(PUBLISHED) if repeat not in found]
    return lines + [f"lost: usage series of {one.key}" for one in records if one.repeat and not run.usage_series(one)]


def prepare_run(folder: Path) -> None:
    """Measure a run; its page and findings are from before its last record."""
    prepare(folder)
    assert measure(folder) == 0


def report(folder: Path) -> int:
    """Write the findings and the page of the newest run again."""
    return main(["report", "--results", str(folder / "results")])


def incomplete_report(folder: Path) -> list[str]:
    """Return what is missing of the run, its page and its findings."""
    run = _newest(folder)
    missing = [] if findings.load(run) else ["torn: findings.json"]
    return [*incomplete(folder), *missing]


def site(folder: Path) -> int:
    """Write a site of all runs."""
    return main(["report", "--results", str(folder / "results"), "--publish", str(folder / "site")])


def incomplete_site(folder: Path) -> list[str]:
    """Return the pages of the site that are missing or not complete."""
    pages = [*(folder / "site").rglob("*.html")]
    torn = [f"torn: {page}" for page in pages if not page.read_text().rstrip().endswith("</html>")]
    return torn if (folder / "site" / "index.html").is_file() else [*torn, "lost: index.html"]


def prepare_old(version: int, folder: Path) -> None:
    """Copy the results folder of a schema version."""
    copied(BY_VERSION[version], folder / "results")


def read_old(folder: Path) -> int:
    """Write the report of the newest old run, and push all of them into a new warehouse."""
    code = report(folder)
    return code or uploader(Results(folder / "results"), "push", "--to", f"local:{folder / 'warehouse'}", "--quiet")


def unread(folder: Path) -> list[str]:
    """Return the records that are not in the warehouse, and those that are twice."""
    rows = local_rows(folder / "warehouse")["cells"]
    times = Counter((row["run_id"], row["cell_id"], row["repeat"], row["attempt"]) for row in rows)
    names = [
        (path.parent.parent.name, cell, int(repeat), int(attempt))
        for path in (folder / "results").glob("2*/records/*.json")  # `latest` is a link to one of these
        if RECORD_NAME.fullmatch(path.name)
        for cell, repeat, attempt, _ in [path.name.split(".")]
    ]
    doubled = [f"doubled: {key}" for key, count in times.items() if count > 1]
    return doubled + [f"lost: {key}" for key in names if key not in times]


def _record(repeat: int) -> Record:
    return replace(make_record(0.01, repeat), run_id=run_name(0))


def _newest(folder: Path) -> Run:
    run = Results(folder / "results").latest()
    assert run is not None
    return run


SCENARIOS = (
    Scenario("publish", publish, prepare_session, differences=not_published),
    Scenario("report", report, prepare_run, differences=incomplete_report, partial=(1,), warm=report),
    Scenario("site", site, prepare_run, differences=incomplete_site, partial=(1,), warm=report),
    *(
        Scenario(
            f"schema-{version}",
            read_old,
            lambda folder, version=version: prepare_old(version, folder),  # type: ignore[misc]
            differences=unread,
            partial=(1,),
            warm=report,
        )
        for version in sorted(BY_VERSION)[:-1]  # the last is the current one
    ),
)
