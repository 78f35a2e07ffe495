"""Selection of stored runs for one table: the newest run of each backend on the same machine and the same matrix.

The reference is the newest run with a measured cell, or the one that was named. Another run fits it if it was measured
on the same host, the same type of device, with the same Keras and the same version of records, and if its matrix is the
same: its works (settings without the backend) are those of the reference. Works may be missing on one side if both
runs have the same matrix text (a backend that is excluded, `--filter`) or if that run is not finished; then the
difference is a note. The number of repeats may differ.

Guarantee: pure; a backend comes from a single run, the newest that fits; for each backend, runs that do not fit and are
newer than the one used are named with the reason. Runs are read newest first and no further than needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from keras_matrix.analysis.comparison.table import in_order, work_key
from keras_matrix.records.backends import TRAINING_BACKENDS, backends_for
from keras_matrix.records.identity import parameter_key, value_as_text
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import FIT, PREDICT, Scalar
from keras_matrix.records.task import PREFIX

REASONS_SHOWN = 3  # of one backend: an old results folder may hold hundreds of runs of another matrix
WORKS_COMPARED = 100  # of each run, for the settings that differ: a matrix may have thousands


@dataclass(frozen=True, slots=True)
class BackendRun:
    """The facts that decide whether one backend's cells of a run fit, each as its distinct values.

    `works` are those of all attempts, the other facts those of the measured ones or, without any, of all. `devices` are
    platforms, `models` accelerators by name.
    """

    works: frozenset[str]
    measured: int
    hosts: frozenset[str]
    keras: frozenset[str]
    schemas: frozenset[int]
    devices: frozenset[str]
    models: frozenset[str]
    external: bool = False
    predicts: bool = False


@dataclass(frozen=True, slots=True)
class MergeCandidate:
    """A stored run: its backends, its matrix, and whether it is finished."""

    run_id: str
    backends: Mapping[str, BackendRun]
    matrix_path: str = ""
    matrix_text: str = ""
    finished: bool = True

    @property
    def measured(self) -> bool:
        """Whether any cell was measured."""
        return any(backend.measured for backend in self.backends.values())

    @property
    def predicts(self) -> bool:
        """Whether it has works of a phase that every backend runs."""
        return any(backend.predicts for backend in self.backends.values())

    @property
    def works(self) -> frozenset[str]:
        """The works of all backends."""
        return frozenset(work for backend in self.backends.values() for work in backend.works)


@dataclass(frozen=True, slots=True)
class LeftOutBackend:
    """A backend's cells of a run that are not in the table, and why; `backend` is empty for a complete run."""

    run_id: str
    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend} run {self.run_id}: {self.reason}".removeprefix(" ")


@dataclass(frozen=True, slots=True)
class MergedRun:
    """A run of a merged table as shown: its backends, start, versions, matrix and images."""

    run_id: str
    started_at: str
    backends: tuple[str, ...]
    versions: str
    matrix_path: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeSummary:
    """The summary shown above a merged table: its runs, what was left out, and what to measure.

    `lines` are sentences. `alternating` is the command that measures all backends alternately, None if all cells are of
    one session already or no command is known.
    """

    runs: tuple[MergedRun, ...]
    lines: tuple[str, ...] = ()
    alternating: str | None = None

    @property
    def separate(self) -> bool:
        """Whether the cells were measured in more than one session."""
        return len(self.runs) > 1


