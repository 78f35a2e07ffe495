"""An experiment, and the one function that measures it: every command that measures calls `measured`.

It begins or continues the session, checks it with the preflight, and reports its progress on a `Display`.
"""

from __future__ import annotations

import errno
import gc
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from keras_matrix.records import left_out
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Machine
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Contract, Executor
from keras_matrix.runner.interrupts import deferring_interrupts
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.mounts import import_roots, user_datasets, user_downloads
from keras_matrix.runner.machine.surroundings import processors
from keras_matrix.runner.machine.tree_memory import end_leftovers
from keras_matrix.runner.matrix.grammar import ANY_BACKEND
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.observer import Observer, StoredPlacements, planned_cells, stored_progress
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.measure.scheduler import Arm, MeasurementContext, measure, utc_now
from keras_matrix.runner.plan.adaptive import Adaptive, ArmsQuestion, SessionGoal
from keras_matrix.runner.plan.plan import PlannedRepeat, estimates
from keras_matrix.runner.plan.session import ArmRequest, Session, SessionRequest, begin, resume, writing
from keras_matrix.runner.plan.stopping import stopping

if TYPE_CHECKING:
    from keras_matrix.analysis.regression.gate import Rule
    from keras_matrix.analysis.tuning import Candidates
    from keras_matrix.runner.executors.places import Places
    from keras_matrix.runner.executors.preflight import Preflight
    from keras_matrix.runner.plan.largest_batch import LargestFound, Try
    from keras_matrix.runner.plan.race import RaceBlocks

# File of a run's folder: the log folder of the latest start that had one.
LOG_DIR_NAME = "log_dir.json"


class Display(Protocol):
    """Shows the progress of a measuring command."""

    def say(self, text: str) -> None:
        """Show a text about the full session."""

    def problems(self, lines: Iterable[str]) -> None:
        """Show the problems that the preflight found, each line once per command."""

    def tried(self, cell: Cell, trial: Try) -> None:
        """Show whether a batch size fits."""

    def largest(self, largest: LargestFound) -> None:
        """Show the largest batch that fits, of each cell."""

    def warn(self, text: str) -> None:
        """Show a warning, also if nothing else is shown."""

    def progress(
        self, repeats: Sequence[PlannedRepeat], pending: Sequence[PlannedRepeat], estimates_s: Mapping[str, float]
    ) -> AbstractContextManager[Observer]:
        """Show the attempts of a session; `repeats` contains all of them, `estimates_s` is by cell_id."""

    def of_a_try(self) -> Display:
        """Return the display for a try of a batch size, which shows problems only."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is measured, until when, and where it comes from.

    `about` describes the origin of the cells for `run.json`. Without `arms` there is one, this Python or these images.
    Of cells with `repeats: auto`, repeats are added for at most `budget_s`, until a gate with the `rule` has decided or
    the `question` is answered; with neither, until the intervals are narrow enough. `stopping`, if given, is the name
    of another way to stop, which keeps other commands from continuing the session. Cells that are `candidates` of a
    race are measured until that is decided, within the same budget.
    """

    cells: Sequence[Cell]
    about: Mapping[str, Any]
    arms: Mapping[str, ArmRequest] = field(default_factory=dict)
    budget_s: float | None = None
    rule: Rule | None = None
    question: ArmsQuestion | None = None
    stopping: str | None = None
    candidates: Candidates | None = None

    @property
    def goal(self) -> SessionGoal:
        """The rule by which repeats are added."""
        return SessionGoal(self.budget_s, self.rule, self.question)

    def decider(self, session: Session) -> Adaptive | RaceBlocks:
        """Return what decides after each block which further ones the session has."""
        if self.candidates is None:
            return Adaptive(session, self.cells, self.goal)
        from keras_matrix.runner.plan.race import RaceBlocks  # only a race needs it

        return RaceBlocks(session, self.cells, self.candidates, self.budget_s)

    def session(self, request: RunRequest) -> SessionRequest:
        """Return the session that measures it, by which an unfinished one is found."""
        return SessionRequest(
            self.cells,
            self.arms or {"": own_arm(request, self.cells)},
            request.executors.started,
            request.order_seed,
            {"command": list(request.command), **self.about},
            self.stopping or stopping(self.cells, to_decide=bool(self.rule or self.question)),
        )


