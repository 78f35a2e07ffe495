"""Scouts the programs of a run: lists the calls of each, chooses the one to measure, and cuts epochs that are too long.

A scouting process runs the program once, each call cut short (`runner.cell.calls`), on the first backend on which it
makes a call. If its epochs could be too long on a backend that is `FAR_APART` times slower, it runs once on each of the
others: all backends cut after equally many steps, for which the slowest one has time. What it has shown is stored in
the folder `scouting` of the results folder, and used again while the program and the files of its project that it read
are the same.

The choice becomes part of the cells' settings, as `fit:2` for the second call site of `fit`, so that moving a line ends
no history. Without one, the call of `fit` with the most steps is measured, or a loop of the program's own.

Every command that measures cells of a matrix takes this step (`service.run.with_found_values`), so that a cell of a
program is the same in all of them. Where two versions are measured the program is scouted in both: they have the same
call and the same cut, or are refused.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.codec import CodecError, canonical, decode, dumps, loads, to_json
from keras_matrix.records.identity import cell_id, run_id
from keras_matrix.records.settings import ALL_STEPS, FIT, Scalar, Settings, call_phase
from keras_matrix.records.store import Run
from keras_matrix.records.text import number, plural, printable_values
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.cell.job import Job, Scouted, ScoutedCall
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.machine.mounts import import_roots
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import (
    Display,
    Experiment,
    dataset_dir,
    executor_of,
    moved_roots,
    own_arm,
    own_downloads,
)
from keras_matrix.runner.measure.judge import ResultRefused
from keras_matrix.runner.measure.record_builder import read_bounded, read_result
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.plan import longest_epoch_s
from keras_matrix.runner.plan.session import ArmRequest, writing

FOLDER, KEY, VERSION = "scouting", "scouted", 1
LONGEST_S = 120.0  # of a scouting process; the cell's time limit if that is shorter
TRAINING = (FIT, "steps", "step")
SCOUTED_LIMIT_BYTES = 4 << 20
HASHED_BYTES = 1 << 20  # of a larger file its size and its time of change are compared
RESERVE = 2.0  # for the time of a step: a scouting process sees few of them, and alone
FAR_APART = 20.0  # no backend is taken to be so much slower than another one
LEAST_STEPS = 2  # of an epoch that is cut: the first one, and one by which to extrapolate
ROUND = (5, 2, 1)  # first digits of the number of steps: small differences of speed choose the same one


@dataclass(frozen=True, slots=True)
class ScoutedProgram:
    """What scouting a program has shown, on which backend and within which limit; `files` by digest.

    `elsewhere` is what other backends have shown, which have scouted for the times of its steps.
    """

    version: int
    script: str
    args: str
    backend: str
    limit_s: float
    reached_limit: bool
    scouted: Scouted
    files: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, Scouted] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether the program came to its end, so that it makes no other call."""
        return self.scouted.has_ended and self.scouted.problem is None

    def chosen(self, choice: str) -> ScoutedCall | None:
        """Return the call that a choice names; without one the call in which the limit ended it, else the longest."""
        calls = self.scouted.calls
        if choice:
            exact = (call for call in calls if choice in (call.name, str(call.number), f"{call.kind} {call.place}"))
            return next(exact, None) or next((call for call in calls if call.kind == choice), None)
        training = [call for call in calls if call.kind in TRAINING and (call.steps or call.is_running)]
        running = next((call for call in training if call.is_running and self.reached_limit), None)
        return running or max(training, key=lambda call: (call.kind != FIT, call.steps), default=None)

    def on_each_backend(self, call: ScoutedCall) -> list[ScoutedCall]:
        """Return a call as each backend that has scouted saw it."""
        return [call, *(other for seen in self.elsewhere.values() for other in seen.calls if other.name == call.name)]


class OtherCall(UsageError):
    """A program does not make the call that is measured, or its versions are measured at different ones."""


def with_calls(request: RunRequest, experiment: Experiment, display: Display) -> Experiment:
    """Return the experiment whose cells of programs name the call that they measure, the same one in all arms.

    Raises `OtherCall` for the choice of a call that a program does not make, and if its arms choose different ones;
    `UsageError` for an injected fault, which no program has.
    """
    programs = ScoutedPrograms(request, display)
    arms = experiment.arms or {"": own_arm(request, experiment.cells)}
    if any(arm.fault for arm in arms.values()):
        raise UsageError("--plant: no fault is injected into a program; choose cells of other workloads with --filter")
    cells = [with_call(cell, programs.of_arms(cell, arms, experiment.cells)) for cell in experiment.cells]
    about = {**experiment.about, KEY: to_json(programs.known)}
    unique_cells = list({cell.cell_id: cell for cell in reversed(cells)}.values())[::-1]
    return replace(experiment, cells=unique_cells, about=about)


