"""Measure the matrix against itself under two labels, and report how often a difference is found that does not exist.

With --plant slower:0.1 the second label does a tenth more work; then the report says how often that was found. Every
call adds a session to the results folder, and all sessions of the same kind are reported together. It also measures the
cost of measuring: timed epochs against those of a bare `fit`, interleaved in one process, and the runner's own CPU.

With --parallel-devices the cells run alternately with the machine's other devices at rest and at work (other GPUs; on a
CPU, other CPUs); the result is how much slower they are meanwhile, which tables of `parallel_devices` then state."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.analysis.selftest import Labelled, Rate, SelftestResult, findings, gate_alarms, named, pooled
from keras_matrix.analysis.stats.sequential import FIXED
from keras_matrix.dashboards.charts.format import plural
from keras_matrix.records.injected_faults import counterpart
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cli.compare import parallel_devices
from keras_matrix.runner.cli.compare.compare import check_plant
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, number, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.supervise.timing_cost import cost_of_timing
from keras_matrix.runner.measure.experiment import Experiment, measured, own_arm
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.service.stored import write_report

LABELS = ("base", "new")
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
        return parallel_devices.run(request, stored=args.stored, as_json=args.json)
    if not args.stored:
        _measure(request, args.plant, TerminalDisplay(args.json))
    sessions = stored_sessions(Results(request.results), args.plant)
    if not sessions:
        planted = f" with {args.plant}" if args.plant else ""
        raise UsageError(f"--stored: {request.results} contains no selftest{planted}")
    fields = _fields(sessions, args.plant, _cost(request, args.cost_s) if args.cost_s else [])
    print(document(fields) if args.json else _text(fields))
    return 0 if fields["findings"] else 1


def _measure(request: RunRequest, fault: str | None, display: TerminalDisplay) -> None:
    matrix, cells = request.choice.load()
    faults = dict(zip(LABELS, (counterpart(fault), fault), strict=True))
    arms = {label: own_arm(request, cells, planted) for label, planted in faults.items()}
    experiment = Experiment(cells, request.choice.about(matrix.left_out), arms, request.budget_of(matrix))
    session = measured(request, experiment, display)
    for run in session.runs.values():
        write_report(run)


def stored_sessions(results: Results, fault: str | None) -> list[Labelled]:
    """Return the records of the stored sessions of two labels with this Python and this injected fault, or without."""
    faults = dict(zip(LABELS, (counterpart(fault), fault), strict=True))
    wanted = {label: {"python": None, "fault": planted} for label, planted in faults.items()}
    found: list[Labelled] = []
    for run in results.runs():
        about = run.about()
        if about.get("arms") == wanted and about.get("arm") == LABELS[0]:
            other = Run(results.root / str(about["runs"][LABELS[1]]))
            found.append((run.load()[0], other.load()[0]))
    return found


def _fields(sessions: Sequence[Labelled], fault: str | None, cost: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "planted": fault,
        "sessions": len(sessions),
        "notes": pooled(sessions),
        "findings": [_finding_json(one) for one in findings(sessions)],
        "gate_regressed": _rate_json(gate_alarms(sessions, Rule(threshold=0.0, looks=FIXED))),
        "named": {
            name: {kind: _rate_json(rate) for kind, rate in kinds.items()}
            for name, kinds in named(sessions, Rule(looks=FIXED)).items()
        },
        "parent_cpu_share": _parent_cpu([record for session in sessions for side in session for record in side]),
        "cost": cost,
    }


def _finding_json(one: SelftestResult) -> dict[str, Any]:
    return {
        "name": one.name,
        "outside": _rate_json(one.outside),
        "outside_p_value": one.outside.p_value(0.05),
        "slower": _rate_json(one.slower),
        "half_width": one.half_width,
        "ratio": one.ratio,
    }


def _rate_json(rate: Rate) -> dict[str, Any]:
    interval = rate.interval()
    return {"count": rate.count, "of": rate.of, "share": rate.share, "interval": list(interval) if interval else None}


def _parent_cpu(records: Sequence[Record]) -> dict[str, float] | None:
    shares = [
        record.harness.parent_cpu_time_s / record.harness.wall_time_s
        for record in records
        if record.harness.parent_cpu_time_s is not None and record.harness.wall_time_s
    ]
    return {"median": statistics.median(shares), "maximum": max(shares)} if shares else None


def _cost(request: RunRequest, seconds: float) -> list[dict[str, Any]]:
    _, cells = request.choice.load()
    return [cost_of_timing(backend, seconds) for backend in dict.fromkeys(cell.settings.backend for cell in cells)]


def _text(fields: dict[str, Any]) -> str:
    planted = fields["planted"]
    rate_name = "slower found in" if planted else "false alarms"
    rows = [["backend", "comparisons", rate_name, "95 % interval of the rate", "median half-width", "mean ratio"]]
    for one in fields["findings"]:
        rate = one["slower"] if planted else one["outside"]
        low, high = rate["interval"]
        width = "-" if one["half_width"] is None else f"{one['half_width']:.1%}"
        figures = [str(rate["of"]), f"{rate['share']:.1%}", f"{low:.1%} to {high:.1%}", width, f"{one['ratio']:.4f}"]
        rows.append([one["name"], *figures])
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
        lines.append(f"the runner's CPU: median {cpu['median']:.2%} of a core, at most {cpu['maximum']:.2%}")
    lines += [
        f"cost of timing on {one['backend']}: epochs {one['ratio']:.4f} of bare ones "
        f"[{one['low']:.4f} {one['high']:.4f}], {one['pairs']} pairs"
        for one in fields["cost"]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _kinds_text(kinds: dict[str, Any]) -> str:
    """Return the regression kinds found on a backend; all blocks of a cell and session are one comparison."""
    of = next(iter(kinds.values()))["of"]
    found = [f"{kind} in {rate['count']}" for kind, rate in kinds.items() if rate["count"]]
    return f"{', '.join(found) or 'nothing'}, of {of} comparison{'' if of == 1 else 's'}"
