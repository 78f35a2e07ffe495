"""Set a run's cells against the machine's own peak: measured matrix products and memory, FLOPs counted from models.

The peaks are measured once per machine and set of versions and kept in the results folder; FLOPs likewise. Other work
on the machine makes peaks too low: measure them when it is quiet."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.hardware.flops import agreements, all_agree
from keras_matrix.analysis.hardware.roofline import Roofline, roofline
from keras_matrix.dashboards.charts.format import moment, plural
from keras_matrix.dashboards.charts.roofline import scenes
from keras_matrix.dashboards.report import page as report
from keras_matrix.dashboards.report import roofline_page
from keras_matrix.dashboards.report.roofline_page import Heading
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.instruments.work import Target
from keras_matrix.records.schema import Machine
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.checks import roofline as runs
from keras_matrix.runner.checks import work
from keras_matrix.runner.checks.peaks import Effort, Subject, measure, probe_settings
from keras_matrix.runner.checks.work import check
from keras_matrix.runner.cli.look.stored import chosen_run
from keras_matrix.runner.cli.options import add_results_option
from keras_matrix.runner.cli.render.format import title_defaults
from keras_matrix.runner.cli.render.roofline_text import check_lines, lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.probe import Probe, ProcessProbe
from keras_matrix.runner.executors.process.interpreter import installed_versions
from keras_matrix.runner.executors.supervise.visible_gpus import gpus_if_visible
from keras_matrix.runner.host import machine
from keras_matrix.runner.host.gpus.identity import GpuIdentity, gpu_identity
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import near
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.session import writing

CHECKED = ("mnist_mlp", "cifar10_cnn", "lstm")
SUFFIXES = (".html", ".svg")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_results_option(parser)
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest, if any")
    parser.add_argument("--measure", action="store_true", help="measure the peaks even where they are kept")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes for each figure; default: 3")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the picture: .html or .svg; default: roofline.html beside the run's report",
    )
    parser.add_argument(
        "--check-flops",
        nargs="*",
        metavar="WORKLOAD",
        help="count FLOPs in every way on every backend and compare, instead; "
        f"default: {' '.join(CHECKED)}; exit code 1 where a difference has no known reason",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def run(args: argparse.Namespace) -> int:
    """Measure what is missing, print the tables and write the picture; or check the FLOPs."""
    if not 1 <= args.rounds <= 100:
        raise UsageError(f"--rounds: must be from 1 to 100, got {args.rounds}")
    if args.out is not None and args.out.suffix not in SUFFIXES:
        raise UsageError(f"--out: must end in {' or '.join(SUFFIXES)}, got {str(args.out)!r}")
    asked = _asked(args)
    if args.check_flops is not None:
        return _check(asked, args.check_flops or CHECKED)
    stage = _stage(asked.results, args.run)
    found, peaks = _found(asked, stage)
    page = _write(args.out, stage, found, peaks)
    if args.json:
        print(_document(stage, found, peaks))
    else:
        print("\n".join(lines(found, peaks)))
        if page:
            print(f"\npicture: {page}")
    return 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What is measured: the peaks anew or only where they are missing, in how many rounds, and with what."""

    results: Path
    anew: bool
    rounds: int
    probe: Probe
    as_json: bool

    def say(self, line: str) -> None:
        """Print how far the measurement is."""
        if not self.as_json:
            print(f"roofline: {line}", file=sys.stderr)


def _asked(args: argparse.Namespace) -> Asked:
    probe = args.seams.probe or ProcessProbe(str(args.results.resolve()))
    return Asked(args.results, args.measure, args.rounds, probe, args.json)


@dataclass(frozen=True, slots=True)
class Stage:
    """What is set against the machine: a run with its table, or, where there is none yet, the machine alone."""

    store: Run | None
    about: dict[str, Any]
    rows: list[Row]


def _stage(results: Path, run: str | None) -> Stage:
    if run is None and Results(results).latest() is None:
        return Stage(None, {"machine": to_json(machine.detect()), "versions": installed_versions()}, [])
    store = chosen_run(results, run)
    records, _ = store.load()
    return Stage(store, store.about(), table(records, title_defaults()))