def with_own_call(request: RunRequest, cell: Cell, display: Display) -> Cell:
    """Return a named cell with the call that it measures, as a run of its matrix has it. Raises `OtherCall`.

    A cell of a stored run has its call, and is returned as it is.
    """
    if not cell.settings.script or cell.line is None:
        return cell
    _, cells = request.choice.load(largest=True)
    programs = ScoutedPrograms(request, display)
    return with_call(cell, programs.of_arms(cell, {"": own_arm(request, cells)}, cells))


def check_call(request: RunRequest, cells: tuple[Cell, Cell], arm: ArmRequest, display: Display) -> None:
    """Raise `OtherCall` if in an arm the call is not that of a cell; `cells` are it before and after its choice.

    A program that was not seen to make a call there passes: its processes say why.
    """
    before, after = cells
    in_arm = with_call(before, ScoutedPrograms(request, display).of_arms(after, {"": arm}, [after]))
    here, elsewhere = (cell.settings.params.get("call") for cell in (in_arm, after))
    if in_arm is not before and here != elsewhere:
        raise OtherCall(
            f"call: {after.settings.script} would be measured at {here}, in the other versions at {elsewhere}; choose "
            "one that all make, by its name"
        )


class ScoutedPrograms:
    """The programs of one command, each scouted once in each environment; `known` are those that make a call."""

    def __init__(self, request: RunRequest, display: Display) -> None:
        self._request, self._display = request, display
        self._programs: dict[str, ScoutedProgram | None] = {}

    @property
    def known(self) -> list[ScoutedProgram]:
        """The programs that make a call."""
        return [program for program in self._programs.values() if program is not None]

    def of_arms(
        self, cell: Cell, arms: Mapping[str, ArmRequest], cells: Sequence[Cell]
    ) -> dict[str, ScoutedProgram | None]:
        """Return what the program of a cell does in each arm; `cells` are all that may measure it. {} without one."""
        if not cell.settings.script:
            return {}
        identity = program_identity(cell.settings)
        same_program = [other for other in cells if program_identity(other.settings) == identity]
        return {name: self._of_arm(same_program, arm) for name, arm in arms.items()}

    def _of_arm(self, cells: Sequence[Cell], arm: ArmRequest) -> ScoutedProgram | None:
        key = program_key(self._request, arm, cells[0].settings)
        if key not in self._programs:
            self._programs[key] = program = scouted(self._request, arm, cells, self._display)
            if program is not None:
                self._display.say("\n".join(lines(program)))
        return self._programs[key]


def with_call(cell: Cell, programs: Mapping[str, ScoutedProgram | None]) -> Cell:
    """Return the cell with the call that it measures, and the steps after which its epochs are cut, in its settings.

    `programs` has what its program does in each arm. Epochs are cut so that every arm has time for them on every
    backend that has scouted. The cell is unchanged if no arm was seen to make the call, but may do so. Raises
    `OtherCall` if one does not, or makes another.
    """
    choice = str(cell.settings.params.get("call", ""))
    chosen = {arm: program.chosen(choice) for arm, program in programs.items() if program is not None}
    calls = {arm: call for arm, call in chosen.items() if call is not None}
    _check_same(choice, programs, calls)
    if not calls:
        return cell
    name = next(iter(calls.values())).name
    params: dict[str, Scalar] = {**cell.settings.params, "call": name}
    seen = [on_one for arm, call in calls.items() if (known := programs[arm]) for on_one in known.on_each_backend(call)]
    least_steps = min((steps for call in seen if (steps := steps_within(cell, call))), default=None)
    if (most_steps := params.pop("most_steps", None) or least_steps) not in (None, ALL_STEPS):
        params["most_steps"] = most_steps
    phase = call_phase(name) or cell.settings.phase
    settings = replace(cell.settings, params=params, phase=phase)
    return replace(cell, settings=settings, cell_id=cell_id(settings))