def origin(command: str, content: object) -> dict[str, Any]:
    """Return the origin of cells that are in no matrix file, for `run.json`.

    `command` made them; `content` is what it measures: a text, or values that are written as JSON.
    """
    text = content if isinstance(content, str) else json.dumps(to_json(content), indent=1)
    return {"matrix_path": command, "matrix_text": text}


def own_arm(request: RunRequest, cells: Sequence[Cell], fault: str | None = None) -> ArmRequest:
    """Return the request for an arm with the software that the executor's cells use.

    Raises `UsageError` for an environment that the command or the matrix names and that cannot run the cells.
    """
    flag = "--python" if request.environments else "python"
    environments = request.environments or request.choice.environments()
    if not environments:
        return ArmRequest(None, fault, request.executors.software(cells))
    if not request.executors.contract.local_software:
        name = request.executors.entry.name
        raise UsageError(f"{flag}: cells of --executor {name} bring their own environment; leave it out")
    from keras_matrix.runner.executors.process.interpreter import of_environment  # slow, and few runs need it

    interpreters = {name: of_environment(path, flag) for name, path in environments.items()}
    others = interpreters.get(ANY_BACKEND)
    by_backend = {name: found for name in keras_backends(cells) if (found := interpreters.get(name, others))}
    for interpreter in by_backend.values():
        names = [name for name, found in by_backend.items() if found == interpreter]
        interpreter.check(flag, names, are_programs=all_programs(cells, names))
    if len(by_backend) == len(keras_backends(cells)) and len({*by_backend.values()}) == 1:
        only = next(iter(by_backend.values()))
        return ArmRequest(only.python, fault, only.versions())
    versions = dict(request.executors.software(cells)) if others is None else others.versions()
    versions |= {
        f"{key} ({name})": text for name, found in by_backend.items() for key, text in found.versions().items()
    }
    pythons = {name: interpreter.python for name, interpreter in by_backend.items()}
    return ArmRequest(others.python if others else None, fault, versions, pythons=pythons)


def keras_backends(cells: Iterable[Cell]) -> list[str]:
    """Return the backends of cells, without what external commands call theirs."""
    return list(dict.fromkeys(cell.settings.backend for cell in cells if cell.settings.backend in BACKENDS))


def all_programs(cells: Iterable[Cell], backends: Iterable[str]) -> bool:
    """Return whether the cells of these backends are programs."""
    names = set(backends)
    return all(cell.settings.script for cell in cells if cell.settings.backend in names)


def measured(request: RunRequest, experiment: Experiment, display: Display) -> Session:
    """Measure an experiment, continuing an unfinished session of it if there is one, and return the session."""
    subject = experiment.session(request)
    if request.executors.contract.local_machine:
        processors.check(cell.settings for cell in subject.cells)
        _check_gpus(subject.cells)
    if lines := left_out.lines(left_out.read(subject.about)):
        display.say("\n".join(lines))
    with writing(request.results) as results:
        log_dir = _made(request.log_dir)
        request.executors.end_leftovers(request.results)
        host = machine.detect()
        session = _session(request, results, subject, host, display)
        _store_log_dir(session, log_dir)
        preflight = _preflight(request, session, display)
        decider = experiment.decider(session)
        estimates_s = estimates(request.results, subject.cells).within_limit_s
        roots = import_roots(request.choice.matrix.resolve().parent)
        arms = {name: _arm(request, session.runs[name], arm, preflight, roots) for name, arm in subject.arms.items()}
        if request.executors.contract.local_machine:
            display.problems(_not_installed(arms, session.pending))
            display.problems([] if request.seams.executor else _conflicts(subject.arms, subject.cells))
        with (
            _guarded(request, session, display),
            _short_collections() as collect_garbage,
            display.progress(session.repeats, session.pending, estimates_s) as reporter,
            stored_progress(reporter, session.first, planned_cells(session.repeats, estimates_s), utc_now) as observer,
        ):
            context = MeasurementContext(
                arms=arms,
                observer=observer,
                machine=host,
                import_roots=[str(root) for root in roots],
                dataset_dir=dataset_dir(request),
                downloads=own_downloads(request),
                log_dir=log_dir,
                collect=collect_garbage,
                again=request.again,
            )
            places = _places(request, session, subject, host)
            if places is None:
                measure(context, session.pending, decider.more)
            else:
                from keras_matrix.runner.measure import machines

                display.say(places.about())
                display.problems(f"{name}: {warning}" for name, warning in places.warnings().items())
                context = replace(context, observer=StoredPlacements(observer, session.first, subject.cells, utc_now))
                machines.measure(context, session.pending, places, decider.more)
        session.finish(decider.why(), utc_now())
        return session


