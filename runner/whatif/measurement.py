"""Chooses the cells that verify predictions, reads their step times, and stores the verification of a run.

The cells are measured as one comparison: interleaved, with the same number of steps, with exactly the settings that a
strategy file names. What cannot be measured here is returned with the reason, never measured with other settings.

The verification is `whatif.json` in the folder of the run that measured the cells.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keras_matrix.records.codec import CodecError, decode, to_json
from keras_matrix.records.fc import network, spec
from keras_matrix.records.identity import SETTINGS, cell_id, unnamed
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.settings import FIT, Scalar, Settings
from keras_matrix.records.store import VERIFICATION, Run
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import LIMITS
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.whatif.strategy_file import checked_changes

if TYPE_CHECKING:
    from keras_matrix.analysis.whatif.verify import Verification

BASE = "baseline"
FILE, VERSION = VERIFICATION, 1


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """The cells to measure by the names of their settings, and why others cannot be measured, by name."""

    cells: dict[str, Cell]
    left_out: dict[str, str]


@dataclass(frozen=True, slots=True)
class MeasuredSetting:
    """What was measured of a setting: the step time of each repeat, its losses, and why repeats failed.

    A step is what a trace has as one: a call of the compiled function, which may take several steps of training.
    A repeat that diverged has no step time, and a loss of NaN.
    """

    cell_id: str
    step_times_s: dict[int, float]
    losses: list[float]
    failures: list[str]


def settings_of(named_settings: Mapping[str, Any]) -> Settings | None:
    """Return the settings of a cell from a graph's header; None if the trace is not of a cell."""
    return unnamed(named_settings) if named_settings.keys() >= set(SETTINGS) else None


def plan(base: Settings, changes: Mapping[str, Mapping[str, Scalar]], repeats: int) -> MeasurementPlan:
    """Return the cells of the base and of each change, by name; the base is `BASE`.

    Raises `UsageError` if the base itself cannot be measured here.
    """
    if problem := environment_problem(base):
        raise UsageError(f"--verify: {problem}")
    name = f"verify {cell_id(base)}"
    cells, left_out = {BASE: _cell(base, repeats, name, BASE)}, {}
    for change, values in changes.items():
        try:
            settings = checked_changes(base, values)
        except UsageError as error:
            left_out[change] = str(error)
            continue
        if problem := environment_problem(settings):
            left_out[change] = problem
        elif settings == base:
            left_out[change] = "its settings are those of the baseline"
        else:
            cells[change] = _cell(settings, repeats, name, change)
    return MeasurementPlan(cells, left_out)


def cells_of(base: Settings, changed_settings: Mapping[str, Settings], repeats: int) -> dict[str, Cell]:
    """Return the cells of settings that are measured together, by name; the base is `BASE`."""
    name = f"probe {cell_id(base)}"
    cells = {BASE: _cell(base, repeats, name, BASE)}
    return cells | {
        setting_name: _cell(settings, repeats, name, setting_name)
        for setting_name, settings in changed_settings.items()
    }


def measured(cells: Mapping[str, Cell], records: Sequence[Record]) -> dict[str, MeasuredSetting]:
    """Return what the latest attempts of each cell have measured, by the names of the settings."""
    return {name: _measured(cell.cell_id, records) for name, cell in cells.items()}


def steps_of_call(record: Record) -> int:
    """Return how many steps of training a call of a cell's compiled function takes: what a trace has as one step.

    A user's workload may have decided this itself.
    """
    if record.settings.phase != FIT:
        return 1
    decided = record.resolved.steps_per_execution if record.resolved else None
    return decided or record.settings.steps_per_execution


def environment_problem(settings: Settings) -> str | None:
    """Return why a cell cannot be measured from here, None if it can: its links may be missing."""
    if settings.workload != spec.WORKLOAD:
        return None
    problem = spec.problem_of(settings)
    if problem.network == spec.LOCAL:
        return None
    return network.network_problem(
        network.parse(os.environ.get(network.VARIABLE, "")), problem.network, problem.workers
    )


def unused_links(settings: Settings) -> str | None:
    """Return that a cell does not use the links of `ci/netns` around the runner; None if there are none, or it does."""
    if settings.workload != spec.WORKLOAD or not os.environ.get(network.VARIABLE):
        return None
    if spec.problem_of(settings).network != spec.LOCAL:
        return None
    return (
        "the traced cell has network: local, so that the links of ci/netns are not used; to measure over them, trace a "
        "cell with --network RATE"
    )


def _cell(settings: Settings, repeats: int, together: str, change: str) -> Cell:
    timeout_s = float(LIMITS["timeout_s"].default or 0)
    return Cell(settings, cell_id(settings), repeats, timeout_s, None, together=together, change=change)


def _measured(name: str, records: Sequence[Record]) -> MeasuredSetting:
    own_records = [record for record in records if record.cell_id == name]
    good = [record for record in own_records if record.status in MEASURED and record.times.step_time_s]
    last_losses = [record.learning.loss[-1] for record in good if record.learning.loss]
    diverged = [math.nan for record in own_records if record.status is Status.DIVERGED]
    return MeasuredSetting(
        name,
        {record.repeat: float(record.times.step_time_s or 0) * steps_of_call(record) for record in good},
        [*(loss for loss in last_losses if loss is not None), *diverged],
        sorted({f"{record.status}: {record.reason}" for record in own_records if record not in good}),
    )


def document(
    run: Run, source: str, verification: Verification | None, left_out: Mapping[str, str], note: str = ""
) -> dict[str, object]:
    """Return the content of the file; `source` is what was predicted, `left_out` says what was not measured."""
    return {
        "version": VERSION,
        "run": run.run_id,
        "source": source,
        "verdict": None if verification is None else verification.verdict.value,
        "verification": to_json(verification),
        "left_out": dict(left_out),
        "note": note,
    }


def stored(run: Run, records: Sequence[Record] = ()) -> Verification | None:
    """Return the verification of a run; None if it has none, or one that cannot be read. No record is needed."""
    from keras_matrix.analysis.whatif.verify import Verification

    content = run.load_object(FILE) or {}
    if content.get("version") != VERSION or content.get("verification") is None:
        return None
    try:
        return decode(Verification, content["verification"], FILE)
    except CodecError as error:
        run.note_unread(run.folder / FILE, error)
        return None
