"""The answer of a race as text, as Markdown for a comment, and for machines."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.views.tune_view import AGAINST_DEFAULT, CandidateRow, RaceAnswer, TuneView
from keras_matrix.records.codec import to_json
from keras_matrix.records.text import NOTHING, percent_change, plural, printable, ratio_text, seconds
from keras_matrix.runner.cli.render.format import columns, document, markdown_table, markdown_text

UNTRIED_SHOWN = 12
RANKING = ["candidate", "median", "ratio to the lowest", "blocks", "ended"]
OF_JOB = ["start", "ahead of the default from step"]
EFFECTS = ["setting", "instead of", "time", "single pairs", "pairs"]


def text(view: TuneView) -> str:
    """Return the answer for a terminal."""
    lines = ["", view.head, view.promise, ""]
    for answer in view.answers:
        lines += [*_answer_lines(answer), ""]
    for title, rows in _tables(view):
        lines += [title, *(f"  {line}" for line in columns(rows, frozenset({1}))), ""]
    for title, texts in _lists(view):
        lines += [title, *(f"  {line}" for line in texts), ""]
    return "\n".join(map(printable, lines)).rstrip()


def markdown(view: TuneView) -> str:
    """Return the answer as Markdown."""
    lines = [f"### {view.head}", "", f"{view.promise[0].upper()}{view.promise[1:]}.", ""]
    for answer in view.answers:
        first, *others = _answer_facts(answer)
        lines += [f"**{markdown_text(first)}**", "", *(f"- {markdown_text(line)}" for line in others)]
        lines += [f"- `{answer.use.command}`", "", "```yaml", answer.use.entry, "```", ""]
    for title, rows in _tables(view):
        lines += [f"#### {title}", "", *markdown_table(rows), ""]
    for title, texts in _lists(view):
        lines += [f"#### {title}", "", *(f"- {markdown_text(line)}" for line in texts), ""]
    return "\n".join(map(printable, lines))


def as_json(view: TuneView, exit_code: int) -> str:
    """Return the answer as one JSON document."""
    return document(
        {
            "run_id": view.run_id,
            "workload": view.workload,
            "outcome": str(view.outcome),
            "exit_code": exit_code,
            "within": view.within,
            "delta": view.delta,
            "blocks": view.blocks,
            "answers": [to_json(answer) for answer in view.answers],
            "ranking": [to_json(row) for row in view.rows],
            "failed": dict(view.failed),
            "effects": [to_json(effect) for effect in view.effects],
            "impossible": dict(view.impossible),
            "untried": list(view.untried),
            "advice": list(view.advice),
        }
    )


def _answer_facts(answer: RaceAnswer) -> list[str]:
    """Return the answer in lines, the first of which names it."""
    name = answer.name if answer.decided else f"undecided; {answer.name} leads"
    lines = [f"{answer.title}: {name}", f"{AGAINST_DEFAULT}: {answer.gain_text}"]
    if answer.other_numbers:
        lines.append(f"numbers differ from the default's: {', '.join(answer.other_numbers)}")
    if answer.tied:
        lines.append(f"{'tied' if answer.decided else 'any of these may be as fast'}: {', '.join(answer.tied)}")
    if not answer.decided and answer.leader_excess is not None:
        lines.append(f"the leader is at most {percent_change(1 + answer.leader_excess)} from the best")
    return [*lines, *answer.remarks]


def _answer_lines(answer: RaceAnswer) -> list[str]:
    first, *others = _answer_facts(answer)
    entry = [f"    {line}" for line in answer.use.entry.splitlines()]
    return [first, *(f"  {line}" for line in others), f"  {answer.use.command}", *entry]


def _tables(view: TuneView) -> list[tuple[str, list[list[str]]]]:
    ranking = [[*RANKING, *(OF_JOB if view.is_job else [])], *(_row(row, view) for row in view.rows)]
    tables = [
        (f"ranking by {view.cost_name}", ranking),
        ("effects of settings, in the first blocks", [EFFECTS, *view.effect_rows]),
    ]
    return [(title, rows) for title, rows in tables if len(rows) > 1]


def _row(row: CandidateRow, view: TuneView) -> list[str]:
    remarks = [row.state, *(["default"] if row.is_default else []), *(["other numbers"] if row.other_numbers else [])]
    ratio = bracketed(row.ratio) if row.ratio else ratio_text(1.0)
    cells = [row.name, seconds(row.cost_s), ratio, str(len(row.ratios)), ", ".join(remarks)]
    if not view.is_job:
        return cells
    step = row.start.break_even_step if row.start else None
    break_even = "" if row.is_default else "never" if step is None else f"{step:,}"
    return [*cells, seconds(row.start.start_s) if row.start else NOTHING, break_even]


def _lists(view: TuneView) -> list[tuple[str, Sequence[str]]]:
    unlisted_count = len(view.untried) - UNTRIED_SHOWN
    untried = [
        *view.untried[:UNTRIED_SHOWN],
        *([f"and {unlisted_count} more: --json lists all of them"] if unlisted_count > 0 else []),
    ]
    lists = [
        (
            f"{plural(len(view.failed), 'candidate')} left",
            view.failed_texts,
        ),
        ("impossible", view.impossible_texts),
        ("never tried", untried),
        ("next", list(view.advice)),
    ]
    return [(title, lines) for title, lines in lists if lines]
