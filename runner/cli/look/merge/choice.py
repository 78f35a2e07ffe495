"""Choose the stored runs that are merged, and say why the others are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.merge import LeftOut, Merge, MergeCandidate, candidate, choose, shortened
from keras_matrix.records.history_reader import left_out
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Problem, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import near, printable
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.plan.session import FINISHED

LOOKED_BACK = 100  # runs; a backend that is in none of them counts as not measured
RUNS_NAMED = 5


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """The runs to merge: exactly `runs`, or those that fit `reference`, by default the newest; and the page."""

    results: Path
    runs: Sequence[str]
    reference: str | None
    page: Path | None
    as_json: bool


@dataclass(slots=True)
class MergeReader:
    """Reads each stored run once for the choice, and lists those that cannot be merged, with the reason."""

    runs: Mapping[str, Run]
    abouts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, Sequence[Problem]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def candidates(self, names: Sequence[str]) -> Iterator[MergeCandidate]:
        """Yield the named runs that can be read and are the base of a session."""
        for name in names:
            run = self.runs[name]
            try:
                about = run.about()
                records, self.problems[name] = run.load()
            except (StoreFailure, OSError) as error:
                self.left_out.append(LeftOut(name, "", printable(str(error))))
                continue
            self.abouts[name] = about
            if reason := left_out(about) or _without_records(records, self.problems[name]):
                self.left_out.append(LeftOut(name, "", reason))
                continue
            yield candidate(name, about, records, run.load_object(FINISHED) is not None)


def _without_records(records: Sequence[Record], problems: Sequence[Problem]) -> str | None:
    """Return why a run without records has nothing to merge, else None."""
    if records:
        return None
    if not problems:
        return "no cell was measured"
    count, first = len(problems), problems[0]
    text = f"its {count} files are not records" if count > 1 else "its only file is not a record"
    return f"{text}: {first.path.name}: {printable(first.reason)}"


def chosen(request: MergeRequest, reader: MergeReader) -> Merge:
    """Return the runs to merge. Raises `UsageError` if there are none, or if named runs do not fit."""
    if not reader.runs:
        raise UsageError(
            f"--results: {request.results} contains no run; measure one with: runner --matrix matrix.yaml, "
            "or with a service: docker compose run --rm jax-cpu"
        )
    named = list(dict.fromkeys(request.runs or ([request.reference] if request.reference else [])))
    for name in named:
        if name not in reader.runs:
            raise UsageError(
                f"report --merge: {request.results} contains no run {name!r}{near(name, reader.runs)}; "
                f"the newest are {', '.join(sorted(reader.runs)[-RUNS_NAMED:])}"
            )
    newest = sorted(reader.runs, reverse=True)[:LOOKED_BACK]
    names = sorted(named, reverse=True) if request.runs else list(dict.fromkeys([*named, *newest]))
    found = choose(reader.candidates(names))
    found = replace(found, left_out=(*reader.left_out, *found.left_out))
    if request.runs or request.reference not in (None, found.reference):
        _check_named(named, found)
    found = replace(found, left_out=tuple(shortened(found.left_out)))
    if not found.runs:
        reasons = "; ".join(map(str, found.left_out))
        raise UsageError(f"report --merge: no run in {request.results} has a measured cell: {reasons}")
    return found


def _check_named(named: Sequence[str], merge: Merge) -> None:
    """Refuse named runs that are not in the table, all in one message. Raises `UsageError`."""
    reasons = [str(one) for one in merge.left_out if one.run_id in named]
    reasoned = {one.run_id for one in merge.left_out}
    unused = [name for name in named if name not in merge.run_ids and name not in reasoned]
    reasons += [f"run {name}: each of its backends is in a newer run that was named" for name in unused]
    if reasons:
        raise UsageError("report --merge: these runs do not make one table:\n" + "\n".join(f"  {r}" for r in reasons))
