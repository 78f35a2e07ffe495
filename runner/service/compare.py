"""Compares two sides: stored runs, or environments that are measured interleaved in one session.

Ratios are new / base. A gate decides by the same comparison, and adds repeats until it has decided.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.counts import CountChange, count_changes, uncomparable
from keras_matrix.analysis.comparison.versus import Across, Versus, versus, with_null
from keras_matrix.analysis.regression.gate import Rule, sharing
from keras_matrix.analysis.regression.regression_kinds import ALSO, TESTED
from keras_matrix.records.codec import CodecError, decode, to_json
from keras_matrix.records.fc import spec
from keras_matrix.records.injected_faults import UnknownFault, counterpart, parse
from keras_matrix.records.instruments.work_done import COUNTS_VERSION, CellCounts, RunCounts
from keras_matrix.records.settings import EXPORTED, is_users
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import escaped, near
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.environments.layered import base_of
from keras_matrix.runner.environments.rebuilt import cache_folder
from keras_matrix.runner.environments.revisions import Place, revised
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.machine.mounts import import_roots
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import (
    Display,
    Experiment,
    all_programs,
    dataset_dir,
    executor_of,
    keras_backends,
    measured,
    moved_roots,
    own_arm,
    own_downloads,
)
from keras_matrix.runner.measure.judge import judge
from keras_matrix.runner.measure.record_builder import read_result
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.session import NULL, ArmRequest, writing
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service import stored
from keras_matrix.runner.service.histories import across_stored, without_run
from keras_matrix.runner.service.run import with_found_values
from keras_matrix.runner.service.stored import newest_runs, write_report

BASE, NEW = "base", "new"
COUNTS = "counts.json"
# Of each side, in turns: a count that takes one of two values by chance is equal in all of them once in 32 sessions.
COUNTING_PROCESSES = 3
COUNTED_CALLS = 2  # of the backend in an epoch between the first step and those that are counted
COUNTING_SLOWDOWN = 4.0  # allowed to a process that is watched
ENVIRONMENT_FLAGS = "--base, --new, --base-env, --new-env"


@dataclass(frozen=True, slots=True)
class Environment:
    """The Python of a side, with a line for each package that it has in a revision of its own."""

    interpreter: Interpreter
    revisions: tuple[str, ...] = ()


Environments = tuple[Environment | None, Environment | None]


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: two stored runs by name, or two environments that are measured.

    `base_rev` and `new_rev` are revisions of packages in these environments, as `environments.revisions` reads them.
    With `null` the base is measured by a second arm, too. With `counts` further processes, which are not timed,
    count the calls and programs of a step.
    """

    command: str
    request: RunRequest
    base: str | None
    new: str | None
    base_env: Path | None
    new_env: Path | None
    fault: str | None
    display: Display
    base_rev: str | None = None
    new_rev: str | None = None
    null: bool = False
    counts: bool = False

    @property
    def to_measure(self) -> bool:
        """Whether the sides are environments."""
        return any((self.base_env, self.new_env, self.base_rev, self.new_rev, self.fault))


def findings(sides: Sides, rule: Rule, *, to_decide: bool) -> Versus:
    """Find or measure both sides and compare them; `to_decide` adds auto repeats until the gate has decided.

    Raises `UsageError`.
    """
    if sides.to_measure and sides.base:
        raise UsageError(f"{sides.command}: name two stored runs or two environments, not both; got {sides.base} too")
    if sides.null and not sides.to_measure:
        raise UsageError(f"{sides.command}: --null measures base twice: name environments ({ENVIRONMENT_FLAGS})")
    if sides.counts:
        _check_counts(sides)
    if sides.to_measure:
        base, new = _measured(sides, rule if to_decide else None)
    elif sides.base and sides.new:
        base, new = stored_run(sides, sides.base), stored_run(sides, sides.new)
    else:
        raise UsageError(f"{sides.command}: name two stored runs (BASE NEW), or environments ({ENVIRONMENT_FLAGS})")
    if base.folder.resolve() == new.folder.resolve():
        raise UsageError(f"{sides.command}: BASE and NEW are the same run, {base.folder}")
    session = base.about().get("session")
    (base_records, base_problems), (new_records, new_problems) = base.load(), new.load()
    ratio_across = None
    if session is None or session != new.about().get("session"):
        ratio_across = across(sides.request.results, base, new, {record.cell_id for record in new_records})
    compared = versus(base_records, new_records, replace(rule, looks=looks_of(base.about())), ratio_across)
    notes = [f"{name}: {line}" for name, run in ((BASE, base), (NEW, new)) for line in _revisions_of(run)]
    notes += stored.notes(BASE, base, base_records, base_problems) + stored.notes(NEW, new, new_records, new_problems)
    is_incomplete = bool(base_problems or new_problems)
    null = _null_run(base) if ratio_across is None else None
    if null is not None:
        compared = with_null(
            compared, versus(base_records, null.load()[0], replace(rule, looks=looks_of(base.about())))
        )
    compared_settings = {one.cell_id: one.either.settings for one in compared.comparisons}
    names = {cell_id: f"{settings.workload} on {settings.backend}" for cell_id, settings in compared_settings.items()}
    counts, count_notes = _compared_counts(base, new, names)
    run_ids, notes = (base.run_id, new.run_id), [*notes, *count_notes]
    return replace(compared, runs=run_ids, notes=tuple(notes), incomplete=is_incomplete, counts=counts)


