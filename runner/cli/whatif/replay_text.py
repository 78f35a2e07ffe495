"""A replay and its verification, for the terminal and as JSON: step, critical path, what-ifs, verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.replay_view import ReplayView, largest_shares
from keras_matrix.analysis.whatif.graph import Graph, LinkCalibration
from keras_matrix.analysis.whatif.replay import GAP, SHARING, UNASSIGNED, PathPart, Share
from keras_matrix.analysis.whatif.trajectory import Strategy
from keras_matrix.analysis.whatif.verify import Round, SettingCheck, Verification
from keras_matrix.records.codec import to_json
from keras_matrix.records.text import NOTHING, interval_text, number, percentage, plural, ratio_text, seconds
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.matrix.scalars import value_text
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.service.whatif import VerifiedRun
from keras_matrix.runner.whatif.measurement import settings_of
from keras_matrix.runner.whatif.prediction import StrategyPrediction

LONGEST_NAME = 60
LEAST_COVERAGE = 0.9
MOST_STEPS = 6
MOST_RANKS = 5
NOT_ASSIGNED = {GAP, SHARING, UNASSIGNED}
Gains = Mapping[str, Estimate]


def trace_lines(graph: Graph, coverage: float) -> list[str]:
    """Return what was traced, and how much of it is explained."""
    header = graph.header
    ranks = plural(header.world_size, "rank")
    if header.missing_ranks:
        more_text = ", ..." if len(header.missing_ranks) > MOST_RANKS else ""
        ranks += f", without {', '.join(map(str, header.missing_ranks[:MOST_RANKS]))}{more_text}"
    settings = settings_of(header.settings)
    title = f"{header.source}: {header.backend} on {header.device}" + (
        f", {settings_text(settings)}" if settings else ""
    )
    lines = [title, f"{ranks}; {plural(len(graph.nodes), 'node')}, each one of the {header.level} of a step"]
    times = header.step_times_s
    times_text = ", ".join(seconds(time) for time in times[:MOST_STEPS]) + (", ..." if len(times) > MOST_STEPS else "")
    mean_text = f"mean of {plural(len(times), 'step')}" + (" without the first" if len(times) > 1 else "")
    lines.append(f"measured with the profiler on: {seconds(graph.step_time_s)} a step ({mean_text}: {times_text})")
    low_text = "" if coverage >= LEAST_COVERAGE else f"; below {percentage(LEAST_COVERAGE)}, predictions are unsure"
    lines.append(f"explained by operations and their dependencies: {percentage(coverage)} of the step's time{low_text}")
    if header.link is not None:
        lines.append(link_line(header.link))
    return [*lines, *(f"caveat: {text}" for text in header.caveats)]


def link_line(link: LinkCalibration) -> str:
    """Return the calibration of a link."""
    if link.table:
        return f"link: a table of {plural(len(link.table), 'measured size')}; {link.source}"
    beta_text = f"beta {number(link.beta_s_per_byte * 1e9)} ns a byte"
    rate_text = f", {number(link.rate_bits_per_s / 1e6)} Mbit/s" if link.rate_bits_per_s else ""
    return f"link: alpha {seconds(link.alpha_s)}, {beta_text}{rate_text}; {link.source}"


def replay_lines(view: ReplayView, top: int) -> list[str]:
    """Return the replayed step, its critical path, and what the step's time is spent on."""
    replay = view.replay
    exposed, steps_interval = seconds(replay.exposed_communication_s), interval(replay.low_s, replay.high_s)
    lines = [
        f"replayed: {seconds(replay.step_time_s)} a step, single steps {steps_interval} (p10 to p90)",
        _held_out_line(view),
        f"exposed communication: {exposed}, {percentage(view.exposed_share)} of the step",
        "",
        *_path_lines(view, top),
    ]
    for name, shares in view.shares.items():
        if not {share.name for share in shares} <= NOT_ASSIGNED:
            lines += ["", *_share_lines(name, largest_shares(shares, top))]
    return lines


