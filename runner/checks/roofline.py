"""Compares a run with its machine, from the run's records, the stored peaks and the work of its workloads.

`roofline_of` takes what is stored, for reports; the command `runner roofline` first measures and counts what is not.

The work of a workload is in the catalog, or stored, or counted in a process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.backends import BY_COMPILE_TIME, TRAINING_BACKENDS
from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments import work as works
from keras_matrix.records.instruments.peaks import Peaks, StoredPeaks
from keras_matrix.records.instruments.work import CountAnswer, CountOrder, FlopCheck, Target, Work, work_key
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import plural
from keras_matrix.runner.executors.probe import Probe, ProbeFailed, probe_settings
from keras_matrix.runner.matrix import catalog as catalogs
from keras_matrix.runner.matrix.catalog import Catalog

if TYPE_CHECKING:
    from keras_matrix.analysis.comparison.table import Row
    from keras_matrix.analysis.roofline import Roofline
    from keras_matrix.records.run_files import Measurements

MODULE = "keras_matrix.models.flops"
# Building the largest workload takes seconds; compiling its training step with XLA, for the check, takes minutes.
TIMEOUT_S = 1200.0


def roofline_of(rows: Iterable[Row], measurements: Measurements) -> Roofline:
    """Return each cell's use of the machine from stored figures, without measuring or counting.

    Shares are None if peaks or counts are missing.
    """
    from keras_matrix.analysis.roofline import roofline

    cells = cells_of(rows)
    counted_works = with_catalog(measurements.works, (cell.settings for _, cell in cells))
    return roofline(cells, counted_works, of_all_images(measurements.peaks) if measurements.peaks else None)


def cells_of(rows: Iterable[Row]) -> list[tuple[str, Any]]:
    """Return every cell of a table with its row's title."""
    return [(row.title, cell) for row in rows for cell in row.cells.values()]


def peaks_of(results: Path, about: Mapping[str, Any]) -> Peaks | None:
    """Return the stored peaks of the machine and versions of a run, or None. Raises `StoreFailure`."""
    stored_peaks = peak_files.stored(results, about)
    return of_all_images(stored_peaks) if stored_peaks else None


def of_all_images(stored_peaks: StoredPeaks) -> Peaks:
    """Return the peaks, those of a GPU with what other images, with other backends, measured on the same GPU."""
    from keras_matrix.analysis.roofline import backends, merged

    return merged(stored_peaks.own, stored_peaks.others) if backends(stored_peaks.own) else stored_peaks.own


def threads_of(cells: Iterable[tuple[str, Any]]) -> tuple[int, ...]:
    """Return the numbers of CPUs that a run's measured cells could use."""
    from keras_matrix.analysis.roofline import place_of

    places = (place_of(cell) for _, cell in cells)
    return tuple(sorted({place.threads for place in places if place and place.device == "cpu"}))


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts by `work_key`, and the reasons for missing ones."""

    works: Mapping[str, Work]
    refused: Mapping[str, str]


def known(results: Path, settings: Iterable[Settings]) -> dict[str, Work]:
    """Return the work of these workloads without counting: stored counts, else the catalog's FLOPs at defaults."""
    settings = list(settings)
    keys = (work_key(cell_settings.workload, cell_settings.params) for cell_settings in settings)
    return with_catalog(works.read_all(results, keys, source_digest()), settings)


def with_catalog(stored_works: Mapping[str, Work], settings: Iterable[Settings]) -> dict[str, Work]:
    """Return the work of these workloads: the counts of `stored_works`, else the catalog's FLOPs at defaults."""
    catalog = catalogs.load()
    known_works = {}
    for target in _targets(settings):
        key = work_key(target.workload, target.params)
        work = stored_works.get(key) or _of_catalog(catalog, target)
        if work is not None:
            known_works[key] = work
    return known_works


def count(
    probe: Probe, results: Path, settings: Iterable[Settings], report: Callable[[str], None] = lambda line: None
) -> Counted:
    """Return the work of these workloads; count the missing parts in a child process.

    A user's own workload is not built and remains unknown. Raises `StoreFailure` if a count cannot be stored.
    """
    settings = list(settings)
    known_works, reason_by_work = known(results, settings), dict[str, str]()
    full = {key for key, work in known_works.items() if work.kept_elements_per_sample is not None}
    targets = [t for t in _targets(settings) if ":" not in t.workload and work_key(t.workload, t.params) not in full]
    backend = next((name for name in BY_COMPILE_TIME if not probe.missing(name)), None)
    if not targets or backend is None:
        return Counted(known_works, reason_by_work)
    report(f"counting the work of {plural(len(targets), 'workload')} on {backend}")
    try:
        answer = _ask(probe, backend, CountOrder(targets))
    except ProbeFailed as error:
        return Counted(known_works, {work_key(t.workload, t.params): str(error) for t in targets})
    source = source_digest()
    for work in answer.works:
        key = work_key(work.workload, work.params)
        # FLOPs of the catalog have priority, so that shares do not depend on the backend that counted.
        known_flops = known_works[key].forward_flops_per_sample if key in known_works else work.forward_flops_per_sample
        known_works[key] = replace(work, forward_flops_per_sample=known_flops)
        works.keep(results, key, source, known_works[key])
    return Counted(known_works, answer.refused)


def check(
    probe: Probe, targets: list[Target], batch_size: int | None, report: Callable[[str], None] = lambda line: None
) -> tuple[list[FlopCheck], dict[str, str]]:
    """Count each target with every method on every installed backend; return the counts and the refusals."""
    checks: list[FlopCheck] = []
    reason_by_subject: dict[str, str] = {}
    for backend in TRAINING_BACKENDS:
        if why := probe.missing(backend):
            reason_by_subject[backend] = why
            continue
        report(f"counting the FLOPs of {plural(len(targets), 'workload')} on {backend}")
        try:
            answer = _ask(probe, backend, CountOrder([], targets, batch_size))
        except ProbeFailed as error:
            reason_by_subject[backend] = str(error)
            continue
        checks += answer.checks
        reason_by_subject |= {f"{backend} {key}": why for key, why in answer.refused.items()}
    return checks, reason_by_subject


def source_digest() -> str:
    """Return a digest of the package `models`: different source may build a different model with the same name."""
    digest = hashlib.sha256()
    for path in sorted(catalogs.CATALOG_PATH.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _ask(probe: Probe, backend: str, order: CountOrder) -> CountAnswer:
    try:
        return decode(CountAnswer, probe.ask(MODULE, order, probe_settings(backend), TIMEOUT_S), "answer")
    except CodecError as error:
        raise ProbeFailed(f"{MODULE} on {backend}: {error}") from error


def _targets(settings: Iterable[Settings]) -> list[Target]:
    return list({work_key(s.workload, s.params): Target(s.workload, dict(s.params)) for s in settings}.values())


def _of_catalog(catalog: Catalog, target: Target) -> Work | None:
    entry = catalog.workloads.get(target.workload)
    rules = entry.params if entry else {}
    if entry is None or any(name not in rules or rules[name].default != v for name, v in target.params.items()):
        return None
    return Work(target.workload, target.params, entry.forward_flops_per_sample)
