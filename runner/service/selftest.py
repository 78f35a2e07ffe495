"""Measures a matrix against itself under two labels, and what timing costs; finds stored sessions of that kind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.influence import influences
from keras_matrix.analysis.regression.gate import Rule
from keras_matrix.analysis.selftest import Labelled, Rate, SelftestResult, findings, gate_alarms, named, pooled
from keras_matrix.analysis.stats.sequential import FIXED
from keras_matrix.records.identity import cell_id
from keras_matrix.records.injected_faults import counterpart
from keras_matrix.records.instruments import influence
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.executors.others_busy import half_of_cpus, other_devices
from keras_matrix.runner.executors.probe import ProbeFailed, probe_settings
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.machine.gpus.nvml import present_gpus
from keras_matrix.runner.matrix.catalog import load
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, own_arm
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.service.run import with_found_values
from keras_matrix.runner.service.stored import write_report

# The runs are in a folder of their own: they are no figures of the backends.
PARALLEL_DEVICES = "parallel-devices"
ALONE, BUSY = "alone", "others_busy"
LABELS = ("base", "new")
TARGET = 0.01
WORKLOAD = "mnist_mlp"
START_LIMIT_S = 120.0


def measure(request: RunRequest, fault: str | None, display: Display) -> None:
    """Measure the matrix under both labels, interleaved; the second one has the injected fault."""
    matrix, cells = request.choice.load()
    request.choice.check_workloads(matrix, cells)
    faults = dict(zip(LABELS, (counterpart(fault), fault), strict=True))
    arms = {label: own_arm(request, cells, planted) for label, planted in faults.items()}
    experiment = Experiment(cells, request.choice.about(matrix.left_out), arms, request.budget_of(matrix))
    session = measured(request, with_found_values(request, experiment, display), display)
    for run in session.runs.values():
        write_report(run)


def stored_sessions(results: Results, fault: str | None) -> list[Labelled]:
    """Return the records of the stored sessions of two labels with this Python and this injected fault, or without."""
    faults = dict(zip(LABELS, (counterpart(fault), fault), strict=True))
    wanted_arms = {label: {"python": None, "fault": planted} for label, planted in faults.items()}
    sessions: list[Labelled] = []
    for run in results.runs():
        about = run.about()
        if about.get("arms") == wanted_arms and about.get("arm") == LABELS[0]:
            other_run = Run(results.root / str(about["runs"][LABELS[1]]))
            sessions.append((run.load()[0], other_run.load()[0]))
    return sessions


def summary(sessions: Sequence[Labelled], fault: str | None, cost: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the findings of all sessions as JSON values."""
    return {
        "planted": fault,
        "sessions": len(sessions),
        "notes": pooled(sessions),
        "findings": [_finding_json(finding) for finding in findings(sessions)],
        "gate_regressed": _rate_json(gate_alarms(sessions, Rule(threshold=0.0, looks=FIXED))),
        "named": {
            name: {kind: _rate_json(rate) for kind, rate in kinds.items()}
            for name, kinds in named(sessions, Rule(looks=FIXED)).items()
        },
        "parent_cpu_share": _parent_cpu([record for session in sessions for side in session for record in side]),
        "cost": cost,
    }


def _finding_json(finding: SelftestResult) -> dict[str, Any]:
    return {
        "name": finding.name,
        "outside": _rate_json(finding.outside),
        "outside_p_value": finding.outside.p_value(0.05),
        "slower": _rate_json(finding.slower),
        "half_width": finding.half_width,
        "ratio": finding.ratio,
    }


def _rate_json(rate: Rate) -> dict[str, Any]:
    interval = rate.interval()
    return {"count": rate.count, "of": rate.of, "share": rate.share, "interval": list(interval) if interval else None}


def _parent_cpu(records: Sequence[Record]) -> dict[str, float] | None:
    known_shares = [
        record.harness.parent_cpu_time_s / record.harness.wall_time_s
        for record in records
        if record.harness.parent_cpu_time_s is not None and record.harness.wall_time_s
    ]
    return {"median": statistics.median(known_shares), "maximum": max(known_shares)} if known_shares else None


