"""A replay for the terminal and as JSON: the trace, the steady step, its critical path and shares, and what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_matrix.analysis.views.replay_view import ReplayView, largest_shares
from keras_matrix.analysis.whatif.graph import Graph, LinkCalibration
from keras_matrix.analysis.whatif.replay import GAP, SHARING, UNASSIGNED, PathPart, Share
from keras_matrix.analysis.whatif.trajectory import Strategy
from keras_matrix.records.codec import to_json
from keras_matrix.records.text import interval_text, number, percentage, plural, ratio_text, seconds
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.matrix.scalars import value_text
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.whatif.measurement import settings_of
from keras_matrix.runner.whatif.prediction import StrategyPrediction

LONGEST_NAME = 60
LEAST_COVERAGE = 0.9
MOST_STEPS = 6
MOST_RANKS = 5
NOT_ASSIGNED = {GAP, SHARING, UNASSIGNED}


def trace_lines(graph: Graph, coverage: float) -> list[str]:
    """Return what was traced, and how much of it is explained."""
    header = graph.header
    ranks = plural(header.world_size, "rank")
    if header.missing_ranks:
        more = ", ..." if len(header.missing_ranks) > MOST_RANKS else ""
        ranks += f", without {', '.join(map(str, header.missing_ranks[:MOST_RANKS]))}{more}"
    settings = settings_of(header.settings)
    title = f"{header.source}: {header.backend} on {header.device}" + (
        f", {settings_text(settings)}" if settings else ""
    )
    lines = [title, f"{ranks}; {plural(len(graph.nodes), 'node')}, each one of the {header.level} of a step"]
    times = header.step_times_s
    each = ", ".join(seconds(time) for time in times[:MOST_STEPS]) + (", ..." if len(times) > MOST_STEPS else "")
    mean = f"mean of {plural(len(times), 'step')}" + (" without the first" if len(times) > 1 else "")
    lines.append(f"measured with the profiler on: {seconds(graph.step_time_s)} a step ({mean}: {each})")
    low = "" if coverage >= LEAST_COVERAGE else f"; below {percentage(LEAST_COVERAGE)}, predictions are unsure"
    lines.append(f"explained by operations and their dependencies: {percentage(coverage)} of the step's time{low}")
    if header.link is not None:
        lines.append(link_line(header.link))
    return [*lines, *(f"caveat: {text}" for text in header.caveats)]


def link_line(link: LinkCalibration) -> str:
    """Return the calibration of a link."""
    if link.table:
        return f"link: a table of {plural(len(link.table), 'measured size')}; {link.source}"
    beta = f"beta {number(link.beta_s_per_byte * 1e9)} ns a byte"
    rate = f", {number(link.rate_bits_per_s / 1e6)} Mbit/s" if link.rate_bits_per_s else ""
    return f"link: alpha {seconds(link.alpha_s)}, {beta}{rate}; {link.source}"


def replay_lines(view: ReplayView, top: int) -> list[str]:
    """Return the replayed step, its critical path, and what the step's time is spent on."""
    replay = view.replay
    exposed, single = seconds(replay.exposed_communication_s), interval(replay.low_s, replay.high_s)
    lines = [
        f"replayed: {seconds(replay.step_time_s)} a step, single steps {single} (p10 to p90)",
        _held_out_line(view),
        f"exposed communication: {exposed}, {percentage(view.exposed_share)} of the step",
        "",
        *_path_lines(view, top),
    ]
    for name, shares in view.shares.items():
        if not {one.name for one in shares} <= NOT_ASSIGNED:
            lines += ["", *_share_lines(name, largest_shares(shares, top))]
    return lines


def prediction_lines(view: ReplayView, found: Sequence[StrategyPrediction]) -> list[str]:
    """Return a line for each what-if: its predicted step, the speed-up, and the settings that realise it.

    The baseline is that of the predictions: the traced setting without the profiler, if its time is known. Caveats of
    the trace are not repeated.
    """
    baseline = view.baseline
    if not found:
        return []
    rows = [["what-if", "predicted", "p10 to p90", "speed-up", "settings"]]
    rows.append(["baseline", seconds(baseline.step_time_s), interval(baseline.low_s, baseline.high_s), "", ""])
    for one in found:
        own = one.strategy
        gain = ratio_text(own.speed_up(baseline.step_time_s))
        rows.append([one.name, seconds(own.step_time_s), interval(own.low_s, own.high_s), gain, realised(own)])
    return ["", *columns(rows, frozenset((1, 3))), *_caveat_lines(found, view.graph.header.caveats)]


