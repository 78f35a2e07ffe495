"""Compares two sides: stored runs, or environments that are measured interleaved in one session.

Ratios are new / base. A gate decides by the same comparison, and adds repeats until it has decided.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.versus import Across, Versus, versus, with_null
from keras_matrix.analysis.regression.gate import Rule, sharing
from keras_matrix.analysis.regression.regression_kinds import ALSO, TESTED
from keras_matrix.records.injected_faults import UnknownFault, counterpart, parse
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import escaped, near
from keras_matrix.runner.environments.layered import base_of
from keras_matrix.runner.environments.rebuilt import cache_folder
from keras_matrix.runner.environments.revisions import Place, revised
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, all_programs, keras_backends, measured, own_arm
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.session import NULL, ArmRequest
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service import stored
from keras_matrix.runner.service.histories import across_stored, without_run
from keras_matrix.runner.service.run import with_found_values
from keras_matrix.runner.service.stored import newest_runs, write_report

BASE, NEW = "base", "new"
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
    With `null` the base is measured by a second arm, too.
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
    return replace(compared, runs=(base.run_id, new.run_id), notes=tuple(notes), incomplete=is_incomplete)


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
    return session.runs[BASE], session.runs[NEW]


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
