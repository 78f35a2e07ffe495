"""Compare a run's cells with the machine's peak: measured matrix products and memory, FLOPs counted from models.

The peaks are measured once per machine and set of versions and stored in the results folder; FLOPs likewise. Other work
on the machine makes peaks too low: measure them when it is quiet."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.hardware.flops import agreements, all_agree
from keras_matrix.analysis.hardware.roofline import Roofline, roofline
from keras_matrix.dashboards.charts.roofline import scenes
from keras_matrix.dashboards.report import page as report
from keras_matrix.dashboards.report import roofline_page
from keras_matrix.dashboards.report.roofline_page import Heading
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.instruments.work import Target
from keras_matrix.records.schema import Machine
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import moment, near, plural
from keras_matrix.runner.checks import roofline as runs
from keras_matrix.runner.checks import work
from keras_matrix.runner.checks.peaks import Effort, Subject, measure
from keras_matrix.runner.checks.work import check
from keras_matrix.runner.cli.options import add_results_option
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.render.roofline_text import check_lines, lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.probe import Probe, probe_settings
from keras_matrix.runner.executors.process.interpreter import installed_versions
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.executors.supervise.visible_gpus import gpus_if_visible
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.gpus.identity import GpuIdentity, gpu_identity
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.settings_text import title_defaults
from keras_matrix.runner.measure.request import check_range
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.session import writing
from keras_matrix.runner.service.stored import chosen_run

CHECKED = ("mnist_mlp", "cifar10_cnn", "lstm")
SUFFIXES = (".html", ".svg")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest, if any")
    parser.add_argument("--measure", action="store_true", help="measure the peaks even if they are stored")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes for each figure; default: 3")
    picture = "the picture: .html or .svg; default: roofline.html in the run's folder"
    parser.add_argument("--out", type=Path, metavar="FILE", help=picture)
    parser.add_argument(
        "--check-flops",
        nargs="*",
        metavar="WORKLOAD",
        help="instead, count FLOPs with every method on every backend and compare them; "
        f"default: {' '.join(CHECKED)}; exit code 1 if a difference has no known reason",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def run(args: argparse.Namespace) -> int:
    """Measure missing peaks, print the tables and write the picture; or check the FLOPs."""
    check_range("--rounds", args.rounds, 1, 100)
    if args.out is not None and args.out.suffix not in SUFFIXES:
        raise UsageError(f"--out: must end in {' or '.join(SUFFIXES)}, got {str(args.out)!r}")
    probe = args.seams.probe or ProcessProbe(str(args.results.resolve()))
    request = RooflineRequest(args.results, args.measure, args.rounds, probe, args.json)
    if args.check_flops is not None:
        return _check(request, args.check_flops or CHECKED)
    compared = _compared(request.results, args.run)
    found, peaks = _found(request, compared)
    page = _write(args.out, compared, found, peaks)
    if args.json:
        print(document(_fields(compared, found, peaks)))
    else:
        print("\n".join(lines(found, peaks)))
        if page:
            print(f"\npicture: {page}")
    return 0


@dataclass(frozen=True, slots=True)
class RooflineRequest:
    """How peaks are measured: again or only if they are missing, in how many rounds, and with which probe."""

    results: Path
    again: bool
    rounds: int
    probe: Probe
    as_json: bool

    def say(self, line: str) -> None:
        """Print the progress of the measurement."""
        if not self.as_json:
            print(f"roofline: {line}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Compared:
    """A run with its table that is compared with the machine; without a run, the machine alone."""

    store: Run | None
    about: dict[str, Any]
    rows: list[Row]


def _compared(results: Path, run: str | None) -> Compared:
    if run is None and Results(results).latest() is None:
        return Compared(None, {"machine": to_json(machine.detect()), "versions": installed_versions()}, [])
    store = chosen_run(results, run)
    records, _ = store.load()
    return Compared(store, store.about(), table(records, title_defaults()))


def _found(request: RooflineRequest, compared: Compared) -> tuple[Roofline, Peaks | None]:
    """Return the roofline; peaks and FLOPs that are not stored yet are measured and counted."""
    cells = runs.cells_of(compared.rows)
    peaks = None if request.again else runs.peaks_of(request.results, compared.about)
    if peaks is None:
        peaks = _measured(request, compared)
    counted = work.count(request.probe, request.results, [cell.settings for _, cell in cells], request.say)
    for key, why in counted.refused.items():
        print(f"runner: {key}: work not counted: {why}", file=sys.stderr)
    return roofline(cells, counted.works, peaks), peaks


def _measured(request: RooflineRequest, compared: Compared) -> Peaks | None:
    """Measure and store this machine's peaks; return None with a message if the run is from another machine."""
    here, versions = machine.detect(), installed_versions()
    if peak_files.fingerprint(here, versions) != runs.fingerprint_of(compared.about):
        reason = "this run comes from another machine or from other versions: its peaks cannot be measured here"
        print(f"runner: {reason}", file=sys.stderr)
        return None
    subject = Subject(here, versions, runs.threads_of(runs.cells_of(compared.rows)), utc_now(), _gpu(here))
    with writing(request.results):  # two measurements at the same time would disturb each other
        found = measure(request.probe, subject, Effort(rounds=request.rounds), request.say)
        peak_files.keep(request.results, found)
    return runs.with_other_images(request.results, found)