def _check_counts(sides: Sides) -> None:
    """Refuse counts of what is not measured now, or on other machines. Raises `UsageError`."""
    if not sides.to_measure:
        raise UsageError(
            f"{sides.command}: --counts runs further processes: name environments ({ENVIRONMENT_FLAGS}); stored counts "
            "are shown without it"
        )
    executors = sides.request.executors
    if not executors.contract.local_machine:
        raise UsageError(
            f"{sides.command}: --counts needs cells on this machine, got --executor {executors.entry.name}"
        )


def rule_of(threshold: float, also_text: str = "") -> Rule:
    """Return the rule of a gate that also fails on the kinds of `also_text`, joined by commas. Raises `UsageError`."""
    names = [name.strip() for name in also_text.split(",")] if also_text else []
    for name in names:
        if name not in ALSO:
            raise UsageError(f"--also: must be some of {', '.join(ALSO)}, separated by commas, got {name!r}")
    kinds = [ALSO[name] for name in dict.fromkeys(names)]
    return sharing(Rule(threshold=threshold), kinds, sum(kind in TESTED for kind in kinds))


def across(results: Path, base: Run, new: Run, cells: set[str]) -> Across:
    """Return how two sessions are compared: with the spread between the sessions stored in their results folders."""
    roots = {folder.resolve() for folder in (results, base.folder.parent, new.folder.parent)}
    return across_stored(sorted(roots), {*_runs(base), *_runs(new)}, cells)


def _null_run(base: Run) -> Run | None:
    """Return the run of the second arm of base in the session of a run, if it has one."""
    run_id = _arms(base).get(NULL, "")
    folder = base.folder.parent / run_id
    return Run(folder) if run_id and (folder / "run.json").is_file() else None


def _revisions_of(run: Run) -> list[str]:
    """Return the lines on the packages that a run had in revisions of their own."""
    lines = run.about().get("revisions")
    return [escaped(str(line), None) for line in lines] if isinstance(lines, list) else []


def _runs(run: Run) -> list[str]:
    """Return the ids of the runs of a run's session: the run and its other arm."""
    return [run.run_id, *_arms(run).values()]


def _arms(run: Run) -> dict[str, str]:
    """Return the ids of the runs of a run's session by their arms; empty for a run that states none."""
    runs = run.about().get("runs")
    return {arm: str(run_id) for arm, run_id in runs.items()} if isinstance(runs, dict) else {}


def stored_run(sides: Sides, name: str) -> Run:
    """Return the run that a folder or an id names. Raises `UsageError`."""
    results = sides.request.results
    for folder in (Path(name), results / name):
        if (folder / "run.json").is_file():
            return Run(folder.resolve())
        if (newest := Results(folder).latest()) is not None:
            return newest
    run_ids = [run.run_id for run in Results(results).runs()]
    known_text = f"in {results} {newest_runs(run_ids)}{near(name, run_ids)}" if run_ids else without_run([results])
    raise UsageError(
        f"{sides.command}: {name!r} is neither a run's folder, nor a results folder with a run in it, nor a run's id; "
        f"{known_text}"
    )


