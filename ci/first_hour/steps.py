"""The steps of a first hour: complete, killed and concurrent pushes, each followed by a check of every row."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ci.first_hour.inspection import inspections
from ci.first_hour.results import KILLS, Folders, Key, keys_of
from ci.first_hour.service import APPEND_ONLY, Service, as_upload_errors
from ci.first_hour.uploading import Ended, Uploader
from keras_matrix.records.store import Results
from keras_matrix.runner.checks.first_hour_steps import CheckStep, StepOutcome, StepResult
from keras_matrix.uploader import rows
from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.errors import NotAllowed, UploadError
from keras_matrix.uploader.schema import MEASUREMENTS, TABLES
from keras_matrix.uploader.warehouse import outbox_folder

TRIES = 4  # of a concurrent push that ends with 3, "push again later"
SHOWN = 5


@dataclass(slots=True)
class Hour:
    """The state that the steps share. `init_options` are passed only to `uploader init`."""

    service: Service
    uploader: Uploader
    folders: Folders
    init_options: tuple[str, ...] = ()
    own_results: Path | None = None
    push_s: float = field(default=0.0)


def steps(hour: Hour) -> Iterator[CheckStep]:
    """Yield every step but the teardown."""

    def step(name: str, run: Callable[[Hour], StepResult], expected: str, *, essential: bool = False) -> CheckStep:
        return CheckStep(name, expected, lambda: run(hour), essential)

    yield step("init", init, "creates datasets, tables and views", essential=True)
    yield step("push", push, "every row is new and stored once", essential=True)
    yield step("push again", push_again, "0 new rows")
    yield step("killed pushes", killed_pushes, "each row is stored once after SIGKILLs at several moments and one push")
    yield step("concurrent pushes", concurrent_pushes, "each row is stored once after pushes of overlapping results")
    yield step("verify", verify, "the uploader finds 0 lost, 0 duplicated")
    yield step("independent count", count, "the plain client finds 0 lost, 0 duplicated, 0 altered")
    yield step("outbox removed", push_without_outbox, "0 new rows: existing keys are read from the tables")
    yield step("rows deleted", repair, "verify reports the loss, push --repair restores the rows")
    yield from inspections(hour.service, hour.folders)


def init(hour: Hour) -> StepResult:
    """Create the datasets, and label them for removal."""
    ended = hour.uploader.run("init", *hour.init_options)
    if ended.code:
        return failed(ended)
    created = [line for line in ended.output.splitlines() if line.startswith(("dataset ", "table ", "view "))]
    return StepResult(
        StepOutcome.OK, f"{len(created)} datasets, tables and views created", tuple(_unmarked(hour.service))
    )


def _unmarked(service: Service) -> Iterator[str]:
    """Label the datasets, or yield why that is not allowed: the next run then does not remove them after a kill."""
    try:
        with as_upload_errors("mark the datasets"):
            service.mark(made_here=True)
    except UploadError as error:
        yield f"if this run is killed, the next one cannot remove its datasets: {error}"


def push(hour: Hour) -> StepResult:
    """Push for the first time, and measure the duration."""
    hour.folders.make_base(hour.own_results)
    began = time.monotonic()
    ended = hour.uploader.push(hour.folders.base)
    hour.push_s = time.monotonic() - began
    if ended.code:
        return failed(ended)
    return _each_row_once(hour, f"{ended.new} new rows")


def push_again(hour: Hour) -> StepResult:
    """Push the same results again."""
    return _nothing_new(hour.uploader.push(hour.folders.base))


def killed_pushes(hour: Hour) -> StepResult:
    """Kill pushes at moments spread over the duration of one, each with one more run; then push to completion."""
    moments, killed = [], 0
    for number in range(KILLS):
        hour.folders.add_killed(number)
        after_s = hour.push_s * (number + 0.5) / KILLS
        ended = hour.uploader.push_killed_after(hour.folders.killed, after_s)
        if ended.code > 0:
            return failed(ended)
        killed += ended.code < 0
        moments.append(f"after {after_s:.1f} s: {'killed' if ended.code < 0 else 'had ended'}")
    ended = hour.uploader.push(hour.folders.killed)
    if ended.code:
        return failed(ended)
    if not killed:
        return StepResult(StepOutcome.FAILED, "every push ended before it was killed", tuple(moments))
    return _each_row_once(hour, f"{killed} of {KILLS} killed", tuple(moments))


def concurrent_pushes(hour: Hour) -> StepResult:
    """Push overlapping results with concurrent processes; a push that exits with 3 is repeated."""
    hour.folders.make_machines()
    firsts = hour.uploader.push_at_once(hour.folders.machines)
    lines = [f"{folder.name}: {ended.last_line}" for folder, ended in zip(hour.folders.machines, firsts, strict=True)]
    for folder, first in zip(hour.folders.machines, firsts, strict=True):
        ended = first
        for _ in range(TRIES):
            if ended.code == 0:
                break
            if ended.code != 3:
                return failed(ended)
            ended = hour.uploader.push(folder)
        if ended.code:
            return failed(ended)
    codes = ", ".join(str(ended.code) for ended in firsts)
    return _each_row_once(hour, f"{len(firsts)} at once ended with {codes}", tuple(lines))


def verify(hour: Hour) -> StepResult:
    """Compare the tables with the records by `uploader verify`."""
    ended = hour.uploader.run("verify", "--results", str(hour.folders.all), "--values")
    return failed(ended) if ended.code else StepResult(StepOutcome.OK, ended.last_line)


def count(hour: Hour) -> StepResult:
    """Count every key with Google's own client."""
    return _each_row_once(hour, "")


