"""Predictions from a trace: finds the trace and a cost model, measures what was predicted, and judges the predictions.

A trace is files, a folder of them, or a cell of a stored run. Promise: what is measured has exactly the settings that
were predicted; what cannot be measured here is listed with the reason. A verification is stored in the run that
measured it, as `whatif.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.analysis.stats.blocks import Estimate, of_logs, paired_logs
from keras_matrix.analysis.whatif import engine, verify
from keras_matrix.analysis.whatif.corrections import recalibrated, with_link
from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.replay import HeldOut, Replay, held_out, replay
from keras_matrix.analysis.whatif.trajectory import Strategy
from keras_matrix.analysis.whatif.verify import BASELINE, Measurement, Prediction, PredictionVerdict, Verification
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.registry import ChosenWhatIf
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run, latest_attempts
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head
from keras_matrix.records.traces.request import TraceError
from keras_matrix.runner.checks.roofline import peaks_of
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, origin
from keras_matrix.runner.measure.experiment import measured as measured_session
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.run import finished
from keras_matrix.runner.service.stored import Findings, chosen_run, passed_over, write_page
from keras_matrix.runner.whatif import cost_data, measurement, source
from keras_matrix.runner.whatif.cost_data import Applied
from keras_matrix.runner.whatif.measurement import (
    MeasuredSetting,
    MeasurementPlan,
    environment_problem,
    measured,
    plan,
    settings_of,
    unused_links,
)
from keras_matrix.runner.whatif.prediction import without_profiler
from keras_matrix.runner.whatif.source import ENDINGS, TraceFiles, files_of, graph_of

LEAST_FITTED = 2

AGAIN = "record it again"


def found_trace(names: Sequence[str], results: Path, run_id: str | None, display: Display) -> TraceFiles:
    """Return the files that these words of a command line name. Raises `UsageError`."""
    if len(names) > 1 or names[0].endswith(ENDINGS) or Path(names[0]).exists():
        try:
            return TraceFiles(tuple(files_of([Path(name) for name in names])))
        except GraphError as error:
            raise UsageError(f"TRACE: {error}") from error
    return _of_cell(names[0], results, run_id, display)


def loaded(trace: TraceFiles, calibration: Path | None = None, level: str | None = None) -> Graph:
    """Return the graph of a trace, with the calibration of its link in a file, if one is given.

    Raises `UsageError`, for a stored cell `InfrastructureError`.
    """
    settings = trace.record.settings if trace.record else None
    try:
        link = None if calibration is None else source.of_file(calibration, settings)
    except GraphError as error:
        raise UsageError(f"--calibration: {error}") from error
    with _readable(trace):
        return graph_of(trace, link, level)


def unprofiled(trace: TraceFiles, graph: Graph) -> Graph:
    """Return the graph without what the profiler added. Raises `UsageError` or `InfrastructureError` as `loaded`."""
    with _readable(trace):
        return without_profiler(graph, trace)


@contextmanager
def _readable(trace: TraceFiles) -> Iterator[None]:
    """Turn the errors of a trace into one that says what to do."""
    try:
        yield
    except (GraphError, TraceError, OSError) as error:
        if trace.record is None:
            raise UsageError(f"TRACE: {error}") from error
        advice = "" if AGAIN in str(error) else f"; {AGAIN}"
        command = f"runner trace {trace.record.cell_id} --new"
        raise InfrastructureError(f"{error}{advice} with: {command}") from error


def cost_model(file: Path, peaks: Path | None, trace: TraceFiles, graph: Graph, results: Path) -> Applied:
    """Return a cost model for the device of a trace, whose peaks are in a file or stored. Raises `UsageError`."""
    measured_peaks = cost_data.peaks_from(peaks) if peaks else _stored_peaks(results, trace.record)
    return cost_data.applied(file, graph.header, measured_peaks)


def _stored_peaks(results: Path, record: Record | None) -> Peaks | None:
    """Return the peaks of the machine that ran a cell, None if they were not measured."""
    return peaks_of(results, chosen_run(results, record.run_id).about()) if record else None


def _of_cell(name: str, results: Path, run_id: str | None, display: Display) -> TraceFiles:
    """Return the files of the newest trace of a cell."""
    runs = [chosen_run(results, run_id)] if run_id else Results(results).runs()
    exit_code = 0
    for candidate_run in reversed(runs):
        records, problems = candidate_run.load()
        exit_code |= passed_over(candidate_run, problems, display)
        traced = _traced(candidate_run, records)
        settings = {cell_id: record.settings for cell_id, (record, _) in traced.items()}
        if cells.matching(name, settings):
            record, folder = traced[cells.one_of(name, settings, candidate_run.run_id)]
            try:
                return TraceFiles(tuple(files_of([folder])), record, _step_times_s(records, record.cell_id), exit_code)
            except GraphError as error:
                raise InfrastructureError(
                    f"{error}; record it again with: runner trace {record.cell_id} --new"
                ) from error
    place_text = f"run {runs[0].run_id}" if run_id else f"{results}"
    raise UsageError(
        f"TRACE: {place_text} contains no trace of a cell {name!r}, and there is no such file; record one with: "
        f"runner trace {name}"
    )


def _traced(run: Run, records: Sequence[Record]) -> dict[str, tuple[Record, Path]]:
    """Return the records of a run that have a trace, each with the trace's folder, by cell."""
    trace_by_cell = {}
    for record in records:
        folder = record.trace.folder if record.trace else None
        if folder and run.inside(folder):
            trace_by_cell[record.cell_id] = record, run.folder / folder
    return trace_by_cell