def _check_same(choice: str, programs: Mapping[str, ScoutedProgram | None], calls: Mapping[str, ScoutedCall]) -> None:
    """Raise `OtherCall` if arms have different calls, or one does not make the call of the others or of the choice."""
    names = {arm: call.name for arm, call in calls.items()}
    without = [arm for arm, program in programs.items() if program and program.has_ended and arm not in calls]
    known = {arm: program for arm, program in programs.items() if program is not None}
    if without and (choice or calls):
        program = known[without[0]]
        call_text = f"{program.script} makes no call {choice or next(iter(names.values()))!r}{_in_arm(without[0])}"
    elif len({*names.values()}) > 1:
        script = next(iter(known.values())).script
        names_text = ", ".join(f"{name}{_in_arm(arm)}" for arm, name in names.items())
        call_text = (
            f"{script} would be measured at different calls, {names_text}; choose one that all make, by its name"
        )
    else:
        return
    seen_lines = [f"{arm}: {line}" if arm else line for arm, program in known.items() for line in lines(program)]
    raise OtherCall("\n".join([f"call: {call_text}", *seen_lines]))


def _in_arm(arm: str) -> str:
    return f" in {arm}" if arm else ""


def steps_within(cell: Cell, call: ScoutedCall) -> int | None:
    """Return the steps after which an epoch of a call is cut; None for one that the cell has time for."""
    if call.kind != FIT or not call.step_time_s:
        return LEAST_STEPS if call.kind == FIT and call.is_running else None  # too slow for a second step
    limit_s = longest_epoch_s([(cell.timeout_s, cell.settings.epochs)]) / RESERVE
    training_s = limit_s - (call.end_time_s or 0.0)
    if call.epoch_steps is not None and call.epoch_steps * call.step_time_s <= training_s:
        return None
    steps = rounded_down(max(LEAST_STEPS, math.floor(training_s / call.step_time_s)))
    return None if call.epoch_steps is not None and steps >= call.epoch_steps else steps


def may_be_long(cell: Cell, program: ScoutedProgram) -> bool:
    """Return whether an epoch of a cell's call may have to be cut on another backend."""
    call = program.chosen(str(cell.settings.params.get("call", "")))
    if call is None or call.kind != FIT or "most_steps" in cell.settings.params:
        return False
    if call.epoch_steps is None or not call.step_time_s:
        return True
    epoch_s = call.epoch_steps * call.step_time_s + (call.end_time_s or 0.0)
    return epoch_s * FAR_APART > longest_epoch_s([(cell.timeout_s, cell.settings.epochs)])


def rounded_down(steps: int) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50 ... that is not above a number of steps."""
    power: int = 10 ** int(math.log10(steps))
    return max(digit * power for digit in ROUND if digit * power <= steps)


def program_identity(settings: Settings) -> tuple[str, ...]:
    """Return what makes two cells run the same program, whichever call they measure on whichever backend."""
    variables = (settings.env,) if settings.env else ()  # so that an earlier scouting without any is found
    return settings.script, str(settings.params.get("args", "")), settings.device, *variables


def program_key(request: RunRequest, arm: ArmRequest, settings: Settings) -> str:
    """Return the identity of a scouting: program, project, arguments, device, environments, and who runs it."""
    identity = (
        str(project_folder(request, arm, settings.script)),
        *program_identity(settings),
        request.executors.started,
        arm.python,
        dict(arm.pythons),
    )
    return hashlib.sha256(canonical(identity).encode(errors="surrogatepass")).hexdigest()[:16]


def _roots(request: RunRequest, arm: ArmRequest) -> list[Path]:
    """Return where the cells of an arm import the user's modules from."""
    roots = import_roots(request.choice.matrix.resolve().parent)
    return [Path(root) for root in moved_roots(roots, arm)] or list(roots)


def project_folder(request: RunRequest, arm: ArmRequest, script: str) -> Path:
    """Return the folder of a program's project: at best the matrix file's, as in its cell."""
    roots = _roots(request, arm)
    return next((root for root in reversed(roots) if (root / script).is_file()), roots[-1])


