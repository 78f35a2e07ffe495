"""Measure the matrix against itself under two labels, and report how often a difference is found that does not exist.

With --plant slower:0.1 the second label does a tenth more work; then the report says how often that was found. Every
call adds a session to the results folder, and all sessions of the same kind are reported together. It also measures the
cost of measuring: timed epochs against those of a bare `fit`, interleaved in one process, and the runner's own CPU.

With --parallel-devices the cells run alternately with the machine's other devices at rest and at work (other GPUs; on a
CPU, other CPUs); the result is how much slower they are meanwhile, which tables of `parallel_devices` then state."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from keras_matrix.analysis.influence import percent_text
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments import influence
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.store import Results
from keras_matrix.records.text import percent_change, percentage, percentage_interval, plural
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, number, run_request
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.compare import check_plant
from keras_matrix.runner.service.selftest import measure, measured_influences, stored_sessions, summary, timing_costs

LONGEST_COST_S = 86_400


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser)
    add_measuring_options(parser)
    group = parser.add_argument_group("what to test")
    group.add_argument("--plant", metavar="FAULT", help="inject a fault into the second label, as in slower:0.05")
    group.add_argument(
        "--stored", action="store_true", help="measure nothing; report on the sessions in the results folder"
    )
    group.add_argument(
        "--cost-s",
        type=partial(number, "--cost-s", 0, LONGEST_COST_S),
        default=0.0,
        metavar="SECONDS",
        help="measure the cost of timing this long a backend",
    )
    group.add_argument(
        "--parallel-devices", action="store_true", help="measure the influence of the machine's other devices instead"
    )
    group.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Measure, and report on all sessions. Returns the exit code."""
    check_plant(args.plant)
    request = run_request(args)
    if args.parallel_devices:
        if args.plant or args.cost_s:
            raise UsageError("--parallel-devices: measures one thing; leave out --plant and --cost-s")
        return _parallel_devices(request, is_stored=args.stored, as_json=args.json)
    if not args.stored:
        measure(request, args.plant, TerminalDisplay(args.json))
    sessions = stored_sessions(Results(request.results), args.plant)
    if not sessions:
        planted_text = f" with {args.plant}" if args.plant else ""
        raise UsageError(
            f"--stored: {request.results} contains no selftest{planted_text}; leave out --stored to measure one"
        )
    fields = summary(sessions, args.plant, timing_costs(request, args.cost_s) if args.cost_s else [])
    print(document(fields) if args.json else _text(fields))
    return 0 if fields["findings"] else 1


def _text(fields: dict[str, Any]) -> str:
    planted = fields["planted"]
    rate_name = "slower found in" if planted else "false alarms"
    rows = [["backend", "comparisons", rate_name, "95 % interval of the rate", "median half-width", "mean ratio"]]
    for finding in fields["findings"]:
        rate = finding["slower"] if planted else finding["outside"]
        low, high = rate["interval"]
        width = "-" if finding["half_width"] is None else percentage(finding["half_width"])
        figures = [
            str(rate["of"]),
            percentage(rate["share"]),
            percentage_interval(low, high),
            width,
            f"{finding['ratio']:.4f}",
        ]
        rows.append([finding["name"], *figures])
    gate = fields["gate_regressed"]
    lines = [
        f"{plural(fields['sessions'], 'session')} of the matrix against itself, injected fault: {planted or 'none'}",
        *fields["notes"],
        "",
        *columns(rows),
        "",
        f"gate at threshold 0: regressed in {gate['count']} of {gate['of']} sessions",
    ]
    lines += [f"named on {name}: {_kinds_text(kinds)}" for name, kinds in fields["named"].items()]
    if not planted:
        lines.append("5 % of 95 % intervals miss 1 by chance: the interval of the rate should contain 5 %")
    if cpu := fields["parent_cpu_share"]:
        lines.append(
            f"the runner's CPU: median {percentage(cpu['median'])} of a core, at most {percentage(cpu['maximum'])}"
        )
    lines += [
        f"cost of timing on {cost['backend']}: {percent_change(cost['ratio'], cost['low'], cost['high'])} "
        f"of a bare epoch's time, {cost['pairs']} pairs"
        for cost in fields["cost"]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _kinds_text(kinds: dict[str, Any]) -> str:
    """Return the regression kinds found on a backend; all blocks of a cell and session are one comparison."""
    comparison_count = next(iter(kinds.values()))["of"]
    texts = [f"{kind} in {rate['count']}" for kind, rate in kinds.items() if rate["count"]]
    return f"{', '.join(texts) or 'nothing'}, of {comparison_count} comparison{'' if comparison_count == 1 else 's'}"


def _parallel_devices(request: RunRequest, *, is_stored: bool, as_json: bool) -> int:
    """Measure, store and print the influence of the other devices. Returns the exit code."""
    influences, missing_texts = (
        (influence.load([request.results]), []) if is_stored else measured_influences(request, TerminalDisplay(as_json))
    )
    if is_stored and not influences:
        raise UsageError(
            f"--stored: {request.results} contains no selftest of parallel devices; leave out --stored to measure one"
        )
    fields = {"influences": to_json(list(influences)), "missing": missing_texts}
    print(document(fields) if as_json else "\n".join([*_influence_lines(influences), *missing_texts]))
    return 1 if missing_texts else 0


def _influence_lines(influences: Sequence[Influence]) -> list[str]:
    if not influences:
        return ["no cell was measured with the other devices at rest and at work"]
    rows = [["cell", "workload", "backend", "devices", "step time while the others work", "blocks"]]
    for cell_influence in influences:
        rows.append(
            [
                cell_influence.cell_id,
                cell_influence.workload,
                cell_influence.backend,
                str(cell_influence.devices),
                percent_text(cell_influence),
                str(cell_influence.blocks),
            ]
        )
    return [
        f"influence of other devices on {plural(len(influences), 'cell')}, against the same cells with the others at "
        "rest",
        "",
        *columns(rows),
        "",
        "95 % intervals, paired by block; the tables of cells that are measured at the same time state this influence",
    ]