def _step_times_s(records: Sequence[Record], cell_id: str) -> tuple[float, ...]:
    """Return the step time of each measured process of a cell."""
    attempts = [
        record for record in latest_attempts(records) if record.cell_id == cell_id and record.status in MEASURED
    ]
    return tuple(record.times.step_time_s for record in attempts if record.times.step_time_s is not None)


@dataclass(frozen=True, slots=True)
class MeasuredSettings:
    """A run that has ended, what it measured of each setting by its name, its findings, and the exit code."""

    run: Run
    found: dict[str, MeasuredSetting]
    findings: Findings
    exit_code: int


def measure(request: RunRequest, display: Display, cells: Mapping[str, Cell], command: str) -> MeasuredSettings:
    """Measure the cells, by the names of their settings, equal ones once; `command` is stored as their origin."""
    unique = list({cell.cell_id: cell for cell in cells.values()}.values())
    experiment = Experiment(unique, origin(command, {name: cell.settings for name, cell in cells.items()}))
    finished_run = finished(measured_session(request, experiment, display))
    return MeasuredSettings(
        finished_run.run, measured(cells, finished_run.latest), finished_run.found, finished_run.exit_code
    )


@dataclass(frozen=True, slots=True)
class WhatIfWork:
    """How to measure: with so many processes of each setting; `recalibrate` allows a second round."""

    request: RunRequest
    display: Display
    repeats: int
    recalibrate: bool = False


@dataclass(frozen=True, slots=True)
class VerifiedRun:
    """A verification, None if nothing was measured, its run, and why settings are not in it, by name."""

    session: MeasuredSettings
    verification: Verification | None
    left_out: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def gains(self) -> dict[str, Estimate]:
        """The baseline's step time by that of each other setting, paired by block, by the setting's name."""
        times = {name: setting.step_times_s for name, setting in self.session.found.items()}
        base = times.pop(BASELINE, {})
        ratios = {
            name: of_logs(list(paired_logs(base, setting_times).values())) for name, setting_times in times.items()
        }
        return {name: gain for name, gain in ratios.items() if gain is not None}


def base_settings(graph: Graph, flag: str) -> Settings:
    """Return the settings of the traced cell. Raises `UsageError` for a trace of another program."""
    settings = settings_of(graph.header.settings)
    if settings is None:
        raise UsageError(
            f"{flag}: {graph.header.source} is not the trace of a cell, so that its settings are not known; record one "
            "with: runner trace CELL"
        )
    return settings


def check_base(graph: Graph) -> None:
    """Raise `UsageError` if the traced cell itself cannot be measured here."""
    if problem := environment_problem(base_settings(graph, "--verify")):
        raise UsageError(f"--verify: {problem}")


def checked_plan(work: WhatIfWork, graph: Graph, strategies: Sequence[Strategy]) -> MeasurementPlan:
    """Return the cells that verify these strategies. Raises `UsageError` if none of them can be measured here."""
    base = base_settings(graph, "--verify")
    changes = {name_of(strategy): strategy.settings for strategy in strategies if strategy.settings is not None}
    measurement_plan = plan(base, changes, work.repeats)
    reasons = {
        name_of(strategy): strategy.reason or "no setting realises it"
        for strategy in strategies
        if strategy.settings is None
    }
    measurement_plan = replace(measurement_plan, left_out={**reasons, **measurement_plan.left_out})
    if strategies and len(measurement_plan.cells) == 1:
        reasons_text = "; ".join(f"{name}: {reason}" for name, reason in measurement_plan.left_out.items())
        raise UsageError(f"--verify: no predicted setting can be measured here: {reasons_text}")
    work.display.problems(filter(None, [unused_links(base)]))
    return measurement_plan