def _gpu(machine: Machine) -> GpuIdentity | None:
    """Return the GPU that the peaks are measured on, which is the first of the cells; None if no GPU is visible."""
    visible = gpus_if_visible(probe_settings(BACKENDS[0], "gpu")) if machine.gpus else ()
    return gpu_identity(visible[0]) if visible else None


def _write(out: Path | None, compared: Compared, found: Roofline, peaks: Peaks | None) -> Path | None:
    """Write the picture and return its path; None if there is no run and no path was given."""
    path = out or (compared.store.folder / "roofline.html" if compared.store else None)
    if path is None:
        return None
    if path.suffix != ".svg":
        report.write(path, roofline_page.render_page(found, _heading(compared, peaks)))
    elif scenes(found):
        report.write(path, roofline_page.render_svg(found))
    else:
        raise UsageError("--out: there is nothing to draw: no peak of the cells was measured")
    return path


def _heading(compared: Compared, peaks: Peaks | None) -> Heading:
    machine, started_at = compared.about.get("machine") or {}, compared.about.get("started_at")
    title = f"Run of {moment(started_at)}" if compared.store and started_at else "Machine"
    measured = f"Peaks measured on {moment(peaks.measured_at)} in {plural(peaks.rounds, 'round')}." if peaks else ""
    cpus = f"{machine.get('cpu_model', 'unknown CPU')} · {machine.get('logical_cpus', '?')} CPUs"
    return Heading(title, cpus, measured)


def _fields(compared: Compared, found: Roofline, peaks: Peaks | None) -> dict[str, Any]:
    return {
        "run_id": compared.store.run_id if compared.store else None,
        "cells": to_json(found.shares),
        "roofs": to_json(found.roofs),
        "own_gemms": to_json(found.own),
        "memory": to_json(found.slopes),
        "notes": list(found.notes),
        "peaks": to_json(peaks),
    }


def _check(request: RooflineRequest, workloads: Sequence[str]) -> int:
    """Count FLOPs with every method and print where they differ."""
    checks, refused = check(request.probe, _targets(workloads), None, request.say)
    if request.as_json:
        found = [{**to_json(one), "agreements": to_json(agreements(one))} for one in checks]
        print(document({"checks": found, "refused": refused}))
    else:
        print("\n".join(check_lines(checks, refused)))
    return 0 if checks and all_agree(checks) else 1


def _targets(names: Sequence[str]) -> list[Any]:
    known = catalog.load().workloads
    for name in names:
        if name not in known:
            raise UsageError(f"--check-flops: must be of {', '.join(known)}, got {name!r}{near(name, known)}")
    return [Target(name, {}) for name in names]
