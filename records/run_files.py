"""The files of a stored run, and those of its results folder that are about it: read once, before anything is computed.

`read` opens what a table needs, `read_measurements` what only a report shows besides, which can be many more files.

Checks also ship with the distribution: parity of the workloads, the proofs of the FC modes and of several devices.
`records/evidence` has the layout of a results folder, written by `ci/evidence` with the locked versions. A check of
one's own, stored in a results folder, counts before these if it is newer or of the versions that were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from keras_matrix.records import replicas
from keras_matrix.records.fc import proof
from keras_matrix.records.fc.proof import ProvedMode
from keras_matrix.records.instruments import influence, parity
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments import work as work_files
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.instruments.parity import ParityRecord
from keras_matrix.records.instruments.peaks import StoredPeaks
from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.instruments.work import Work, work_key
from keras_matrix.records.replicas import ReplicaProof
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Problem, Run, latest_attempts
from keras_matrix.records.store_failure import StoreFailure

EVIDENCE = Path(__file__).parent / "evidence"


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks in a results folder and the shipped ones; `problems` has a line for each invalid file."""

    parity: tuple[ParityRecord, ...]
    proofs: tuple[ProvedMode, ...]
    replica_proofs: tuple[ReplicaProof, ...]
    influences: tuple[Influence, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's `run.json`, its records, and the checks of its results folder.

    `problems` has each file in `records` that cannot be used; `checks.problems` a line for each invalid check.
    """

    run: Run
    about: Mapping[str, Any]
    records: list[Record]
    problems: tuple[Problem, ...]
    checks: Checks

    @property
    def results(self) -> Path:
        """The results folder."""
        return self.run.folder.parent


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured besides the records: the work of their workloads by `work_key`, the machine's peaks, and the
    memory and power of their attempts over time by `Record.key`.

    `refused_peaks` says why stored peaks cannot be used.
    """

    works: Mapping[str, Work]
    peaks: StoredPeaks | None
    refused_peaks: str | None
    usage_series: Mapping[tuple[str, int, int], UsageSeries]


def read(run: Run) -> RunFiles:
    """Return the files that a run's table is made of. Raises `StoreFailure`, see `Run.load` and `Run.about`."""
    records, problems = run.load()
    return RunFiles(run, run.about(), records, tuple(problems), checks(run.folder.parent))


def checks(results: Path) -> Checks:
    """Return the checks of one results folder, each file read once."""
    parities, modes, device_proofs = parity.load(results), proof.load(results), replicas.load_proofs(results)
    influences, problems = influence.load_with_problems(results)
    return Checks(
        (*parities[0], *shipped()[0]),
        (*modes[0], *shipped()[1]),
        (*device_proofs[0], *shipped()[2]),
        influences,
        (*parities[1], *modes[1], *device_proofs[1], *problems),
    )


@cache
def shipped() -> tuple[tuple[ParityRecord, ...], tuple[ProvedMode, ...], tuple[ReplicaProof, ...]]:
    """Return the comparisons of parity and the proofs of FC modes and of several devices that ship."""
    return tuple(parity.load(EVIDENCE)[0]), tuple(proof.load(EVIDENCE)[0]), tuple(replicas.load_proofs(EVIDENCE)[0])


def read_measurements(files: RunFiles, models: str) -> Measurements:
    """Return what was measured besides a run's records; `models` is the digest of the models that were counted."""
    shown_records = latest_attempts(files.records)
    refusal = None
    try:
        peaks = peak_files.stored(files.results, files.about)
    except StoreFailure as error:
        peaks, refusal = None, str(error)
    return Measurements(
        _works(files.results, shown_records, models), peaks, refusal, _usage_series(files.run, shown_records)
    )


def _works(results: Path, records: Iterable[Record], models: str) -> dict[str, Work]:
    settings = (record.settings for record in records)
    return work_files.read_all(
        results, (work_key(cell_settings.workload, cell_settings.params) for cell_settings in settings), models
    )


def _usage_series(run: Run, records: Iterable[Record]) -> dict[tuple[str, int, int], UsageSeries]:
    sampled = (record for record in records if record.usage and record.usage.course)
    stored_series = ((record.key, run.usage_series(record)) for record in sampled)
    return {key: series for key, series in stored_series if series is not None}
