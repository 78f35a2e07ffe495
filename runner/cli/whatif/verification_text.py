"""A verification for the terminal: predicted and measured step times, errors, order, regret and verdict."""

from __future__ import annotations

from collections.abc import Mapping

from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.whatif.verify import Round, SettingCheck, Verification
from keras_matrix.records.text import NOTHING, percentage, plural, seconds
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.cli.whatif.replay_text import interval
from keras_matrix.runner.service.whatif import VerifiedRun

Gains = Mapping[str, Estimate]


def verified_lines(result: VerifiedRun) -> list[str]:
    """Return the table of each round, what follows from it, and what was not measured."""
    found = result.verification
    lines = ["", _title(result)] + (
        _lines(found, result.gains) if found else ["nothing was measured: the baseline failed"]
    )
    names: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        names.setdefault(reason, []).append(name)
    lines += [f"not measured: {', '.join(own)}: {reason}" for reason, own in names.items()]
    return lines + ([result.note] if result.note else [])


def _title(result: VerifiedRun) -> str:
    counts = [len(one.step_times_s) for one in result.session.found.values() if one.step_times_s]
    if not counts:
        return "verification"
    low, high = min(counts), max(counts)
    each = plural(high, "process", "processes") if low == high else f"{low} to {high} processes"
    return f"verification: {plural(len(counts), 'setting')} measured interleaved, {each} each"


def _lines(found: Verification, gains: Gains) -> list[str]:
    lines = []
    for number, one in enumerate(found.rounds):
        if len(found.rounds) > 1:
            title = "as predicted" if not number else f"after a recalibration of the link: {found.recalibration}"
            lines += ["", f"round {number + 1}, {title}"]
        lines += _round_lines(one, found, gains)
    return lines


def _round_lines(one: Round, found: Verification, gains: Gains) -> list[str]:
    head = ["setting", "predicted", "p10 to p90", "measured", "95 % interval", "error", "prediction"]
    rows = [[*head, "measured against the baseline"], *(_row(row, gains) for row in one.rows)]
    lines = columns(rows, frozenset((1, 3, 5)))
    if one.mean_error is not None and one.largest_error is not None:
        lines += ["", f"error: mean {percentage(one.mean_error)}, largest {percentage(one.largest_error)}"]
    lines.append(_order_line(one))
    chosen = f"{one.chosen} was predicted to be fastest"
    if one.chosen == one.best:
        lines.append(f"regret: {percentage(0.0)}; {chosen}, and is")
    else:
        lines.append(f"regret: {percentage(one.regret)}; {chosen}, {one.best} is")
    lines.append(_choice_line(one.chosen, gains.get(one.chosen)))
    limits = found.limits
    lines.append(
        f"verdict: {one.verdict} (the predictions; error within {percentage(limits.error)}, regret "
        f"within {percentage(limits.regret)}, rank correlation at least {limits.correlation})"
    )
    return [*lines, *(f"  {reason}" for reason in one.reasons)]


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


def _order_line(one: Round) -> str:
    if one.correlation is None:
        return f"rank correlation: not known; {len(one.ranked)} settings differ by more than their noise, of at least 3"
    pairs = "" if one.pairs_in_order is None else f"; {percentage(one.pairs_in_order)} of pairs in the predicted order"
    return (
        f"rank correlation: {one.correlation:.2f} over {len(one.ranked)} settings that differ by more than noise{pairs}"
    )


def _row(row: SettingCheck, gains: Gains) -> list[str]:
    own = row.predicted
    error = percentage(row.error, signed=True)
    verdict = f"{row.verdict}" + (" (fitted)" if row.fitted else "")
    return [
        row.name,
        seconds(own.step_time_s),
        interval(own.low_s, own.high_s),
        seconds(row.measured.centre),
        _bounds(row.measured),
        error,
        verdict,
        _ratio(gains.get(row.name)),
    ]


def _bounds(found: Estimate) -> str:
    return NOTHING if found.bounds is None else interval(*found.bounds)
