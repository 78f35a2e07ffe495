"""What went wrong or is doubtful in a run, grouped so that one cause is told once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.context import NO_CONTEXT, RunContext, cell_caveats
from keras_matrix.analysis.comparison.table import Row
from keras_matrix.dashboards.charts.dot_plots import slot_of
from keras_matrix.dashboards.report.results import doubt_anchor
from keras_matrix.records.schema import MEASURED, Evidence, Record
from keras_matrix.records.store import latest_attempts

TERMINAL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
MOST_OUTPUT_CHARACTERS = 400_000  # of all failures of a page together; records keep more


@dataclass(frozen=True, slots=True)
class Failure:
    """Attempts of one cell that ended in the same way for the same reason."""

    title: str
    backend: str
    slot: int
    status: str
    reason: str
    where: str
    evidence: list[str]
    output: str


@dataclass(frozen=True, slots=True)
class Caveat:
    """A rule that fired: its name, what is doubtful, and what to do."""

    rule: str
    text: str
    advice: str
    title: str
    backend: str
    slot: int
    where: str


@dataclass(frozen=True, slots=True)
class CellCaveats:
    """What is doubtful about one cell's figures, although nothing failed; `anchor` is where its mark leads."""

    title: str
    backend: str
    slot: int
    anchor: str
    texts: tuple[str, ...]


def failures(records: Sequence[Record], rows: Sequence[Row]) -> list[Failure]:
    """Return the latest attempts without figures, those with the same cell, status and reason together.

    The more there are, the less is shown of the end of each one's output.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in latest_attempts(records):
        if record.status not in MEASURED:
            groups.setdefault((record.cell_id, record.status, record.reason or ""), []).append(record)
    titles, most = _titles(rows), MOST_OUTPUT_CHARACTERS // max(1, len(groups))
    found = [_failure(group, titles, most) for group in groups.values()]
    return sorted(found, key=lambda failure: (failure.title, failure.slot, failure.status, failure.reason))


def warnings(records: Sequence[Record], rows: Sequence[Row]) -> list[Caveat]:
    """Return every warning, the repeats of one cell that drew the same one together."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in latest_attempts(records):
        for warning in dict.fromkeys(record.warnings):
            groups.setdefault((warning, record.cell_id), []).append(record)
    titles = _titles(rows)
    found = [_warning(text, group, titles) for (text, _), group in groups.items()]
    return sorted(found, key=lambda caveat: (caveat.rule, caveat.title, caveat.slot, caveat.text))


def caveats(rows: Sequence[Row], run_context: RunContext = NO_CONTEXT) -> list[CellCaveats]:
    """Return the cells whose figures are doubtful, in the order of the table."""
    return [
        CellCaveats(row.title, backend, slot_of(backend), doubt_anchor(cell), found)
        for row in rows
        for backend, cell in row.cells.items()
        if (found := cell_caveats(cell, run_context))
    ]


def printable(output: str) -> str:
    """Return terminal output without its colours, backspaces and other control characters."""
    plain = TERMINAL_SEQUENCE.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub("", plain)


def superseded(records: Sequence[Record]) -> int:
    """Return how many attempts were tried again."""
    return len(records) - len(latest_attempts(records))


def _titles(rows: Sequence[Row]) -> dict[str, str]:
    return {cell.cell_id: row.title for row in rows for cell in row.cells.values()}


def _title(record: Record, titles: Mapping[str, str]) -> str:
    return titles.get(record.cell_id, record.settings.workload)


def _where(group: Sequence[Record]) -> str:
    repeats = ", ".join(str(record.repeat + 1) for record in group)
    return f"{'repeat' if len(group) == 1 else 'repeats'} {repeats}"


def _failure(group: Sequence[Record], titles: Mapping[str, str], most: int) -> Failure:
    record = group[0]
    output = next((r.evidence.output_tail for r in reversed(group) if r.evidence.output_tail.strip()), "")
    return Failure(
        _title(record, titles),
        record.settings.backend,
        slot_of(record.settings.backend),
        record.status.value,
        record.reason or "no reason was recorded",
        _where(group),
        _evidence(record.evidence),
        printable(output)[-most:],
    )


def _evidence(evidence: Evidence) -> list[str]:
    told = [
        (evidence.exit_code is not None, f"exit code {evidence.exit_code}"),
        (evidence.signal is not None, f"signal {evidence.signal}"),
        (evidence.deadline_exceeded, "time limit passed"),
        (evidence.oom_kills > 0, f"processes killed for memory: {evidence.oom_kills}"),
        (evidence.exception is not None, f"exception {evidence.exception}"),
        (evidence.result_problem is not None, f"result refused: {evidence.result_problem}"),
    ]
    return [text for holds, text in told if holds]


def _warning(text: str, group: Sequence[Record], titles: Mapping[str, str]) -> Caveat:
    # A warning reads `rule: what is doubtful; what to do`.
    rule, colon, rest = text.partition(": ")
    what, _, advice = (rest if colon else text).rpartition("; ")
    what, advice = (what, advice) if what else (advice, "")
    backend = group[0].settings.backend
    title = _title(group[0], titles)
    return Caveat(rule if colon else "warning", what, advice, title, backend, slot_of(backend), _where(group))