@dataclass(frozen=True, slots=True)
class Merge:
    """The run of each backend's cells, what was left out, and the backends that no run measured.

    `runs` maps backends to run ids, in the backends' usual order; empty if nothing was measured. `notes` name runs
    whose works are not exactly those of the reference.
    """

    reference: str
    runs: Mapping[str, str]
    left_out: tuple[LeftOutBackend, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that are used, oldest first."""
        return tuple(sorted(set(self.runs.values())))


def candidate(run_id: str, about: Mapping[str, object], records: Sequence[Record], is_finished: bool) -> MergeCandidate:
    """Return a run with the facts that it is chosen by; `about` is its `run.json`."""
    names = in_order(record.settings.backend for record in records)
    backends = {name: _backend_run([r for r in records if r.settings.backend == name]) for name in names}
    path, text = (str(about.get(key) or "") for key in ("matrix_path", "matrix_text"))
    return MergeCandidate(run_id, backends, path, text, is_finished)


def choose(candidates: Iterable[MergeCandidate]) -> Merge:
    """Return the runs to merge, from candidates of which the first measured one is the reference, newest first.

    `left_out` has every mismatch; `shortened` returns those that are shown.
    """
    left_out: list[LeftOutBackend] = []
    notes: list[str] = []
    reference: MergeCandidate | None = None
    runs: dict[str, str] = {}
    for merge_candidate in candidates:
        if reference is None and not merge_candidate.measured:
            left_out.append(LeftOutBackend(merge_candidate.run_id, "", "no cell was measured"))
            continue
        reference = reference or merge_candidate
        for backend, backend_run in merge_candidate.backends.items():
            if backend in runs:
                continue
            if reason := mismatch(reference, merge_candidate, backend_run):
                left_out.append(LeftOutBackend(merge_candidate.run_id, backend, reason))
                continue
            runs[backend] = merge_candidate.run_id
            notes += _works_note(reference, merge_candidate, backend)
        if set(runs).issuperset(backends_for(PREDICT if reference.predicts else FIT)):
            break
    if reference is None:
        return Merge("", {}, tuple(left_out))
    # A backend without a measured run is shown with its failures.
    failed_runs = {backend: reference.run_id for backend in reference.backends if backend not in runs}
    runs |= failed_runs
    has_external = any(backend.external for backend in reference.backends.values())
    ordered = {name: runs[name] for name in in_order(runs)}
    return Merge(
        reference.run_id,
        ordered,
        tuple(omission for omission in left_out if failed_runs.get(omission.backend) != omission.run_id),
        () if has_external else tuple(name for name in TRAINING_BACKENDS if name not in runs),
        tuple(notes),
    )


def mismatch(reference: MergeCandidate, merge_candidate: MergeCandidate, backend_run: BackendRun) -> str | None:
    """Return why a backend's cells of a run do not fit the reference, None if they fit."""
    if not backend_run.measured:
        return "no cell was measured"
    if merge_candidate is reference:
        return None
    base = _over_backends(reference)
    for actual, expected in ((backend_run.devices, base.devices), (backend_run.models, base.models)):
        if actual and expected and actual.isdisjoint(expected):
            return f"other device ({_words(actual)} against {_words(expected)})"
    if not backend_run.hosts <= base.hosts:
        return f"other machine (host {_words(backend_run.hosts, 8)} against {_words(base.hosts, 8)})"
    if backend_run.keras and base.keras and not backend_run.keras <= base.keras:
        return f"other version of Keras ({_words(backend_run.keras)} against {_words(base.keras)})"
    if not backend_run.schemas <= base.schemas:
        return f"other version of records ({_words(backend_run.schemas)} against {_words(base.schemas)})"
    works, backend_works = reference.works, backend_run.works
    same_text = bool(reference.matrix_text) and reference.matrix_text == merge_candidate.matrix_text
    is_unfinished = (backend_works < works and not merge_candidate.finished) or (
        backend_works > works and not reference.finished
    )
    if backend_works == works or (backend_works & works and (same_text or is_unfinished)):
        return None
    paths_text = (
        f"{merge_candidate.matrix_path or 'unnamed matrix'} against {reference.matrix_path or 'unnamed matrix'}"
    )
    differs = _differing_settings(backend_works - works, works)
    common_text = f"{len(backend_works & works)} of {len(backend_works)} works are among the {len(works)} merged"
    return f"other matrix: {common_text} ({paths_text}{differs and f'; {differs}'})"


def _differing_settings(actual: Iterable[str], expected: Iterable[str]) -> str:
    """Return how the two most similar works differ, as `gru: epochs 3 against 2`; empty without a common workload."""
    works_by_side = [[_flat(work) for work in sorted(work_texts)[:WORKS_COMPARED]] for work_texts in (actual, expected)]
    compared_works = [
        (str(work["workload"]), {key for key in {*work, *other} if _text(work, key) != _text(other, key)}, work, other)
        for work, other in product(*works_by_side)
        if work["workload"] == other["workload"]
    ]
    if not compared_works:
        return ""
    workload, keys, work, other = min(compared_works, key=lambda compared: len(compared[1]))
    return f"{workload}: " + ", ".join(f"{key} {_text(work, key)} against {_text(other, key)}" for key in sorted(keys))


def _text(settings: Mapping[str, Scalar], key: str) -> str:
    return value_as_text(settings.get(key))


def _flat(work: str) -> dict[str, Scalar]:
    settings: dict[str, Any] = json.loads(work)
    params = settings.pop("params")
    return settings | {parameter_key(name): value for name, value in params.items()}


def _works_note(reference: MergeCandidate, merge_candidate: MergeCandidate, backend: str) -> list[str]:
    actual, expected = merge_candidate.backends[backend].works, reference.works
    remarks = []
    if actual != expected and expected - actual:
        remarks.append(f"lacks {len(expected - actual)} of the {len(expected)} works")
    if actual - expected:
        remarks.append(f"has works that {reference.run_id} lacks ({len(actual - expected)})")
    return [f"{backend}: {merge_candidate.run_id} {' and '.join(remarks)}"] if remarks else []


def _backend_run(records: Sequence[Record]) -> BackendRun:
    measured_records = [record for record in records if record.status in MEASURED]
    described = measured_records or records
    devices = [record.device for record in measured_records if record.device]
    return BackendRun(
        works=frozenset(work_key(record.settings) for record in records),
        measured=len(measured_records),
        hosts=frozenset(record.machine.host_id for record in described),
        keras=frozenset(record.versions["keras"] for record in described if "keras" in record.versions),
        schemas=frozenset(record.schema_version for record in described),
        devices=frozenset(record.settings.device for record in records),
        models=frozenset(device.model for device in devices if device.model),
        external=any(record.settings.workload.startswith(PREFIX) for record in records),
        predicts=any(record.settings.phase == PREDICT for record in records),
    )


def _over_backends(run: MergeCandidate) -> BackendRun:
    """Return the facts of a run over all its backends that measured something."""
    backend_runs = [backend for backend in run.backends.values() if backend.measured] or list(run.backends.values())
    names = ("hosts", "keras", "schemas", "devices", "models")
    unions: dict[str, Any] = {
        name: frozenset().union(*(getattr(backend_run, name) for backend_run in backend_runs)) for name in names
    }
    return BackendRun(run.works, sum(backend_run.measured for backend_run in backend_runs), **unions)


def shortened(left_out: Iterable[LeftOutBackend]) -> Iterable[LeftOutBackend]:
    """Yield the newest of each backend and reason, and at most `REASONS_SHOWN` of each backend."""
    yielded: dict[str, set[str]] = {}
    for omission in left_out:
        reasons = yielded.setdefault(omission.backend, set())
        if omission.reason not in reasons and len(reasons) < REASONS_SHOWN:
            reasons.add(omission.reason)
            yield omission


def _words(values: Iterable[object], length: int | None = None) -> str:
    return "/".join(sorted(str(value)[:length] for value in values))
