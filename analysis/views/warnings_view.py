"""The warnings of a run as they are shown: by rule, and for each text the cells and repeats that have it. Pure.

Terminal and page render it: the terminal has a line for each rule, with the cells in which it fired in any attempt; the
page has an entry for each text of a cell, of the attempts that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.views.result_table import ResultTable
from keras_matrix.records.schema import Record
from keras_matrix.records.store import latest_attempts


@dataclass(frozen=True, slots=True)
class CellWarning:
    """A warning of one cell, under the title of its work, and the repeats whose counted attempt has it.

    `rule` is empty for a text that does not have the format of a warning, `advice` for one without.
    """

    rule: str
    problem: str
    advice: str
    title: str
    backend: str
    repeats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RuleWarnings:
    """The warnings of one rule: how many records have one, the names of their cells, the newest text, and each warning.

    A record with several of them counts once; `by_cell` are those of the attempts that count.
    """

    records: int
    cells: tuple[str, ...]
    example: str
    by_cell: tuple[CellWarning, ...]


def warnings_by_rule(records: Sequence[Record], table: ResultTable) -> list[RuleWarnings]:
    """Return the warnings of these records, whose table this is; the rule that most records have comes first."""
    warned: dict[str, list[tuple[str, str]]] = {}  # the cell of each record, and its newest text
    for record in records:
        for rule, text in {_rule(text): text for text in record.warnings}.items():
            warned.setdefault(rule, []).append((record.cell_id, text))
    records_by_warning: dict[str, dict[tuple[str, str], list[Record]]] = {rule: {} for rule in warned}
    for record in latest_attempts(records):
        for text in dict.fromkeys(record.warnings):
            records_by_warning[_rule(text)].setdefault((text, record.cell_id), []).append(record)
    titles = {view.cell.cell_id: work.row.title for work in table.works for view in work.cells}
    rules = [
        RuleWarnings(
            len(texts),
            tuple(_name(cell_id, table) for cell_id in dict.fromkeys(cell_id for cell_id, _ in texts)),
            texts[-1][1],
            tuple(_of_cell(text, group, titles) for (text, _), group in records_by_warning[rule].items()),
        )
        for rule, texts in warned.items()
    ]
    return sorted(rules, key=lambda warnings: -warnings.records)


def _name(cell_id: str, table: ResultTable) -> str:
    return table.by_id[cell_id].name if cell_id in table.by_id else cell_id


def _rule(text: str) -> str:
    """Return the rule of a warning; a text without one is its own."""
    return _parts(text)[0] or text


def _of_cell(text: str, group: Sequence[Record], titles: Mapping[str, str]) -> CellWarning:
    settings = group[0].settings
    title = titles.get(group[0].cell_id, settings.workload)
    return CellWarning(*_parts(text), title, settings.backend, tuple(record.repeat for record in group))


def _parts(text: str) -> tuple[str, str, str]:
    """Return the rule, the problem and the advice of a warning, whose format is `rule: problem; advice`."""
    rule, colon, detail = text.partition(": ")
    problem, _, advice = (detail if colon else text).rpartition("; ")
    return rule if colon else "", problem or advice, advice if problem else ""
