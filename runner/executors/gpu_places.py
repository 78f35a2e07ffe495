"""The GPUs of this machine as places: comparisons with `parallel_devices` run at the same time, each on its own GPU.

A comparison whose cells need several GPUs gets a group of them. All other cells (on the CPU, without the key, or
without a GPU to run on) are measured at the place of the entire machine, while no GPU works.

The places share the machine: its CPUs, memory, power and air. Their influence on each other is not removed but
measured (`runner selftest --parallel-devices`), and each record names the cells that worked on other GPUs meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.comparison.machines import short
from keras_matrix.records.host.device_lists import ALL_GPUS, INDEX, GpuChoice
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.instruments.gpu_place import GpuPlace, place_of_gpus
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.places import Fitting, Place, SessionEnded, gpus_needed_by
from keras_matrix.runner.executors.supervise.visible_gpus import GpusUnavailable, UnknownGpu, named_gpus, usable_gpus
from keras_matrix.runner.executors.supervise.watch import Never
from keras_matrix.runner.machine.gpus.nvml import PresentGpus, present_gpus
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.plan import comparisons

ACQUIRE_POLL_S = 0.1
WHOLE = "the entire machine"

MakeExecutor = Callable[[Run], Executor]


def check_gpus(cells: Iterable[Cell]) -> None:
    """Refuse a list of GPUs that names one which the driver does not list. Raises `UsageError`."""
    gpus_present = present_gpus()
    choices = dict.fromkeys(cell.placement.gpus.names for cell in cells if cell.settings.device == "gpu")
    try:
        for names in choices:
            if names != ALL_GPUS:
                named_gpus(names, gpus_present)
    except UnknownGpu as error:
        raise UsageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """This machine: its `host_id`, the caller's environment, and the GPUs that the driver lists."""

    host_id: str
    caller: Mapping[str, str]
    present: PresentGpus | Unread | None

    def usable(self, choice: GpuChoice) -> tuple[str, ...]:
        """Return the GPUs that a cell may use; none if there is none, which its executor then reports."""
        try:
            return usable_gpus(choice, self.caller, self.present)
        except GpusUnavailable:
            return ()

    def uuid(self, name: str) -> str:
        """Return the UUID of a GPU; its name if UUIDs are not known."""
        if isinstance(self.present, PresentGpus) and INDEX.fullmatch(name):
            return self.present.uuids[int(name)]
        return name

    def model(self, name: str) -> str:
        """Return the model of a GPU, empty if it is not known."""
        present = self.present
        if not isinstance(present, PresentGpus) or self.uuid(name) not in present.uuids[: len(present.models)]:
            return ""
        return present.models[present.uuids.index(self.uuid(name))]


