"""Searches the version, day or commit that made a cell slower, and what else differs between two sessions.

A trial is one session whose arms are the environments of the versions. A trial that the state has answered is not
measured again; one that was interrupted is continued: the same command continues after any interruption.

    bisect/<digest>/bisection.json    the versions and the answers so far
    bisect/<digest>/result.json       the result, once there is one
    bisect/<digest>/*-N.json          both files of an earlier search with the same request, or of a damaged one
    bisect/<digest>/<run_id>/         the measured runs

Promise: a file is replaced completely or not at all. A search with another request, or other versions, is another one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from keras_matrix.analysis.regression import bisection
from keras_matrix.analysis.regression.bisection import (
    BAD,
    CANDIDATE,
    GOOD,
    TOTAL,
    Bisection,
    SearchOutcome,
    Trial,
    TrialAnswer,
    search,
)
from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.analysis.regression.reproduction import changes
from keras_matrix.analysis.stats.sequential import PRECISION_TARGET
from keras_matrix.records import files, history_reader
from keras_matrix.records.backends import KERAS_HUB, TABLE
from keras_matrix.records.codec import CodecError, canonical, decode
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run, latest_attempts
from keras_matrix.records.text import duration, near
from keras_matrix.runner.environments import commits, dated
from keras_matrix.runner.environments.layered import BaseEnvironment, base_of
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NoNetwork, NotNow, local_wheels, pip, with_cuda
from keras_matrix.runner.errors import InfrastructureError, RunnerError, UsageError
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, origin
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.adaptive import ArmsQuestion, numbers, step_times, weights_of
from keras_matrix.runner.plan.session import ArmRequest, Session
from keras_matrix.runner.service import exit_codes
from keras_matrix.runner.service.bisect_axes import (
    Cache,
    CheckoutAxis,
    DateAxis,
    PackageAxis,
    VersionAxis,
    answer_line,
    result_lines,
    result_values,
    undecided_line,
)
from keras_matrix.runner.service.cells import chosen_cell
from keras_matrix.runner.service.histories import assessed_histories
from keras_matrix.runner.service.script import OtherCall, check_call
from keras_matrix.runner.service.stored import chosen_run

STATE, RESULT = "bisection.json", "result.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The two ends of a search, and what they are: versions of a package, days, or commits of a checkout.

    `requirements` is the file of what is locked on each day; `environment` has the packages that do not change.
    """

    good: str
    bad: str
    package: str = ""
    checkout: Path | None = None
    days: bool = False
    requirements: Path | None = None
    environment: Path | None = None
    pre: bool = False


