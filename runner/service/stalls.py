"""Measures how long a cell waits for its input, applies the advice of such an analysis, and measures each change.

The arms of an analysis are interleaved; so are a change and the unchanged cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.stalls.report import Advice, SpeedupVerdict, StallReport, VerifiedAdvice, verified
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_use import InputProbe
from keras_matrix.records.instruments.stall_arms import arm_of, arms_of, base_of
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.machine.mounts import DataFolders, import_roots
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import LIMITS
from keras_matrix.runner.matrix.instrument_keys import together
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, dataset_dir, measured, origin
from keras_matrix.runner.measure.input_tools import InputTools
from keras_matrix.runner.measure.request import RunRequest, check_range
from keras_matrix.runner.measure.stalls import store_probes, store_verified, stored_probes
from keras_matrix.runner.plan.largest_batch import refuse
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.cells import named_cells, searched, stored_limit_s
from keras_matrix.runner.service.run import Finished, finished
from keras_matrix.runner.service.stored import chosen_run, findings_of, write_report

DATASET = "dataset_path"
CACHE = "cache"
# A cache is full after a pass: a longer one than this is not measured only for a verdict.
MOST_PASS_STEPS = 1000
NOT_VERIFIABLE = "the parameters of your own pipeline are not known"


@dataclass(frozen=True, slots=True)
class StallWork:
    """What measuring, probing and converting need."""

    request: RunRequest
    display: Display
    tools: InputTools
    folders: DataFolders


@dataclass(frozen=True, slots=True)
class AdviceTrial:
    """An advice, and the cells that are measured to verify it."""

    advice: Advice
    unchanged: Cell
    changed: Cell


def verify(
    work: StallWork, reports: Sequence[StallReport], chosen_cells: Mapping[str, Cell], most: int
) -> tuple[dict[str, list[VerifiedAdvice]], int]:
    """Apply the best advice of each analysis, at most `most`, and measure it.

    `chosen_cells` are the warm cells by id. Return the results by the cell_id of the analysis, and the exit code. An
    advice that cannot be applied has a result too, which is undecided and says why.
    """
    results = {report.cell_id: _trials(work, report, chosen_cells[report.cell_id], most) for report in reports}
    trials = [trial for cell_trials in results.values() for trial in cell_trials if isinstance(trial, AdviceTrial)]
    if not trials:
        work.display.say("no advice can be applied")
        return {
            name: [trial for trial in cell_trials if isinstance(trial, VerifiedAdvice)]
            for name, cell_trials in results.items()
        }, 0
    cells = list({cell.cell_id: cell for trial in trials for cell in (trial.unchanged, trial.changed)}.values())
    finished_run = finished(measured(work.request, Experiment(cells, about(cells)), work.display))
    return {
        name: [_result(trial, finished_run.latest) for trial in cell_trials] for name, cell_trials in results.items()
    }, finished_run.exit_code


def _result(trial: AdviceTrial | VerifiedAdvice, latest: Sequence[Record]) -> VerifiedAdvice:
    if isinstance(trial, VerifiedAdvice):
        return trial
    cells = (trial.unchanged, trial.changed)
    before, after = ([record for record in latest if record.cell_id == cell.cell_id] for cell in cells)
    return verified(trial.advice, trial.changed.cell_id, before, after)


def about(chosen_cells: Sequence[Cell]) -> dict[str, object]:
    """Return the origin of the cells for `run.json`."""
    return origin("runner stalls", [cell.settings for cell in chosen_cells])


def dataset(settings: Settings) -> str:
    """Return the data set of a workload of the catalog, empty without one."""
    return "" if ":" in settings.workload else str(settings.params.get(DATASET, ""))


def _trials(work: StallWork, report: StallReport, base: Cell, most: int) -> list[AdviceTrial | VerifiedAdvice]:
    """Return the trials of the best advice that can be applied, and the results of what cannot be before these."""
    trials: list[AdviceTrial | VerifiedAdvice] = []
    for advice in report.advice:
        if sum(isinstance(made_trial, AdviceTrial) for made_trial in trials) == most:
            break
        trial = _trial(work, report, base, advice) if advice.verifiable else NOT_VERIFIABLE
        if isinstance(trial, AdviceTrial):
            trials.append(trial)
            continue
        reason_text = f"not applied: {trial}"
        work.display.say(f"{base.settings.backend}: {advice.change}: {reason_text}")
        trials.append(
            VerifiedAdvice(advice.change, advice.text, "", advice.speed_up, None, SpeedupVerdict.UNDECIDED, reason_text)
        )
    return trials


def _trial(work: StallWork, report: StallReport, base: Cell, advice: Advice) -> AdviceTrial | str:
    """Return the trial of an advice, or why it cannot be applied."""
    settings = next(s for s in arms_of(report.settings, cold=True) if arm_of(s) is report.observed)
    name = f"verify {together(report.settings)}"
    if advice.change == CACHE:
        steps = _pass_steps(report)
        if isinstance(steps, str):
            return steps
        if steps != settings.steps_per_epoch:  # else the unchanged cell is that of the other trials
            settings, name = replace(settings, steps_per_epoch=steps), f"{name} {steps}"
    changed_settings = _changed(work, settings, advice)
    if isinstance(changed_settings, str):
        return changed_settings
    unchanged = replace(base, settings=settings, cell_id=cell_id(settings), together=name, change="unchanged")
    changed_cell = replace(
        unchanged, settings=changed_settings, cell_id=cell_id(changed_settings), change=advice.change
    )
    return AdviceTrial(advice, unchanged, changed_cell)


def _pass_steps(report: StallReport) -> int | str:
    """Return the steps of a pass that fills a cache in the discarded epoch, or why none does."""
    facts = report.facts
    if facts is None or not facts.samples:
        return "the number of samples of a pass is not known; measure with cache: ram and more epochs"
    if facts.worker_kind == "process":
        return (
            "each worker process fills a cache of its own, which takes many passes; measure with cache: ram and "
            "worker_kind: thread, or with more epochs"
        )
    if report.settings.discard < 1:
        return "no epoch is discarded, in which a pass could fill it; measure with discard: 1"
    steps = math.ceil(facts.samples / report.settings.batch_size)
    if steps > MOST_PASS_STEPS:
        return f"a pass has {steps} steps, more than {MOST_PASS_STEPS}; measure with cache: ram and more epochs"
    return steps


def _changed(work: StallWork, settings: Settings, advice: Advice) -> Settings | str:
    """Return the settings with an advice applied, or why that fails."""
    params = settings.params | advice.params
    if advice.stored_as is not None:
        source = work.folders.found(dataset(settings))
        if source is None:
            return f"{dataset(settings)} does not exist here"
        target = source.with_name(f"{source.name}-{advice.stored_as}")
        work.display.say(f"converting {source} to {target}")  # an earlier conversion is kept
        if problem := work.tools.convert(source, target, str(advice.stored_as)):
            return problem
        params |= {DATASET: str(target)}
    return replace(settings, params=params)


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is analysed: a cell, measured now or stored in `run`; `most` changes are applied, None measures none."""

    cell: str
    run: str | None
    cold: bool
    most: int | None