class GpuPlaces:
    """The places that the comparisons of a session need; `executor` makes that of a run, for one place."""

    def __init__(self, machine: GpuMachine, executor: MakeExecutor, cells: Iterable[Cell]) -> None:
        self._machine, self._executor = machine, executor
        self._shared = _Shared()
        self._places: dict[str, _GpusOfMachine] = {}
        self._lock = threading.Lock()
        self._changed = False
        for comparison in comparisons(cells):
            self.fitting(comparison)

    def current(self) -> Sequence[Place]:
        """Return the places."""
        with self._lock:
            return [*self._places.values()]

    def fitting(self, cells: Sequence[Cell]) -> Fitting:
        """Return the GPUs, or groups of them, on which a comparison can run; for others the entire machine."""
        gpus_needed = max(map(gpus_needed_by, cells))
        placement = cells[0].placement
        is_parallel = gpus_needed > 0 and all(cell.placement.parallel_devices for cell in cells)
        usable_names = list(self._machine.usable(placement.gpus)) if is_parallel else []
        groups = (
            [
                tuple(usable_names[end - gpus_needed : end])
                for end in range(gpus_needed, len(usable_names) + 1, gpus_needed)
            ]
            if usable_names
            else []
        )
        if placement.across_gpus:
            groups = self._equal(groups)
        with self._lock:
            return Fitting(frozenset(self._place(group).identity for group in groups or [()]))

    def changed(self) -> bool:
        """Return whether there are other places than when this was last asked; each fits only what it was made for."""
        had_changed, self._changed = self._changed, False
        return had_changed

    def about(self) -> str:
        """Return the GPUs that work at the same time."""
        names_text = ", ".join(place.name for place in self._places.values() if place.gpus)
        return f"at the same time: {names_text}" if names_text else "no comparison has a GPU of its own"

    def warnings(self) -> Mapping[str, str]:
        """Return nothing: what disturbs a machine is found by the preflight and by `runner check`."""
        return {}

    def none_left(self, comparisons: int, why: str) -> str:
        """Return the message that no GPU is left for so many comparisons."""
        reason_text = f" ({why})" if why else ""
        return (
            f"parallel_devices: no GPU is left for {comparisons} comparisons{reason_text}; see `runner check`, then "
            "repeat the command, which continues this run"
        )

    def stop(self) -> None:
        """End all cells; calls that wait for them raise `SessionEnded`."""
        self._shared.stop()

    def _equal(self, groups: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Return the groups of equal models of which there are most: blocks on different models are not compared."""
        groups_by_models: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
        for group in groups:
            groups_by_models[tuple(sorted(map(self._machine.model, group)))].append(group)
        return max(groups_by_models.values(), key=len, default=[])

    def _place(self, gpus: tuple[str, ...]) -> _GpusOfMachine:
        """Return the place of these GPUs, of the entire machine for none; its parts are those of all places."""
        host_id = self._machine.host_id
        uuids = [self._machine.uuid(name) for name in gpus]
        identity = place_of_gpus(host_id, uuids) if gpus else host_id
        if identity not in self._places:
            models_text = " and ".join(dict.fromkeys(filter(None, map(self._machine.model, gpus))))
            name = f"GPU {'+'.join(gpus)}{f' ({models_text})' if models_text else ''}" if gpus else WHOLE
            parts = [place_of_gpus(host_id, [uuid]) for uuid in uuids]
            choice = GpuChoice(",".join(gpus)) if gpus else None
            new_place = _GpusOfMachine(identity, name, choice, parts, uuids, self._shared, self._executor)
            self._places[identity], self._changed = new_place, True
            self._shared.slots |= {part: threading.Lock() for part in parts if part not in self._shared.slots}
            single_parts = [part for place in self._places.values() if place.gpus for part in place.parts]
            if host_id in self._places:
                self._places[host_id].parts = list(dict.fromkeys(single_parts))
        return self._places[identity]


@dataclass(slots=True, eq=False)
class _GpusOfMachine:
    """One GPU, several, or the entire machine (`gpus` is None), which excludes all others."""

    identity: str
    name: str
    gpus: GpuChoice | None
    parts: list[str]
    uuids: list[str]
    shared: _Shared
    make: MakeExecutor
    _taken: list[str] = field(default_factory=list)
    _executors: dict[str, _AtGpus] = field(default_factory=dict)

    def acquire(self, give_up: Callable[[], bool]) -> bool:
        """Take the parts in their order, so that no two places wait for each other; False if `give_up` says so."""
        for part in sorted(self.parts):
            while not self.shared.slots[part].acquire(timeout=ACQUIRE_POLL_S):
                if give_up():
                    return False
            self._taken.append(part)
        return True

    def executor(self, run: Run) -> Executor:
        """Return the executor of a run here, the same one each time."""
        if run.run_id not in self._executors:
            self._executors[run.run_id] = _AtGpus(self.make(run), self)
        return self._executors[run.run_id]

    def lost(self) -> str | None:
        """Return None: a GPU that fails several comparisons one after the other gets no more work in any case."""
        return None

    def release(self) -> None:
        """End the servers and let other places begin."""
        for executor in self._executors.values():
            executor.close()
        while self._taken:
            self.shared.slots[self._taken.pop()].release()


class _Shared:
    """What the places of a session have in common: a slot for each GPU, and the processes that are alive."""

    def __init__(self) -> None:
        self.slots: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._alive: dict[int, tuple[_GpusOfMachine, str, Running]] = {}
        self._alongside: dict[int, dict[str, None]] = {}
        self.stopping = False

    def begin(self, place: _GpusOfMachine, name: str, running: Running) -> int:
        """Note a process; all that are alive at other places work alongside it, and it alongside them.

        One that was started while the session ended is killed: `stop` may not have known it.
        """
        with self._guard:
            number, alive_name = next(self._numbers), f"{name} on {short(place.identity)}"
            others = {other: text for other, (other_place, text, _) in self._alive.items() if other_place is not place}
            self._alongside[number] = dict.fromkeys(others.values())
            for other in others:
                self._alongside[other][alive_name] = None
            self._alive[number] = place, alive_name, running
        if self.stopping:
            running.kill()
        return number

    def elsewhere(self, place: _GpusOfMachine) -> list[WaitingCell]:
        """Return the cells at other places. A container is not below the runner, so that its use must be asked for."""
        with self._guard:
            running_elsewhere = [
                (name, running) for other_place, name, running in self._alive.values() if other_place is not place
            ]
        return [
            WaitingCell(name, root, works=True)
            for name, running in running_elsewhere
            if (root := running.root()) is not None
        ]

    def end(self, number: int) -> list[str]:
        """Note that a process has ended; return what worked alongside it."""
        with self._guard:
            self._alive.pop(number, None)
            return sorted(self._alongside.pop(number, {}))

    def stop(self) -> None:
        """Kill the processes that are alive."""
        self.stopping = True
        with self._guard:
            running_executors = [running for _, _, running in self._alive.values()]
        for running in running_executors:
            running.kill()

    def check(self) -> None:
        """Raise `SessionEnded` if the session ends: how a killed process ended is no result."""
        if self.stopping:
            raise SessionEnded


class _AtGpus:
    """The executor of a place: its processes' outcomes name the GPUs and what worked on others."""

    def __init__(self, inner: Executor, place: _GpusOfMachine) -> None:
        self.name, self._inner, self._place = inner.name, inner, place

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Pass it on."""
        return self._inner.missing(backend, device)

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Pass it on."""
        self._inner.begin_block(settings)

    def await_block(self) -> None:
        """Pass it on."""
        self._inner.await_block()

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start a process, and note it."""
        self._place.shared.check()
        running = self._inner.start(job, timeout_s)
        return running if isinstance(running, Never) else _Placed(running, self._place, job)

    def close(self) -> None:
        """Pass it on."""
        self._inner.close()


class _Placed:
    """A process at a place; its outcome names the GPUs of the place, if they are not the entire machine."""

    def __init__(self, inner: Running, place: _GpusOfMachine, job: Job) -> None:
        self._inner, self._place = inner, place
        self._number = place.shared.begin(place, f"{job.settings.backend}:{job.settings.workload}", inner)

    def calibrated(self) -> float | None:
        """Pass it on."""
        time_s = self._inner.calibrated()
        self._check()
        return time_s

    def resume(self, steps: int) -> None:
        """Pass it on."""
        self._inner.resume(steps)

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Pass it on."""
        continues = self._inner.turn([*waiting, *self._place.shared.elsewhere(self._place)])
        self._check()
        return continues

    def root(self) -> int | None:
        """Pass it on."""
        return self._inner.root()

    def resident_bytes(self) -> int:
        """Pass it on."""
        return self._inner.resident_bytes()

    def finish(self) -> Outcome:
        """Return the outcome with its place."""
        outcome = self._inner.finish()
        alongside = self._place.shared.end(self._number)
        self._place.shared.check()
        return replace(outcome, gpu_place=GpuPlace(self._place.uuids, alongside)) if self._place.uuids else outcome

    def abandon(self) -> None:
        """Pass it on."""
        self._inner.abandon()
        self._place.shared.end(self._number)

    def _check(self) -> None:
        """Raise `SessionEnded` if the session ends; what the process uses is closed before."""
        try:
            self._place.shared.check()
        except SessionEnded:
            self.abandon()
            raise

    def kill(self) -> None:
        """Pass it on."""
        self._inner.kill()
