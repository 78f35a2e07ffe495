"""Finds or measures the two sides of an explanation, a cell's records and its trace, and explains their difference.

A side is a cell of a stored run. What has no stored trace is measured anew and traced, both sides interleaved in one
session: two cells as one comparison, two environments as in `runner compare`, and two stored runs in environments with
the versions of their records.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.comparison.ratios import ratio_of
from keras_matrix.analysis.comparison.table import log_ratios, summaries
from keras_matrix.analysis.explanation import Explanation, Side, differing_facts, explain
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, Estimate
from keras_matrix.analysis.step_parts import StepParts, read_parts
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run, latest_attempts
from keras_matrix.records.task import PREFIX
from keras_matrix.records.traces.request import Trace, TraceError, untraceable
from keras_matrix.runner.environments.rebuilt import installable
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, origin
from keras_matrix.runner.measure.traces import stored_traces
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.cells import chosen_cell, stored_cell
from keras_matrix.runner.service.compare import (
    BASE,
    ENVIRONMENT_FLAGS,
    NEW,
    Sides,
    arms_of,
    environments_of,
    stored_run,
)
from keras_matrix.runner.service.histories import across_stored
from keras_matrix.runner.service.reproduce import rebuilt_arm
from keras_matrix.runner.service.stored import chosen_run, passed_over, write_report
from keras_matrix.runner.whatif.measurement import steps_of_call

LEAST_ATYPICAL = 0.05

STEPS = 20
MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class CellSide:
    """A cell of a run: the latest attempts at its repeats, and its trace with the record that has it, if stored.

    `exit_code` is 1 if files that cannot be read may belong to it.
    """

    run: Run
    records: list[Record]
    traced: tuple[Record, Path] | None
    exit_code: int = 0

    @property
    def is_task(self) -> bool:
        """Whether it is an external command, which has no trace."""
        return self.records[0].settings.workload.startswith(PREFIX)

    @property
    def problem(self) -> str:
        """Why there is no trace."""
        record = next((record for record in self.records if record.trace), self.records[0])
        return (record.trace.problem if record.trace else record.reason) or "it was not traced"


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What is explained: both sides and the cell as named, and how what has no trace is measured.

    `stored` measures nothing; `repeats` are the processes of each side.
    """

    sides: Sides
    cell: str | None
    run: str | None
    stored: bool
    repeats: int = MIN_BLOCKS
    steps: int = STEPS

    @property
    def anew(self) -> bool:
        """Whether stored traces are left alone."""
        return self.sides.request.new


def sides_of(explain_request: ExplainRequest) -> tuple[CellSide, CellSide]:
    """Return both sides, measured if necessary. Raises `UsageError`."""
    sides = explain_request.sides
    if sides.to_measure:
        return _environments(explain_request)
    if not (sides.base and sides.new):
        raise UsageError(f"explain: name two runs or two cells (BASE NEW), or environments ({ENVIRONMENT_FLAGS})")
    if (runs := _runs(explain_request)) is not None:
        return _of_runs(explain_request, *runs)
    return _of_cells(explain_request)


def _environments(explain_request: ExplainRequest) -> tuple[CellSide, CellSide]:
    sides, name = explain_request.sides, explain_request.cell
    if sides.base or name is None:
        raise UsageError(f"explain: name the cell of two environments with --cell, got {sides.base or 'none'}")
    if explain_request.stored:
        raise UsageError("--stored: two environments are measured; name two stored runs instead")
    environments = environments_of(sides)
    cell = _traced(explain_request, _cell(explain_request, name))
    return _session(explain_request, {BASE: cell, NEW: cell}, arms_of(sides, environments, [cell]))


def _runs(explain_request: ExplainRequest) -> tuple[Run, Run] | None:
    """Return the runs that BASE and NEW name; None if neither names one. Raises `UsageError`."""
    runs: list[Run] = []
    problems = []
    for name in (explain_request.sides.base, explain_request.sides.new):
        try:
            runs.append(stored_run(explain_request.sides, str(name)))
        except UsageError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    return (runs[0], runs[1]) if runs else None


