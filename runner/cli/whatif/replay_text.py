"""A replay for the terminal and as JSON: the trace, the steady step, its critical path and shares, and what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_matrix.analysis.whatif.graph import Graph, LinkCalibration
from keras_matrix.analysis.whatif.replay import (
    GAP,
    SHARING,
    UNASSIGNED,
    HeldOut,
    PathPart,
    Replay,
    Share,
    explained,
)
from keras_matrix.analysis.whatif.search.trajectory import Strategy
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


def replay_lines(replay: Replay, held_out: Sequence[HeldOut], top: int) -> list[str]:
    """Return the replayed step, its critical path, and what the step's time is spent on."""
    exposed = replay.exposed_communication_s
    single = interval(replay.low_s, replay.high_s)
    lines = [
        f"replayed: {seconds(replay.step_time_s)} a step, single steps {single} (p10 to p90)",
        _held_out_line(held_out),
        f"exposed communication: {seconds(exposed)}, {percentage(exposed / replay.step_time_s)} of the step",
        "",
        *_path_lines(replay, top),
    ]
    for name, shares in (("phase", replay.by_phase), ("layer", replay.by_layer), ("kind", replay.by_kind)):
        if not {one.name for one in shares} <= NOT_ASSIGNED:
            lines += ["", *_share_lines(name, shares, top)]
    return lines


def prediction_lines(baseline: Replay, found: Sequence[StrategyPrediction], known: Sequence[str]) -> list[str]:
    """Return a line for each what-if: its predicted step, the speed-up, and the settings that realise it.

    The baseline is that of the predictions: the traced setting without the profiler, if its time is known. `known` are
    the caveats of the trace; others are those of the predictions.
    """
    if not found:
        return []
    rows = [["what-if", "predicted", "p10 to p90", "speed-up", "settings"]]
    rows.append(["baseline", seconds(baseline.step_time_s), interval(baseline.low_s, baseline.high_s), "", ""])
    for one in found:
        own = one.strategy
        gain = ratio_text(baseline.step_time_s / own.step_time_s)
        rows.append([one.name, seconds(own.step_time_s), interval(own.low_s, own.high_s), gain, realised(own)])
    return ["", *columns(rows, frozenset((1, 3))), *_caveat_lines(found, known)]


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


def prediction_document(baseline_s: float, one: StrategyPrediction) -> dict[str, Any]:
    """Return a prediction as plain values."""
    own = one.strategy
    return {**to_json(own), "name": one.name, "speed_up": baseline_s / own.step_time_s, "caveats": list(one.caveats)}


def document_of(graph: Graph, replay: Replay, held_out: Sequence[HeldOut]) -> dict[str, Any]:
    """Return a replay as plain values; times are in seconds."""
    header = graph.header
    path = [
        {
            "node": part.node.number,
            "rank": part.node.rank,
            "lane": part.node.lane,
            "name": part.node.name,
            "phase": part.node.phase,
            "layer": part.node.layer,
            "time_s": _time_s(part),
            "gap_s": part.gap_ns / 1e9,
        }
        for part in replay.critical_path
    ]
    return {
        "source": header.source,
        "backend": header.backend,
        "device": header.device,
        "ranks": header.world_size,
        "missing_ranks": list(header.missing_ranks),
        "level": header.level,
        "nodes": len(graph.nodes),
        "coverage": explained(graph, replay.step_time_s),
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
            for one in held_out
        ],
        "critical_path": path,
        **{
            f"by_{name}": [{"name": one.name, "time_s": one.time_s, "share": one.share} for one in shares]
            for name, shares in (("phase", replay.by_phase), ("layer", replay.by_layer), ("kind", replay.by_kind))
        },
    }


def _held_out_line(held_out: Sequence[HeldOut]) -> str:
    if not held_out:
        return "error: not known; only one step was traced"
    errors = [percentage(one.error, signed=True) for one in held_out[:MOST_STEPS]]
    errors += ["..."] if len(held_out) > MOST_STEPS else []
    mean = sum(abs(one.error) for one in held_out) / len(held_out)
    repeated = sum(abs(one.repeated_error) for one in held_out) / len(held_out)
    return (
        f"error, each step predicted from the one before: {', '.join(errors)}; mean "
        f"{percentage(mean)} (steps differ by {percentage(repeated)})"
    )


def _path_lines(replay: Replay, top: int) -> list[str]:
    """Return the operations of the critical path with the most time, those of one name together."""
    found: dict[tuple[str, str], list[PathPart]] = {}
    for part in replay.critical_path:
        found.setdefault((part.node.name, part.node.phase or ""), []).append(part)
    ordered = sorted(found.items(), key=lambda item: -sum(map(_time_s, item[1])))
    rows = [["critical path", "phase", "share", "time a step", "count"]]
    shown = ordered[: _shown(len(ordered), top)]
    rows += [_path_row(name, phase, parts, replay) for (name, phase), parts in shown]
    if rest := [part for _, parts in ordered[len(shown) :] for part in parts]:
        rows.append(_path_row(f"{len(ordered) - len(shown)} others", "", rest, replay))
    return columns(rows, frozenset((2, 3, 4)))


def _path_row(name: str, phase: str, parts: Sequence[PathPart], replay: Replay) -> list[str]:
    time_s = sum(map(_time_s, parts))
    return [_short(name), phase, percentage(time_s / replay.step_time_s), seconds(time_s), str(len(parts))]


def _share_lines(name: str, shares: Sequence[Share], top: int) -> list[str]:
    rows = [[f"by {name}", "share", "time a step"]]
    shown = _shown(len(shares), top)
    rows += [[_short(one.name), percentage(one.share), seconds(one.time_s)] for one in shares[:shown]]
    if rest := shares[shown:]:
        total, time_s = sum(one.share for one in rest), sum(one.time_s for one in rest)
        rows.append([f"{len(rest)} others", percentage(total), seconds(time_s)])
    return columns(rows, frozenset((1, 2)))


def _shown(count: int, top: int) -> int:
    """Return how many of so many rows are shown: at most `top`, but never all except one."""
    return count if count <= top + 1 else top


def _time_s(part: PathPart) -> float:
    return (part.end_ns - part.start_ns) / 1e9


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