def scouted(request: RunRequest, arm: ArmRequest, cells: Sequence[Cell], display: Display) -> ScoutedProgram | None:
    """Return what scouting a program in an arm shows, now or earlier; `cells` measure it.

    None if it makes no call on any of their backends.
    """
    path, project, limit_s = _place(request, arm, cells)
    scouting = _Scouting(request, arm, limit_s, display)
    cell_by_backend = {cell.settings.backend: cell for cell in cells}
    program = _stored(path, project, limit_s)
    if program is None:
        display.say(f"scouting {cells[0].settings.script}: it runs once, each of its calls cut short")
        program = next((seen for cell in cell_by_backend.values() if (seen := scouting.program(cell, project))), None)
        if program is None:
            return None
        files.replace(path, dumps(program))
    if any(may_be_long(cell, program) for cell in cells):
        for backend, cell in cell_by_backend.items():
            if backend != program.backend and backend not in program.elsewhere and (there := scouting.seen(cell)[0]):
                program = replace(program, elsewhere={**program.elsewhere, backend: replace(there, files=[])})
                files.replace(path, dumps(program))
    return program


@dataclass(frozen=True, slots=True)
class _Scouting:
    """How a program is scouted in an arm."""

    request: RunRequest
    arm: ArmRequest
    limit_s: float
    display: Display

    def program(self, cell: Cell, project: Path) -> ScoutedProgram | None:
        """Return what the program of a cell does on its backend; None if it makes no call there."""
        seen, has_reached_limit = self.seen(cell)
        if seen is None or not seen.calls:
            return None
        settings, digests = cell.settings, {name: _digest(project / name) for name in seen.files}
        digests = {name: digest for name, digest in digests.items() if digest}
        ending, seen = (self.limit_s, has_reached_limit), replace(seen, files=[])
        args = str(settings.params.get("args", ""))
        return ScoutedProgram(VERSION, settings.script, args, settings.backend, *ending, seen, digests)

    def seen(self, cell: Cell) -> tuple[Scouted | None, bool]:
        """Return what a scouting process saw on the backend of a cell, and whether its limit ended it."""
        settings = cell.settings
        seen, outcome, problem = _run(self.request, self.arm, cell, self.limit_s)
        if seen is None or not seen.calls:
            self.display.say(f"scouting {settings.script} on {settings.backend}: {problem or 'it makes no call'}")
        return seen, outcome.deadline_exceeded


def with_known_calls(request: RunRequest, cells: Sequence[Cell]) -> tuple[list[Cell], set[str]]:
    """Return cells with the calls that an earlier scouting of unchanged programs shows, and the ids of cells without.

    Nothing is started. Raises `OtherCall` for the choice of a call that a program does not make.
    """
    arm, known_cells, unknown_ids = own_arm(request, cells), dict[str, Cell](), set[str]()
    for cell in cells:
        if cell.settings.script:
            identity = program_identity(cell.settings)
            path, project, limit_s = _place(
                request, arm, [other for other in cells if program_identity(other.settings) == identity]
            )
            program = _stored(path, project, limit_s)
            if program is None or program.chosen(str(cell.settings.params.get("call", ""))) is None:
                unknown_ids.add(cell.cell_id)
            cell = with_call(cell, {"": program})  # noqa: PLW2901 - the same cell
        known_cells.setdefault(cell.cell_id, cell)
    return list(known_cells.values()), unknown_ids


def _place(request: RunRequest, arm: ArmRequest, cells: Sequence[Cell]) -> tuple[Path, Path, float]:
    """Return the file of a program's scouting, the folder of its project, and the limit; `cells` measure it."""
    settings, limit_s = cells[0].settings, min(LONGEST_S, *(cell.timeout_s for cell in cells))
    path = request.results / FOLDER / f"{program_key(request, arm, settings)}.json"
    return path, project_folder(request, arm, settings.script), limit_s


def _stored(path: Path, project: Path, limit_s: float) -> ScoutedProgram | None:
    """Return an earlier scouting of an unchanged program, unless it ended at a shorter limit."""
    try:
        program = decode(ScoutedProgram, files.read_json(path), FOLDER)
    except (OSError, CodecError):
        return None
    is_whole = program.version == VERSION and (not program.reached_limit or program.limit_s >= limit_s)
    return program if is_whole and all(_digest(project / name) == was for name, was in program.files.items()) else None


