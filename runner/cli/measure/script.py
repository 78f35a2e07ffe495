"""Measure your own training program, as it is, on each installed backend.

The program runs unchanged, once per process, with the backend, threads and seed set from outside, in a copy of its
project. Its longest call of fit is measured, with its own data, callbacks and validation; --list shows all calls, and
--call chooses another. A loop of your own needs one line: docs/howto/measure-your-program.md."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from keras_matrix.records.backends import backends_for
from keras_matrix.records.codec import to_json
from keras_matrix.records.host.inherited_environment import variables_problem, variables_text
from keras_matrix.records.settings import ALL_STEPS, FIT, call_phase
from keras_matrix.runner.cli.measure.run import conclude
from keras_matrix.runner.cli.options import add_measuring_options, installed_for, run_request
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import PROGRAM_KEYS, call_problem
from keras_matrix.runner.matrix.overrides import Overrides, parse_assignment
from keras_matrix.runner.measure.experiment import own_arm
from keras_matrix.runner.measure.request import RunRequest, check_backends, check_range, one_program
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.run import measured_matrix
from keras_matrix.runner.service.script import lines, scouted

REPEATS = 1
MOST_REPEATS = 1000
BEFORE = PROGRAM_KEYS["before"].choices


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("program", type=Path, metavar="PROGRAM", help="such as train.py; its own arguments follow it")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="of the program")
    add_several = partial(parser.add_argument, action="append", default=[])
    add_several("--backend", metavar="NAME", help="only this backend; may be repeated")
    call_help = "its number in --list, its kind (fit, evaluate, predict, predict_on_batch), or the second fit as fit:2"
    parser.add_argument("--call", metavar="CALL", help=f"{call_help}; default: the fit with the most steps")
    parser.add_argument("--list", action="store_true", help="list the program's calls, and measure nothing")
    before_help = "cut: end calls before the measured one after some steps; default: run them as written"
    parser.add_argument("--before", choices=tuple(map(str, BEFORE)), default=BEFORE[0], help=before_help)
    env_help = "a variable of the environment of its processes, as in DATA_DIR=/data; may be repeated"
    add_several("--env", type=variable, metavar="NAME=VALUE", help=env_help)
    steps_help = "steps after which an epoch of fit is cut, or all; default: as many as the time limit allows"
    parser.add_argument("--most-steps", type=steps_or_all, metavar="N", help=steps_help)
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N", help=f"processes per backend; default: {REPEATS}"
    )
    add_several("--set", metavar="KEY=VALUE", dest="assignments", help="a setting, such as epochs=5; may be repeated")
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")


def run(args: argparse.Namespace) -> int:
    """Measure the program on each backend and print the table."""
    check_backends(args.backend)
    check_range("--repeats", args.repeats, 1, MOST_REPEATS)
    if args.call is not None and (problem := call_problem(args.call)):
        raise UsageError(f"--call: {problem}")
    phase = call_phase(args.call) if args.call is not None else FIT
    backends = args.backend or installed_for(dict(args.python), phase) or backends_for(phase)
    values = {"args": args.words, "call": args.call, "before": args.before, "most_steps": args.most_steps}
    program = {key: value for key, value in values.items() if value not in ([], None, BEFORE[0])}
    variables = {"env": variables_text(dict(args.env))} if args.env else {}
    overrides = Overrides(assignments=dict(map(parse_assignment, args.assignments)) | variables)
    request = run_request(args, one_program(args.program, program, backends, overrides, args.repeats))
    display = TerminalDisplay(args.json)
    if args.list:
        return _list(request, display)
    return conclude(measured_matrix(request, display), display, in_service=args.in_service)


def _list(request: RunRequest, display: TerminalDisplay) -> int:
    """Print the calls of the program; with 1 as the exit code if it makes none."""
    _, cells = request.choice.load()
    program = scouted(request, own_arm(request, cells), cells, display)
    if display.quiet:
        print(document({"program": to_json(program), "exit_code": int(program is None)}))
    elif program is not None:
        print("\n".join(lines(program)))
    return int(program is None)


def variable(text: str) -> tuple[str, str]:
    """Read a variable of the environment. Raises `UsageError`, without its value."""
    name, equals, value = text.partition("=")
    if not equals or (problem := variables_problem({name: value})):
        raise UsageError(f"--env: must be NAME=VALUE, got {problem if equals else f'{name!r:.60}'}")
    return name, value


def steps_or_all(text: str) -> int | str:
    """Read the value of --most-steps; the grammar of a matrix checks its range."""
    return text if text == ALL_STEPS else int(text)