def _found(asked: Asked, stage: Stage) -> tuple[Roofline, Peaks | None]:
    """Return the roofline, after measuring and counting what is not yet kept."""
    cells = runs.cells_of(stage.rows)
    peaks = None if asked.anew else runs.peaks_of(asked.results, stage.about)
    if peaks is None:
        peaks = _measured(asked, stage)
    counted = work.count(asked.probe, asked.results, [cell.settings for _, cell in cells], asked.say)
    for key, why in counted.refused.items():
        print(f"runner: {key}: work not counted: {why}", file=sys.stderr)
    return roofline(cells, counted.works, peaks), peaks


def _measured(asked: Asked, stage: Stage) -> Peaks | None:
    """Measure and keep this machine's peaks. None, and a word about it, where the run comes from another machine."""
    here, versions = machine.detect(), installed_versions()
    if peak_files.fingerprint(here, versions) != runs.fingerprint_of(stage.about):
        print(
            "runner: this run comes from another machine or from other versions: its peaks cannot be measured here",
            file=sys.stderr,
        )
        return None
    subject = Subject(here, versions, runs.threads_of(runs.cells_of(stage.rows)), utc_now(), _gpu(here))
    with writing(asked.results):  # whoever else measures into this folder would be disturbed, and would disturb
        found = measure(asked.probe, subject, Effort(rounds=asked.rounds), asked.say)
        peak_files.keep(asked.results, found)
    return runs.with_other_images(asked.results, found)


def _gpu(machine: Machine) -> GpuIdentity | None:
    """Return the GPU that the peaks are measured on, the first that cells get; None if no GPU is visible."""
    visible = gpus_if_visible(probe_settings("torch", "gpu")) if machine.gpus else ()
    return gpu_identity(visible[0]) if visible else None


def _write(asked: Path | None, stage: Stage, found: Roofline, peaks: Peaks | None) -> Path | None:
    """Write the picture and return where; None where nobody asked and there is no run to put it beside."""
    path = asked or (stage.store.folder / "roofline.html" if stage.store else None)
    if path is None:
        return None
    if path.suffix == ".svg":
        if not scenes(found):
            raise UsageError("--out: there is nothing to draw: no peak was measured that a cell could stand under")
        report.write(path, roofline_page.render_svg(found))
        return path
    report.write(path, roofline_page.render_page(found, _heading(stage, peaks)))
    return path


def _heading(stage: Stage, peaks: Peaks | None) -> Any:
    machine = stage.about.get("machine") or {}
    title = f"Run of {moment(stage.about['started_at'])}" if stage.store and "started_at" in stage.about else "Machine"
    told = f"Peaks measured on {moment(peaks.measured_at)} in {plural(peaks.rounds, 'round')}." if peaks else ""
    return Heading(title, f"{machine.get('cpu_model', 'unknown CPU')} · {machine.get('logical_cpus', '?')} CPUs", told)


def _document(stage: Stage, found: Roofline, peaks: Peaks | None) -> str:
    document = {
        "version": 1,
        "run_id": stage.store.run_id if stage.store else None,
        "cells": to_json(found.shares),
        "roofs": to_json(found.roofs),
        "own_gemms": to_json(found.own),
        "memory": to_json(found.slopes),
        "notes": list(found.notes),
        "peaks": to_json(peaks),
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _check(asked: Asked, workloads: Sequence[str]) -> int:
    """Count FLOPs in every way and say where they differ."""
    checks, refused = check(asked.probe, _targets(workloads), None, asked.say)
    if asked.as_json:
        found = [{**to_json(one), "agreements": to_json(agreements(one))} for one in checks]
        print(json.dumps({"version": 1, "checks": found, "refused": refused}, indent=1, allow_nan=False))
    else:
        print("\n".join(check_lines(checks, refused)))
    return 0 if checks and all_agree(checks) else 1


def _targets(names: Sequence[str]) -> list[Any]:
    known = catalog.load().workloads
    for name in names:
        if name not in known:
            raise UsageError(f"--check-flops: must be of {', '.join(known)}, got {name!r}{near(name, known)}")
    return [Target(name, {}) for name in names]
