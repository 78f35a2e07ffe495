"""Applies advice of stall analyses, and measures each change interleaved with the unchanged cell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.stalls.report import Advice, StallReport, Verified
from keras_matrix.analysis.stalls.verify import verified
from keras_matrix.records.codec import to_json
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.stall_arms import arm_of, arms_of
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cli.measure.run import finished
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.host.data_folders import DataFolders
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.stall_rules import together
from keras_matrix.runner.measure.input_tools import InputTools
from keras_matrix.runner.measure.measuring import measure_session, session_request
from keras_matrix.runner.plan.adaptive import Goal
from keras_matrix.runner.request import RunRequest

DATASET = "dataset_path"
CACHE = "cache"
# A cache is full after a pass: a longer one than this is not measured only for a verdict.
MOST_PASS_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Work:
    """What measuring, probing and converting need."""

    request: RunRequest
    display: TerminalDisplay
    tools: InputTools
    folders: DataFolders


@dataclass(frozen=True, slots=True)
class Trial:
    """An advice of an analysis (by its cell_id), and the cells that are measured to verify it."""

    analysis: str
    advice: Advice
    unchanged: Cell
    changed: Cell


def verify(
    work: Work, reports: Sequence[StallReport], chosen: Mapping[str, Cell], most: int
) -> tuple[dict[str, list[Verified]], int]:
    """Apply the best advice of each analysis, at most `most`, and measure it.

    `chosen` are the warm cells by id. Return the results by the cell_id of the analysis, and the exit code.
    """
    trials = [trial for report in reports for trial in _trials(work, report, chosen[report.cell_id], most)]
    if not trials:
        work.display.say("no advice can be applied")
        return {}, 0
    wanted = {cell.cell_id: cell for trial in trials for cell in (trial.unchanged, trial.changed)}
    asked = session_request(work.request, list(wanted.values()), about(list(wanted.values())))
    done = finished(measure_session(work.request, asked, Goal(None), work.display))
    results: dict[str, list[Verified]] = {}
    for trial in trials:
        before, after = (
            [record for record in done.latest if record.cell_id == cell.cell_id]
            for cell in (trial.unchanged, trial.changed)
        )
        one = verified(trial.advice, trial.changed.cell_id, before, after)
        results.setdefault(trial.analysis, []).append(one)
    return results, done.exit_code


def about(wanted: Sequence[Cell]) -> dict[str, object]:
    """Return the origin of the cells for `run.json`."""
    text = json.dumps([to_json(one.settings) for one in wanted], indent=1)
    return {"matrix_path": "runner stalls", "matrix_text": text}


def dataset(settings: Settings) -> str:
    """Return the data set of a workload of the catalog, empty without one."""
    return "" if ":" in settings.workload else str(settings.params.get(DATASET, ""))


def _trials(work: Work, report: StallReport, base: Cell, most: int) -> list[Trial]:
    """Return the trials of the best advice that can be applied."""
    found: list[Trial] = []
    for advice in report.advice:
        if advice.verifiable and len(found) < most:
            trial = _trial(work, report, base, advice)
            if trial is not None:
                found.append(trial)
    return found


def _trial(work: Work, report: StallReport, base: Cell, advice: Advice) -> Trial | None:
    """Return the trial of an advice; None, with the reason printed, if it cannot be applied."""
    settings = next(s for s in arms_of(report.settings, cold=True) if arm_of(s) is report.observed)
    name = f"verify {together(report.settings)}"
    if advice.change == CACHE:
        steps = _pass_steps(report)
        if steps is None:
            work.display.say(
                f"{CACHE}: not applied: only threads fill it in one pass, which must have at most {MOST_PASS_STEPS} "
                "steps; measure with cache: ram and more epochs"
            )
            return None
        settings, name = replace(settings, steps_per_epoch=steps), f"{name} {steps}"
    changed = _changed(work, settings, advice)
    if changed is None:
        return None
    unchanged = replace(base, settings=settings, cell_id=cell_id(settings), together=name)
    return Trial(report.cell_id, advice, unchanged, replace(unchanged, settings=changed, cell_id=cell_id(changed)))


def _pass_steps(report: StallReport) -> int | None:
    """Return the steps of a pass that fills a cache in the discarded epoch; None if it is too long or fills several."""
    facts = report.facts
    if facts is None or not facts.samples or facts.worker_kind == "process" or report.settings.discard < 1:
        return None
    steps = math.ceil(facts.samples / report.settings.batch_size)
    return steps if steps <= MOST_PASS_STEPS else None


def _changed(work: Work, settings: Settings, advice: Advice) -> Settings | None:
    """Return the settings with an advice applied; None, with the reason printed, if that fails."""
    params = settings.params | advice.params
    if advice.stored_as is not None:
        source = work.folders.found(dataset(settings))
        target = None if source is None else _converted(work, source, advice)
        if target is None:
            return None
        params |= {DATASET: str(target)}
    return replace(settings, params=params)


def _converted(work: Work, source: Path, advice: Advice) -> Path | None:
    """Convert a data set into a folder next to it; an earlier conversion is kept."""
    target = source.with_name(f"{source.name}-{advice.stored_as}")
    work.display.say(f"converting {source} to {target}")
    if problem := work.tools.convert(source, target, str(advice.stored_as)):
        work.display.say(f"{advice.change}: not applied: {problem}")
        return None
    return target