def _of_runs(explain_request: ExplainRequest, base: Run, new: Run) -> tuple[CellSide, CellSide]:
    if base.folder.resolve() == new.folder.resolve():
        raise UsageError(f"explain: BASE and NEW are the same run, {base.folder}; name two of its cells instead")
    name = explain_request.cell or _only_common(base, new)
    sides = (
        _side_named(base, name, explain_request.sides.display),
        _side_named(new, name, explain_request.sides.display),
    )
    if (all(side.traced for side in sides) and not explain_request.anew) or any(side.is_task for side in sides):
        return sides
    if explain_request.stored:
        raise UsageError(f"--stored: {_untraced(sides)}; leave out --stored to measure and trace both sides again")
    return _rebuilt(explain_request, *sides)


def _only_common(base: Run, new: Run) -> str:
    """Return the id of the only cell that both runs have. Raises `UsageError`."""
    settings_of_runs = [{record.cell_id: record.settings for record in run.load()[0]} for run in (base, new)]
    common = sorted(settings_of_runs[0].keys() & settings_of_runs[1].keys())
    if len(common) == 1:
        return common[0]
    lines = [
        f"  {common_cell}  {settings_of_runs[0][common_cell].backend:<10}  "
        f"{settings_text(settings_of_runs[0][common_cell])}"
        for common_cell in common[:MOST_NAMED]
    ]
    lines += [f"  ... and {len(common) - MOST_NAMED} more"] if len(common) > MOST_NAMED else []
    raise UsageError("\n".join(["--cell: must name a cell of both runs; common to them are:", *(lines or ["  none"])]))


def _rebuilt(explain_request: ExplainRequest, base: CellSide, new: CellSide) -> tuple[CellSide, CellSide]:
    """Measure both sides again, each with the versions of its records."""
    base_record, new_record = base.records[0], new.records[0]
    same_versions = installable(base_record.versions) == installable(new_record.versions)
    if same_versions and base_record.cell_id == new_record.cell_id:
        if base.traced and new.traced:
            raise UsageError(
                "--new-run: both runs have the same cell and versions: measured again they would be equal; "
                "leave out --new-run to explain the stored traces"
            )
        raise UsageError(
            f"explain: {_untraced((base, new))}, and both runs have the same cell and versions: measured again "
            "they would be equal; trace the next runs with trace: {} in the matrix"
        )
    cells_of = {name: _traced(explain_request, stored_cell(side.records)) for name, side in ((BASE, base), (NEW, new))}
    if same_versions:
        request = explain_request.sides.request
        arm = rebuilt_arm(base_record.versions, request, cells_of[BASE], explain_request.sides.display)
        return _session(explain_request, _together(cells_of), {"": arm})
    if base_record.cell_id != new_record.cell_id:
        raise UsageError(
            f"explain: {_untraced((base, new))}; they are different cells with different versions, which no session "
            "can measure: trace each in its environment with runner trace CELL --new"
        )
    arms = {
        name: rebuilt_arm(record.versions, explain_request.sides.request, cells_of[name], explain_request.sides.display)
        for name, record in ((BASE, base_record), (NEW, new_record))
    }
    return _session(explain_request, cells_of, arms)


def _of_cells(explain_request: ExplainRequest) -> tuple[CellSide, CellSide]:
    if explain_request.cell is not None:
        sides, place = explain_request.sides, explain_request.sides.request.results
        raise UsageError(
            f"--cell: names the cell of two runs, but neither {sides.base!r} nor {sides.new!r} is a run of {place}; "
            "leave it out if BASE and NEW are cells"
        )
    if not explain_request.anew and (stored_sides := _in_a_run(explain_request)) is not None:
        return stored_sides
    if explain_request.stored:
        raise UsageError("--stored: no stored run has traces of both cells; without --stored they are traced now")
    cell_by_side = {
        BASE: _cell(explain_request, str(explain_request.sides.base)),
        NEW: _cell(explain_request, str(explain_request.sides.new)),
    }
    _check_different(*(cell.cell_id for cell in cell_by_side.values()))
    return _session(
        explain_request, _together({side: _traced(explain_request, cell) for side, cell in cell_by_side.items()}), {}
    )


