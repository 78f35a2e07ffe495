"""The self test of `parallel_devices`: each cell alternately with the machine's other devices at rest and at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.influence import influences, percent_text
from keras_matrix.dashboards.charts.format import plural
from keras_matrix.records.codec import to_json
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments import influence
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.others_busy import half_of_cpus, other_devices
from keras_matrix.runner.machine.gpus.present import present_gpus
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Experiment, measured, own_arm
from keras_matrix.runner.measure.request import RunRequest

# The runs are in a folder of their own: they are no figures of the backends.
FOLDER = "parallel-devices"
ALONE, BUSY = "alone", "others_busy"


def run(request: RunRequest, *, stored: bool, as_json: bool) -> int:
    """Measure, store and print the influence of the other devices. Returns the exit code."""
    found, missing = (influence.load([request.results]), []) if stored else _measured(request, TerminalDisplay(as_json))
    if stored and not found:
        raise UsageError(f"--stored: {request.results} contains no self test of parallel devices")
    fields = {"influences": to_json(list(found)), "missing": missing}
    print(document(fields) if as_json else "\n".join([*_lines(found), *missing]))
    return 1 if missing else 0


def _measured(request: RunRequest, display: TerminalDisplay) -> tuple[Sequence[Influence], list[str]]:
    """Return the influence on each cell, and a line for each cell without one."""
    matrix, cells = request.choice.load()
    cells, count = _on_one_device(cells)
    own = replace(request, results=request.results / FOLDER)
    arms = {ALONE: own_arm(own, cells), BUSY: replace(own_arm(own, cells), others_busy=True)}
    experiment = Experiment(cells, request.choice.about(matrix.left_out), arms, own.budget_of(matrix))
    session = measured(own, experiment, display)
    for run in session.runs.values():
        run.clear_leftovers()
    found = influences(session.records(ALONE), session.records(BUSY), count)
    influence.keep(request.results, found)
    known = {one.cell_id for one in found}
    failed = [one for arm in arms for one in session.records(arm) if one.status not in MEASURED]
    return found, [_without(cell, failed) for cell in cells if cell.cell_id not in known]


def _without(cell: Cell, failed: Sequence[Record]) -> str:
    """Return the line of a cell without an influence; the reason is that of its last record without figures."""
    settings, reasons = cell.settings, [one.reason or one.status for one in failed if one.cell_id == cell.cell_id]
    why = f": {reasons[-1]}" if reasons else ""
    return f"no influence measured: {settings.backend}:{settings.workload} ({cell.cell_id}){why}"


def _on_one_device(cells: Sequence[Cell]) -> tuple[list[Cell], int]:
    """Return the cells, each on one device, and the number of devices that work at the same time.

    A cell that may use all CPUs gets half of them. Raises `UsageError` if there is no other device.
    """
    found, counts = [], set()
    present = present_gpus() if any(cell.settings.device == "gpu" for cell in cells) else None
    for cell in cells:
        settings = cell.settings
        if cell.task is not None:
            raise UsageError("--parallel-devices: measures workloads only, got an external command; use --filter")
        if settings.device == "cpu" and settings.cpus == "all":
            settings = replace(settings, cpus=half_of_cpus())
        others = other_devices(settings, cell.placement.gpus, present)
        if not others:
            what = "GPUs" if settings.device == "gpu" else f"CPUs (the cell uses {settings.cpus})"
            raise UsageError(f"--parallel-devices: there are no other {what} for {settings.workload} on this machine")
        counts.add(1 + len(others))
        alone = replace(cell.placement, parallel_devices=False, across_gpus=False)
        found.append(replace(cell, settings=settings, cell_id=cell_id(settings), placement=alone))
    if len(counts) > 1:
        raise UsageError("--parallel-devices: the cells leave different numbers of devices to others; use --filter")
    return found, counts.pop()


def _lines(found: Sequence[Influence]) -> list[str]:
    if not found:
        return ["no cell was measured with the other devices at rest and at work"]
    rows = [["cell", "workload", "backend", "devices", "step time while the others work", "blocks"]]
    for one in found:
        rows.append([one.cell_id, one.workload, one.backend, str(one.devices), percent_text(one), str(one.blocks)])
    return [
        f"influence of other devices on {plural(len(found), 'cell')}, against the same cells with the others at rest",
        "",
        *columns(rows),
        "",
        "95 % intervals, paired by block; the tables of cells that are measured at the same time state this influence",
    ]
