"""The failures, warnings and caveats of a run, grouped so that each cause is listed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.comparison.table import Row
from keras_matrix.analysis.views.result_table import ResultTable
from keras_matrix.dashboards.charts.dot_plots import slot_of
from keras_matrix.dashboards.report.results import caveat_anchor
from keras_matrix.records.schema import MEASURED, Evidence, Record, Status
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import printable

MOST_OUTPUT_CHARACTERS = 400_000  # of all failures of a page together; records contain more


@dataclass(frozen=True, slots=True)
class FailureEntry:
    """A failure, a warning or a caveat of one cell: its label (a status or the name of a rule) and its texts.

    `where` names its repeats; `output` is the end of the output of a failed process, None for other entries; `anchor`
    is the target of the cell's mark in the table of figures.
    """

    title: str
    backend: str
    label: str
    texts: tuple[str, ...]
    where: str = ""
    advice: str = ""
    evidence: list[str] = field(default_factory=list)
    output: str | None = None
    anchor: str = ""


def failures(records: Sequence[Record], rows: Sequence[Row]) -> list[FailureEntry]:
    """Return the latest attempts without figures, grouped by cell, status and reason.

    The more groups there are, the less of each one's output is shown.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in latest_attempts(records):
        if record.status not in MEASURED:
            groups.setdefault((record.cell_id, record.status, record.reason or ""), []).append(record)
    titles, most = _titles(rows), MOST_OUTPUT_CHARACTERS // max(1, len(groups))
    return _sorted([_failure(group, titles, most) for group in groups.values()])


def warnings(records: Sequence[Record], rows: Sequence[Row]) -> list[FailureEntry]:
    """Return every warning, grouped by cell and text."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in latest_attempts(records):
        for warning in dict.fromkeys(record.warnings):
            groups.setdefault((warning, record.cell_id), []).append(record)
    titles = _titles(rows)
    found = _sorted([_warning(text, group, titles) for (text, _), group in groups.items()])
    return sorted(found, key=lambda entry: entry.label)


def caveats(table: ResultTable) -> list[FailureEntry]:
    """Return the cells whose figures have caveats, in the order of the table."""
    return [
        FailureEntry(
            work.row.title,
            view.backend,
            "caveats" if len(view.caveats) > 1 else "caveat",
            view.caveats,
            anchor=caveat_anchor(view.cell),
        )
        for work in table.works
        for view in work.cells
        if view.caveats
    ]


def superseded(records: Sequence[Record]) -> str | None:
    """Return how many attempts were repeated, and why; None if none was."""
    counted = {(record.cell_id, record.repeat): record.attempt for record in latest_attempts(records)}
    others = [(record, counted[record.cell_id, record.repeat]) for record in records]
    earlier = [record.status is Status.INFRA for record, attempt in others if record.attempt < attempt]
    in_vain = sum(record.attempt > attempt for record, attempt in others)
    failed, disturbed = sum(earlier), len(earlier) - sum(earlier)
    parts = []
    if disturbed:
        parts.append(f"{disturbed} earlier {'attempt was' if disturbed == 1 else 'attempts were'} disturbed")
    if failed:
        kind = "earlier attempt" if failed == 1 else "earlier attempts"
        parts.append(f"{failed} {kind} failed because of the infrastructure")
    if in_vain:
        kind = "second attempt" if in_vain == 1 else "second attempts"
        parts.append(f"{in_vain} {kind} failed, so that the first one counts")
    if not parts:
        return None
    return f"{' and '.join(parts)}: measured again, and only one attempt of each repeat is counted here."


def _sorted(found: list[FailureEntry]) -> list[FailureEntry]:
    return sorted(found, key=lambda entry: (entry.title, slot_of(entry.backend), entry.label, entry.texts))


def _titles(rows: Sequence[Row]) -> dict[str, str]:
    return {cell.cell_id: row.title for row in rows for cell in row.cells.values()}


def _place(group: Sequence[Record], titles: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the title, the backend and the repeats of records of one cell."""
    record, repeats = group[0], ", ".join(str(one.repeat) for one in group)
    title = titles.get(record.cell_id, record.settings.workload)
    return title, record.settings.backend, f"{'repeat' if len(group) == 1 else 'repeats'} {repeats}"


def _failure(group: Sequence[Record], titles: Mapping[str, str], most: int) -> FailureEntry:
    record, (title, backend, where) = group[0], _place(group, titles)
    output = next((r.evidence.output_tail for r in reversed(group) if r.evidence.output_tail.strip()), "")
    return FailureEntry(
        title,
        backend,
        record.status.value,
        (record.reason or "no reason was recorded",),
        where,
        evidence=_evidence(record.evidence),
        output=printable(output)[-most:],
    )


def _evidence(evidence: Evidence) -> list[str]:
    known = [
        (evidence.exit_code is not None, f"exit code {evidence.exit_code}"),
        (evidence.signal is not None, f"signal {evidence.signal}"),
        (evidence.deadline_exceeded, "time limit exceeded"),
        (evidence.oom_kills > 0, f"processes killed for memory: {evidence.oom_kills}"),
        (evidence.exception is not None, f"exception {evidence.exception}"),
        (evidence.result_problem is not None, f"invalid result: {evidence.result_problem}"),
    ]
    return [text for applies, text in known if applies]


def _warning(text: str, group: Sequence[Record], titles: Mapping[str, str]) -> FailureEntry:
    # The format of a warning is `rule: problem; advice`.
    rule, colon, rest = text.partition(": ")
    problem, _, advice = (rest if colon else text).rpartition("; ")
    problem, advice = (problem, advice) if problem else (advice, "")
    title, backend, where = _place(group, titles)
    return FailureEntry(title, backend, rule if colon else "warning", (problem,), where, advice)