def _in_a_run(explain_request: ExplainRequest) -> tuple[CellSide, CellSide] | None:
    """Return the cells of the newest run, or of the named one, that has traces of both; None without one."""
    results, names = (
        explain_request.sides.request.results,
        (str(explain_request.sides.base), str(explain_request.sides.new)),
    )
    runs = [chosen_run(results, explain_request.run)] if explain_request.run else reversed(Results(results).runs())
    exit_code = 0
    for run in runs:
        records, problems = run.load()
        settings_by_cell = {record.cell_id: record.settings for record in records}
        exit_code |= passed_over(run, problems, explain_request.sides.display)
        if explain_request.run or all(cells.matching(name, settings_by_cell) for name in names):
            base, new = (_cell_side(run, cells.one_of(name, settings_by_cell, f"run {run.run_id}")) for name in names)
            _check_different(base.records[0].cell_id, new.records[0].cell_id)
            if all(side.traced or side.is_task for side in (base, new)):
                return replace(base, exit_code=exit_code), new
    return None


def _cell(explain_request: ExplainRequest, name: str) -> Cell:
    """Return the named cell, of the matrix if it is there, else of a stored run. Raises `UsageError`."""
    return chosen_cell(explain_request.sides.request, name, ", which has no trace; compare two runs of it instead")


def _side_named(run: Run, name: str, display: Display) -> CellSide:
    """Return the cell of a run that a text names. Raises `UsageError`."""
    records, problems = run.load()
    settings_by_cell: dict[str, Settings] = {record.cell_id: record.settings for record in records}
    side = _cell_side(run, cells.one_of(name, settings_by_cell, f"run {run.run_id}"))
    return replace(side, exit_code=passed_over(run, problems, display))


def _cell_side(run: Run, cell_id: str) -> CellSide:
    records = [record for record in latest_attempts(run.load()[0]) if record.cell_id == cell_id]
    return CellSide(run, records, next(stored_traces(run, records), None))


def _traced(explain_request: ExplainRequest, cell: Cell) -> Cell:
    """Return a cell that is measured in several processes, of which the first is traced. Raises `UsageError`."""
    cells.refuse_programs([cell], "which is not traced; compare two runs of it instead")
    if problem := untraceable(cell.settings.implementation, cell.settings.call, cell.settings.backend):
        raise UsageError(f"explain: {cell.settings.backend} {settings_text(cell.settings)}: {problem}")
    trace = Trace(steps=explain_request.steps)
    return replace(cell, repeats=explain_request.repeats, precision_target=None, trace=trace)


