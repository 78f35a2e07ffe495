"""A comparison of base and new as text, as Markdown for a comment, and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_matrix.analysis.comparison.between_machines import (
    A,
    B,
    ComparedFigure,
    MachineComparison,
    MachineRow,
    StoredMachine,
)
from keras_matrix.analysis.comparison.counts import FIRST, KINDS, LATER, CountChange, blindness
from keras_matrix.analysis.comparison.machines import SHOWN_CHARACTERS
from keras_matrix.analysis.comparison.ratios import bracketed, change_text
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.comparison_view import CellChange, ComparisonView
from keras_matrix.records.codec import to_json
from keras_matrix.records.settings import COMPILED, DIRECT, NATIVE
from keras_matrix.records.text import (
    MILLIJOULE,
    NOTHING,
    amount,
    count,
    number,
    percent_change,
    percentage_interval,
    printable,
    quantity,
)
from keras_matrix.runner.cli.render.format import columns, document, markdown_table, markdown_text

FACETS = ["workload", "backend", "median", "p95", "first epoch", "scatter between", "scatter within"]
FACETS += ["unstable", "recompiles", "forward FLOPs"]
CAVEATS_SHOWN = 12
TWO_SESSIONS = "base and new are from two sessions: intervals include the spread between sessions, where it is known"
SHOWN_FROM = "would show from"  # the smallest change that the interval would have shown
CALL_NAMES = {NATIVE: "native", DIRECT: "Keras, eager", COMPILED: "Keras, compiled"}
HEAD = ["workload", "backend", "base", "new", "new / base", "95 % interval", "blocks", "verdict"]


def text(view: ComparisonView) -> str:
    """Return the findings for a terminal."""
    tables = _tables(view)
    lines = [[line.rstrip() for line in columns(rows)] for rows in tables if len(rows) > 1]
    return "\n".join(printable(line) for line in [*(line for t in lines for line in (*t, "")), *_remarks(view)])


def _tables(view: ComparisonView) -> list[list[list[str]]]:
    return [_rows(view), _call_rows(view), _facet_rows(view), _count_rows(view)]


def markdown(view: ComparisonView) -> str:
    """Return the findings as Markdown: the verdict, the table, what changed."""
    verdict, *further_remarks = _remarks(view)
    remark_lines = [f"- {markdown_text(line)}" for line in further_remarks]
    parts = [markdown_table(rows) for rows in _tables(view) if len(rows) > 1]
    tables = [line for part in parts for line in (*part, "")][:-1]
    return "".join(f"{printable(line)}\n" for line in [f"### Benchmarks: {verdict}", "", *tables, "", *remark_lines])


def as_json(view: ComparisonView) -> str:
    """Return the findings as one JSON document; docs/comparing.md explains its fields."""
    versus = view.versus
    fields = {
        "outcome": str(versus.outcome),
        "threshold": view.threshold,
        "base": versus.runs[0] if versus.runs else None,
        "new": versus.runs[1] if versus.runs else None,
        "notes": list(versus.notes),
        "incomplete": versus.incomplete,
        "paired": versus.paired,
        "changed": list(versus.changed),
        "comparisons": [_change_json(change, has_null=versus.null is not None) for change in view.cells],
        "by_backend": {name: to_json(ratio) for name, ratio in versus.by_backend.items()},
        "whole": to_json(versus.suite) if versus.suite else None,
    }
    if versus.null:
        fields["null"] = {**to_json(versus.null), "probability": versus.null.probability, "void": versus.null.void}
    return document(fields)


def _change_json(change: CellChange, *, has_null: bool) -> dict[str, Any]:
    comparison, base, new = change.comparison, change.base, change.new
    return {
        "cell_id": comparison.cell_id,
        "settings": to_json(comparison.either.settings),
        "figure": to_json(comparison.either.figure),
        "base_step_time_s": base.value if change.is_step else None,
        "new_step_time_s": new.value if change.is_step else None,
        "base_median": base.median,
        "base_p95": base.p95,
        "new_median": new.median,
        "new_p95": new.p95,
        "base_figure": base.value,
        "new_figure": new.value,
        "ratio": to_json(comparison.ratio) if comparison.ratio else None,
        "outcome": str(comparison.outcome),
        "adjusted_p": comparison.adjusted_p,
        "more_blocks": comparison.more_blocks,
        "called_early": comparison.early,
        "reason": comparison.reason,
        "kinds": [str(kind) for kind in comparison.facets.kinds] if comparison.facets else [],
        "facets": to_json(comparison.facets) if comparison.facets else None,
        "caveats": list(comparison.caveats),
        "failures": list(comparison.failures),
        "log_ratios": list(comparison.logs),
        "all_data": to_json(comparison.all_data) if comparison.all_data else None,
        **({"shown_from": change.shown_from} if has_null else {}),
        **({"counts": [_count_json(counted) for counted in change.counts]} if change.counts else {}),
    }


def _count_json(counted: CountChange) -> dict[str, Any]:
    return {
        "step": counted.step,
        "count": counted.kind.field,
        "base": list(counted.base),
        "new": list(counted.new),
        "ratio": counted.ratio,
        "outcome": str(counted.outcome),
    }


def _rows(view: ComparisonView) -> list[list[str]]:
    has_null = view.versus.null is not None
    rows = [[*HEAD, *([SHOWN_FROM] if has_null else [])]]
    for change in view.cells:
        comparison = change.comparison
        figures = [amount(side.value, comparison.either.figure.unit) for side in (change.base, change.new)]
        blocks = str(len(comparison.logs)) if view.versus.paired else NOTHING
        shown_from = [percent_change(1 + change.shown_from) if change.shown_from else NOTHING] if has_null else []
        ratio = _ratio(comparison.ratio)
        rows.append([change.title, change.backend, *figures, *ratio, blocks, comparison.said, *shown_from])
    for mean in view.means:
        estimate = mean.suite.estimate
        rows.append(
            [
                "geometric mean",
                mean.backend or "all",
                "",
                "",
                *_ratio(estimate),
                str(estimate.count),
                "",
                *([""] if has_null else []),
            ]
        )
    return rows


def _call_rows(view: ComparisonView) -> list[list[str]]:
    """Return the table of the ways to call a model: for each the figure of base and of new, and the change."""
    rows = [["workload", "backend", *(CALL_NAMES.get(call, call) for call in view.calls)]]
    for row in view.by_call:
        made = [row.changes.get(call) for call in view.calls]
        rows.append([row.title, row.backend, *(NOTHING if change is None else _both_sides(change) for change in made)])
    return rows


def _both_sides(change: CellChange) -> str:
    unit = change.comparison.either.figure.unit
    base, new = (amount(side.value, unit) for side in (change.base, change.new))
    ratio = change.comparison.ratio
    return f"{base} → {new}, {change_text(ratio)}" if ratio else f"{base} → {new}"


def _facet_rows(view: ComparisonView) -> list[list[str]]:
    """Return the table of the other figures, new against base."""
    rows = [FACETS]
    for change in view.cells:
        if (facets := change.comparison.facets) is not None:
            scatters = [_times(verdict.estimate) for verdict in (facets.scatter, facets.scatter_within)]
            counts = (facets.unstable_processes, facets.recompiles, facets.forward_flops)
            count_texts = [f"{count(counted.new)} : {count(counted.base)}" for counted in counts]
            step_texts = [
                percent_change(ratio) if ratio else NOTHING for ratio in (change.median_ratio, change.p95_ratio)
            ]
            first_epoch_text = _change(facets.first_epoch.estimate)
            rows.append([change.title, change.backend, *step_texts, first_epoch_text, *scatters, *count_texts])
    return rows


def _count_rows(view: ComparisonView) -> list[list[str]]:
    """Return the table of counts: a row for the first step of a cell, and one for a later step."""
    kinds = [kind for kind in KINDS if any(counted.kind == kind for change in view.cells for counted in change.counts)]
    rows = [["workload", "backend", "of", *(kind.name for kind in kinds)]]
    for change in view.cells:
        for step in (FIRST, LATER):
            text_by_kind = {counted.kind: counted.text for counted in change.counts if counted.step == step}
            if text_by_kind:
                cells = [text_by_kind.get(kind, NOTHING) for kind in kinds]
                rows.append([change.title, change.backend, f"a {step}", *cells])
    return rows


def _count_remarks(view: ComparisonView) -> list[str]:
    """Return the certain differences of counts, and what no count shows."""
    counts = [(change.name, counted) for change in view.cells for counted in change.counts]
    lines = [f"{name}: {counted.said}" for name, counted in counts if counted.said]
    return [*_shortened(lines, "counts"), *([blindness([counted for _, counted in counts])] if counts else [])]


def _times(ratio: Estimate | None) -> str:
    return NOTHING if ratio is None else bracketed(ratio)


def _ratio(ratio: Estimate | None) -> list[str]:
    if ratio is None:
        return [NOTHING, NOTHING]
    bounds = None if ratio.bounds is None else [bound - 1 for bound in ratio.bounds]
    return [percent_change(ratio.centre), percentage_interval(*bounds) if bounds else "none"]


def _change(ratio: Estimate | None) -> str:
    """Return a ratio as a change with its interval, if it has one."""
    return NOTHING if ratio is None else change_text(ratio)


def _remarks(view: ComparisonView) -> list[str]:
    """Return the verdict, then remarks: findings, failures, changed versions, caveats and notes."""
    versus, cells = view.versus, [(change.name, change.comparison) for change in view.cells]
    summary = ", ".join(f"{times} {outcome}" for outcome, times in view.outcomes.items())
    verdict = "void" if versus.null and versus.null.void else versus.outcome
    lines = [f"{verdict} ({summary or 'nothing in common'})"]
    lines += [f"null arms: {versus.null.said}"] if versus.null else []
    lines += [f"{name}: {change.facets.said}" for name, change in cells if change.facets and change.facets.said]
    lines += _count_remarks(view)
    lines += [
        f"{name}: with the disturbed blocks, too: {_change(change.all_data)}"
        for name, change in cells
        if change.all_data
    ]
    lines += [f"failed: {name}: {failure}" for name, change in cells for failure in change.failures]
    if versus.changed:
        lines.append(f"changed: {', '.join(versus.changed)}")
    lines += _shortened([f"caveat: {name}: {caveat}" for name, change in cells for caveat in change.caveats])
    if not versus.paired:
        lines += [TWO_SESSIONS, *([view.advice] if view.advice else [])]
    if versus.runs:
        lines.append("base {}, new {}".format(*versus.runs))
    return [*lines, *versus.notes]


def _shortened(lines: Sequence[str], what: str = "caveats") -> list[str]:
    unlisted_count = len(lines) - CAVEATS_SHOWN
    return [
        *lines[:CAVEATS_SHOWN],
        *([f"and {unlisted_count} more {what}: --json lists all of them"] if unlisted_count > 0 else []),
    ]


def machines_text(found: MachineComparison) -> str:
    """Return the comparison of two machines for a terminal."""
    lines = [f"{side}: {machine.machine.host_id[:SHOWN_CHARACTERS]}, {machine.text}" for side, machine in _sides(found)]
    rows = _machine_rows(found)
    table = [line.rstrip() for line in columns(rows)] if len(rows) > 1 else []
    remarks = [f"{row.title} on {row.backend}: {row.reason}" for row in found.rows if row.reason]
    remarks += _cost_remarks(found)
    if found.changed:
        remarks.append(f"changed: {', '.join(found.changed)}")
    remarks += [*_shortened(found.only, "cells"), *found.notes]
    return "\n".join(map(printable, [*lines, "", *table, *([""] if table else []), *found.summary, *remarks]))


def _sides(found: MachineComparison) -> list[tuple[str, StoredMachine]]:
    return list(zip((A, B), found.machines, strict=True))


def _machine_rows(found: MachineComparison) -> list[list[str]]:
    """Return the table: the times, the energies if both machines count the same, and the costs if there are prices."""
    has_energy, currency = any(row.energies for row in found.rows), found.currency
    head = ["workload", "backend", A, B, "B / A", "faster"]
    head += [f"energy {A}", f"energy {B}"] if has_energy else []
    head += [f"{currency} per 1M {A}", f"{currency} per 1M {B}", "B / A", "cheaper"] if currency else []
    rows = [head]
    for row in found.rows:
        times = [amount(cell.step_time.centre if cell.step_time else None, cell.figure.unit) for cell in row.cells]
        texts = [row.title, row.backend, *times, *_compared(row.time)]
        energies = row.energies or (None, None)
        texts += [quantity(energy.centre if energy else None, MILLIJOULE) for energy in energies] if has_energy else []
        money = [number(cost.estimate.centre if cost.estimate else None) for cost in row.costs]
        texts += [*money, *_compared(row.cost)] if currency else []
        rows.append(texts)
    return rows


def _compared(compared: ComparedFigure | None) -> list[str]:
    return [bracketed(compared.estimate), compared.text] if compared else [NOTHING, NOTHING]


def _cost_remarks(found: MachineComparison) -> list[str]:
    """Return what costs are made of on each machine, and why others are not known."""
    texts = [
        f"{side}: cost of {row.costs[place].basis}"
        for place, side in enumerate((A, B))
        for row in found.rows
        if row.costs and row.costs[place].basis
    ]
    texts += [
        f"{side}: no cost: {row.costs[place].reason}"
        for place, side in enumerate((A, B))
        for row in found.rows
        if row.costs and row.costs[place].reason
    ]
    return list(dict.fromkeys(texts))


def machines_json(found: MachineComparison) -> str:
    """Return the comparison of two machines as one JSON document."""
    fields = {
        "machines": {side: to_json(machine.machine) for side, machine in _sides(found)},
        "currency": found.currency,
        "rows": [_machine_row_json(row) for row in found.rows],
        "only": list(found.only),
        "changed": list(found.changed),
        "notes": list(found.notes),
    }
    return document(fields)


def _machine_row_json(row: MachineRow) -> dict[str, Any]:
    return {
        "title": row.title,
        "backend": row.backend,
        "cell_ids": [cell.cell_id for cell in row.cells],
        "figures": [to_json(cell.step_time) if cell.step_time else None for cell in row.cells],
        "ratio": to_json(row.time.estimate) if row.time else None,
        "faster": row.time.lower if row.time and row.time.is_shown else None,
        "reason": row.reason,
        "joules_per_sample": [to_json(energy) for energy in row.energies] if row.energies else None,
        "costs": [to_json(cost) for cost in row.costs],
        "cost_ratio": to_json(row.cost.estimate) if row.cost else None,
        "cheaper": row.cost.lower if row.cost and row.cost.is_shown else None,
    }
