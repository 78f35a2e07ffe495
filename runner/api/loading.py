"""Finds stored runs by path. A problem with the results folder is a `RunnerError`, like every other one of the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from keras_matrix.records.store import Run as StoredRun
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.api.stored_run import Run, RunSource, as_path
from keras_matrix.runner.errors import InfrastructureError, StoreError, UsageError
from keras_matrix.runner.service import merge as merging
from keras_matrix.runner.service.merge import MergeRequest
from keras_matrix.runner.service.stored import Findings, chosen_run, pending_of, read_table, write_report


def load(path: str | Path = "results", *more: str | Path) -> Run:
    """Return a stored run: that of a run's folder, such as `results/latest`, or the newest of a results folder.

    Several paths make one table of runs that fit together, as `runner report --merge RUN RUN` does: one run for each
    backend, of the same matrix on the same machine.

    Raises `UsageError` if a path has no run or the runs do not fit, `StoreError` if its files cannot be read.
    """
    with as_runner_errors():
        found = [_stored(as_path("load", one)) for one in (path, *more)]
        return _merged(found) if more else of_stored(found[0])


def of_stored(run: StoredRun, found: Findings | None = None) -> Run:
    """Return a stored run; with its findings, if they were computed already."""

    def read() -> Findings:
        with as_runner_errors():
            return found or read_table(run)

    def pending(found: Findings) -> int:
        with as_runner_errors():
            return pending_of(found.about, found.records)

    def write(page: Path | None) -> Path:
        with as_runner_errors():
            write_report(run, page)
        return page or run.folder / "report.html"

    return Run(RunSource((run.folder,), read, pending, write))


@contextmanager
def as_runner_errors() -> Iterator[None]:
    """Turn a failure of the store or of a file into a `StoreError`, any other of the system into `InfrastructureError`.

    A system error without a file's name is not about a file: the container engine refused a connection, for example.
    """
    try:
        yield
    except StoreFailure as error:
        raise StoreError(str(error)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise (StoreError(f"{error.filename}: {reason}") if error.filename else InfrastructureError(reason)) from error


def _stored(path: Path) -> StoredRun:
    """Return the run of a folder. Raises `UsageError`."""
    folder = path.resolve()  # `latest` is a link: a run is known by the name of its own folder
    if (folder / "run.json").is_file():
        return StoredRun(folder)
    if not folder.is_dir():
        raise UsageError(f"load: must be a run's folder or a results folder, got {str(path)!r}, which does not exist")
    return chosen_run(folder, None)


def _merged(runs: list[StoredRun]) -> Run:
    names = {run.run_id: run for run in runs}
    request = MergeRequest(runs[0].folder.parent, tuple(names), None, None)
    merged = merging.read(request, tuple(names.values()))

    def write(page: Path | None) -> Path:
        # Links of the page are relative to its folder, so it is read again for another one.
        table = merged if page is None else merging.read(replace(request, page=page), tuple(names.values()))
        if problem := merging.write(table):
            raise problem
        return table.page

    folders = tuple(names[name].folder for name in merged.merge.run_ids)
    return Run(RunSource(folders, lambda: merged.found, lambda found: merging.pending_of_all(merged), write))