def _measured(sides: Sides, rule: Rule | None) -> tuple[Run, Run]:
    """Measure both sides interleaved, in one session."""
    request, environments = sides.request, environments_of(sides)
    matrix, cells = request.choice.load()
    arms = arms_of(sides, environments, cells)
    arms |= {NULL: arms[BASE]} if sides.null else {}
    about = request.choice.about(matrix.left_out)
    experiment = Experiment(cells, about, arms, request.budget_of(matrix), rule)
    session = measured(request, with_found_values(request, experiment, sides.display), sides.display)
    for run in session.runs.values():
        write_report(run)
    if sides.counts:
        _count(sides, session.runs, arms, cells)
    return session.runs[BASE], session.runs[NEW]


def _count(sides: Sides, runs: Mapping[str, Run], arms: Mapping[str, ArmRequest], cells: Sequence[Cell]) -> None:
    """Count what the cells of both sides do in a step, in processes of their own, and store the counts with the runs.

    The sides take turns, as in a session.
    """
    request = sides.request
    with writing(request.results), ExitStack() as opened:
        counters = []
        for name in (BASE, NEW):
            executor = request.seams.executor or executor_of(request, runs[name], arms[name])
            opened.callback(executor.close)
            counters.append(_Counter(request, runs[name], arms[name], executor, cells))
        for number in range(1, COUNTING_PROCESSES + 1):
            sides.display.say(f"counting calls and programs: process {number} of {COUNTING_PROCESSES} of each side")
            for counter in counters:
                counter.count(number)
        for counter in counters:
            counter.run.store_object(COUNTS, to_json(RunCounts(cells=counter.counts)))


class _Counter:
    """The counts of one side, by cell_id."""

    def __init__(
        self, request: RunRequest, run: Run, arm: ArmRequest, executor: Executor, cells: Sequence[Cell]
    ) -> None:
        self.run, self._request, self._arm, self._executor = run, request, arm, executor
        self.counts = {cell.cell_id: CellCounts(problem=_uncounted(cell, executor)) for cell in cells}
        self._cells = cells
        roots = import_roots(request.choice.matrix.resolve().parent)
        self._roots = moved_roots(roots, arm) or [str(root) for root in roots]

    def count(self, number: int) -> None:
        """Count each cell in a process with a hash seed and a memory layout of its own."""
        left = [cell for cell in self._cells if self.counts[cell.cell_id].problem is None]
        if not left:
            return
        self._executor.begin_block([cell.settings for cell in left])
        self._executor.await_block()
        for cell in left:
            job = _counting_job(self._request, self.run, (cell, self._arm.fault, number))
            job, before = replace(job, import_roots=self._roots), self.counts[cell.cell_id]
            try:
                self.counts[cell.cell_id] = _counted(self._executor, job, before, cell.timeout_s)
            finally:
                remove_tree(job.folder)


def _uncounted(cell: Cell, executor: Executor) -> str | None:
    """Return why nothing is counted of a cell, None if its steps are."""
    settings = cell.settings
    if cell.task is not None or settings.script:
        return "a command or a program runs its steps itself"
    if settings.call in EXPORTED:
        return f"call: {settings.call} runs its steps outside of Python"
    if spec.is_native(settings):
        return "its steps run in processes of their own"
    return executor.missing(settings.backend, settings.device)


def _counting_job(request: RunRequest, run: Run, process: tuple[Cell, str | None, int]) -> Job:
    cell, fault, number = process
    settings = cell.settings
    steps = COUNTED_CALLS * settings.steps_per_execution
    return Job(
        nonce=secrets.token_hex(16),
        cell_id=cell.cell_id,
        repeat=number,
        attempt=0,
        settings=replace(settings, epochs=2, discard=1, compile_cache="cold"),
        steps=steps,
        folder=str(run.scratch(f"counting.{cell.cell_id}.{number}").absolute()),
        import_roots=[],
        dataset_dir=dataset_dir(request),
        compile_cache_dir=None,
        fault=fault,
        gpus=cell.placement.gpus,
        counting=True,
        downloads=own_downloads(request) if is_users(settings.workload) else {},
    )


def _counted(executor: Executor, job: Job, before: CellCounts, timeout_s: float) -> CellCounts:
    """Return the counts of a cell with those of one more process, or why it has none."""
    outcome = executor.start(job, timeout_s * COUNTING_SLOWDOWN).finish()
    result, refusal = read_result(job)
    if result is not None and result.counts is not None:
        return replace(before, processes=[*before.processes, result.counts])
    verdict = judge(job, outcome, result, refusal)
    return CellCounts(problem=f"{verdict.status}: {verdict.reason}")


