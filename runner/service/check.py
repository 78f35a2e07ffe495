"""Whether a model is faster than another one, a stored result or a limit, for a project's own tests.

Both are measured interleaved, in processes of their own, by the same session and gate as `runner gate`, with the
tolerance as its threshold: it adds repeats until the interval of model / baseline is on one side of it, or the budget
is spent. Then nothing is decided, which is never a pass. Unlike a gate it also judges models that do different work, of
which one replaces the other; the sentence says so.

Each side is a folder with a module `checked_NAME` that has the function `build`, the only workload of the matrix.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.table import CellSummary, log_ratios
from keras_matrix.analysis.comparison.versus import ACROSS_UNKNOWN, CellComparison, Versus, verdicts_across
from keras_matrix.analysis.history.sessions import LEAST_PROCESSES, LEAST_SESSIONS
from keras_matrix.analysis.regression.gate import GateOutcome, Rule, judge
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.records.schema import MEASURED
from keras_matrix.records.settings import Scalar
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import escaped, percentage, ratio_text, seconds
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.executors import registry
from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_backends
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, own_arm
from keras_matrix.runner.measure.request import CellChoice, RunRequest
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.session import Session
from keras_matrix.runner.plan.stopping import looks_of
from keras_matrix.runner.service.compare import BASE, NEW, Sides, across, findings
from keras_matrix.runner.service.stored import read_table, write_report

BUDGET_S = 300.0
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
ALONE = (
    f"{ACROSS_UNKNOWN}, which needs {LEAST_SESSIONS} more stored runs of this check, of {LEAST_PROCESSES} repeats each"
)
ADVICE = "give a function at the top of a module, its name as 'module:function', or a Keras model with its data"


class CheckOutcome(StrEnum):
    """What was decided."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was decided, and the sentence that says it with the figures."""

    outcome: CheckOutcome
    sentence: str


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is measured and how: on one backend, with these settings of a matrix, for at most `budget_s`.

    `model` is `build` or its name, or a Keras model with its `data`, an array or several; `faster_than` another one, a
    limit in seconds per step, or the folder of stored results of the check with this `name`.
    """

    name: str
    model: object
    faster_than: object
    folder: Path
    data: object = None
    tolerance: float = 0.0
    backend: str | None = None
    budget_s: float = BUDGET_S
    repeats: int | str = "auto"
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    results: Path | None = None


def checked(request: CheckRequest, display: Display) -> Checked:
    """Measure and decide. Raises `UsageError`, and `InfrastructureError` if a side was not measured."""
    limit, limit_s = request.faster_than, _limit_s(request.faster_than)
    if not (isinstance(request.tolerance, Real) and 0 <= request.tolerance < math.inf):
        raise UsageError(f"tolerance: must be a share from 0 on, as 0.05 for 5 %, got {request.tolerance!r}")
    sides = {NEW: (request.model, request.data)}
    if limit_s is None and not isinstance(limit, Path):
        sides[BASE] = (limit, request.data)
    for side, (model, data) in sides.items():
        _write(request, side, _source(model, data, request.folder / side))
    baseline = stored_baseline(request, limit) if isinstance(limit, Path) else None
    session = _measured(request, tuple(sides), display)
    if limit_s is not None:
        return _against_limit(session, limit_s, request.tolerance)
    if baseline is not None:
        return _decided(_against_stored(request, baseline, session, display), _rule(request))
    new, base = session.runs[NEW], session.runs[BASE]
    sides_of_session = _sides(request, str(base.folder), str(new.folder), display)
    rule = replace(_rule(request), looks=looks_of(base.about()))
    return _decided(findings(sides_of_session, rule, to_decide=False), rule)


def _limit_s(limit: object) -> float | None:
    """Return a limit in seconds, of any type of number; None if it is another baseline. Raises `UsageError`."""
    if isinstance(limit, bool) or (isinstance(limit, Real) and not 0 < float(limit) < math.inf):
        raise UsageError(f"faster_than: must be a number of seconds above 0, got {limit!r}")
    return float(limit) if isinstance(limit, Real) else None


def _rule(request: CheckRequest) -> Rule:
    return Rule(threshold=request.tolerance)


def _sides(request: CheckRequest, base: str, new: str, display: Display) -> Sides:
    return Sides("check", _run_request(request), base, new, None, None, None, display)


def _module(request: CheckRequest) -> str:
    return "checked_" + (re.sub(r"\W+", "_", request.name).strip("_").lower()[-80:] or "model")


def _write(request: CheckRequest, side: str, source: str) -> None:
    folder = request.folder / side
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_module(request)}.py").write_text(source, encoding="utf-8")


def _run_request(request: CheckRequest) -> RunRequest:
    backend = (
        request.backend
        or _backend_of(request.model, request.faster_than)
        or os.environ.get("KERAS_BACKEND")
        or next(iter(installed_backends(Interpreter(sys.executable))), None)
    )
    if backend is None:
        raise UsageError("check: no backend is installed with Keras; install keras-matrix[jax-cpu], for example")
    matrix = {
        "version": 1,
        "defaults": {"repeats": request.repeats, **request.settings},
        "backends": [backend],
        "cells": [{"workload": f"{_module(request)}:build"}],
    }
    return RunRequest(
        command=("keras_matrix.check",),
        choice=CellChoice(request.folder / NEW / "matrix", Overrides(), text=json.dumps(matrix, indent=1)),
        results=request.results or request.folder / "results",
        executors=registry.chosen(registry.DEFAULT, None, {}, None),
        budget_s=request.budget_s,
        new=True,
        seams=Seams(),
    )


def _backend_of(*models: object) -> str | None:
    """Return the backend of this process if one of these is a Keras model, which was made with it; else None."""
    keras = sys.modules.get("keras")
    is_here = keras is not None and any(isinstance(model, keras.Model) for model in models)
    return keras.backend.backend() if keras is not None and is_here else None


def _measured(request: CheckRequest, sides: Sequence[str], display: Display) -> Session:
    """Measure the sides interleaved; the module of the baseline is imported from its own folder."""
    run_request = _run_request(request)
    _, cells = run_request.choice.load()
    new_arm = own_arm(run_request, cells)
    base_arm = replace(new_arm, worktree=(str(request.folder / NEW), str(request.folder / BASE)))
    arms = {side: new_arm if side == NEW else base_arm for side in sorted(sides)}
    rule = _rule(request) if len(sides) > 1 else None
    about = run_request.choice.about()
    session = measured(run_request, Experiment(cells, about, arms, request.budget_s, rule), display)
    for run in session.runs.values():
        write_report(run)
    return session


def stored_baseline(request: CheckRequest, path: Path) -> Run:
    """Return the newest stored run that measured the model of this check, not its baseline. Raises `UsageError`.

    `path` is a run's folder, or a results folder, which may also contain runs of other checks.
    """
    _, (cell,) = _run_request(request).choice.load()
    runs = [Run(path.resolve())] if (path / "run.json").is_file() else Results(path).runs()
    for run in reversed(runs):
        of_cell = any(record.cell_id == cell.cell_id and record.status in MEASURED for record in run.load()[0])
        if of_cell and run.about().get("arm") != BASE:
            return run
    raise UsageError(
        f"faster_than: {path} has no earlier results of this check, {cell.settings.workload} on "
        f"{cell.settings.backend} with these settings; measure them first: check(..., results=Path({str(path)!r}))"
    )


def _against_stored(request: CheckRequest, base: Run, session: Session, display: Display) -> Versus:
    """Compare two sessions. Other work is no hindrance here: it is compared in the same way, and its reason stays."""
    rule, new = _rule(request), session.runs[NEW]
    compared = findings(_sides(request, str(base.folder), str(new.folder), display), rule, to_decide=False)
    (comparison,) = compared.comparisons
    if (sides := _both(comparison)) is None:
        return compared
    ratio_across = across(new.folder.parent, base, new, {comparison.cell_id})
    verdict = verdicts_across(ratio_across, {comparison.cell_id: sides}, rule)[comparison.cell_id]
    return replace(compared, comparisons=(replace(comparison, outcome=verdict.outcome, ratio=verdict.estimate),))


def _both(comparison: CellComparison) -> tuple[CellSummary, CellSummary] | None:
    """Return base and new if both can be judged although the gate gives no ratio, as of other work; else None."""
    base, new, reason = comparison.base, comparison.new, comparison.reason
    if not reason or reason.startswith("not measured in ") or base is None or new is None:
        return None
    return (base, new) if base.measured and new.measured else None


def _against_limit(session: Session, limit_s: float, tolerance: float) -> Checked:
    from keras_matrix.runner.service.cell_rows import cells_of

    (cell,) = cells_of(read_table(session.runs[NEW]).table)
    step_s, low_s, high_s = cell.step_time_s, cell.step_time_low_s, cell.step_time_high_s
    if step_s is None:
        raise InfrastructureError(f"check: the model was not measured: {'; '.join(cell.reasons) or cell.status}")
    figures = f"{seconds(step_s, low_s, high_s)} per step, limit {seconds(limit_s)}{_within(tolerance)}"
    if low_s is None or high_s is None or low_s / limit_s <= 1 + tolerance < high_s / limit_s:
        return Checked(CheckOutcome.UNDECIDED, f"undecided: {figures}; add repeats, or measure on a quieter machine")
    return _outcome("limit", high_s / limit_s, tolerance, figures)


def _within(tolerance: float) -> str:
    return f", tolerance {tolerance:g}" if tolerance else ""


def _outcome(baseline: str, highest: float, tolerance: float, figures: str) -> Checked:
    """Return what an interval decides, by its upper end as a ratio to the baseline: within the tolerance it passes."""
    if highest > 1 + tolerance:
        return Checked(CheckOutcome.SLOWER, f"the model is slower than the {baseline}: {figures}")
    words = "faster than" if highest <= 1 else f"at most {percentage(tolerance)} slower than"
    return Checked(CheckOutcome.FASTER, f"the model is {words} the {baseline}: {figures}")


def _decided(compared: Versus, rule: Rule) -> Checked:
    """Return what the gate's verdict means. Raises `InfrastructureError` if a side was not measured."""
    (comparison,) = compared.comparisons
    outcome, ratio, wording = comparison.outcome, comparison.ratio, comparison.said
    if compared.paired and (sides := _both(comparison)):
        logs = tuple(log_ratios(sides[1], sides[0]).values())
        verdict = judge({comparison.cell_id: logs}, rule)[comparison.cell_id] if len(logs) >= MIN_BLOCKS else None
        outcome, ratio = (verdict.outcome, verdict.estimate) if verdict else (GateOutcome.UNDECIDED, None)
    if outcome is GateOutcome.UNDECIDED and ratio is None:
        return Checked(CheckOutcome.UNDECIDED, f"undecided: {wording.replace('; use --repeats 5', '; set repeats=5')}")
    if outcome is GateOutcome.NOT_MEASURED or ratio is None:
        raise InfrastructureError(f"check: {wording}{''.join(f'; {text}' for text in comparison.failures)}")
    figures = f"{ratio_text(ratio.centre, ratio.low, ratio.high)} of the baseline's time per step"
    figures += _within(rule.threshold)
    figures += f" ({comparison.reason})" if comparison.reason and comparison.reason != ACROSS_UNKNOWN else ""
    if outcome is GateOutcome.UNDECIDED:
        hint = wording.replace("; set another --threshold", "") if comparison.reason is None else "undecided"
        return Checked(CheckOutcome.UNDECIDED, f"{ALONE if ratio.low is None else hint}: {figures}")
    if outcome is GateOutcome.REGRESSED:
        return Checked(CheckOutcome.SLOWER, f"the model is slower than the baseline: {figures}")
    return _outcome("baseline", ratio.centre if ratio.high is None else ratio.high, rule.threshold, figures)