@dataclass(frozen=True, slots=True)
class VersionSearch:
    """One search: the cell, the versions, where its state is kept, and the slowdown from which on it is one.

    `process_s` is how long a process takes, `suspects` what differs of the machine between the stored runs. `written`
    is the cell of a program as the matrix has it, before the call to measure was found.
    """

    cell: Cell
    axis: VersionAxis
    root: Path
    smallest: float
    process_s: float
    suspects: tuple[str, ...] = ()
    written: Cell | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a search: the outcome, its document, its lines for a terminal, and the folder of its runs."""

    outcome: SearchOutcome
    document: Mapping[str, Any]
    lines: list[str]
    folder: Path


def search_for(request: RunRequest, version_search: VersionSearch, display: Display) -> Result:
    """Measure the trials that the stored state has not answered, and store the result.

    Raises `BudgetSpent`, `EndFailed` or `InfrastructureError`; then the same call continues.
    """
    axis = version_search.axis
    try:
        state = _state(request, version_search)
        trials = Trials(
            replace(request, results=state.folder),
            version_search.cell,
            axis,
            state,
            display,
            version_search.smallest,
            version_search.process_s,
            written=version_search.written,
        )
        if state.continued:
            display.say(f"continuing {state.folder} after {len(state.answers)} trials")
        return _result(search(len(axis.labels), trials.measure, version_search.smallest), version_search, state)
    finally:
        axis.close()


def _result(bisection: Bisection, version_search: VersionSearch, state: SearchState) -> Result:
    axis = version_search.axis
    is_located = bisection.outcome in (SearchOutcome.FOUND, SearchOutcome.RANGE, SearchOutcome.NOT_CONFIRMED)
    differences = axis.differences(bisection.last_good, bisection.first_bad) if is_located else []
    values = result_values(bisection, axis, differences, version_search.suspects)
    state.finish(values)
    return Result(bisection.outcome, values, result_lines(bisection, axis.labels, differences), state.folder)


def _state(request: RunRequest, version_search: VersionSearch) -> SearchState:
    cell, axis = version_search.cell, version_search.axis
    identity = {**axis.identity, "cell_id": cell.cell_id, "start": request.executors.started}
    empty_state = BisectionState(VERSION, axis.subject, list(axis.labels), cell.settings)
    return SearchState(version_search.root, identity, empty_state, new=request.new)


def cell_named(request: RunRequest, name: str) -> Cell:
    """Return the named cell, whose repeats are added until a test has decided. Raises `UsageError`."""
    cell = chosen_cell(request, name, ", whose environment is not known")
    return replace(cell, repeats=1, precision_target=PRECISION_TARGET)


def axis_of(span: SearchRange, cell: Cell, stored_cache: Cache) -> VersionAxis:
    """Return the versions of a span, the good end first. Raises `UsageError`."""
    for flag, value, needed in (("--pre", span.pre, span.package), ("--requirements", span.requirements, span.days)):
        if value and not needed:
            raise UsageError(f"{flag}: belongs to {'--package' if flag == '--pre' else '--dates'}")
    base = _base(span.environment, cell, complete=span.days)
    if span.checkout is not None:
        tree = commits.checkout(span.checkout)
        return CheckoutAxis(tree, tree.commits(span.good, span.bad), base, stored_cache)
    if span.days:
        today = utc_now().date()
        good, bad = (
            dated.day(flag, end_text, today) for flag, end_text in (("--good", span.good), ("--bad", span.bad))
        )
        lock = dated.lock_on(_wanted(span.requirements, base, cell), base.python)
        return DateAxis(dated.locks_between(good, bad, lock), base.python, stored_cache)
    tool = pip(stored_cache.folder, stored_cache.say)
    listing = cache(lambda name: dated.listed(name, tool, base.python, pre=span.pre))
    name = dated.installed_name(span.package, base.versions)
    try:
        listed_versions = listing(name)
    except NoNetwork:
        raise
    except CannotRebuild as error:
        near_text = near(name, base.versions) if name not in base.versions else ""
        raise CannotRebuild(f"--package: {error}{near_text}") from error
    versions = dated.between(name, listed_versions, span.good, span.bad)
    wheels = local_wheels([f"{name}=={version}" for version in versions], tool)
    return PackageAxis(name, versions, base, listing, stored_cache, wheels)


def _base(folder: Path | None, cell: Cell, *, complete: bool) -> BaseEnvironment:
    """Return the environment of the packages that do not change. Raises `UsageError` if it lacks one of the cell's."""
    python = interpreter.Interpreter(sys.executable) if folder is None else interpreter.of_environment(folder, "--env")
    absent = [] if complete else python.absent(["keras", "numpy", cell.settings.backend])
    if absent:
        raise UsageError(f"--env: {python.python} has no {', '.join(absent)}; install them there, or name another one")
    return base_of(python.python)


def _wanted(requirements: Path | None, base: BaseEnvironment, cell: Cell) -> list[str]:
    """Return what is locked: the requirements of a file, or the installed packages of the cell, without versions."""
    if requirements is None:
        hub = [KERAS_HUB] if catalog.needs_keras_hub(cell.settings.workload) else []
        backend = TABLE[cell.settings.backend]
        plugins = () if cell.settings.device == "cpu" else backend.plugins
        names = ("keras", "numpy", *hub, *backend.packages, *plugins)
        return [with_cuda(name) for name in names if name in base.versions]
    try:
        return requirements.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--requirements: {requirements} cannot be read: {error}") from error


class BudgetSpent(RunnerError):
    """The next trial is expected to exceed the budget. The same command continues."""

    exit_code = exit_codes.UNDECIDED


