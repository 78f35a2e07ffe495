"""Find the fastest setting of a model within a budget, with a known probability of an error.

    runner tune mnist_mlp --over "backend, jit, batch_size=32|64" --budget 30m --within 2%
    runner tune train.py --over backend,precision --apply tuned.yaml
    runner tune --matrix matrix.yaml --filter workload=lstm

The candidates are measured interleaved, in blocks; those that are slower are dropped. Decided (exit 0): what is named
is within --within of the best with probability 95 %. Undecided (exit 5): the budget was spent before. The gain over the
default is from further blocks. Exit 1: no candidate could be measured. docs/tune.md"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from keras_matrix.analysis.racing import WITHIN, fewest_blocks
from keras_matrix.analysis.tuning import Aim
from keras_matrix.dashboards.report import page as report
from keras_matrix.dashboards.report import tune_page
from keras_matrix.records.backends import backends_for
from keras_matrix.records.settings import FIT, Scalar
from keras_matrix.records.text import duration, percentage, plural
from keras_matrix.runner.cli.compare.compare import check_pages
from keras_matrix.runner.cli.options import (
    add_matrix_options,
    add_measuring_options,
    cell_choice,
    installed_for,
    run_request,
)
from keras_matrix.runner.cli.render import tuning
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.registry import size_bytes
from keras_matrix.runner.matrix.grammar import MATRIX
from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
from keras_matrix.runner.matrix.scalars import resolve, value_text
from keras_matrix.runner.measure.request import check_backends, check_range
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service import exit_codes, tune
from keras_matrix.runner.service.tune import Axis, Entrants, TuneGoal

MOST_WITHIN = 0.5
MOST_JOB_STEPS = 1_000_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_several = partial(parser.add_argument, action="append", default=[])
    model_help = "a name of runner list, your own module:function, or a program such as train.py"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=model_help)
    over_help = (
        "settings or parameters and their values, as in 'backend, precision=float32|bfloat16'; without values all that "
        "the setting has; may be repeated"
    )
    add_several("--over", metavar="AXES", help=over_help)
    add_several("--default", metavar="KEY=VALUE", help="what the winner is compared with; may be repeated")
    parser.add_argument(
        "--within", default=percentage(WITHIN), metavar="SHARE", help="tolerated excess over the best; default: 2%%"
    )
    aim_help = "what is least: sample, latency (a step), or job:N, the time of N steps with the compilation"
    parser.add_argument(
        "--for", default=str(Aim.SAMPLE), dest="aim", metavar="AIM", help=f"{aim_help}; default: sample"
    )
    parser.add_argument("--most-memory", metavar="BYTES", help="drop candidates with a larger peak, such as 2g")
    parser.add_argument("--most", type=int, metavar="N", help="race N candidates, the most promising ones")
    parser.add_argument("--apply", type=Path, metavar="FILE", help="write winner and default as a new matrix file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the answer as Markdown")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the answer as a page with a picture")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and answer")
    add_matrix_options(parser)
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Race, show the answer, and write what was asked for. Returns the exit code."""
    check_pages(args.markdown, args.out)
    if args.repeats is not None:
        raise UsageError("--repeats: a race finds by itself how many processes it needs; leave it out")
    if args.apply is not None:
        tune.check_new(args.apply)
    goal, entrants = _goal(args), _entrants(args)
    request, display = run_request(args, entrants.choice), TerminalDisplay(args.json)
    if args.most is not None:
        check_range("--most", args.most, 2)
        costs_s = tune.earlier_costs(args.results, entrants.cells, goal.objective(entrants.cells[0].settings))
        entrants = tune.limited(entrants, args.most, costs_s)
    budget_s = tune.BUDGET_S if request.budget_s is None else request.budget_s
    block_s = tune.check_budget(args.results, entrants.cells, budget_s)
    display.say(_beforehand(entrants, goal, block_s, budget_s))
    view = tune.raced(replace(request, budget_s=budget_s), entrants, goal, display)
    code = exit_codes.VERDICTS["tune"][view.outcome]
    print(tuning.as_json(view, code) if args.json else tuning.text(view), flush=True)
    if args.markdown:
        args.markdown.write_text(tuning.markdown(view), encoding="utf-8")
    if args.out:
        report.write(args.out, tune_page.page(view))
    if args.apply is not None and view.answers:
        tune.apply(args.apply, view, {c.cell_id: c.settings for c in entrants.cells}, shlex.join(request.command))
        display.say(f"\nwrote {args.apply}: runner --matrix {args.apply}")
    return code