# The module of a side.


def _source(model: object, data: object, folder: Path) -> str:
    """Return the text of a module whose `build` is this function, or loads this model. Raises `UsageError`."""
    if isinstance(model, str):
        if not FUNCTION.fullmatch(model):
            raise UsageError(f"check: {escaped(model)!r} names no function; {ADVICE}")
        module, _, name = model.partition(":")
        return _imported(module, name, [str(Path.cwd())])
    if inspect.isfunction(model):
        return _of_function(model)
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Model):
        raise UsageError(f"check: {escaped(repr(model))} cannot be measured; {ADVICE}")
    if data is None:
        raise UsageError("check: a Keras model needs data: data=(x, y)")
    return _of_model(model, data, folder)


def _of_function(function: Callable[..., Any]) -> str:
    module, name, file = function.__module__, function.__qualname__, inspect.getsourcefile(function)
    if module == "__main__" or not name.isidentifier() or file is None:
        raise UsageError(f"check: {module}.{name} cannot be imported by another process; {ADVICE}")
    path = Path(file).resolve()
    depth = module.count(".") + (path.stem == "__init__")
    return _imported(module, name, [str(path.parents[depth])])


def _imported(module: str, name: str, folders: Sequence[str]) -> str:
    return (
        f"import sys\n\nsys.path += [folder for folder in {list(folders)!r} if folder not in sys.path]\n"
        f"from {module} import {name} as build  # noqa: E402, F401\n"
    )