def analysed(work: StallWork, analysis: Analysis) -> tuple[Run, list[StallReport], int]:
    """Return the run of the analyses, one per backend, and the exit code of what was measured. Raises `UsageError`."""
    if analysis.run is not None:
        run, reports = _stored_analyses(work.request, analysis.cell, analysis.run)
        limit_s = stored_limit_s(run.load()[0])
        chosen_cells, code = {report.cell_id: _warm_cell(report, limit_s) for report in reports}, 0
        if analysis.most is not None:
            reports = _probed_again(work, run, chosen_cells)
    else:
        chosen_cells = _analysed_cells(work.request, analysis.cell)
        finished_run = _measured_analyses(work, chosen_cells, cold=analysis.cold)
        run, reports, code = finished_run.run, list(finished_run.found.run_context.stalls), finished_run.exit_code
    if analysis.most is not None:
        results, verify_code = verify(work, reports, chosen_cells, analysis.most)
        stored_reports = {report.cell_id: report for report in store_verified(run, results)}
        reports, code = [stored_reports[report.cell_id] for report in reports], max(code, verify_code)
        write_report(run)  # again, with what was measured
    return run, reports, code


def _analysed_cells(request: RunRequest, name: str) -> dict[str, Cell]:
    """Return the warm cell of each analysis by its id, one per backend. Raises `UsageError`."""
    cell_by_id = named_cells(request, name)
    settings = {cell_id: cell.settings for cell_id, cell in cell_by_id.items() if cell.task is None}
    names = cells.matching(name, settings)
    if not names:
        cells.refuse_cell(name, settings, searched(request.choice.matrix))
    _check_overrides(request, name, [cell_by_id[chosen_id] for chosen_id in names])
    refuse([cell_by_id[chosen_id] for chosen_id in names])
    cells.refuse_programs((cell_by_id[chosen_id] for chosen_id in names), "whose input is its own")
    _check_pipelines({settings[chosen_id].workload for chosen_id in names})
    stated_repeats = request.choice.overrides.repeats
    base_by_id = {base.cell_id: base for base in (_base(cell_by_id[chosen_id], stated_repeats) for chosen_id in names)}
    if len({base.settings.backend for base in base_by_id.values()}) < len(base_by_id):
        cells.ask(name, list(base_by_id), {base_id: base.settings for base_id, base in base_by_id.items()})
    for base in base_by_id.values():
        if base.settings.phase != "fit":
            raise UsageError(f"CELL: {name!r} has phase {base.settings.phase}; input stalls are those of phase fit")
    return base_by_id


def _check_overrides(request: RunRequest, name: str, chosen_cells: Sequence[Cell]) -> None:
    """Refuse flags that change cells of a matrix for one of a stored run. Raises `UsageError`."""
    overrides = request.choice.overrides
    if all(cell.line is not None for cell in chosen_cells):
        return
    if isinstance(overrides.repeats, int):
        check_range("--repeats", overrides.repeats, 1, int(LIMITS["repeats"].maximum or 0))
    flags = {"--backend": overrides.backends, "--filter": overrides.filters, "--set": overrides.assignments}
    if unused := [flag for flag, value in flags.items() if value]:
        raise UsageError(
            f"{', '.join(unused)}: must not be given for a cell of a stored run, which is measured as it was; "
            f"{request.choice.matrix} has no cell {name!r}: write it into a matrix, and name that with --matrix"
        )


