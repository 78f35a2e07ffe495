"""An explanation of a changed step time as text and for machines."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison.primary_metric import figure_of, mean_figure
from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.explanation import Difference, Explanation, Fact
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Record
from keras_matrix.records.text import amount, bytes_text, percentage, plural, printable, seconds
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.matrix.settings_text import settings_text

Names = tuple[str, str]
SIZES = ("bytes written",)
MANY = 1000


def names(base: Record, new: Record) -> Names:
    """Return a name for each side: its cell, and its run."""
    first_text, second_text = (
        f"{record.settings.backend} {settings_text(record.settings)}, cell {record.cell_id} of run {record.run_id}"
        for record in (base, new)
    )
    return first_text, second_text


def lines(names: Names, explained: Explanation) -> list[str]:
    """Return the lines: the change, the differences with their shares, what else differs, caveats."""
    texts = [*_sides(names), f"time per step {_change(explained)}", "", *_differences(explained)]
    texts += ["", "also different:", *_facts(explained.facts)] if explained.facts else []
    texts += ["", *(f"caveat: {line}" for line in explained.caveats)] if explained.caveats else []
    return [printable(line) for line in texts]


def as_json(names: Names, explained: Explanation) -> str:
    """Return the explanation as one JSON document; docs/explain.md explains its fields."""
    shares = {"change_s": explained.change_s}
    shares |= {f"{name}_share": explained.share(getattr(explained, f"{name}_s")) for name in ("others", "unexplained")}
    return document({"base": names[0], "new": names[1], **shares, **to_json(explained)})


def without(names: Names, problem: str, *, as_json: bool) -> str:
    """Return why nothing is explained."""
    if as_json:
        return document({"base": names[0], "new": names[1], "problem": problem})
    return "\n".join(printable(line) for line in [*_sides(names), f"not explained: {problem}"])


def of_commands(names: Names, base: Sequence[Record], new: Sequence[Record], ratio: Estimate, *, as_json: bool) -> str:
    """Return the comparison of external commands, of which only the metric is known."""
    problem = "an external command has no trace; only its metric is compared"
    figure = figure_of(new)
    values = [mean_figure(side) for side in (base, new)]
    if as_json:
        fields = {"metric": figure.name, "base_value": values[0], "new_value": values[1], "ratio": to_json(ratio)}
        return document({"base": names[0], "new": names[1], "problem": problem, **fields})
    texts = [amount(value, figure.unit) for value in values]
    summary_lines = [*_sides(names), f"{figure.name} {texts[0]} -> {texts[1]}, new / base {bracketed(ratio)}", problem]
    return "\n".join(map(printable, summary_lines))


def fact_text(fact: Fact) -> str:
    """Return a fact as `name base -> new`."""
    if fact.base is None and fact.new is None:
        return fact.name
    return f"{fact.name} {_value(fact, fact.base)} -> {_value(fact, fact.new)}"


def _sides(names: Names) -> list[str]:
    return [f"base: {names[0]}", f"new:  {names[1]}"]


def _change(explained: Explanation) -> str:
    times_text = f"{seconds(explained.base_s)} -> {seconds(explained.new_s)}"
    return f"{times_text}: {_signed(explained.change_s)}, new / base {bracketed(explained.ratio)}"


def _differences(explained: Explanation) -> list[str]:
    if explained.nothing:
        return ["no difference is larger than the noise: the interval of the ratio contains 1; nothing is explained"]
    rows = [
        line for number, difference in enumerate(explained.differences, 1) for line in _difference(number, difference)
    ]
    if not explained.differences:
        rows.append("   no difference has 1 % of the change")
    rows.append(
        _row("", explained.others_s, explained.share(explained.others_s), plural(explained.others, "other difference"))
    )
    return [*rows, _row("", explained.unexplained_s, explained.share(explained.unexplained_s), "unexplained")]


def _difference(number: int, difference: Difference) -> list[str]:
    indent = " " * len(_row("", 0.0, 0.0, ""))
    scatter = () if difference.half_width_s is None else (f"+- {seconds(difference.half_width_s)} between steps",)
    caveats = () if difference.is_clear or not scatter else ("not larger than that: it may be noise",)
    details = [*difference.details, ", ".join((*scatter, *caveats))]
    return [
        _row(f"{number}.", difference.change_s, difference.share, difference.title),
        *(f"{indent}{line}" for line in details if line),
    ]


def _row(number: str, time_s: float, share: float, text: str) -> str:
    return f"{number:2} {_signed(time_s):>9}  {percentage(share):>8}  {text}"


def _signed(time_s: float) -> str:
    return f"{'+' if time_s >= 0 else ''}{seconds(time_s)}"


def _facts(facts: Sequence[Fact]) -> list[str]:
    topics = dict.fromkeys(fact.topic for fact in facts)
    return [f"  {topic}: {'; '.join(fact_text(f) for f in facts if f.topic == topic)}" for topic in topics]


def _value(fact: Fact, value: str | float | None) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, str):
        return value
    if fact.topic == "start and first epoch":
        return seconds(value)
    if fact.topic == "memory" or fact.name in SIZES:
        return bytes_text(round(value))
    return f"{value:,.4g}" if isinstance(value, float) and value < MANY else f"{round(value):,}"
