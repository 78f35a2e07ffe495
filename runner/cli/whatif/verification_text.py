"""A verification for the terminal: predicted and measured step times, errors, order, regret and verdict."""

from __future__ import annotations

from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.whatif.verify import Round, Row, Verification
from keras_matrix.runner.cli.render.format import NOTHING, columns, seconds
from keras_matrix.runner.cli.whatif.replay_text import interval
from keras_matrix.runner.cli.whatif.verification import Verified


def verified_lines(result: Verified) -> list[str]:
    """Return the table of each round, what follows from it, and what was not measured."""
    found = result.verification
    lines = ["", "verification"] + (_lines(found) if found else ["nothing was measured: the baseline failed"])
    lines += [f"not measured: {name}: {reason}" for name, reason in result.left_out.items()]
    return lines + ([result.note] if result.note else [])


def _lines(found: Verification) -> list[str]:
    lines = []
    for number, one in enumerate(found.rounds):
        if len(found.rounds) > 1:
            title = "as predicted" if not number else f"after a recalibration of the link: {found.recalibration}"
            lines += ["", f"round {number + 1}, {title}"]
        lines += _round_lines(one, found)
    return lines


def _round_lines(one: Round, found: Verification) -> list[str]:
    rows = [["setting", "predicted", "p10 to p90", "measured", "95 % interval", "error", "verdict"]]
    rows += [_row(row) for row in one.rows]
    lines = columns(rows, frozenset((1, 3, 5)))
    if one.mean_error is not None and one.largest_error is not None:
        lines += ["", f"error: mean {one.mean_error:.1%}, largest {one.largest_error:.1%}"]
    lines.append(_order_line(one))
    chosen = f"{one.chosen} was predicted to be fastest"
    if one.chosen == one.best:
        lines.append(f"regret: 0.0 %; {chosen}, and is")
    else:
        lines.append(f"regret: {one.regret:.1%}; {chosen}, {one.best} is")
    lines.append(
        f"verdict: {one.verdict} (error within {found.limits.error:.0%}, regret within {found.limits.regret:.0%}, rank "
        f"correlation at least {found.limits.correlation})"
    )
    return [*lines, *(f"  {reason}" for reason in one.reasons)]


def _order_line(one: Round) -> str:
    if one.correlation is None:
        return f"rank correlation: not known; {len(one.ranked)} settings differ by more than their noise, of at least 3"
    pairs = "" if one.pairs_in_order is None else f"; {one.pairs_in_order:.0%} of pairs in the predicted order"
    return (
        f"rank correlation: {one.correlation:.2f} over {len(one.ranked)} settings that differ by more than noise{pairs}"
    )


def _row(row: Row) -> list[str]:
    own = row.predicted
    error = f"{row.error:+.1%}"
    verdict = f"{row.verdict}" + (" (fitted)" if row.fitted else "")
    return [
        row.name,
        seconds(own.step_time_s),
        interval(own.low_s, own.high_s),
        seconds(row.measured.centre),
        _bounds(row.measured),
        error,
        verdict,
    ]


def _bounds(found: Estimate) -> str:
    return NOTHING if found.bounds is None else interval(*found.bounds)