def _caveat_lines(found: Sequence[StrategyPrediction], known: Sequence[str]) -> list[str]:
    """Return each caveat of predictions once: those of all rows, then the others with the rows that have them."""
    rows: dict[str, list[str]] = {}
    for one in found:
        common = [text for text in one.graph.header.caveats if text not in known]
        for text in dict.fromkeys((*common, *one.caveats)):
            rows.setdefault(text, []).append(one.name)
    shared = [f"caveat: {text}" for text, names in rows.items() if len(names) == len(found)]
    own = [f"caveat for {' and for '.join(names)}: {text}" for text, names in rows.items() if len(names) < len(found)]
    return [*shared, *own]


def realised(strategy: Strategy) -> str:
    """Return the settings that realise a strategy, or why none do."""
    if strategy.settings is None:
        reason = strategy.reason.removeprefix("predicted only: ")
        return f"predicted only: {reason}"
    shown = {name: '""' if value == "" else value_text(value) for name, value in strategy.settings.items()}
    return ", ".join(f"{name}: {value}" for name, value in shown.items())


def interval(low_s: float, high_s: float) -> str:
    """Return an interval of seconds."""
    return interval_text(low_s, high_s, "s")


def document_of(view: ReplayView, found: Sequence[StrategyPrediction]) -> dict[str, Any]:
    """Return a replay and its predictions as plain values; times are in seconds."""
    graph, replay, baseline_s = view.graph, view.replay, view.baseline.step_time_s
    header = graph.header
    return {
        "source": header.source,
        "backend": header.backend,
        "device": header.device,
        "ranks": header.world_size,
        "missing_ranks": list(header.missing_ranks),
        "level": header.level,
        "nodes": len(graph.nodes),
        "coverage": view.coverage,
        "caveats": list(header.caveats),
        "measured_step_times_s": list(header.step_times_s),
        "measured_step_time_s": graph.step_time_s,
        "step_time_s": replay.step_time_s,
        "low_s": replay.low_s,
        "high_s": replay.high_s,
        "exposed_communication_s": replay.exposed_communication_s,
        "held_out": [
            {
                "step": one.step,
                "predicted_s": one.predicted_s,
                "measured_s": one.measured_s,
                "error": one.error,
                "repeated_error": one.repeated_error,
            }
            for one in view.held_out
        ],
        "critical_path": [_path_part(part) for part in replay.critical_path],
        **{
            f"by_{name}": [{"name": one.name, "time_s": one.time_s, "share": one.share} for one in shares]
            for name, shares in view.shares.items()
        },
        "baseline_step_time_s": baseline_s,
        "what_ifs": [_prediction(one, baseline_s) for one in found],
    }


def _path_part(part: PathPart) -> dict[str, Any]:
    node = part.node
    names = {"node": node.number, "rank": node.rank, "lane": node.lane, "name": node.name}
    times = {"time_s": part.time_s, "gap_s": part.gap_ns / 1e9}
    return {**names, "phase": node.phase, "layer": node.layer, **times}


def _prediction(one: StrategyPrediction, baseline_s: float) -> dict[str, Any]:
    gain = one.strategy.speed_up(baseline_s)
    return {**to_json(one.strategy), "name": one.name, "speed_up": gain, "caveats": list(one.caveats)}


def _held_out_line(view: ReplayView) -> str:
    if not view.held_out:
        return "error: not known; only one step was traced"
    errors = [percentage(step.error, signed=True) for step in view.held_out[:MOST_STEPS]]
    errors += ["..."] if len(view.held_out) > MOST_STEPS else []
    return (
        f"error, each step predicted from the one before: {', '.join(errors)}; mean "
        f"{percentage(view.mean_error)} (steps differ by {percentage(view.mean_difference)})"
    )


def _path_lines(view: ReplayView, top: int) -> list[str]:
    """Return the operations of the critical path with the most time, those of one name together."""
    rows = [["critical path", "phase", "share", "time a step", "count"]]
    rows += [
        [_short(part.name), part.phase, percentage(part.share), seconds(part.time_s), str(part.count)]
        for part in view.operations(top)
    ]
    return columns(rows, frozenset((2, 3, 4)))


def _share_lines(name: str, shares: Sequence[Share]) -> list[str]:
    rows = [[f"by {name}", "share", "time a step"]]
    rows += [[_short(one.name), percentage(one.share), seconds(one.time_s)] for one in shares]
    return columns(rows, frozenset((1, 2)))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
