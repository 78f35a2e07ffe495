"""The failures, warnings and caveats of a run, grouped so that each cause is listed once.

A module of its own: the grouping of causes is a seam that knows nothing of the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.comparison.table import Row
from keras_matrix.analysis.views.result_table import ResultTable
from keras_matrix.analysis.views.warnings_view import RuleWarnings
from keras_matrix.dashboards.charts.picture import slot_of
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
    titles = {cell.cell_id: row.title for row in rows for cell in row.cells.values()}
    most = MOST_OUTPUT_CHARACTERS // max(1, len(groups))
    return _sorted([_failure(group, titles, most) for group in groups.values()])


def warnings(rules: Sequence[RuleWarnings]) -> list[FailureEntry]:
    """Return every warning of the attempts that count, by rule; one of another format has no rule."""
    entries = [
        FailureEntry(
            warning.title,
            warning.backend,
            warning.rule or "warning",
            (warning.problem,),
            _repeats(warning.repeats),
            warning.advice,
        )
        for rule in rules
        for warning in rule.by_cell
    ]
    return sorted(_sorted(entries), key=lambda entry: entry.label)


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
    latest_attempt = {(record.cell_id, record.repeat): record.attempt for record in latest_attempts(records)}
    with_attempts = [(record, latest_attempt[record.cell_id, record.repeat]) for record in records]
    infra_flags = [record.status is Status.INFRA for record, attempt in with_attempts if record.attempt < attempt]
    in_vain = sum(record.attempt > attempt for record, attempt in with_attempts)
    failed_count, disturbed_count = sum(infra_flags), len(infra_flags) - sum(infra_flags)
    texts = []
    if disturbed_count:
        texts.append(
            f"{disturbed_count} earlier {'attempt was' if disturbed_count == 1 else 'attempts were'} disturbed"
        )
    if failed_count:
        kind = "earlier attempt" if failed_count == 1 else "earlier attempts"
        texts.append(f"{failed_count} {kind} failed because of the infrastructure")
    if in_vain:
        kind = "second attempt" if in_vain == 1 else "second attempts"
        texts.append(f"{in_vain} {kind} failed, so that the first one counts")
    if not texts:
        return None
    return f"{' and '.join(texts)}: measured again, and only one attempt of each repeat is counted here."


def _sorted(entries: list[FailureEntry]) -> list[FailureEntry]:
    return sorted(entries, key=lambda entry: (entry.title, slot_of(entry.backend), entry.label, entry.texts))


def _repeats(repeats: Sequence[int]) -> str:
    return f"{'repeat' if len(repeats) == 1 else 'repeats'} {', '.join(map(str, repeats))}"


def _failure(group: Sequence[Record], titles: Mapping[str, str], most: int) -> FailureEntry:
    record = group[0]
    output = next((r.evidence.output_tail for r in reversed(group) if r.evidence.output_tail.strip()), "")
    return FailureEntry(
        titles.get(record.cell_id, record.settings.workload),
        record.settings.backend,
        record.status.value,
        (record.reason or "no reason was recorded",),
        _repeats([record.repeat for record in group]),
        evidence=_evidence(record.evidence),
        output=printable(output)[-most:],
    )


def _evidence(evidence: Evidence) -> list[str]:
    statements = [
        (evidence.exit_code is not None, f"exit code {evidence.exit_code}"),
        (evidence.signal is not None, f"signal {evidence.signal}"),
        (evidence.deadline_exceeded, "time limit exceeded"),
        ((evidence.oom_kills or 0) > 0, f"processes killed for memory: {evidence.oom_kills}"),
        (evidence.exception is not None, f"exception {evidence.exception}"),
        (evidence.result_problem is not None, f"invalid result: {evidence.result_problem}"),
    ]
    return [text for applies, text in statements if applies]
