"""Measure the matrix against itself under two labels, and say how often it finds a difference that is not there.

With --plant slower:0.1 the second label does a tenth more work: then it says how often that was found. Every call adds
a session to the results folder, and all sessions of the same kind are told together. It also measures what measuring
costs: epochs timed by this program against those of a bare `fit`, in turn in one process, and the runner's own CPU."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import TYPE_CHECKING, Any

from runner.cli.options import add_matrix_options, add_measuring_options, budget_s, chosen_matrix
from runner.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.selftest import Finding, Labelled, Rate
    from records.schema import Record
    from records.store import Results

NAME = "selftest"
HELP = "measure the matrix against itself: false alarms, detection, cost of measuring"
LABELS = ("base", "new")
LONGEST_COST_S = 86_400


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser)
    add_measuring_options(parser)
    group = parser.add_argument_group("what to test")
    group.add_argument("--plant", metavar="FAULT", help="plant a fault in the second label, as in slower:0.05")
    group.add_argument(
        "--stored", action="store_true", help="measure nothing; tell of the sessions the results folder holds"
    )
    group.add_argument(
        "--cost-s",
        type=cost_seconds,
        default=0.0,
        metavar="SECONDS",
        help="measure the cost of timing this long a backend",
    )
    group.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def cost_seconds(text: str) -> float:
    """Read how long the cost of timing is measured. Raises `UsageError` for what is no time."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LONGEST_COST_S:
        raise UsageError(f"--cost-s: must be a number of seconds from 0 to {LONGEST_COST_S}, got {text!r}")
    return value


def run(args: argparse.Namespace) -> int:
    """Measure, tell. Returns the exit code."""
    from records.store import Results
    from runner.cli.compare import check_plant

    check_plant(args.plant)
    results = Results(args.results)
    if not args.stored:
        _measure(args, results)
    sessions = stored_sessions(results, args.plant)
    if not sessions:
        raise UsageError(f"--stored: {args.results} holds no selftest{f' with {args.plant}' if args.plant else ''}")
    document = _document(sessions, args)
    print(json.dumps(document, indent=1, allow_nan=False) if args.json else _text(document))
    return 0 if document["findings"] else 1


def _measure(args: argparse.Namespace, results: Results) -> None:
    from records.faults import counterpart
    from runner.adaptive import Goal
    from runner.cli.run import measure_session, own_arm, request
    from runner.cli.stored import write_reports

    matrix, cells = chosen_matrix(args)
    faults = dict(zip(LABELS, (counterpart(args.plant), args.plant), strict=True))
    arms = {label: own_arm(args, cells, fault) for label, fault in faults.items()}
    asked = request(args, cells, arms, left_out=matrix.left_out)
    session = measure_session(args, results, asked, Goal(budget_s(args, matrix)))
    write_reports(session.runs.values())


def stored_sessions(results: Results, fault: str | None) -> list[Labelled]:
    """Return the records of every stored session of two labels of this Python, with this fault planted or none."""
    from records.faults import counterpart
    from records.store import Run

    faults = dict(zip(LABELS, (counterpart(fault), fault), strict=True))
    wanted = {label: {"python": None, "fault": planted} for label, planted in faults.items()}
    found: list[Labelled] = []
    for run in results.runs():
        about = run.about()
        if about.get("arms") == wanted and about.get("arm") == LABELS[0]:
            other = Run(results.root / str(about["runs"][LABELS[1]]))
            found.append((run.load()[0], other.load()[0]))
    return found


def _document(sessions: Sequence[Labelled], args: argparse.Namespace) -> dict[str, Any]:
    from analysis.gate import Rule
    from analysis.selftest import findings, gate_alarms, named, pooled
    from analysis.sequential import FIXED

    return {
        "version": 1,
        "planted": args.plant,
        "sessions": len(sessions),
        "notes": pooled(sessions),
        "findings": [_finding_json(one) for one in findings(sessions)],
        "gate_regressed": _rate_json(gate_alarms(sessions, Rule(threshold=0.0, looks=FIXED))),
        "named": {
            name: {kind: _rate_json(rate) for kind, rate in kinds.items()}
            for name, kinds in named(sessions, Rule(looks=FIXED)).items()
        },
        "parent_cpu_share": _parent_cpu([record for session in sessions for side in session for record in side]),
        "cost": _cost(args) if args.cost_s else [],
    }


def _finding_json(one: Finding) -> dict[str, Any]:
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


def _cost(args: argparse.Namespace) -> list[dict[str, Any]]:
    from runner.executors.cost import cost_of_timing

    _, cells = chosen_matrix(args)
    return [cost_of_timing(backend, args.cost_s) for backend in dict.fromkeys(cell.settings.backend for cell in cells)]


def _text(document: dict[str, Any]) -> str:
    from dashboards.format import plural
    from runner.cli.format import columns

    planted = document["planted"]
    told = "slower found in" if planted else "false alarms"
    rows = [["backend", "comparisons", told, "95 % interval of the rate", "median half-width", "mean ratio"]]
    for one in document["findings"]:
        rate = one["slower"] if planted else one["outside"]
        low, high = rate["interval"]
        width = "-" if one["half_width"] is None else f"{one['half_width']:.1%}"
        figures = [str(rate["of"]), f"{rate['share']:.1%}", f"{low:.1%} to {high:.1%}", width, f"{one['ratio']:.4f}"]
        rows.append([one["name"], *figures])
    gate = document["gate_regressed"]
    lines = [
        f"{plural(document['sessions'], 'session')} of the matrix against itself, {planted or 'nothing'} planted",
        *document["notes"],
        "",
        *columns(rows),
        "",
        f"gate at threshold 0: regressed in {gate['count']} of {gate['of']} sessions",
    ]
    lines += [f"named on {name}: {_kinds_text(kinds)}" for name, kinds in document["named"].items()]
    if not planted:
        lines.append("of 95 % intervals, 5 % miss 1 by right; what the rate's own interval must hold is 5 %")
    if cpu := document["parent_cpu_share"]:
        lines.append(f"the runner's CPU: median {cpu['median']:.2%} of a core, at most {cpu['maximum']:.2%}")
    lines += [
        f"cost of timing on {one['backend']}: epochs {one['ratio']:.4f} of bare ones "
        f"[{one['low']:.4f} {one['high']:.4f}], {one['pairs']} pairs"
        for one in document["cost"]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _kinds_text(kinds: dict[str, Any]) -> str:
    """Return what the comparisons of a backend were called, all blocks of a cell and session being one comparison."""
    of = next(iter(kinds.values()))["of"]
    told = [f"{kind} in {rate['count']}" for kind, rate in kinds.items() if rate["count"]]
    return f"{', '.join(told) or 'nothing'}, of {of} comparison{'' if of == 1 else 's'}"
