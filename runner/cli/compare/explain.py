"""Explain why one cell is slower than another: the differences in their traces, with their shares of the change.

    runner explain jax:mlp torch:mlp --run RUN               two cells of one run
    runner explain RUN_A RUN_B --cell jax:mlp                a cell in two stored runs
    runner explain --cell jax:mlp --base-env OLD/.venv       a cell in two environments

What has no stored trace is measured and traced, both sides interleaved in one session; --stored measures nothing, and
--new measures again. docs/explain.md
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from keras_matrix.analysis.comparison.ratios import ratio_of
from keras_matrix.analysis.comparison.table import log_ratios, summaries
from keras_matrix.analysis.explain.explanation import Explanation, Side, explain
from keras_matrix.analysis.explain.facts import differing_facts
from keras_matrix.analysis.explain.parts import StepParts, read_parts
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, Estimate
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.traces.request import MAX_STEPS, TraceError
from keras_matrix.runner.cli.compare.compare import add_sides
from keras_matrix.runner.cli.compare.compare import sides_of as compared_sides
from keras_matrix.runner.cli.compare.explained_sides import STEPS, CellSide, Wanted, sides_of
from keras_matrix.runner.cli.options import add_measuring_options, check_range
from keras_matrix.runner.cli.render import explain_text
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.histories import across_stored
from keras_matrix.runner.whatif.measurement import steps_of_call

MOST_REPEATS = 1000
LEAST_ATYPICAL = 0.05


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_sides(parser)
    parser.add_argument("--cell", metavar="CELL", help=f"the cell of two runs or environments: {cells.HELP}")
    parser.add_argument("--run", metavar="RUN", help="the run of two cells; default: the newest that has their traces")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="matrix with the cells; default: matrix.yaml")
    parser.add_argument("--stored", action="store_true", help="only stored traces: measure nothing")
    parser.add_argument(
        "--repeats", type=int, default=MIN_BLOCKS, metavar="N", help=f"processes of each side; default: {MIN_BLOCKS}"
    )
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"traced steps; default: {STEPS}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Find or measure both sides, and explain their difference. Returns the exit code."""
    check_range("--repeats", args.repeats, 1, MOST_REPEATS)
    check_range("--steps", args.steps, 2, MAX_STEPS)
    wanted = Wanted(compared_sides(args), args.cell, args.run, args.stored, args.repeats, args.steps)
    base, new = sides_of(wanted)
    names = explain_text.names(base.records[0], new.records[0])
    if problem := _problem(base, new):
        print(explain_text.without(names, problem, as_json=args.json))
        return 1
    ratio = _ratio(args.results, base, new)
    if base.is_task or new.is_task:
        print(explain_text.of_commands(names, base.records, new.records, ratio, as_json=args.json))
        return base.exit_code or new.exit_code
    found = explanation(base, new, ratio)
    print(explain_text.as_json(names, found) if args.json else "\n".join(explain_text.lines(names, found)))
    return base.exit_code or new.exit_code


def explanation(base: CellSide, new: CellSide, ratio: Estimate) -> Explanation:
    """Return what explains the difference of two measured and traced cells."""
    sides = _side(base), _side(new)
    folders = tuple(side.traced[1].parent for side in (base, new) if side.traced)
    operations = (sides[0].parts.operations, sides[1].parts.operations)
    facts = differing_facts(_measured(base), _measured(new), (folders[0], folders[1]), operations)
    return explain(*sides, ratio, facts, _caveats(base, new, ratio))


def _problem(base: CellSide, new: CellSide) -> str | None:
    """Return why nothing can be explained, None if it can."""
    for name, side in (("base", base), ("new", new)):
        if not _measured(side):
            failed = side.records[0] if side.records else None
            return (
                f"{name} was not measured: {failed.status}: {failed.reason}" if failed else f"{name} was not measured"
            )
        if side.traced is None and not side.is_task:
            return f"no trace of {name}: {side.problem}"
    return None


def _measured(side: CellSide) -> list[Record]:
    return [record for record in side.records if record.status in MEASURED]


def _side(side: CellSide) -> Side:
    """Return a side with the parts of its traced steps. Raises `InfrastructureError` for a damaged trace."""
    assert side.traced is not None
    record, path = side.traced
    try:
        parts: StepParts = read_parts(path, steps_of_call(record))
    except TraceError as error:
        raise InfrastructureError(f"{error}; --new measures and traces both sides") from error
    return Side(_measured(side), record, parts)


def _ratio(results: Path, base: CellSide, new: CellSide) -> Estimate:
    """Return new / base of the figure: paired by block in one session, else with the spread between sessions."""
    about, other = base.run.about(), new.run.about()
    session = about.get("session", base.run.run_id)
    if session == other.get("session", new.run.run_id):
        (before,), (after,) = (summaries(side.records).values() for side in (base, new))
        if logs := log_ratios(after, before):
            return ratio_of("new", {"": list(logs.values())}, looks_of(about)).estimate
    roots = {folder.resolve() for folder in (results, base.run.folder.parent, new.run.folder.parent)}
    runs = {base.run.run_id, new.run.run_id}
    cells_of = {side.records[0].cell_id for side in (base, new)}
    found = across_stored(sorted(roots), runs, cells_of)(_measured(base), _measured(new))
    assert found is not None  # both sides have measured records
    return found.estimate


def _caveats(base: CellSide, new: CellSide, ratio: Estimate) -> list[str]:
    found = []
    if ratio.bounds is None:
        advice = f"measure both sides in one session with at least {MIN_BLOCKS} repeats (--new)"
        found.append(f"the ratio has no interval, so that the change may be noise; {advice}")
    for name, side in (("base", base), ("new", new)):
        times_s = [time_s for record in _measured(side) if (time_s := record.times.step_time_s)]
        own_s = side.traced[0].times.step_time_s if side.traced else None
        mean_s = statistics.geometric_mean(times_s) if times_s else None
        if own_s and mean_s and abs(own_s / mean_s - 1) > max(LEAST_ATYPICAL, abs(ratio.centre - 1) / 2):
            found.append(f"the traced process of {name} is not typical: {own_s / mean_s:.2f} times the mean step time")
    return found
