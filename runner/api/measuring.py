"""Measures a matrix from Python, as `runner --matrix` does on the command line: the same session, store and report.

Finds stored runs by path. A problem with the results folder is a `RunnerError`, like every other one of the API.

A module of its own: `runner.api` contains the public names alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from keras_matrix.records.settings import Scalar
from keras_matrix.records.store import DEFAULT_RESULTS
from keras_matrix.records.store import Run as StoredRun
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import near
from keras_matrix.runner.api.stored_run import Run, RunSource, as_path
from keras_matrix.runner.errors import (
    InfrastructureError,
    Interrupted,
    MatrixError,
    StoreError,
    UsageError,
    made_from_values,
)
from keras_matrix.runner.executors import registry
from keras_matrix.runner.executors.registry import size_bytes
from keras_matrix.runner.matrix.grammar import FILE_RULES
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.measure.request import CellChoice, RunRequest, check_backends
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import merge as merging
from keras_matrix.runner.service.merge import MergeRequest
from keras_matrix.runner.service.run import measured_matrix
from keras_matrix.runner.service.stored import Findings, chosen_run, pending_of, read_table, write_report


class RunOptions(TypedDict, total=False):
    """The options of `run`, all optional."""

    results: str | Path
    backends: Sequence[str]
    filters: Sequence[str]
    settings: Mapping[str, Scalar]
    allow_env: Sequence[str]
    repeats: int | str
    budget_s: float
    executor: str
    executor_options: Mapping[str, str | int]
    new: bool
    progress: bool


def run(matrix: str | Path | Mapping[str, Any], **options: Unpack[RunOptions]) -> Run:
    """Measure a matrix and return the finished run; an unfinished one of the same plan is continued.

    `matrix` is the path of a matrix file, its content as a dict, or as YAML text: a text with a line break, or that
    begins with a brace. Options, with the flags of `runner` that they are:

    - `results` (--results): the results folder; "results" by default
    - `backends`, `filters` (--backend, --filter): only these backends, only the cells that match all filters
    - `settings` (--set): settings and parameters of every cell, over the matrix
    - `allow_env` (--allow-env): variables of your own that `env` in the matrix may set
    - `repeats` (--repeats): the processes of each cell, or "auto"; `budget_s` (--budget): the seconds for "auto"
    - `executor` (--executor): "process" by default; `executor_options`: its flags, as in {"memory": "8g"}
    - `new` (--new): start a new run even if an unfinished one could be continued
    - `progress`: print a line for each process; True by default

    Cells run in processes of their own; the caller's variables, `keras.json` and imports do not reach them. A cell that
    fails is a cell with another status, not an exception. Raises `MatrixError` for the matrix, `UsageError` for an
    option, `InfrastructureError` if nothing can be measured, `KeyboardInterrupt` if a signal stops the run: finished
    processes are stored, and the same call continues it.
    """
    return measure(matrix, options, Seams())


def measure(matrix: str | Path | Mapping[str, Any], options: RunOptions, seams: Seams) -> Run:
    """Measure as `run` does, with the parts that a test replaces."""
    _check_names("run", options, RunOptions.__annotations__)
    display = TerminalDisplay(not options.get("progress", True))
    try:
        values = made_from_values() if isinstance(matrix, Mapping) else nullcontext()
        with as_runner_errors(), values:
            finished_run = measured_matrix(_request(matrix, options, seams), display)
    except Interrupted as stopped:  # a loop that goes on after a `RunnerError` must not go on after Ctrl-C
        raise KeyboardInterrupt(str(stopped)) from stopped
    return of_stored(
        StoredRun(finished_run.run.folder.resolve()), finished_run.found
    )  # also found from another working folder


def _request(matrix: str | Path | Mapping[str, Any], options: RunOptions, seams: Seams) -> RunRequest:
    """Return the request for these options. Raises `MatrixError` and `UsageError`."""
    budget_s = options.get("budget_s")
    if budget_s is not None and (problem := FILE_RULES["budget"].problem(budget_s)):
        raise UsageError(f"--budget: {problem}")
    executor_options = _executor_options(_mapping("executor_options", options.get("executor_options", {})))
    return RunRequest(
        command=("keras_matrix.run",),
        choice=_choice(matrix, _overrides(options)),
        results=as_path("run: results", options.get("results", DEFAULT_RESULTS)),
        executors=_executors(options.get("executor", registry.DEFAULT), executor_options, seams),
        memory_bytes=executor_options.get("memory"),
        budget_s=budget_s,
        new=options.get("new", False),
        seams=seams,
    )


def _overrides(options: RunOptions) -> Overrides:
    backends = _several("backends", options.get("backends", ()))
    check_backends(backends)
    filters, settings = (
        _several("filters", options.get("filters", ())),
        _mapping("settings", options.get("settings", {})),
    )
    allowed_variables = _several("allow_env", options.get("allow_env", ()))
    return Overrides(backends, filters, settings, options.get("repeats"), allowed_variables)


def _executors(name: str, executor_options: Mapping[str, Any], seams: Seams) -> registry.Executors:
    _check_names("--executor", [name], registry.ENTRIES)
    return registry.chosen(name, executor_options.get("start"), executor_options, seams.engine)


def _executor_options(executor_options: Mapping[str, str | int]) -> dict[str, Any]:
    """Return the options of executors, sizes in bytes as the command line reads them. Raises `UsageError`."""
    options = {option.name: option for entry in registry.ENTRIES.values() for option in entry.options}
    _check_names("executor_options", executor_options, ("start", *options))
    flag_by_size_option = {name: option.flag for name, option in options.items() if option.is_size}
    return {
        name: size_bytes(flag_by_size_option[name], str(value)) if name in flag_by_size_option else value
        for name, value in executor_options.items()
    }


def _check_names(option: str, names: Iterable[str], allowed_names: Collection[str]) -> None:
    """Refuse a name that is not known. Raises `UsageError`."""
    for name in names:
        if name not in allowed_names:
            raise UsageError(
                f"{option}: must be one of {', '.join(allowed_names)}, got {name!r}{near(str(name), allowed_names)}"
            )


def _several(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of a list; a single text would be read as its letters. Raises `UsageError`."""
    if isinstance(values, str):
        raise UsageError(f"run: {name} must be a list of texts, got {values!r}; write [{values!r}]")
    if not isinstance(values, Iterable) or not all(isinstance(value, str) for value in values):
        raise UsageError(f"run: {name} must be a list of texts, got {values!s:.60}")
    return tuple(values)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"run: {name} must be a dict of names and values, got {value!s:.60}")
    return value


