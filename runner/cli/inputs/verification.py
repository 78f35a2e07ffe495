"""Applies advice of stall analyses, and measures each change interleaved with the unchanged cell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.stalls.report import Advice, StallReport, Verdict, Verified
from keras_matrix.analysis.stalls.verify import verified
from keras_matrix.records.codec import to_json
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.stall_arms import arm_of, arms_of
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.machine.data_folders import DataFolders
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.stall_rules import together
from keras_matrix.runner.measure.experiment import Experiment, measured
from keras_matrix.runner.measure.input_tools import InputTools
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.service.run import finished

DATASET = "dataset_path"
CACHE = "cache"
# A cache is full after a pass: a longer one than this is not measured only for a verdict.
MOST_PASS_STEPS = 1000
NOT_VERIFIABLE = "the parameters of your own pipeline are not known"


@dataclass(frozen=True, slots=True)
class Work:
    """What measuring, probing and converting need."""

    request: RunRequest
    display: TerminalDisplay
    tools: InputTools
    folders: DataFolders


@dataclass(frozen=True, slots=True)
class Trial:
    """An advice, and the cells that are measured to verify it."""

    advice: Advice
    unchanged: Cell
    changed: Cell


def verify(
    work: Work, reports: Sequence[StallReport], chosen: Mapping[str, Cell], most: int
) -> tuple[dict[str, list[Verified]], int]:
    """Apply the best advice of each analysis, at most `most`, and measure it.

    `chosen` are the warm cells by id. Return the results by the cell_id of the analysis, and the exit code. An advice
    that cannot be applied has a result too, which is undecided and says why.
    """
    results = {one.cell_id: _trials(work, one, chosen[one.cell_id], most) for one in reports}
    trials = [one for own in results.values() for one in own if isinstance(one, Trial)]
    if not trials:
        work.display.say("no advice can be applied")
        return {name: [one for one in own if isinstance(one, Verified)] for name, own in results.items()}, 0
    cells = list({cell.cell_id: cell for trial in trials for cell in (trial.unchanged, trial.changed)}.values())
    done = finished(measured(work.request, Experiment(cells, about(cells)), work.display))
    return {name: [_result(one, done.latest) for one in own] for name, own in results.items()}, done.exit_code


def _result(one: Trial | Verified, latest: Sequence[Record]) -> Verified:
    if isinstance(one, Verified):
        return one
    cells = (one.unchanged, one.changed)
    before, after = ([record for record in latest if record.cell_id == cell.cell_id] for cell in cells)
    return verified(one.advice, one.changed.cell_id, before, after)


def about(wanted: Sequence[Cell]) -> dict[str, object]:
    """Return the origin of the cells for `run.json`."""
    text = json.dumps([to_json(one.settings) for one in wanted], indent=1)
    return {"matrix_path": "runner stalls", "matrix_text": text}


def dataset(settings: Settings) -> str:
    """Return the data set of a workload of the catalog, empty without one."""
    return "" if ":" in settings.workload else str(settings.params.get(DATASET, ""))


def _trials(work: Work, report: StallReport, base: Cell, most: int) -> list[Trial | Verified]:
    """Return the trials of the best advice that can be applied, and the results of what cannot be before these."""
    found: list[Trial | Verified] = []
    for advice in report.advice:
        if sum(isinstance(one, Trial) for one in found) == most:
            break
        trial = _trial(work, report, base, advice) if advice.verifiable else NOT_VERIFIABLE
        if isinstance(trial, Trial):
            found.append(trial)
            continue
        why = f"not applied: {trial}"
        work.display.say(f"{base.settings.backend}: {advice.change}: {why}")
        found.append(Verified(advice.change, advice.text, "", advice.speed_up, None, Verdict.UNDECIDED, why))
    return found


def _trial(work: Work, report: StallReport, base: Cell, advice: Advice) -> Trial | str:
    """Return the trial of an advice, or why it cannot be applied."""
    settings = next(s for s in arms_of(report.settings, cold=True) if arm_of(s) is report.observed)
    name = f"verify {together(report.settings)}"
    if advice.change == CACHE:
        steps = _pass_steps(report)
        if isinstance(steps, str):
            return steps
        if steps != settings.steps_per_epoch:  # else the unchanged cell is that of the other trials
            settings, name = replace(settings, steps_per_epoch=steps), f"{name} {steps}"
    changed = _changed(work, settings, advice)
    if isinstance(changed, str):
        return changed
    unchanged = replace(base, settings=settings, cell_id=cell_id(settings), together=name, change="unchanged")
    own = replace(unchanged, settings=changed, cell_id=cell_id(changed), change=advice.change)
    return Trial(advice, unchanged, own)


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


def _changed(work: Work, settings: Settings, advice: Advice) -> Settings | str:
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