def _array(part: object) -> Any:
    """Return a part of the data of a model, which the module of the side loads again. Raises `UsageError`."""
    import numpy as np

    with contextlib.suppress(ValueError, TypeError, RuntimeError):  # ragged, or no values here, as a tensor of a GPU
        array = np.asarray(part)
        is_several = isinstance(part, tuple | list) and any(hasattr(value, "shape") for value in part)
        if array.ndim and not array.dtype.hasobject and not is_several:  # several inputs are no array of arrays
            return array
    kind = f"{type(part).__module__}.{type(part).__qualname__}"
    raise UsageError(
        f"check: data must be an array of numbers or a tuple of arrays, got {kind}; for other data give a function "
        "at the top of a module that returns the model and its data"
    )


def _of_model(model: Any, data: object, folder: Path) -> str:
    import numpy as np

    arrays = [_array(part) for part in (data if isinstance(data, tuple | list) else [data])]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", *arrays)
    model.save(folder / "model.keras")
    return (
        "import keras\nimport numpy as np\n\n\ndef build():\n"
        f"    model = keras.saving.load_model({str(folder / 'model.keras')!r})\n"
        f"    with np.load({str(folder / 'data.npz')!r}) as arrays:\n"
        f"        return model, *[arrays[f'arr_{{number}}'] for number in range({len(arrays)})]\n"
    )