def _choice(matrix: str | Path | Mapping[str, Any], overrides: Overrides) -> CellChoice:
    """Return the choice of cells of a path, a dict or a text; the latter two are relative to the working folder."""
    if isinstance(matrix, Mapping):
        return CellChoice(Path("matrix"), overrides, text=_as_text(matrix))
    if isinstance(matrix, str) and ("\n" in matrix or matrix.lstrip().startswith("{")):
        return CellChoice(Path("matrix"), overrides, text=matrix)
    return CellChoice(as_path("run: matrix", matrix), overrides)


def _as_text(matrix: Mapping[str, Any]) -> str:
    """Return a dict as JSON, which is YAML without its ambiguities. Raises `MatrixError`."""
    try:
        return json.dumps(matrix, indent=1, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise MatrixError([f"matrix: must consist of dicts, lists, texts, numbers and booleans: {error}"]) from error


class CheckOptions(TypedDict, total=False):
    """The options of `Checker.check`, all optional."""

    tolerance: float
    backend: str
    budget_s: float
    repeats: int | str
    settings: Mapping[str, Scalar]
    results: Path


@dataclass(frozen=True, slots=True)
class Checker:
    """What the fixture `keras_matrix` returns: `check`, with the name of the test and a folder for its files."""

    name: str
    folder: Path

    def check(
        self, model: object, data: object = None, *, faster_than: object, **options: Unpack[CheckOptions]
    ) -> None:
        """Measure a model against a baseline: return if it is faster, fail the test if not, skip it if undecided.

        `model` is a function at the top of a module that returns what `runner` measures, its name "module:function", or
        a Keras model with its `data=(x, y)`. `faster_than` is another one, the seconds a step may take, or the
        path of the results of an earlier check of this test (`results`). Options:

        - `tolerance`: how much slower still passes, as a share; 0 by default
        - `backend`: by default that of a Keras model, else KERAS_BACKEND, else the first one that is installed
        - `budget_s`, `repeats`: repeats are added until it is decided, for at most 300 s
        - `settings`: defaults of a matrix, such as {"epochs": 3}; `results`: a folder that keeps the results

        A side that cannot be measured raises `InfrastructureError`, a mistake in the call `UsageError`.
        """
        import pytest

        from keras_matrix.runner.service.check import CheckOutcome, CheckRequest, checked

        _check_names("check", options, CheckOptions.__annotations__)
        request = CheckRequest(self.name, model, faster_than, self.folder, data, **options)
        with as_runner_errors():
            decided = checked(request, TerminalDisplay(quiet=True))
        if decided.outcome is CheckOutcome.SLOWER:
            pytest.fail(decided.sentence, pytrace=False)
        if decided.outcome is CheckOutcome.UNDECIDED:
            pytest.skip(decided.sentence)


def load(path: str | Path = "results", *more: str | Path) -> Run:
    """Return a stored run: that of a run's folder, such as `results/latest`, or the newest of a results folder.

    Several paths make one table of runs that fit together, as `runner report --merge RUN RUN` does: one run for each
    backend, of the same matrix on the same machine.

    Raises `UsageError` if a path has no run or the runs do not fit, `StoreError` if its files cannot be read.
    """
    with as_runner_errors():
        runs = [_stored(as_path("load", location)) for location in (path, *more)]
        return _merged(runs) if more else of_stored(runs[0])


def of_stored(run: StoredRun, run_findings: Findings | None = None) -> Run:
    """Return a stored run; with its findings, if they were computed already."""

    def read() -> Findings:
        with as_runner_errors():
            return run_findings or read_table(run)

    def pending(run_findings: Findings) -> int:
        with as_runner_errors():
            return pending_of(run_findings.about, run_findings.records)

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

    folders = tuple(names[run_id].folder for run_id in merged.merge.run_ids)
    return Run(RunSource(folders, lambda: merged.found, lambda run_findings: merging.pending_of_all(merged), write))