def _beforehand(entrants: Entrants, goal: TuneGoal, block_s: float, budget_s: float) -> str:
    """Return what will be measured."""
    count = len(entrants.cells)
    first, last = fewest_blocks(tune.candidates_of(entrants, goal).race_rule)
    lines = [
        f"{plural(count, 'candidate')}: about {duration(block_s)} a block, for {duration(budget_s)} at most; the first "
        f"are dropped after {first} blocks, and two that are equally fast need {last}"
    ]
    lines += [f"{key}: one value, {value_text(value)}: nothing to try" for key, value in entrants.fixed.items()]
    lines += [f"{name}: impossible: {reason}" for name, reason in entrants.impossible.items()]
    return "\n".join(lines)


def _goal(args: argparse.Namespace) -> TuneGoal:
    """Return what is to be least. Raises `UsageError`."""
    name, _, steps = args.aim.partition(":")
    if name not in [*Aim] or bool(steps) != (name == Aim.JOB) or (steps and not steps.isdecimal()):
        raise UsageError(f"--for: must be sample, latency or job:N, such as job:10000, got {args.aim!r}")
    if steps:
        check_range("--for job", int(steps), 1, MOST_JOB_STEPS)
    memory = None if args.most_memory is None else size_bytes("--most-memory", args.most_memory)
    return TuneGoal(Aim(name), int(steps or 0), memory, tolerated_excess(args.within))


def tolerated_excess(text: str) -> float:
    """Read a tolerated excess, as in 2% or 0.02. Raises `UsageError`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= MOST_WITHIN:
        raise UsageError(
            f"--within: must be a share above 0 and at most {percentage(MOST_WITHIN)}, such as 2%, got {text!r}"
        )
    return value


def axes_of(texts: Sequence[str], backends: Sequence[str]) -> list[Axis]:
    """Read axes, as in `backend, precision=float32|bfloat16`. Raises `UsageError`."""
    axes: dict[str, Axis] = {}
    for word in (word.strip() for text in texts for word in text.split(",")):
        key, equals, values = (part.strip() for part in word.partition("="))
        given = [value.strip() for value in values.split("|")] if equals else []
        if not key or "" in given:
            raise UsageError(f"--over: must be KEY or KEY=VALUE|VALUE, joined by commas, got {word!r}")
        if key in axes:
            raise UsageError(f"--over: {key}: is there twice; join its values by |")
        axes[key] = tune.axis_of(key, [_scalar(key, value) for value in given], backends)
    return list(axes.values())


def _scalar(key: str, text: str) -> Scalar:
    value = resolve(text)
    if value is None:
        raise UsageError(f"--over: {key}: a value must not be empty, got {text!r}")
    return value


def _entrants(args: argparse.Namespace) -> Entrants:
    """Return the candidates that the flags describe. Raises `InputError`."""
    default = dict(map(parse_assignment, args.default))
    if args.model is None:
        if args.over:
            raise UsageError("--over: needs a MODEL; without one each cell of --matrix is a candidate")
        return _checked(tune.of_matrix(cell_choice(args), default))
    if args.filter or args.matrix is not MATRIX:
        raise UsageError("MODEL: replaces a matrix: leave out --matrix and --filter, or MODEL")
    if not args.over:
        raise UsageError("--over: name what to try, as in --over 'backend, jit, batch_size=32|64'")
    check_backends(args.backend)
    assignments = dict(map(parse_assignment, args.assignments))
    phase = assignments.get("phase", FIT)
    backends = args.backend or installed_for(dict(args.python), phase) or list(backends_for(phase))
    axes = axes_of(args.over, backends)
    if both := [axis.key for axis in axes if axis.key in assignments]:
        raise UsageError(f"--set {both[0]}: is in --over, too; leave one out")
    named = next((axis.values for axis in axes if axis.key == "backend"), tuple(backends[:1]))
    check_backends([str(name) for name in named])
    entrants = tune.of_model(args.model, axes, default, str(named[0]), Overrides(assignments=assignments))
    return _checked(replace(entrants, choice=replace(entrants.choice, service=args.service)))


def _checked(entrants: Entrants) -> Entrants:
    """Refuse a race of one candidate. Raises `UsageError`."""
    if len(entrants.cells) < 2:
        raise UsageError("--over: makes one candidate, the default; a race needs two: name more values or settings")
    return entrants