def prediction_lines(view: ReplayView, predicted: Sequence[StrategyPrediction]) -> list[str]:
    """Return a line for each what-if: its predicted step, the speed-up, and the settings that realise it.

    The baseline is that of the predictions: the traced setting without the profiler, if its time is known. Caveats of
    the trace are not repeated.
    """
    baseline = view.baseline
    if not predicted:
        return []
    rows = [["what-if", "predicted", "p10 to p90", "speed-up", "settings"]]
    rows.append(["baseline", seconds(baseline.step_time_s), interval(baseline.low_s, baseline.high_s), "", ""])
    for prediction in predicted:
        strategy = prediction.strategy
        gain = ratio_text(strategy.speed_up(baseline.step_time_s))
        rows.append(
            [
                prediction.name,
                seconds(strategy.step_time_s),
                interval(strategy.low_s, strategy.high_s),
                gain,
                realised(strategy),
            ]
        )
    return ["", *columns(rows, frozenset((1, 3))), *_caveat_lines(predicted, view.graph.header.caveats)]


def _caveat_lines(predicted: Sequence[StrategyPrediction], stated: Sequence[str]) -> list[str]:
    """Return each caveat of predictions once: those of all rows, then the others with the rows that have them."""
    rows: dict[str, list[str]] = {}
    for prediction in predicted:
        common = [text for text in prediction.graph.header.caveats if text not in stated]
        for text in dict.fromkeys((*common, *prediction.caveats)):
            rows.setdefault(text, []).append(prediction.name)
    shared_lines = [f"caveat: {text}" for text, names in rows.items() if len(names) == len(predicted)]
    particular_lines = [
        f"caveat for {' and for '.join(names)}: {text}" for text, names in rows.items() if len(names) < len(predicted)
    ]
    return [*shared_lines, *particular_lines]


def realised(strategy: Strategy) -> str:
    """Return the settings that realise a strategy, or why none do."""
    if strategy.settings is None:
        reason = strategy.reason.removeprefix("predicted only: ")
        return f"predicted only: {reason}"
    text_by_name = {name: '""' if value == "" else value_text(value) for name, value in strategy.settings.items()}
    return ", ".join(f"{name}: {value}" for name, value in text_by_name.items())


def interval(low_s: float, high_s: float) -> str:
    """Return an interval of seconds."""
    return interval_text(low_s, high_s, "s")


def document_of(view: ReplayView, predictions: Sequence[StrategyPrediction]) -> dict[str, Any]:
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
                "step": held_out_step.step,
                "predicted_s": held_out_step.predicted_s,
                "measured_s": held_out_step.measured_s,
                "error": held_out_step.error,
                "repeated_error": held_out_step.repeated_error,
            }
            for held_out_step in view.held_out
        ],
        "critical_path": [_path_part(part) for part in replay.critical_path],
        **{
            f"by_{name}": [{"name": share.name, "time_s": share.time_s, "share": share.share} for share in shares]
            for name, shares in view.shares.items()
        },
        "baseline_step_time_s": baseline_s,
        "what_ifs": [_prediction(prediction, baseline_s) for prediction in predictions],
    }


def _path_part(part: PathPart) -> dict[str, Any]:
    node = part.node
    names = {"node": node.number, "rank": node.rank, "lane": node.lane, "name": node.name}
    times = {"time_s": part.time_s, "gap_s": part.gap_ns / 1e9}
    return {**names, "phase": node.phase, "layer": node.layer, **times}


def _prediction(prediction: StrategyPrediction, baseline_s: float) -> dict[str, Any]:
    gain = prediction.strategy.speed_up(baseline_s)
    return {
        **to_json(prediction.strategy),
        "name": prediction.name,
        "speed_up": gain,
        "caveats": list(prediction.caveats),
    }


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
    rows += [[_short(share.name), percentage(share.share), seconds(share.time_s)] for share in shares]
    return columns(rows, frozenset((1, 2)))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


def verified_lines(result: VerifiedRun) -> list[str]:
    """Return the table of each round, what follows from it, and what was not measured."""
    verification = result.verification
    lines = ["", _title(result)] + (
        _lines(verification, result.gains) if verification else ["nothing was measured: the baseline failed"]
    )
    names: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        names.setdefault(reason, []).append(name)
    lines += [f"not measured: {', '.join(setting_names)}: {reason}" for reason, setting_names in names.items()]
    return lines + ([result.note] if result.note else [])