class EndFailed(RunnerError):
    """Processes of an end fail that were measured before. The same command continues."""

    exit_code = exit_codes.NOT_OK


@dataclass(slots=True)
class Trials:
    """Measures the trials of one search. `process_s` is how long a process takes, estimated at first.

    `smallest` is the slowdown of the bad end below which there is nothing to search. `written` is a program's cell
    before its call was found: a version in which another call is found cannot be measured.
    """

    request: RunRequest
    cell: Cell
    axis: VersionAxis
    state: SearchState
    display: Display
    smallest: float
    process_s: float
    clock: Callable[[], float] = time.perf_counter
    written: Cell | None = None
    _begun_s: float = 0.0
    _count: int = 0
    _blocks: int = field(default=bisection.LOOKS.blocks[0])
    _arms: dict[int, ArmRequest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begun_s = self.clock()

    def measure(self, trial: Trial, rule: Rule) -> TrialAnswer:
        """Return the answer of a trial, stored or measured, and print it.

        Raises `BudgetSpent`, `EndFailed` or `InfrastructureError`, such as `CannotRebuild`: then it is not answered.
        """
        position, self._count = self._count, self._count + 1
        if position >= len(self.state.answers):
            self._announce(trial)
            self.state.add(self._measured(trial, rule))
        answered = self.state.answers[position]
        self.display.say(answer_line(trial, answered.answer, rule, self.axis.labels))
        self._learn(trial, answered, rule)
        return answered.answer

    def _measured(self, trial: Trial, rule: Rule) -> Answered:
        ends = {name: self._arm(name, position) for name, position in trial.arms.items() if name != CANDIDATE}
        try:
            arms = {name: ends.get(name) or self._arm(name, position) for name, position in trial.arms.items()}
        except NotNow:
            raise
        except CannotRebuild as error:
            return Answered(dict(trial.arms), [], str(error))
        except OtherCall as error:
            return Answered(dict(trial.arms), [], str(error).splitlines()[0])  # its other lines have been shown
        session, failures = self._tried(trial, rule, arms)
        records = [(arm, record) for arm in arms for record in session.records(arm)]
        times = step_times(records)
        weights = [weights_of(contrast, trial.arms, self.cell.cell_id) for contrast in trial.contrasts]
        logs = [] if failures else [list(numbers(contrast_weights, times)) for contrast_weights in weights]
        walls = [record.harness.wall_time_s for _, record in records if record.harness.wall_time_s]
        reason = failures.get(CANDIDATE) or "; ".join(failures.values()) or None
        return Answered(dict(trial.arms), logs, reason, {arm: run.run_id for arm, run in session.runs.items()}, walls)

    def _tried(self, trial: Trial, rule: Rule, arms: Mapping[str, ArmRequest]) -> tuple[Session, dict[str, str]]:
        """Measure a trial, again if a version fails that was measured before; return why arms have no figure, too."""
        session = self._session(trial, rule, arms)
        failures = self._failures(session, trial)
        if trial.contrasts != (TOTAL,) and (
            reasons := [reason for arm, reason in failures.items() if arm != CANDIDATE]
        ):
            self.display.say(f"  {'; '.join(reasons)}; an end was measured before: once more")
            session = self._session(trial, rule, arms, is_new=True)
            failures = self._failures(session, trial)
        if CANDIDATE in trial.arms and failures and CANDIDATE not in failures:
            raise EndFailed(
                f"{'; '.join(failures.values())}, although it was measured before; the same command continues"
            )
        return session, failures

    def _arm(self, name: str, position: int) -> ArmRequest:
        if position not in self._arms:
            try:
                arm = self.axis.arm(position)
                if self.cell.settings.script:
                    check_call(self.request, (self.written or self.cell, self.cell), arm, self.display)
                self._arms[position] = arm
            except (CannotRebuild, OtherCall) as error:
                if name == CANDIDATE:
                    raise
                flag_text = f"--{name}: " if name in (GOOD, BAD) else ""
                raise type(error)(f"{flag_text}{self.axis.labels[position]}: {error}") from error
        return self._arms[position]

    def _session(self, trial: Trial, rule: Rule, arms: Mapping[str, ArmRequest], *, is_new: bool = False) -> Session:
        seen_blocks: set[int] = set()

        def answered(logs: Sequence[Sequence[float]]) -> str | None:
            answer, block_count = bisection.answered(trial, rule, logs, self.smallest), len(logs[0])
            if answer is None and block_count not in seen_blocks:
                self.display.say(undecided_line(trial, logs, rule))
            seen_blocks.add(block_count)
            return answer

        question = ArmsQuestion(trial.contrasts, answered, rule.looks)
        versions = {name: self.axis.labels[position] for name, position in trial.arms.items()}
        about = {**origin("runner bisect", self.cell.settings), "bisects": self.axis.subject, **versions}
        request = replace(self.request, new=True) if is_new else self.request
        return measured(request, Experiment([self.cell], about, arms, question=question), self.display)

    def _failures(self, session: Session, trial: Trial) -> dict[str, str]:
        """Return why the arms without a figure have none. Raises `InfrastructureError` if that is the machine.

        What the executor or the preflight refuses of a candidate only, such as a missing device, is the candidate's.
        """
        reasons = {}
        for arm, position in trial.arms.items():
            attempts = latest_attempts(session.records(arm))
            if not step_times([(arm, record) for record in attempts]):
                status, reason = (
                    (attempts[0].status, attempts[0].reason) if attempts else (Status.INFRA, "no process was measured")
                )
                label = "" if arm == CANDIDATE else f"{self.axis.labels[position]}: "
                reasons[arm] = f"{label}{status}: {reason}"
                if status is Status.INFRA and arm != CANDIDATE:
                    raise InfrastructureError(f"{reasons[arm]}; once it is repaired, the same command continues")
        return reasons

    def _announce(self, trial: Trial) -> None:
        """Print what is measured next and its cost. Raises `BudgetSpent`."""
        versions_text = ", ".join(self.axis.labels[position] for position in trial.arms.values())
        least_s = self._cost_s(len(trial.arms), self._blocks)
        budget_s = self.request.budget_s
        if budget_s is not None and self.clock() - self._begun_s + least_s > budget_s:
            raise BudgetSpent(
                f"--budget: {duration(budget_s)} do not suffice for the next trial ({versions_text}), about "
                f"{duration(least_s)}; the same command continues, with a larger --budget if it measured nothing"
            )
        self.display.say(
            f"trial {self._count}: {versions_text} alternately: about {self._blocks} blocks x {len(trial.arms)} "
            f"processes x {self.process_s:.1f} s = {duration(least_s)}, at most "
            f"{duration(self._cost_s(len(trial.arms), bisection.LOOKS.blocks[-1]))}"
        )

    def _cost_s(self, arm_count: int, block_count: int) -> float:
        return arm_count * block_count * self.process_s

    def _learn(self, trial: Trial, answered: Answered, rule: Rule) -> None:
        """Take the duration of a process, and of a usual step, from what was measured."""
        walls = list(itertools.chain.from_iterable(answer.wall_s for answer in self.state.answers))
        self.process_s = statistics.fmean(walls) if walls else self.process_s
        if trial.contrasts == (TOTAL,) and len(answered.logs[0] if answered.logs else ()) > 1:
            self._blocks = bisection.expected_blocks(answered.logs[0], rule) or rule.looks.blocks[-1]


@dataclass(frozen=True, slots=True)
class Answered:
    """A trial that was measured, by the positions of its arms; its answer; its runs by arm; its processes' seconds."""

    arms: dict[str, int]
    logs: list[list[float]]
    reason: str | None = None
    runs: dict[str, str] = field(default_factory=dict)
    wall_s: list[float] = field(default_factory=list)

    @property
    def answer(self) -> TrialAnswer:
        """The answer, for the search."""
        return TrialAnswer(tuple(map(tuple, self.logs)), self.reason)


@dataclass(frozen=True, slots=True)
class BisectionState:
    """The content of `bisection.json`: what is searched, by its settings and the names of the versions."""

    version: int
    subject: str
    labels: list[str]
    settings: Settings
    answers: list[Answered] = field(default_factory=list)


class SearchState:
    """The state of one search, in its folder below `root`."""

    def __init__(self, root: Path, identity: Mapping[str, Any], empty_state: BisectionState, *, new: bool) -> None:
        self.folder = root / hashlib.sha256(canonical(dict(identity)).encode(errors="surrogatepass")).hexdigest()[:16]
        stored_state = None if new or (self.folder / RESULT).exists() else self._read()
        self.continued = stored_state is not None
        self._stored = empty_state if stored_state is None else stored_state
        if stored_state is None:
            self._set_aside()

    @property
    def answers(self) -> Sequence[Answered]:
        """The answers so far, in their order."""
        return self._stored.answers

    def add(self, answered: Answered) -> None:
        """Store another answer. Raises OSError."""
        self._stored.answers.append(answered)
        self._write(STATE, canonical(self._stored))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Store the result. Raises OSError."""
        self._write(RESULT, json.dumps(result, indent=1, allow_nan=False))

    def _read(self) -> BisectionState | None:
        """Return the stored state; None if it is missing or damaged."""
        try:
            stored_state = decode(BisectionState, files.read_json(self.folder / STATE), "bisection")
        except (OSError, CodecError):
            return None
        return stored_state if stored_state.version == VERSION else None

    def _set_aside(self) -> None:
        """Rename the files of an earlier search."""
        present_paths = [path for path in (self.folder / STATE, self.folder / RESULT) if path.exists()]
        taken_numbers = {path.stem.rpartition("-")[2] for path in self.folder.glob("*-*.json")}
        number = next(n for n in itertools.count(1) if str(n) not in taken_numbers)
        for path in present_paths:
            path.rename(path.with_stem(f"{path.stem}-{number}"))

    def _write(self, name: str, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files.replace(self.folder / name, text + "\n")


@dataclass(frozen=True, slots=True)
class Suspects:
    """The facts of the machine that differ between two stored runs, and the packages that do."""

    good: str
    bad: str
    machine: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return what to check first; empty if the machine is the same."""
        between_text = f"between the runs {self.good} and {self.bad}"
        texts = [f"suspect before any package, {between_text}: {fact}" for fact in self.machine]
        texts += (
            ["packages cannot explain these; this search compares packages on the machine as it is now"]
            if texts
            else []
        )
        if self.packages:
            texts.append(f"packages that differ {between_text}: {', '.join(self.packages)}")
        return texts


def suspects(results: Path, cell_id: str, good: str | None, bad: str | None) -> Suspects | None:
    """Return what differs between two runs, by default those around the last change of the history that was slower.

    None if there are no such runs. Raises `UsageError` for a run that is not there, or if one is named only.

    A suspect is a difference apart from packages: driver, kernel, machine image, settings of the machine. Such a
    difference is a suspect before any package, because no search over packages can find it.
    """
    if bool(good) != bool(bad):
        raise UsageError(f"--good-run and --bad-run belong together: name --{'bad' if good else 'good'}-run, too")
    if good or bad:
        return _between(chosen_run(results, good, "--good-run"), chosen_run(results, bad, "--bad-run"), cell_id)
    pair = _around_change(results, cell_id)
    return None if pair is None else _between(Run(results / pair[0]), Run(results / pair[1]), cell_id)


def _around_change(results: Path, cell_id: str) -> tuple[str, str] | None:
    past = history_reader.read([results], lambda stored_cell, workload, backend: stored_cell == cell_id)
    for assessment in reversed(assessed_histories(past, [results])):
        sessions = assessment.history.valued
        for change in reversed(assessment.changes):
            if change.note is None and change.ratio is not None and change.ratio > 1 and change.index > 0:
                return sessions[change.index - 1].run_id, sessions[change.index].run_id
    return None


def _between(good: Run, bad: Run, cell_id: str) -> Suspects:
    sides = [[record for record in run.load()[0] if record.cell_id == cell_id] for run in (good, bad)]
    packages = {name for side in sides for record in side[:1] for name in record.versions}
    change_by_name = changes(*sides)
    machine = tuple(line for name, line in change_by_name.items() if name not in packages)
    package_lines = tuple(line for name, line in change_by_name.items() if name in packages)
    return Suspects(good.run_id, bad.run_id, machine, package_lines)