@contextmanager
def _guarded(request: RunRequest, session: Session, display: Display) -> Iterator[None]:
    """Watch the records of a session; at the end report what others changed, and leave no process and no scratch."""
    runs = session.runs.values()
    for run in runs:
        run.watch()
    try:
        yield
    finally:
        with deferring_interrupts():
            # A server that a cell has killed could not end the processes that the cell left.
            end_leftovers(str(request.results.resolve()))
            for run in runs:
                run.clear_leftovers()
                changed_files = run.changed_by_others(thorough=True)
                display.problems(
                    f"{problem.path}: set aside in records/corrupt: {problem.reason}" for problem in changed_files
                )


@contextmanager
def _short_collections() -> Iterator[Callable[[], object]]:
    """Exclude what exists now, such as the plan, from garbage collections; yield what makes one, in 5 ms then.

    Not if the process has excluded objects of its own, which it would not get back: then what is yielded does nothing.
    """
    if gc.get_freeze_count():
        yield lambda: None
        return
    gc.collect()
    gc.freeze()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()


def _places(request: RunRequest, session: Session, session_request: SessionRequest, host: Machine) -> Places | None:
    """Return the machines of a cluster, those of a test first, or this machine's GPUs if they work at the same time.

    None if one comparison is measured after the other.
    """
    stand_in, executors = request.seams.executor, request.executors
    places = request.seams.places or (None if stand_in else executors.places(request.results))
    is_parallel = any(
        cell.placement.parallel_devices and cell.settings.device == "gpu" for cell in session_request.cells
    )
    if places is not None or not (executors.contract.local_machine and is_parallel):
        return places
    from keras_matrix.runner.executors.gpu_places import GpuMachine, GpuPlaces
    from keras_matrix.runner.machine.gpus.nvml import present_gpus

    arms = {run.run_id: session_request.arms[name] for name, run in session.runs.items()}
    machine = GpuMachine(host.host_id, os.environ, present_gpus())
    return GpuPlaces(
        machine, lambda run: stand_in or executor_of(request, run, arms[run.run_id]), session_request.cells
    )


def _check_gpus(cells: Sequence[Cell]) -> None:
    """Raise `UsageError` if a cell names a GPU that the driver does not list; without such names nothing is read."""
    if any(cell.settings.device == "gpu" and not cell.placement.gpus.any for cell in cells):
        from keras_matrix.runner.executors.gpu_places import check_gpus

        check_gpus(cells)


def _session(
    request: RunRequest, results: Results, session_request: SessionRequest, host: Machine, display: Display
) -> Session:
    """Return the session that the request continues, or a new one."""
    resumed = None if request.new else resume(results, session_request, host)
    if resumed is None:
        return begin(results, session_request, host, utc_now())
    display.say(f"continuing {', '.join(str(run.folder) for run in resumed.runs.values())}")
    return resumed


def _made(log_dir: Path | None) -> Path | None:
    """Make TensorBoard's folder. Raises `UsageError` if that fails, except on a full disk, which is reported later."""
    try:
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise UsageError(f"--log-dir: {log_dir} cannot be made: {error.strerror}; name another folder") from error
    return log_dir


def _store_log_dir(session: Session, log_dir: Path | None) -> None:
    for run in session.runs.values() if log_dir is not None else ():
        run.store_object(LOG_DIR_NAME, {"log_dir": str(log_dir)})