def push_without_outbox(hour: Hour) -> StepResult:
    """Push again after removing the outbox."""
    shutil.rmtree(outbox_folder(hour.uploader.address, hour.folders.base))
    pushed = _nothing_new(hour.uploader.push(hour.folders.base))
    return _each_row_once(hour, pushed.summary) if pushed.outcome is StepOutcome.OK else pushed


def repair(hour: Hour) -> StepResult:
    """Delete rows, check that `verify` reports it, and restore them with `push --repair`."""
    table = MEASUREMENTS.name + (ddl.APPENDED if hour.service.mode(MEASUREMENTS) == APPEND_ONLY else "")
    run_id = Results(hour.folders.base).runs()[-1].run_id
    try:
        with as_upload_errors("delete rows"):
            deleted = hour.service.delete(table, run_id, rows.day_of(run_id))
    except NotAllowed as error:  # such as in a project without billing
        return StepResult(StepOutcome.NOT_RUN, f"rows cannot be deleted here: {error}")
    verified = hour.uploader.run("verify", "--results", str(hour.folders.all))
    if not deleted or verified.code != 1:
        return StepResult(
            StepOutcome.FAILED, f"{deleted} rows deleted; verify ended with {verified.code}: {verified.last_line}"
        )
    ended = hour.uploader.push(hour.folders.base, "--repair")
    return failed(ended) if ended.code else _each_row_once(hour, f"{deleted} rows deleted, reported as lost, restored")


def failed(ended: Ended) -> StepResult:
    """Return the output of a command that failed."""
    lines = [line for line in ended.output.splitlines() if line.strip()]
    return StepResult(
        StepOutcome.FAILED, f"ended with {ended.code}: {ended.last_line}", tuple(lines[-SHOWN:-1]), {"code": ended.code}
    )


def difference(expected: Counter[Key], actual: Counter[Key]) -> dict[str, int]:
    """Return how many keys are lost, duplicated or altered; a key ends with the hash of its row."""
    expected_hashes, actual_hashes = _by_key(expected), _by_key(actual)
    return {
        "expected": len(expected_hashes),
        "lost": len(expected_hashes.keys() - actual_hashes.keys()),
        "foreign": len(actual_hashes.keys() - expected_hashes.keys()),
        "duplicated": sum(len(hashes) > 1 for hashes in actual_hashes.values()),
        "altered": sum(
            set(actual_hashes[key]) != set(expected_hashes[key])
            for key in expected_hashes.keys() & actual_hashes.keys()
        ),
    }


def _by_key(rows: Counter[Key]) -> dict[Key, list[object]]:
    hashes: dict[Key, list[object]] = {}
    for *key, row_hash in rows.elements():
        hashes.setdefault(tuple(key), []).append(row_hash)
    return hashes


def _nothing_new(ended: Ended) -> StepResult:
    if ended.code:
        return failed(ended)
    return StepResult(StepOutcome.OK if ended.new == 0 else StepOutcome.FAILED, ended.last_line)


def _each_row_once(hour: Hour, summary: str, details: tuple[str, ...] = ()) -> StepResult:
    """Check that the tables have each row pushed so far exactly once, and no other."""
    retained_from = hour.service.retained_from()
    totals: Counter[str] = Counter()
    expected = keys_of(hour.folders.all, retained_from)
    for table in TABLES:
        totals.update(difference(expected[table.name], hour.service.keys(table, hour.folders.days)))
    wrong = {name: totals[name] for name in ("lost", "foreign", "duplicated", "altered")}
    counts = f"{totals['expected']:,} rows: " + ", ".join(f"{number} {name}" for name, number in wrong.items())
    outcome = StepOutcome.FAILED if any(wrong.values()) else StepOutcome.OK
    return StepResult(outcome, f"{summary}; {counts}" if summary else counts, details, dict(totals))