def verified(
    work: WhatIfWork, graph: Graph, baseline: Replay, strategies: Sequence[Strategy], measurement_plan: MeasurementPlan
) -> VerifiedRun:
    """Measure the cells of a plan, judge the predictions, and store the verification with the run."""
    session = measure(work.request, work.display, measurement_plan.cells, "runner " + work.request.command[1])
    measurements = {
        name: Measurement(measured_setting.step_times_s, measured_setting.losses)
        for name, measured_setting in session.found.items()
    }
    failure_by_name = {
        name: "; ".join(measured_setting.failures)
        for name, measured_setting in session.found.items()
        if not measured_setting.step_times_s
    }
    result = VerifiedRun(session, None, {**measurement_plan.left_out, **failure_by_name})
    if BASELINE not in failure_by_name:
        shown_strategies = [strategy for strategy in strategies if name_of(strategy) in measurement_plan.cells]
        first_verification = verify.judge(_predictions(baseline, shown_strategies), measurements)
        result = replace(result, verification=first_verification)
        if work.recalibrate and first_verification.verdict is not PredictionVerdict.VERIFIED:
            result = _again(result, graph, shown_strategies, measurements)
    session.run.store_object(measurement.FILE, verification_document(graph, result))
    findings = session.findings
    context = replace(findings.run_context, verification=result.verification)
    write_page(replace(findings, run_context=context), session.run.folder / "report.html")
    return result


def name_of(strategy: Strategy) -> str:
    """Return the name of a strategy: its what-ifs."""
    return " ".join(strategy.what_ifs)


def verification_document(graph: Graph, result: VerifiedRun) -> dict[str, object]:
    """Return the content of `whatif.json`."""
    return measurement.document(
        result.session.run, graph.header.source, result.verification, result.left_out, result.note
    )


def _predictions(baseline: Replay, strategies: Sequence[Strategy]) -> dict[str, Prediction]:
    prediction_by_name = {BASELINE: Prediction(baseline.step_time_s, baseline.low_s, baseline.high_s)}
    for strategy in strategies:
        prediction_by_name[name_of(strategy)] = Prediction(
            strategy.step_time_s, strategy.low_s, strategy.high_s, strategy.changes_numerics
        )
    return prediction_by_name


def _again(
    first_run: VerifiedRun, graph: Graph, strategies: Sequence[Strategy], measurements: dict[str, Measurement]
) -> VerifiedRun:
    """Fit the link to the baseline and the setting that was predicted to be slowest, and judge the others again."""
    measured_strategies = [strategy for strategy in strategies if measurements[name_of(strategy)].step_times_s]
    if first_run.verification is None or len(measured_strategies) < LEAST_FITTED:
        return replace(first_run, note="not recalibrated: needs two measured settings besides the baseline")
    fitted = max(measured_strategies, key=lambda strategy: strategy.step_time_s)
    names = (BASELINE, name_of(fitted))
    times = [verify.geometric_of(measurements[name]) for name in names]
    cases = [(texts, time.centre) for texts, time in zip(((), fitted.what_ifs), times, strict=True) if time]
    try:
        link = recalibrated(graph, cases)
        changed_graph = with_link(graph, link)
        repredicted = [_repredicted(changed_graph, strategy) for strategy in measured_strategies]
        second_verification = verify.judge_again(
            first_run.verification, _predictions(replay(changed_graph), repredicted), measurements, link.source, names
        )
    except (GraphError, ValueError) as error:
        return replace(first_run, note=f"not recalibrated: {error}")
    return replace(first_run, verification=second_verification)


def _repredicted(graph: Graph, strategy: Strategy) -> Strategy:
    new_replay = replay(registry.apply(graph, [registry.read(text) for text in strategy.what_ifs]))
    return replace(strategy, step_time_s=new_replay.step_time_s, low_s=new_replay.low_s, high_s=new_replay.high_s)


def replayed(graph: Graph, resamples: int) -> tuple[Replay, tuple[HeldOut, ...]]:
    """Return the replay, and the errors of held-out steps, none for a single traced step. Raises `UsageError`."""
    try:
        errors = held_out(graph) if len(graph.header.step_times_s) > 1 else ()
        return replay(graph, resamples=resamples), errors
    except GraphError as error:
        raise UsageError(f"TRACE: {error}") from error


def choices_of(texts: Sequence[str]) -> list[ChosenWhatIf]:
    try:
        return [registry.read(text) for text in texts]
    except GraphError as error:
        raise UsageError(what_if_problem(error)) from error


def what_if_problem(error: GraphError) -> str:
    return f"--what-if: {str(error).removeprefix('--what-if: ')}"


def write_timelines(path: Path, graph: Graph, replayed: Replay) -> None:
    """Write the measured ranks as workers 0, 1, ..., and the replayed ones as the next workers. Raises OSError."""
    world_size = graph.header.world_size
    spans = [
        *engine.measured_spans(graph),
        *engine.spans(graph, replayed.schedule, first_worker=world_size),
    ]
    head = Head(graph.header.backend, 2 * world_size, graph.header.device, len(graph.header.step_times_s))
    packed = path if path.suffix == ".gz" else path.with_name(f".{path.name}.gz")
    neutral.write(packed, head, spans)
    if packed != path:
        try:
            neutral.plain(packed, path)
        finally:
            packed.unlink()
