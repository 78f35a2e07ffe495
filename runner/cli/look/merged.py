"""The table of several stored runs, printed as text or as one JSON document."""

from __future__ import annotations

from typing import Any

from keras_matrix.analysis.comparison.merge import Merge, MergeSummary
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Results
from keras_matrix.records.text import moment, plural, printable
from keras_matrix.runner.cli.render.findings import as_document, print_table
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.service import merge
from keras_matrix.runner.service.merge import MergeRequest


def show(request: MergeRequest, *, as_json: bool) -> int:
    """Choose the runs, print their table, write their page. Returns the exit code."""
    merged = merge.read(request, Results(request.results).runs())
    problem = merge.write(merged) if request.page or not as_json else None
    code = 1 if merged.found.run_context.unread else 0
    if as_json:
        print(as_document({"merge": _fields(merged.merge, merged.summary), "exit_code": code}, merged.found))
    else:
        print(heading(merged.summary))
        print_table(merged.found)
        print(f"\n{how_to_alternate(merged.summary)}", flush=True)
    if problem is not None:
        raise problem
    if not as_json:
        print(f"report: {merged.page}")
    return code


def heading(summary: MergeSummary) -> str:
    """Return the heading of a merged table."""
    rows = [
        ["+".join(one.backends), one.run_id, moment(one.started_at), one.versions, "; ".join(one.images)]
        for one in summary.runs
    ]
    sessions = ", measured in separate sessions, not alternating" if summary.separate else ""
    lines = [f"merge of {plural(len(rows), 'run')} on one machine{sessions}"]
    lines += [f"  {line.rstrip()}" for line in columns(rows)]
    return "\n".join(map(printable, [*lines, *summary.lines]))


def how_to_alternate(summary: MergeSummary) -> str:
    """Return how to measure all cells of a merged table in one session, or '' if there is no such command."""
    if summary.alternating is None:
        return ""
    return f"for intervals paired by block, measure the backends alternately: {printable(summary.alternating)}\n"


def _fields(merge: Merge, summary: MergeSummary) -> dict[str, Any]:
    """Return the part of the JSON document on the runs of a merged table."""
    found: dict[str, Any] = {**to_json(summary), "left_out": to_json(merge.left_out), "missing": list(merge.missing)}
    return found