def _check_pipelines(workloads: Iterable[str]) -> None:
    """Refuse a workload of the catalog without an input pipeline. Raises `UsageError`."""
    known_workloads = catalog.load().workloads
    for name in workloads:
        if name in known_workloads and not known_workloads[name].has_pipeline:
            raise UsageError(
                f"CELL: {name} has no input pipeline, so that it waits for none; name a cell of finetune, or of a "
                "workload of your own that returns a model and a source"
            )


def _base(cell: Cell, stated_repeats: int | str | None) -> Cell:
    """Return the warm cell of a cell's analysis.

    A cell of a stored run has one repeat, which gives no interval: it gets those that `--repeats` wants, or enough.
    """
    settings = base_of(cell.settings)
    stored_repeats = stated_repeats if isinstance(stated_repeats, int) else max(MIN_BLOCKS, cell.repeats)
    repeats = cell.repeats if cell.line is not None else stored_repeats
    return replace(
        cell, settings=settings, cell_id=cell_id(settings), repeats=repeats, precision_target=None, trace=None
    )


def _arms(base: Cell, *, cold: bool) -> list[Cell]:
    name = together(base.settings)
    arms = arms_of(base.settings, cold=cold)
    return [replace(base, settings=arm_settings, cell_id=cell_id(arm_settings), together=name) for arm_settings in arms]


def data_folders(request: RunRequest) -> DataFolders:
    module_roots = import_roots(request.choice.matrix.resolve().parent)
    return DataFolders(dataset_dir(request), tuple(str(root) for root in module_roots))


def _measured_analyses(work: StallWork, chosen_cells: Mapping[str, Cell], *, cold: bool) -> Finished:
    """Measure the arms of each analysis interleaved, then probe the data sets."""
    arm_cells = [arm for base in chosen_cells.values() for arm in _arms(base, cold=cold)]
    session = measured(work.request, Experiment(arm_cells, about(arm_cells)), work.display)
    store_probes(session.runs[""], _probes(work, chosen_cells))
    return finished(session)


def _probed_again(work: StallWork, run: Run, chosen_cells: Mapping[str, Cell]) -> list[StallReport]:
    """Probe the data sets of stored analyses that were not probed, and return the analyses with these probes."""
    probe_by_cell = stored_probes(run)
    store_probes(
        run, _probes(work, {cell_id: cell for cell_id, cell in chosen_cells.items() if cell_id not in probe_by_cell})
    )
    return [report for report in write_report(run).run_context.stalls if report.cell_id in chosen_cells]


def _probes(work: StallWork, chosen_cells: Mapping[str, Cell]) -> dict[str, InputProbe]:
    """Probe each data set once, with the same software and files as the cells."""
    contract = work.request.executors.contract
    if not (contract.local_software and contract.local_files):
        return {}
    probe_by_cell: dict[str, InputProbe] = {}
    probe_by_data: dict[str, InputProbe] = {}
    for chosen_id, cell in chosen_cells.items():
        if not (path := dataset(cell.settings)):
            continue
        data = canonical([cell.settings.params, cell.settings.batch_size])
        if data not in probe_by_data:
            work.display.say(f"probing {path}")
            probe_by_data[data] = work.tools.probe(cell.settings, work.folders)
        probe_by_cell[chosen_id] = probe_by_data[data]
    return probe_by_cell


def _stored_analyses(request: RunRequest, name: str, run_id: str) -> tuple[Run, list[StallReport]]:
    """Return a stored run and its analyses of a cell. Raises `UsageError`."""
    run = chosen_run(request.results, run_id)
    report_by_cell = {report.cell_id: report for report in findings_of(run).run_context.stalls}
    # Any arm names its analysis.
    report_of_arm = {arm.cell_id: report.cell_id for report in report_by_cell.values() for arm in report.arms}
    names = {report_of_arm[arm_id] for arm_id in report_of_arm if arm_id.startswith(name)}
    names |= set(cells.matching(name, {base_id: report.settings for base_id, report in report_by_cell.items()}))
    if not names:
        settings = [report.settings for report in report_by_cell.values()]
        analysed_names = sorted({f"{cell.backend}:{cell.workload}" for cell in settings})
        known_text = f" (there are {', '.join(analysed_names)})" if analysed_names else ""
        raise UsageError(
            f"--run: {run.run_id} contains no stall analysis of {name!r}{known_text}; measure one with: "
            f"runner stalls {name}"
        )
    return run, [report_by_cell[base_id] for base_id in report_by_cell if base_id in names]


def _warm_cell(report: StallReport, timeout_s: float) -> Cell:
    """Return the warm cell of a stored analysis, with the repeats that it had, but enough for an interval."""
    return Cell(report.settings, report.cell_id, max(MIN_BLOCKS, report.blocks), timeout_s, None)
