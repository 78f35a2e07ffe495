"""Compare two stored runs, or two environments measured interleaved: what became faster or slower, with intervals.

    runner compare RESULTS_A RESULTS_B                         two runs: folders, results folders or run ids
    runner compare --base-env OLD/.venv --new-env NEW/.venv    two environments, epochs interleaved

Ratios are new / base of the mean step time. Two environments are one session, paired by block. Two stored runs are two
sessions: an interval needs the spread between sessions from the stored history."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.versus import Across, Versus, versus
from keras_matrix.analysis.regression.gate import Rule, sharing
from keras_matrix.analysis.regression.regression_kinds import ALSO, TESTED
from keras_matrix.dashboards.report import comparison_page
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.injected_faults import UnknownFault, counterpart, parse
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import near
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, check_output, run_request, share
from keras_matrix.runner.cli.render import versus as texts
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.process import interpreter
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Experiment, measured, own_arm
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service import stored
from keras_matrix.runner.service.histories import across_stored
from keras_matrix.runner.service.stored import newest_runs, write_report

BASE, NEW = "base", "new"
Environments = tuple[Interpreter | None, Interpreter | None]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_sides(parser)
    add_matrix_options(parser)
    add_measuring_options(parser)
    add_output(parser)


def add_sides(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name both sides."""
    parser.add_argument("base_side", nargs="?", metavar="BASE", help="a run's folder, a results folder, or an id")
    parser.add_argument("new_side", nargs="?", metavar="NEW", help="the same")
    group = parser.add_argument_group("what to measure")
    group.add_argument("--base-env", type=Path, metavar="FOLDER", help="virtual environment of the base")
    group.add_argument(
        "--new-env", type=Path, metavar="FOLDER", help="virtual environment of the new; default: the runner's own"
    )
    group.add_argument(
        "--plant",
        metavar="FAULT",
        help="inject a fault into the new side to see it detected, as in slower:0.1: docs/comparing.md",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the output of the findings."""
    group = parser.add_argument_group("findings")
    group.add_argument(
        "--threshold", type=share, default=0.05, metavar="SHARE", help="slowdown that is tolerated (default: 0.05)"
    )
    group.add_argument("--markdown", type=Path, metavar="FILE", help="write the findings as Markdown, for a comment")
    group.add_argument("--out", type=Path, metavar="FILE", help="write the findings as a page with a picture")
    group.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Compare and show. Returns the exit code."""
    check_pages(args.markdown, args.out)
    found = findings(sides_of(args), rule_of(args.threshold), to_decide=False)
    show(found, args.threshold, args.markdown, args.out, as_json=args.json)
    return 0 if any(one.ratio for one in found.comparisons) and not found.incomplete else 1


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: two stored runs by name, or two environments that are measured."""

    command: str
    request: RunRequest
    base: str | None
    new: str | None
    base_env: Path | None
    new_env: Path | None
    fault: str | None
    display: TerminalDisplay


def sides_of(args: argparse.Namespace) -> Sides:
    """Return what the flags of `add_sides` compare. Raises `UsageError`."""
    sides = (args.base_side, args.new_side, args.base_env, args.new_env, args.plant)
    return Sides(args.command, run_request(args), *sides, TerminalDisplay(args.json))


def check_pages(markdown: Path | None, page: Path | None) -> None:
    """Refuse files that could not be written, before anything is measured for them. Raises `UsageError`."""
    for flag, path in (("--markdown", markdown), ("--out", page)):
        if path is not None:
            check_output(flag, path)
    if page is not None and page.suffix not in (".html", ".htm"):
        raise UsageError(f"--out: must end in .html, got {str(page)!r}")


def findings(sides: Sides, rule: Rule, *, to_decide: bool) -> Versus:
    """Find or measure both sides and compare them; `to_decide` adds auto repeats until the gate has decided.

    Raises `UsageError`.
    """
    to_measure = sides.base_env or sides.new_env or sides.fault
    if to_measure and sides.base:
        raise UsageError(f"{sides.command}: name two stored runs or two environments, not both; got {sides.base} too")
    if to_measure:
        base, new = _measured(sides, rule if to_decide else None)
    elif sides.base and sides.new:
        base, new = stored_run(sides, sides.base), stored_run(sides, sides.new)
    else:
        raise UsageError(f"{sides.command}: name two stored runs (BASE NEW), or environments (--base-env, --new-env)")
    if base.folder.resolve() == new.folder.resolve():
        raise UsageError(f"{sides.command}: BASE and NEW are the same run, {base.folder}")
    session = base.about().get("session")
    (base_records, base_problems), (new_records, new_problems) = base.load(), new.load()
    across = None
    if session is None or session != new.about().get("session"):
        across = _across(sides.request.results, base, new, {record.cell_id for record in new_records})
    found = versus(base_records, new_records, replace(rule, looks=looks_of(base.about())), across)
    notes = stored.notes(BASE, base, base_records, base_problems) + stored.notes(NEW, new, new_records, new_problems)
    incomplete = bool(base_problems or new_problems)
    return replace(found, runs=(base.run_id, new.run_id), notes=tuple(notes), incomplete=incomplete)


def rule_of(threshold: float, also: str = "") -> Rule:
    """Return the rule of a gate that also fails on the kinds in `also`, separated by commas. Raises `UsageError`."""
    given = [name.strip() for name in also.split(",")] if also else []
    for name in given:
        if name not in ALSO:
            raise UsageError(f"--also: must be some of {', '.join(ALSO)}, separated by commas, got {name!r}")
    kinds = [ALSO[name] for name in dict.fromkeys(given)]
    return sharing(Rule(threshold=threshold), kinds, sum(kind in TESTED for kind in kinds))


def _across(results: Path, base: Run, new: Run, cells: set[str]) -> Across:
    """Return how two sessions are compared: with the spread between the sessions stored in their results folders."""
    roots = {folder.resolve() for folder in (results, base.folder.parent, new.folder.parent)}
    return across_stored(sorted(roots), {*_runs(base), *_runs(new)}, cells)


def _runs(run: Run) -> list[str]:
    """Return the ids of the runs of a run's session: the run and its other arm."""
    runs = run.about().get("runs")
    return [run.run_id, *map(str, runs.values() if isinstance(runs, dict) else ())]


def stored_run(sides: Sides, name: str) -> Run:
    """Return the run that a folder or an id names. Raises `UsageError`."""
    results = sides.request.results
    for folder in (Path(name), results / name):
        if (folder / "run.json").is_file():
            return Run(folder.resolve())
        if (newest := Results(folder).latest()) is not None:
            return newest
    there = [run.run_id for run in Results(results).runs()]
    raise UsageError(
        f"{sides.command}: {name!r} is neither a run's folder, nor a results folder with a run in it, nor a run's id"
        f"{near(name, there)}; in {results} {newest_runs(there)}"
    )


def _measured(sides: Sides, rule: Rule | None) -> tuple[Run, Run]:
    """Measure both sides interleaved, in one session."""
    request, environments = sides.request, environments_of(sides)
    matrix, cells = request.choice.load()
    arms = arms_of(sides, environments, cells)
    about = request.choice.about(matrix.left_out)
    session = measured(request, Experiment(cells, about, arms, request.budget_of(matrix), rule), sides.display)
    for run in session.runs.values():
        write_report(run)
    return session.runs[BASE], session.runs[NEW]


def environments_of(sides: Sides) -> Environments:
    """Return the environments of base and new, None for the runner's own. Raises `UsageError`."""
    check_plant(sides.fault)
    base = interpreter.of_environment(sides.base_env, "--base-env") if sides.base_env else None
    new = interpreter.of_environment(sides.new_env, "--new-env") if sides.new_env else None
    if (base or new) and not sides.request.executors.contract.local_software:
        name = sides.request.executors.entry.name
        raise UsageError(
            f"--executor {name}: its cells bring their own environment; leave out --base-env and --new-env"
        )
    return base, new


def arms_of(sides: Sides, environments: Environments, cells: Sequence[Cell]) -> dict[str, ArmRequest]:
    """Return the arms of two environments, the new one with the injected fault. Raises `UsageError`."""
    base, new = environments
    for flag, environment in (("--base-env", base), ("--new-env", new)):
        _check_packages(flag, environment, cells)
    return {
        name: ArmRequest(environment.python, fault, environment.versions())
        if environment
        else own_arm(sides.request, cells, fault)
        for name, environment, fault in ((BASE, base, counterpart(sides.fault)), (NEW, new, sides.fault))
    }


def _check_packages(flag: str, environment: Interpreter | None, cells: Sequence[Cell]) -> None:
    """Refuse an environment without the packages of the cells, before anything is measured. Raises `UsageError`."""
    backends = dict.fromkeys(cell.settings.backend for cell in cells)
    absent = environment.absent(["keras", "numpy", *backends]) if environment else []
    if environment and absent:
        raise UsageError(
            f"{flag}: {environment.python} has no {', '.join(absent)}; install them there, "
            "or choose other backends with --backend"
        )


def check_plant(fault: str | None) -> None:
    """Refuse an unknown injected fault. Raises `UsageError`."""
    try:
        if fault:
            parse(fault)
    except UnknownFault as error:
        raise UsageError(f"--plant: {error}") from error


def show(found: Versus, threshold: float, markdown: Path | None, page: Path | None, *, as_json: bool) -> None:
    """Print the findings, and write the requested pages."""
    names = texts.names(found)
    print(texts.as_json(found, threshold) if as_json else texts.text(found, names), flush=True)
    if markdown:
        markdown.write_text(texts.markdown(found, names), encoding="utf-8")
    if page:
        report.write(page, comparison_page.page(found, names, threshold))
