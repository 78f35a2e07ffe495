"""From a request to a measured session: begun anew or continued, behind the preflight, shown while it goes on.

The way of a measuring command: its request and its cells make a `SessionRequest` (`session_request`), which
`measure_session` measures. What people see of it meanwhile is the `Display`'s.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from keras_matrix.records import left_out
from keras_matrix.records.codec import to_json
from keras_matrix.records.left_out import LeftOut
from keras_matrix.records.schema import Machine
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.contract import Contract
from keras_matrix.runner.host import machine
from keras_matrix.runner.host.surroundings import pinning
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.scheduler import Arm, MeasurementContext, Observer, measure, utc_now
from keras_matrix.runner.plan.adaptive import Adaptive, Goal
from keras_matrix.runner.plan.estimates import estimates
from keras_matrix.runner.plan.plan import Step
from keras_matrix.runner.plan.session import ArmAsked, Session, SessionRequest, begin, resume, writing
from keras_matrix.runner.plan.stopping import stopping
from keras_matrix.runner.request import RunRequest

if TYPE_CHECKING:
    from keras_matrix.runner.checks.preflight.cells import Preflight
    from keras_matrix.runner.plan.largest_batch import Try

# Of a run's folder: the log folder that the latest start with one wrote into.
LOG_DIR_NAME = "log_dir.json"


class Display(Protocol):
    """Shows what a measuring command does while it does it."""

    def say(self, text: str) -> None:
        """Show a text about the session as a whole."""

    def problems(self, lines: Iterable[str]) -> None:
        """Show what the preflight found, each line once in a command."""

    def tried(self, cell: Cell, found: Try) -> None:
        """Show whether a batch size fitted."""

    def progress(
        self, steps: Sequence[Step], pending: Sequence[Step], estimates_s: Mapping[str, float]
    ) -> AbstractContextManager[Observer]:
        """Show the attempts of a session; `steps` are all of it, `estimates_s` is by cell_id."""

    def of_a_try(self) -> Display:
        """Return what a try of a batch size is shown with: problems alone."""


def session_request(
    request: RunRequest,
    cells: Sequence[Cell],
    about: Mapping[str, Any],
    arms: Mapping[str, ArmAsked] | None = None,
    *,
    to_decide: bool = False,
) -> SessionRequest:
    """Return what a session is to measure; `to_decide` if a gate decides when it is enough.

    `about` says where the cells come from, for `run.json`; without `arms` there is one, of this Python or these images.
    """
    return SessionRequest(
        cells,
        arms or {"": own_arm(request, cells)},
        request.executors.started,
        request.order_seed,
        {"command": list(request.command), **about},
        stopping(cells, to_decide=to_decide),
    )


def about_matrix(path: Path, not_run: Sequence[LeftOut] = ()) -> dict[str, Any]:
    """Return what `run.json` keeps of a matrix file, with what a service leaves out of it."""
    return {
        "matrix_path": str(path),
        "matrix_text": path.read_text(encoding="utf-8"),
        left_out.KEY: to_json(not_run),
    }


def own_arm(request: RunRequest, cells: Sequence[Cell], fault: str | None = None) -> ArmAsked:
    """Return an arm of the software that the executor's cells find."""
    return ArmAsked(None, fault, request.executors.software(cells))


def measure_session(request: RunRequest, asked: SessionRequest, goal: Goal, display: Display) -> Session:
    """Measure what is asked for, continuing where an earlier start ended, and return the session."""
    if request.executors.contract.local_machine:
        pinning.check(cell.settings for cell in asked.cells)
    if lines := left_out.lines(left_out.read(asked.about)):
        display.say("\n".join(lines))
    with writing(request.results) as results:
        log_dir = _made(request.log_dir)
        request.executors.end_leftovers(request.results)
        here = machine.detect()
        session = _session(request, results, asked, here, display)
        if log_dir is not None:
            for run in session.runs.values():
                run.store_object(LOG_DIR_NAME, {"log_dir": str(log_dir)})
        preflight = _preflight(request, session, display)
        adaptive = Adaptive(session, asked.cells, goal)
        expected_s = estimates(request.results, asked.cells).within_limit_s
        with display.progress(session.steps, session.pending, expected_s) as observer:
            context = MeasurementContext(
                arms={name: _arm(request, session.runs[name], arm, preflight) for name, arm in asked.arms.items()},
                observer=observer,
                machine=here,
                import_roots=[str(Path.cwd()), str(request.choice.matrix.resolve().parent)],
                dataset_dir=_dataset_dir(request),
                log_dir=log_dir,
            )
            measure(context, session.pending, adaptive.more)
        session.finish(adaptive.why(), utc_now())
        return session


def _session(request: RunRequest, results: Results, asked: SessionRequest, here: Machine, display: Display) -> Session:
    """Return the session that the request continues, or a new one."""
    found = None if request.new else resume(results, asked, here)
    if found is None:
        return begin(results, asked, here, utc_now())
    display.say(f"continuing {', '.join(str(run.folder) for run in found.runs.values())}")
    return found


def _made(log_dir: Path | None) -> Path | None:
    """Make the folder in which TensorBoard finds what it shows.

    Raises `UsageError` for a folder that cannot be made; a full disk costs no measurement, and is reported later.
    """
    try:
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise UsageError(f"--log-dir: {log_dir} cannot be made: {error.strerror}; name another folder") from error
    return log_dir


def _preflight(request: RunRequest, session: Session, display: Display) -> Preflight | None:
    """Return the preflight of what is pending, its problems shown; None if no cell needs one.

    This machine is not examined for cells of another one, for which a test's executor stands, too.
    """
    cells = [(step.cell.settings, step.cell.task) for step in session.pending]
    if all(settings.device == "cpu" for settings, _ in cells):
        return None
    found, contract = request.seams.preflight, request.executors.contract
    if found is None and request.seams.executor is None and contract.local_machine:
        from keras_matrix.runner.checks.preflight.cells import preflight_of

        found = preflight_of([settings for settings, _ in cells], in_containers=not contract.local_software)
    display.problems(found.lines(cells) if found else ())
    return found


def _arm(request: RunRequest, run: Run, asked: ArmAsked, preflight: Preflight | None) -> Arm:
    """Return an arm that starts no cell which the preflight refuses; another Python's builds are not judged."""
    own = request.executors
    executor, contract = (
        (request.seams.executor, Contract())
        if request.seams.executor
        else (own.executor(run, asked.python), own.contract)
    )
    if preflight is not None:
        from keras_matrix.runner.checks.preflight.executor import CheckedExecutor

        known = preflight if asked.python is None else replace(preflight, versions={})
        executor = CheckedExecutor(executor, known)
    return Arm(run, executor, asked.fault, contract)


def _dataset_dir(request: RunRequest) -> str | None:
    """Return where a cell finds data sets; None for the usual place of a machine with other files than this one."""
    if not request.executors.contract.local_files:
        return str(request.datasets) if request.datasets else None
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    return str((request.datasets or home / "datasets").resolve())