def _preflight(request: RunRequest, session: Session, display: Display) -> Preflight | None:
    """Return the preflight of the pending repeats and show its problems; None if no cell needs one.

    This machine is not examined for cells that run on another one or in the executor of a test.
    """
    cells = [(planned.cell.settings, planned.cell.task, planned.cell.placement.gpus) for planned in session.pending]
    if all(settings.device == "cpu" for settings, *_ in cells):
        return None
    preflight, contract = request.seams.preflight, request.executors.contract
    if preflight is None and request.seams.executor is None and contract.local_machine:
        from keras_matrix.runner.executors.preflight import preflight_of

        preflight = preflight_of([settings for settings, *_ in cells], in_containers=not contract.local_software)
    display.problems(preflight.lines(cells) if preflight else ())
    return preflight


def _arm(
    request: RunRequest, run: Run, arm: ArmRequest, preflight: Preflight | None, module_roots: Iterable[Path]
) -> Arm:
    """Return an arm behind the preflight, which does not judge the builds of another Python."""
    stand_in = request.seams.executor
    executor, contract = (
        (stand_in, Contract()) if stand_in else (executor_of(request, run, arm), request.executors.contract)
    )
    if arm.others_busy:
        from keras_matrix.runner.executors.others_busy import OthersBusy  # only a self test needs it

        executor = OthersBusy(executor, lambda: stand_in or executor_of(request, run, arm))
    if preflight is not None and (arm.python is not None or arm.pythons):
        preflight = replace(preflight, versions={})
    return Arm(run, executor, arm.fault, contract, preflight, moved_roots(module_roots, arm))


def executor_of(request: RunRequest, run: Run, arm: ArmRequest) -> Executor:
    """Return the executor of an arm, which starts cells of each backend in their environment."""
    executor = request.executors.executor(run, arm.python)
    if not arm.pythons:
        return executor
    from keras_matrix.runner.executors.by_backend import ByBackend  # few runs need it

    return ByBackend(executor, {name: request.executors.executor(run, python) for name, python in arm.pythons.items()})


def _conflicts(arms: Mapping[str, ArmRequest], cells: Iterable[Cell]) -> list[str]:
    """Return what is installed in another version than Keras or a backend requires, in environments that are named."""
    backends = keras_backends(cells)
    named = [(arm.pythons.get(name, arm.python), name) for arm in arms.values() for name in backends]
    by_python: dict[str, list[str]] = {}
    for python, name in named:
        if python is not None:
            by_python.setdefault(python, []).append(name)
    if not by_python:
        return []
    from keras_matrix.runner.executors.process.interpreter import Interpreter

    return [text for python, names in by_python.items() for text in Interpreter(python, True).conflicts(names)]


def moved_roots(module_roots: Iterable[Path], arm: ArmRequest) -> list[str]:
    """Return where an arm with a worktree imports the user's modules from; empty if that is where all arms do."""
    if arm.worktree is None:
        return []
    checkout, worktree = map(Path, arm.worktree)
    new_roots = [
        worktree / root.relative_to(checkout) if root.is_relative_to(checkout) else root for root in module_roots
    ]
    return [str(root) for root in new_roots]


def _not_installed(arms: Mapping[str, Arm], pending: Sequence[PlannedRepeat]) -> list[str]:
    """Return why backends of pending cells cannot run, once for each; the cells of the others are measured."""
    keras_cells = ((planned.arm, planned.cell.settings) for planned in pending if planned.cell.task is None)
    builds = dict.fromkeys((arm, settings.backend, settings.device) for arm, settings in keras_cells)
    reasons = (arms[arm].executor.missing(backend, device) for arm, backend, device in builds)
    return list(dict.fromkeys(filter(None, reasons)))


def dataset_dir(request: RunRequest) -> str | None:
    """Return the folder of the data sets; None for the default one on a machine with other files than this one."""
    if not request.executors.contract.local_files:
        return str(request.datasets) if request.datasets else None
    return str((request.datasets or user_datasets()).resolve())


def own_downloads(request: RunRequest) -> dict[str, str]:
    """Return the folders of the user's downloads by their place in a home; {} on a machine with other files."""
    return user_downloads() if request.executors.contract.local_files else {}
