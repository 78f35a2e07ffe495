"""The findings of `analysis` on one run, as data, for dashboards and the warehouse.

    results/<run_id>/findings.json     the newest set; `revision` counts how often it changed

Estimates, intervals and verdicts are computed once and stored here; their readers compute none. A set that equals the
stored one keeps its revision. `load` returns only identifiers that match their patterns: pages and rows are named by
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from keras_matrix.records.codec import CodecError, about, canonical, decode, to_json
from keras_matrix.records.files import read_json
from keras_matrix.records.identity import CELL_ID, RUN_ID
from keras_matrix.records.store import Run
from keras_matrix.records.store_failure import StoreFailure

FILE = "findings.json"
FINDINGS_VERSION = 1
IDENTITY = ("kind", "metric", "work_id", "cell_id", "backend", "host_id", "device", "league", "at_run_id")


class FindingKind(StrEnum):
    """The subject of a finding."""

    FIGURE = "figure"
    RATIO = "ratio"
    VERDICT = "verdict"
    SUITE = "suite"
    PEAK = "peak"
    WORKERS = "workers"
    DEVICES = "devices"
    SESSION = "session"
    LEVEL = "level"
    CHANGE = "change"
    INPUT = "input"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure with its interval, or one verdict. None means unknown."""

    kind: FindingKind = about(
        "figure (of a cell), ratio (to the backend with the lowest estimate), verdict (on a piece of work), suite "
        "(over all works), peak (share of the machine's), workers (of the FC modes), devices (of a Keras workload), "
        "session, level, change (history), input (parts of a step), call (of a model that predicts)"
    )
    metric: str = about("what is estimated, by the name of its measurement if it has one")
    work: str = about("display name of the piece of work")
    method: str = about("how the estimate was made")
    method_version: int = about("version of that method; a new version may change figures")
    work_id: str | None = about("hash of the settings without the backend", default=None)
    cell_id: str | None = about("the cell, if the finding is about one", default=None)
    workload: str | None = about("the workload", default=None)
    backend: str | None = about("the backend", default=None)
    device: str | None = about("cpu, gpu or tpu; for a history, the device's name", default=None)
    league: str | None = about("as_shipped or matched", default=None)
    host_id: str | None = about("the machine of a history", default=None)
    against: str | None = about("the backend that a ratio divides by", default=None)
    at_run_id: str | None = about("first run after a change, or of a level", default=None)
    estimate: float | None = about("the point estimate", default=None)
    low: float | None = about("lower end of the 95 % interval; null without an interval", default=None)
    high: float | None = about("upper end of the 95 % interval", default=None)
    unit: str = about("unit of estimate, low and high", default="1")
    count: int | None = about("number of processes, blocks or sessions", default=None)
    p_value: float | None = about("of the test that a ratio is 1, adjusted over the run's table", default=None)
    smallest_difference: float | None = about("relative difference that would probably be detected", default=None)
    verdict: str | None = about(
        "in one word or two: fastest, slower, open, not comparable, ok ...; of a change: slower, acknowledged, "
        "repaired, faster or intended",
        default=None,
    )
    said: str | None = about("in one sentence", default=None)
    look: str | None = about("who should investigate a change, by what else changed", default=None)
    facts: dict[str, str] = about("settings, versions or counts that explain it, by name", default_factory=dict)

    @property
    def finding_id(self) -> str:
        """Return the finding's identifier within its run: 16 hex digits of a hash of its subject."""
        about_what = [to_json(getattr(self, name)) for name in IDENTITY]
        return hashlib.sha256(canonical(about_what).encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings of one run. `revision` counts from 1."""

    version: int
    run_id: str
    revision: int
    found: list[Finding] = field(default_factory=list)


def load(run: Run) -> Findings | None:
    """Return a run's findings; None if the file is missing. Raises `StoreFailure` for a file that cannot be used."""
    path = run.folder / FILE
    try:
        data = read_json(path)
        if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] > FINDINGS_VERSION:
            raise StoreFailure(
                f"{path}: version {data['version']} is newer than {FINDINGS_VERSION}; update this program"
            )
        stored_findings = decode(Findings, data, "findings")
        _check_identifiers(stored_findings, run.run_id)
        return stored_findings
    except FileNotFoundError:
        return None
    except (OSError, CodecError) as error:
        advice = f"write it again with: runner report --run {run.run_id}"
        raise StoreFailure(f"{path}: cannot be used: {error}; {advice}") from error


def keep(run: Run, new_findings: Iterable[Finding]) -> Findings:
    """Store a run's findings, with the next revision if they differ from the stored ones. Raises `StoreFailure`."""
    new = Findings(FINDINGS_VERSION, run.run_id, 1, list(new_findings))
    old = _old(run)
    if old is not None:
        if old.found == new.found:
            return old
        new = replace(new, revision=old.revision + 1)
    run.store_object(FILE, to_json(new))
    return new


def _check_identifiers(findings: Findings, run_id: str) -> None:
    """Raise `CodecError` for the first identifier that has another format, or names another run."""
    if findings.run_id != run_id:
        raise CodecError(f"findings.run_id: must be {run_id!r}, the run's folder, got {findings.run_id[:80]!r}")
    for number, finding in enumerate(findings.found):
        path = f"findings.found[{number}]"
        if finding.cell_id is not None and not CELL_ID.fullmatch(finding.cell_id):
            raise CodecError(f"{path}.cell_id: must be 16 hexadecimal digits, got {finding.cell_id[:80]!r}")
        if finding.at_run_id is not None and not RUN_ID.fullmatch(finding.at_run_id):
            raise CodecError(f"{path}.at_run_id: must be a run such as {run_id}, got {finding.at_run_id[:80]!r}")


def _old(run: Run) -> Findings | None:
    try:
        return load(run)
    except StoreFailure as error:
        if "newer" in str(error):
            raise
        return None  # damaged: replaced by the new set