def _together(cell_by_side: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return two cells as one comparison, which is measured interleaved."""
    name = f"explain {cell_by_side[BASE].cell_id} {cell_by_side[NEW].cell_id}"
    return {side: replace(cell, together=name, change=side) for side, cell in cell_by_side.items()}


def _session(
    explain_request: ExplainRequest, cell_by_side: Mapping[str, Cell], arms: Mapping[str, ArmRequest]
) -> tuple[CellSide, CellSide]:
    """Measure both sides in one session, and trace their first processes."""
    request = explain_request.sides.request
    unique = list({cell.cell_id: cell for cell in cell_by_side.values()}.values())
    about = origin("runner explain", {side: cell.settings for side, cell in cell_by_side.items()})
    session = measured(request, Experiment(unique, about, arms), explain_request.sides.display)
    for run in session.runs.values():
        write_report(run)
    runs = {side: session.runs[side if side in session.runs else ""] for side in (BASE, NEW)}
    return _cell_side(runs[BASE], cell_by_side[BASE].cell_id), _cell_side(runs[NEW], cell_by_side[NEW].cell_id)


def _check_different(base: str, new: str) -> None:
    if base == new:
        raise UsageError(f"explain: BASE and NEW are the same cell, {base}")


def _untraced(sides: Sequence[CellSide]) -> str:
    """Return which side has no stored trace."""
    names = [f"{side.run.run_id} (cell {side.records[0].cell_id})" for side in sides if side.traced is None]
    return f"no trace is stored of {' and '.join(names)}" if names else "both traces are stored already"


def explanation(base: CellSide, new: CellSide, ratio: Estimate) -> Explanation:
    """Return what explains the difference of two measured and traced cells."""
    sides = _side(base), _side(new)
    folders = tuple(side.traced[1].parent for side in (base, new) if side.traced)
    operations = (sides[0].parts.operations, sides[1].parts.operations)
    facts = differing_facts(_measured(base), _measured(new), (folders[0], folders[1]), operations)
    return explain(*sides, ratio, facts, _caveats(base, new, ratio))


def problem_of(base: CellSide, new: CellSide) -> str | None:
    """Return why nothing can be explained, None if it can."""
    for name, side in (("base", base), ("new", new)):
        if not _measured(side):
            failed_record = side.records[0] if side.records else None
            return (
                f"{name} was not measured: {failed_record.status}: {failed_record.reason}"
                if failed_record
                else f"{name} was not measured"
            )
        if side.traced is None and not side.is_task:
            return f"no trace of {name}: {side.problem}"
    return None


def _measured(side: CellSide) -> list[Record]:
    return [record for record in side.records if record.status in MEASURED]


def _side(side: CellSide) -> Side:
    """Return a side with the parts of its traced steps. Raises `InfrastructureError` for a damaged trace."""
    assert side.traced is not None
    record, path = side.traced
    try:
        step_parts: StepParts = read_parts(path, steps_of_call(record))
    except TraceError as error:
        raise InfrastructureError(f"{error}; --new-run measures and traces both sides") from error
    return Side(_measured(side), record, step_parts)


def ratio_of_sides(results: Path, base: CellSide, new: CellSide) -> Estimate:
    """Return new / base of the figure: paired by block in one session, else with the spread between sessions."""
    about, new_about = base.run.about(), new.run.about()
    session = about.get("session", base.run.run_id)
    if session == new_about.get("session", new.run.run_id):
        (before,), (after,) = (summaries(side.records).values() for side in (base, new))
        if logs := log_ratios(after, before):
            return ratio_of("new", {"": list(logs.values())}, looks_of(about)).estimate
    results_folders = {folder.resolve() for folder in (results, base.run.folder.parent, new.run.folder.parent)}
    runs = {base.run.run_id, new.run.run_id}
    cell_ids = {side.records[0].cell_id for side in (base, new)}
    session_ratio = across_stored(sorted(results_folders), runs, cell_ids)(_measured(base), _measured(new))
    assert session_ratio is not None  # both sides have measured records
    return session_ratio.estimate


def _caveats(base: CellSide, new: CellSide, ratio: Estimate) -> list[str]:
    caveats = []
    if ratio.bounds is None:
        advice = f"measure both sides in one session with at least {MIN_BLOCKS} repeats (--new-run)"
        caveats.append(f"the ratio has no interval, so that the change may be noise; {advice}")
    for name, side in (("base", base), ("new", new)):
        times_s = [time_s for record in _measured(side) if (time_s := record.times.step_time_s)]
        own_s = side.traced[0].times.step_time_s if side.traced else None
        mean_s = statistics.geometric_mean(times_s) if times_s else None
        if own_s and mean_s and abs(own_s / mean_s - 1) > max(LEAST_ATYPICAL, abs(ratio.centre - 1) / 2):
            caveats.append(
                f"the traced process of {name} is not typical: {own_s / mean_s:.2f} times the mean step time"
            )
    return caveats