def _compared_counts(
    base: Run, new: Run, names: Mapping[str, str]
) -> tuple[dict[str, tuple[CountChange, ...]], list[str]]:
    """Return the stored counts of two runs as changes by cell, and remarks on those that are missing.

    `names` are those of the cells, by cell_id.
    """
    counts = {BASE: stored_counts(base), NEW: stored_counts(new)}
    changes, notes = {}, []
    if without := [name for name, cells in counts.items() if not cells and any(counts.values())]:
        notes.append(f"no counts: {without[0]} has none, or those of another version; measure both with --counts")
    for cell_id in sorted(counts[BASE].keys() & counts[NEW].keys(), key=lambda cell_id: names.get(cell_id, cell_id)):
        sides = (counts[BASE][cell_id], counts[NEW][cell_id])
        changes[cell_id] = count_changes(*sides)
        problems = [f"{name}: {side.problem}" for name, side in zip((BASE, NEW), sides, strict=True) if side.problem]
        reason = "; ".join(problems) or uncomparable(*sides)
        notes += [f"no counts of {names.get(cell_id, cell_id)}: {reason}"] if reason else []
        missing = {process.no_instructions for side in sides for process in side.processes} - {None}
        notes += [f"no instructions were counted: {why}" for why in sorted(missing, key=str)]
    return changes, list(dict.fromkeys(notes))


def stored_counts(run: Run) -> dict[str, CellCounts]:
    """Return the counts of a run by cell_id; none if it has none, or those of another version."""
    document = run.load_object(COUNTS)
    if document is None or document.get("version") != COUNTS_VERSION:
        return {}
    try:
        return decode(RunCounts, document, COUNTS).cells
    except CodecError as error:
        run.note_unread(run.folder / COUNTS, error)
        return {}


def environments_of(sides: Sides) -> Environments:
    """Return the environments of base and new, None for the runner's own. Raises `UsageError`, or `CannotRebuild`."""
    check_plant(sides.fault)
    named = ((BASE, sides.base_env, sides.base_rev), (NEW, sides.new_env, sides.new_rev))
    flags = [f"--{name}{end}" for name, env, rev in named for end, value in (("", rev), ("-env", env)) if value]
    if flags and not sides.request.executors.contract.local_software:
        name = sides.request.executors.entry.name
        raise UsageError(f"--executor {name}: its cells bring their own environment; leave out {' and '.join(flags)}")
    base, new = (_environment(name, env, rev, sides.display) for name, env, rev in named)
    return base, new


def _environment(name: str, folder: Path | None, revisions: str | None, display: Display) -> Environment | None:
    flag = f"--{name}-env"
    own = interpreter.of_environment(folder, flag) if folder else None
    if revisions is None:
        return Environment(own) if own else None
    place = Place(f"--{name}", base_of(own.python if own else sys.executable), cache_folder(), display.say)
    made = revised(revisions, place)
    return Environment(interpreter.of_environment(made.folder, f"--{name}"), made.lines)


def arms_of(sides: Sides, environments: Environments, cells: Sequence[Cell]) -> dict[str, ArmRequest]:
    """Return the arms of two environments, the new one with the injected fault. Raises `UsageError`."""
    base, new = environments
    for flag, environment in ((f"--{BASE}", base), (f"--{NEW}", new)):
        if environment and (backends := keras_backends(cells)):  # what external commands need is not known
            named_flag = flag if environment.revisions else f"{flag}-env"
            environment.interpreter.check(named_flag, backends, are_programs=all_programs(cells, backends))
    return {
        name: _arm(environment, fault) if environment else own_arm(sides.request, cells, fault)
        for name, environment, fault in ((BASE, base, counterpart(sides.fault)), (NEW, new, sides.fault))
    }


def _arm(environment: Environment, fault: str | None) -> ArmRequest:
    python = environment.interpreter
    return ArmRequest(python.python, fault, python.versions(), revisions=environment.revisions)


def check_plant(fault: str | None) -> None:
    """Refuse an unknown injected fault. Raises `UsageError`."""
    try:
        if fault:
            parse(fault)
    except UnknownFault as error:
        raise UsageError(f"--plant: {error}") from error