def _digest(path: Path) -> str:
    """Return what changes with a file's content; of a large one its size and time of change. "" without a file."""
    with suppress(OSError):
        status = path.stat()
        if status.st_size > HASHED_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def _run(
    request: RunRequest, arm: ArmRequest, cell: Cell, limit_s: float
) -> tuple[Scouted | None, Outcome, str | None]:
    """Run a scouting process; return what it saw, how it ended, and why it saw nothing."""
    with _scouting_run(request) as run:
        executor = request.seams.executor or executor_of(request, run, arm)
        if missing_text := executor.missing(cell.settings.backend, cell.settings.device):
            return None, Outcome(), missing_text
        try:
            executor.begin_block([cell.settings])
            executor.await_block()
            job = _job(request, arm, cell, run)
            outcome = executor.start(job, limit_s).finish()
            seen = _read(job)
            if seen is not None and seen.calls:
                return seen, outcome, None
            result, _ = read_result(job)
            message = result.message if result is not None else None
            unstarted = outcome.infrastructure or outcome.refused or outcome.missing_device
            late_text = f"it made no call within {limit_s:g} s" if outcome.deadline_exceeded else None
            return seen, outcome, unstarted or late_text or message
        finally:
            executor.close()


@contextmanager
def _scouting_run(request: RunRequest) -> Iterator[Run]:
    """Yield a run for a scouting process, in a results folder of its own, and remove it."""
    with writing(request.results / FOLDER) as results:
        for left_run in results.runs():  # of a runner that was killed
            remove_tree(left_run.folder)
        run = results.create(run_id(utc_now(), secrets.token_hex(8)), {"version": 1, "command": list(request.command)})
        try:
            yield run
        finally:
            remove_tree(run.folder)
            (results.root / "latest").unlink(missing_ok=True)


def _job(request: RunRequest, arm: ArmRequest, cell: Cell, run: Run) -> Job:
    return Job(
        nonce=secrets.token_hex(16),
        cell_id=cell.cell_id,
        repeat=0,
        attempt=0,
        settings=replace(cell.settings, compile_cache="cold"),
        steps=1,
        folder=str(run.scratch("scout").absolute()),
        import_roots=[str(root) for root in _roots(request, arm)],
        dataset_dir=dataset_dir(request),
        compile_cache_dir=None,
        gpus=cell.placement.gpus,
        scouts=True,
        downloads=own_downloads(request),
    )


def _read(job: Job) -> Scouted | None:
    """Return what a scouting process has written, which is untrusted; None if that is nothing valid."""
    with suppress(ResultRefused, CodecError):
        raw = read_bounded(job.scouted_path, SCOUTED_LIMIT_BYTES)
        seen = decode(Scouted, printable_values(loads(raw)), "scouted") if raw else None
        return seen if seen is not None and seen.nonce == job.nonce else None
    return None


def lines(program: ScoutedProgram) -> list[str]:
    """Return the calls of a program, the one that is measured by default marked, and how its scouting ended."""
    default = program.chosen("")
    marks = ["; measured by default" if call == default else "" for call in program.scouted.calls]
    calls = [f"  {call_text(call)}{mark}" for call, mark in zip(program.scouted.calls, marks, strict=True)]
    others = (f"  on {backend}: {_times_text(seen)}" for backend, seen in program.elsewhere.items())
    return [f"calls of {program.script}, as seen on {program.backend}:", *calls, *others, *_ending(program)]


def _times_text(seen: Scouted) -> str:
    """Return the times of the steps of calls as one text."""
    times = [f"{call.name} {_step_text(call.step_time_s)}" for call in seen.calls if call.step_time_s is not None]
    return ", ".join(times) or "no step was timed"


def _step_text(step_time_s: float) -> str:
    return f"{number(step_time_s * 1e3)} ms a step"


def call_text(call: ScoutedCall) -> str:
    """Return a call with its number, its place and what is known of its steps."""
    least_text = "" if call.is_exact else "at least "
    steps_text = f"{least_text}{plural(call.steps, 'step')} in {plural(call.epochs, 'epoch')}"
    times_text = f" of {call.calls:,} calls" if call.calls > 1 else ""
    time_text = "" if call.step_time_s is None else f", {_step_text(call.step_time_s)}"
    return f"{call.number}  {call.kind} {call.place} ({call.name}): {steps_text}{times_text}{time_text}"


def _ending(program: ScoutedProgram) -> list[str]:
    if program.reached_limit:
        return [f"  scouting ended after {program.limit_s:g} s, before the program did: later calls are not known"]
    if program.scouted.problem:
        return [f"  scouting ended with an error of the program: {program.scouted.problem}"]
    lost_text = "  the process ended before the program did: later calls are not known"
    return [] if program.scouted.has_ended else [lost_text]
