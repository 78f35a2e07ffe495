"""The summary of a merged table: its runs, what was left out, and what to measure next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keras_matrix.analysis.comparison.merge import Merge, MergedRun, MergeSummary
from keras_matrix.analysis.comparison.table import in_order
from keras_matrix.dashboards.charts.format import moment, plural
from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Record
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.look.merge import commands
from keras_matrix.runner.cli.look.merge.choice import MergeReader
from keras_matrix.runner.cli.look.stored import notes
from keras_matrix.runner.cli.render.format import columns


def merge_summary(reader: MergeReader, merge: Merge, records: Sequence[Record]) -> MergeSummary:
    """Return the summary: the runs, what was left out, what to measure next."""
    runs = tuple(
        _merged_run(reader, name, [r for r in records if merge.runs[r.settings.backend] == name])
        for name in merge.run_ids
    )
    lines = [*_left_out_lines(reader, merge, records), *(f"note: {note}" for note in _notes(reader, merge))]
    about, (device, service) = reader.abouts[merge.reference], _where(merge, records)
    separate = len(runs) > 1
    command = commands.alternating(about, device, service=service) if separate else None
    return MergeSummary(runs, tuple(lines), command)


def _merged_run(reader: MergeReader, name: str, records: Sequence[Record]) -> MergedRun:
    about, backends = reader.abouts[name], in_order(record.settings.backend for record in records)
    packages = ("keras", *backends)
    found = {(p, r.versions[p]) for r in records for p in packages if p in r.versions}
    versions = sorted(found, key=lambda one: (packages.index(one[0]), one[1]))
    images = {f"{r.container.image}, {r.container.image_id[:19]}" for r in records if r.container}
    return MergedRun(
        name,
        str(about.get("started_at") or ""),
        tuple(backends),
        ", ".join(f"{package} {version}" for package, version in versions),
        str(about.get("matrix_path") or ""),
        tuple(sorted(images)),
    )


def _where(merge: Merge, records: Sequence[Record]) -> tuple[str, bool]:
    """Return the device of the reference run, and whether it was measured in a service of compose.yaml."""
    first = next(r for r in records if merge.runs[r.settings.backend] == merge.reference)
    return first.settings.device, first.machine.container is not None and first.container is None


def _left_out_lines(reader: MergeReader, merge: Merge, records: Sequence[Record]) -> Iterator[str]:
    """Yield the left out runs and the missing backends, each with advice, once per backend."""
    device, service = _where(merge, records)
    about = reader.abouts[merge.reference]
    advice = {
        backend: f"measure {backend} on this machine: {command}"
        for backend in merge.missing
        if (command := commands.one_backend(about, backend, device, service=service))
    }
    if len(merge.run_ids) == 1:
        yield f"nothing to merge: {merge.reference} is the only run that fits"
    for one in merge.left_out:
        used = merge.runs.get(one.backend)
        next_step = f"used instead: {used}" if used else advice.pop(one.backend, None)
        yield "; ".join(filter(None, (f"left out: {one}", next_step)))
    named = {one.backend for one in merge.left_out}
    for backend in merge.missing:
        if backend not in named:
            yield "; ".join(filter(None, (f"no run of {backend} is merged", advice.get(backend))))


def _notes(reader: MergeReader, merge: Merge) -> Iterator[str]:
    """Yield notes on the runs: unfinished runs, files that cannot be read, differences in the work."""
    for name in merge.run_ids:
        one = reader.runs[name]
        backends = "+".join(backend for backend, of in merge.runs.items() if of == name)
        yield from notes(backends, one, one.load()[0], reader.problems[name])
    yield from merge.notes


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


def as_json(merge: Merge, summary: MergeSummary) -> dict[str, Any]:
    """Return the part of the JSON document on the runs of a merged table."""
    found: dict[str, Any] = {**to_json(summary), "left_out": to_json(merge.left_out), "missing": list(merge.missing)}
    return found
