"""Compares a run's cells with the machine's peak; peaks and counts of work that are missing are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.roofline import Roofline, roofline
from keras_matrix.dashboards.charts.roofline import scenes
from keras_matrix.dashboards.report import page as report
from keras_matrix.dashboards.report import roofline_page
from keras_matrix.dashboards.report.roofline_page import Heading
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments.peaks import Peaks, StoredPeaks
from keras_matrix.records.instruments.work import Target
from keras_matrix.records.schema import Machine
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import moment, near, plural
from keras_matrix.runner.checks import roofline as runs
from keras_matrix.runner.checks.peaks import Effort, PeaksSubject, measure
from keras_matrix.runner.checks.roofline import count
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.probe import Probe, probe_settings
from keras_matrix.runner.executors.process.interpreter import installed_versions
from keras_matrix.runner.executors.supervise.visible_gpus import gpus_if_visible
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.gpus.nvml import GpuIdentity, gpu_identity
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.settings_text import title_defaults
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.session import writing
from keras_matrix.runner.service.stored import chosen_run

SUFFIXES = (".html", ".svg")


@dataclass(frozen=True, slots=True)
class RooflineRequest:
    """How peaks are measured: again or only if they are missing, in how many rounds, and with which probe.

    `say` shows the progress, `warn` what could not be measured or counted.
    """

    results: Path
    again: bool
    rounds: int
    probe: Probe
    say: Callable[[str], None]
    warn: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compared:
    """A run with its table that is compared with the machine; without a run, the machine alone."""

    store: Run | None
    about: dict[str, Any]
    rows: list[Row]


def compared_run(results: Path, run_id: str | None) -> Compared:
    """Return the named run, or the newest; without any, the machine alone. Raises `UsageError`."""
    if run_id is None and Results(results).latest() is None:
        return Compared(None, {"machine": to_json(machine.detect()), "versions": installed_versions()}, [])
    store = chosen_run(results, run_id)
    records, _ = store.load()
    return Compared(store, store.about(), table(records, title_defaults()))


def roofline_of(request: RooflineRequest, compared: Compared) -> tuple[Roofline, Peaks | None]:
    """Return the roofline; peaks and FLOPs that are not stored yet are measured and counted."""
    cells = runs.cells_of(compared.rows)
    peaks = None if request.again else runs.peaks_of(request.results, compared.about)
    if peaks is None:
        peaks = _measured(request, compared)
    count_answer = count(request.probe, request.results, [cell.settings for _, cell in cells], request.say)
    for key, why in count_answer.refused.items():
        request.warn(f"{key}: work not counted: {why}")
    return roofline(cells, count_answer.works, peaks), peaks


def _measured(request: RooflineRequest, compared: Compared) -> Peaks | None:
    """Measure and store this machine's peaks; return None with a message if the run is from another machine."""
    this_machine, versions = machine.detect(), installed_versions()
    if peak_files.fingerprint(this_machine, versions) != peak_files.fingerprint_of(compared.about):
        request.warn("this run comes from another machine or from other versions: its peaks cannot be measured here")
        return None
    subject = PeaksSubject(
        this_machine, versions, runs.threads_of(runs.cells_of(compared.rows)), utc_now(), _gpu(this_machine)
    )
    with writing(request.results):  # two measurements at the same time would disturb each other
        measured_peaks = measure(request.probe, subject, Effort(rounds=request.rounds), request.say)
        peak_files.keep(request.results, measured_peaks)
    other_peaks = peak_files.read_others(request.results, measured_peaks.fingerprint)
    return runs.of_all_images(StoredPeaks(measured_peaks, tuple(other_peaks)))


def _gpu(machine: Machine) -> GpuIdentity | None:
    """Return the GPU that the peaks are measured on, which is the first of the cells; None if no GPU is visible."""
    visible = gpus_if_visible(probe_settings(BACKENDS[0], "gpu")) if machine.gpus else ()
    return gpu_identity(visible[0]) if visible else None


def write_picture(out: Path | None, compared: Compared, shown_roofline: Roofline, peaks: Peaks | None) -> Path | None:
    """Write the picture and return its path; None if there is no run and no path was given."""
    path = out or (compared.store.folder / "roofline.html" if compared.store else None)
    if path is None:
        return None
    if path.suffix != ".svg":
        report.write(path, roofline_page.render_page(shown_roofline, _heading(compared, peaks)))
    elif scenes(shown_roofline):
        report.write(path, roofline_page.render_svg(shown_roofline))
    else:
        raise UsageError("--out: there is nothing to draw: no peak of the cells was measured")
    return path


def _heading(compared: Compared, peaks: Peaks | None) -> Heading:
    machine, started_at = compared.about.get("machine") or {}, compared.about.get("started_at")
    title = f"Run of {moment(started_at)}" if compared.store and started_at else "Machine"
    measured_text = (
        f"Peaks measured on {moment(peaks.measured_at)} in {plural(peaks.rounds, 'round')}." if peaks else ""
    )
    cpus_text = f"{machine.get('cpu_model', 'unknown CPU')} · {machine.get('logical_cpus', '?')} CPUs"
    return Heading(title, cpus_text, measured_text)


def targets_of(names: Sequence[str]) -> list[Any]:
    """Return the workloads whose FLOPs are counted. Raises `UsageError` for one that is not in the catalog."""
    workloads = catalog.load().workloads
    for name in names:
        if name not in workloads:
            raise UsageError(
                f"--check-flops: must be one of {', '.join(workloads)}, got {name!r}{near(name, workloads)}"
            )
    return [Target(name, {}) for name in names]