def _title(result: VerifiedRun) -> str:
    counts = [len(setting.step_times_s) for setting in result.session.found.values() if setting.step_times_s]
    if not counts:
        return "verification"
    low, high = min(counts), max(counts)
    processes_text = plural(high, "process", "processes") if low == high else f"{low} to {high} processes"
    return f"verification: {plural(len(counts), 'setting')} measured interleaved, {processes_text} each"


def _lines(verification: Verification, gains: Gains) -> list[str]:
    lines = []
    for index, checked_round in enumerate(verification.rounds):
        if len(verification.rounds) > 1:
            title = "as predicted" if not index else f"after a recalibration of the link: {verification.recalibration}"
            lines += ["", f"round {index + 1}, {title}"]
        lines += _round_lines(checked_round, verification, gains)
    return lines


def _round_lines(checked_round: Round, verification: Verification, gains: Gains) -> list[str]:
    head = ["setting", "predicted", "p10 to p90", "measured", "95 % interval", "error", "prediction"]
    rows = [[*head, "measured against the baseline"], *(_row(row, gains) for row in checked_round.rows)]
    lines = columns(rows, frozenset((1, 3, 5)))
    if checked_round.mean_error is not None and checked_round.largest_error is not None:
        lines += [
            "",
            f"error: mean {percentage(checked_round.mean_error)}, largest {percentage(checked_round.largest_error)}",
        ]
    lines.append(_order_line(checked_round))
    chosen_text = f"{checked_round.chosen} was predicted to be fastest"
    if checked_round.chosen == checked_round.best:
        lines.append(f"regret: {percentage(0.0)}; {chosen_text}, and is")
    else:
        lines.append(f"regret: {percentage(checked_round.regret)}; {chosen_text}, {checked_round.best} is")
    lines.append(_choice_line(checked_round.chosen, gains.get(checked_round.chosen)))
    limits = verification.limits
    lines.append(
        f"verdict: {checked_round.verdict} (the predictions; error within {percentage(limits.error)}, regret "
        f"within {percentage(limits.regret)}, rank correlation at least {limits.correlation})"
    )
    return [*lines, *(f"  {reason}" for reason in checked_round.reasons)]


def _choice_line(name: str, gain: Estimate | None) -> str:
    """Return whether the setting that was predicted to be fastest is faster than the baseline."""
    if gain is None:
        return "choice: no measured setting was predicted to be faster than the baseline"
    if gain.bounds is None:
        return f"choice: {name} against the baseline: {bracketed(gain)}, without an interval"
    word = ("faster" if gain.centre > 1 else "slower") if gain.excludes(1.0) else "not separable"
    return f"choice: {name} against the baseline: {_ratio(gain)}: {word}"


def _ratio(gain: Estimate | None) -> str:
    """Return how many times as fast as the baseline a setting is, paired by block, with the 95 % interval."""
    return "" if gain is None else bracketed(gain)


def _order_line(checked_round: Round) -> str:
    if checked_round.correlation is None:
        return (
            "rank correlation: not known; needs 3 settings that differ by more than their noise, got "
            f"{len(checked_round.ranked)}"
        )
    pairs_text = (
        ""
        if checked_round.pairs_in_order is None
        else f"; {percentage(checked_round.pairs_in_order)} of pairs in the predicted order"
    )
    return (
        f"rank correlation: {checked_round.correlation:.2f} over {len(checked_round.ranked)} settings that differ "
        f"by more than noise{pairs_text}"
    )


def _row(row: SettingCheck, gains: Gains) -> list[str]:
    prediction = row.predicted
    error = percentage(row.error, signed=True)
    verdict_text = f"{row.verdict}" + (" (fitted)" if row.fitted else "")
    return [
        row.name,
        seconds(prediction.step_time_s),
        interval(prediction.low_s, prediction.high_s),
        seconds(row.measured.centre),
        _bounds(row.measured),
        error,
        verdict_text,
        _ratio(gains.get(row.name)),
    ]


def _bounds(estimate: Estimate) -> str:
    return NOTHING if estimate.bounds is None else interval(*estimate.bounds)