def timing_costs(request: RunRequest, seconds: float) -> list[dict[str, Any]]:
    """Return the cost of timing on each backend, measured this long."""
    _, cells = request.choice.load()
    return [cost_of_timing(backend, seconds) for backend in dict.fromkeys(cell.settings.backend for cell in cells)]


def measured_influences(request: RunRequest, display: Display) -> tuple[Sequence[Influence], list[str]]:
    """Return the influence on each cell, and a line for each cell without one."""
    matrix, cells = request.choice.load()
    cells, count = _on_one_device(cells)
    own_request = replace(request, results=request.results / PARALLEL_DEVICES)
    arms = {ALONE: own_arm(own_request, cells), BUSY: replace(own_arm(own_request, cells), others_busy=True)}
    experiment = Experiment(cells, request.choice.about(matrix.left_out), arms, own_request.budget_of(matrix))
    experiment = with_found_values(own_request, experiment, display)
    session = measured(own_request, experiment, display)
    cell_influences = influences(session.records(ALONE), session.records(BUSY), count)
    influence.keep(request.results, cell_influences)
    measured_ids = {cell_influence.cell_id for cell_influence in cell_influences}
    failed_records = [record for arm in arms for record in session.records(arm) if record.status not in MEASURED]
    unmeasured_cells = [cell for cell in experiment.cells if cell.cell_id not in measured_ids]
    return cell_influences, [_without(cell, failed_records) for cell in unmeasured_cells]


def _without(cell: Cell, failed_records: Sequence[Record]) -> str:
    """Return the line of a cell without an influence; the reason is that of its last record without figures."""
    settings, reasons = (
        cell.settings,
        [record.reason or record.status for record in failed_records if record.cell_id == cell.cell_id],
    )
    reason_text = f": {reasons[-1]}" if reasons else ""
    return f"no influence measured: {settings.backend}:{settings.workload} ({cell.cell_id}){reason_text}"


def _on_one_device(cells: Sequence[Cell]) -> tuple[list[Cell], int]:
    """Return the cells, each on one device, and the number of devices that work at the same time.

    A cell that may use all CPUs gets half of them. Raises `UsageError` if there is no other device.
    """
    single_cells, counts = [], set()
    present = present_gpus() if any(cell.settings.device == "gpu" for cell in cells) else None
    for cell in cells:
        settings = cell.settings
        if cell.task is not None:
            raise UsageError("--parallel-devices: measures workloads only, got an external command; use --filter")
        if settings.device == "cpu" and settings.cpus == "all":
            settings = replace(settings, cpus=half_of_cpus())
        others = other_devices(settings, cell.placement.gpus, present)
        if not others:
            noun = "GPUs" if settings.device == "gpu" else f"CPUs (the cell uses {settings.cpus})"
            raise UsageError(f"--parallel-devices: there are no other {noun} for {settings.workload} on this machine")
        counts.add(1 + len(others))
        single_placement = replace(cell.placement, parallel_devices=False, across_gpus=False)
        single_cells.append(replace(cell, settings=settings, cell_id=cell_id(settings), placement=single_placement))
    if len(counts) > 1:
        raise UsageError("--parallel-devices: the cells leave different numbers of devices to others; use --filter")
    return single_cells, counts.pop()


def cost_of_timing(backend: str, limit_s: float) -> dict[str, Any]:
    """Return the ratio of our timed epochs to bare ones, with its interval and pairs. Raises `InfrastructureError`."""
    workload = load().workloads[WORKLOAD]
    settings = replace(
        probe_settings(backend, threads=1),
        workload=WORKLOAD,
        batch_size=workload.batch_size,
        samples=workload.samples,
        freed_memory="kept",  # else PyTorch's page faults dominate what is measured
    )
    order = {"settings": settings, "target": TARGET, "limit_s": limit_s}
    try:
        cost: dict[str, Any] = ProcessProbe().ask(
            "keras_matrix.runner.cell.checks.timing_cost", order, settings, limit_s + START_LIMIT_S
        )
    except ProbeFailed as error:
        raise InfrastructureError(f"cost of timing on {backend}: {error}") from error
    return cost
