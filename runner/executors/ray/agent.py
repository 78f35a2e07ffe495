"""The agent: what runs on a node of the cluster, one per session, while it holds the measuring slot of its machine.

It measures with the process executor, exactly as the runner does on a single machine: Ray's changes to the environment
and the priority of its processes are undone first, so that a cell starts as if from the shell that started the node.

Every call of a running cell has a number. A call that is repeated, since the connection was interrupted, returns the
answer of the first one, so that a short interruption repeats no work.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import tarfile
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.schema import Machine
from keras_matrix.records.settings import DEVICES, Settings, is_users
from keras_matrix.records.trees import remove_tree, walk
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Outcome, Running, WaitingCell
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.process.interpreter import installed_versions
from keras_matrix.runner.executors.ray import machines
from keras_matrix.runner.executors.ray.machines import NodeFacts
from keras_matrix.runner.executors.supervise.watch import Never, Watch
from keras_matrix.runner.machine import machine, tree_memory
from keras_matrix.runner.machine.mounts import user_downloads
from keras_matrix.runner.machine.surroundings import processors

SHARED = ("compile_cache_dir", "autotune_dir", "cuda_cache_dir")
CELLS, CACHES, MODULES = "cells", "caches", "modules"
# Caches that no session has used for so long are removed.
OLD_S = 86_400
# A disk with less is full.
LEAST_FREE_BYTES = 1 << 20
# Of a cell's files these are not copied to the runner.
LEFT_THERE = frozenset({"home", "tmp"})
# Workers for a process of another machine: that one has the time limit of the cell. Once it has ended, they soon do.
PROVIDED_S = 7 * 86_400.0
ENDING_S = 10.0
# Ray runs its workers at niceness 15 unless the node was started otherwise.
NICENESS_ADVICE = "start the node with RAY_worker_niceness=0, or as root"


@dataclass(frozen=True, slots=True)
class FinishedCell:
    """What a finished cell leaves: its outcome, and archives of its folder and of its output files."""

    outcome: Outcome
    folder: bytes
    outputs: bytes | None = None


@dataclass(slots=True)
class _Live:
    """A cell's process, its job with the paths of this node, and the answers that were given, by number.

    `warnings` were known before its start. A thread watches a process that only provides workers.
    """

    running: Running
    job: Job
    warnings: tuple[str, ...] = ()
    answers: dict[int, Any] = field(default_factory=dict)
    watching: threading.Thread | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome(infrastructure="the workers were not observed"))

    def provide(self) -> None:
        """Watch the process to its end, while other cells are called."""
        self.watching = threading.Thread(target=self._watch, daemon=True)
        self.watching.start()

    def end_provided(self, limit_s: float) -> Outcome:
        """Return the outcome of the process; one that has to be ended after some seconds did nothing wrong."""
        assert self.watching is not None
        self.watching.join(limit_s)
        if self.watching.is_alive() and isinstance(self.running, Watch):
            self.running.kill()
            self.watching.join()
            self.outcome = replace(self.outcome, exit_code=0, signal=None)
        return self.outcome

    def _watch(self) -> None:
        self.outcome = self.running.finish()


def facts(node_id: str, labels: Mapping[str, str]) -> NodeFacts:
    """Return what this node is and can run; looks for packages, imports no backend."""
    restored()
    node_machine = _machine(labels)
    executor = ProcessExecutor()
    missing_reasons = {
        f"{backend} {device}": executor.missing(backend, device) or _device_problem(device, node_machine)
        for backend in BACKENDS
        for device in DEVICES
    }
    executor.close()
    problem = _niceness_problem()
    return NodeFacts(
        node_id=node_id,
        name=labels.get("machine") or os.environ.get(machine.HOST_VARIABLE) or os.uname().nodename,
        machine=node_machine,
        versions=installed_versions(),
        program=version("keras-matrix"),
        missing=missing_reasons,
        labels=labels,
        warnings=(problem,) if problem else (),
    )


class Agent:
    """Measures cells on its node for one session."""

    def __init__(self, mark: str, start: str, labels: Mapping[str, str]) -> None:
        """End what an earlier agent of the same session left on this node."""
        restored()
        tree_memory.end_leftovers(mark)
        self._machine = _machine(labels)
        self._executor = ProcessExecutor(start=start, mark=mark)
        # The same for every agent of a session here, so that what a killed one left is removed.
        name = hashlib.sha256(os.fsencode(mark)).hexdigest()[:16]
        self._scratch = Path(tempfile.gettempdir()) / f"keras-matrix-node-{name}"
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        self._check_owner()
        self._clean()
        self._live: dict[str, _Live] = {}

    def ready(self) -> bool:
        """Return that the agent is there."""
        return True

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Replace the servers of the last block by those that these cells need."""
        self._executor.begin_block(settings)
        self._executor.await_block()

    def missing_modules(self, digest_by_root: Mapping[str, str]) -> list[str]:
        """Return those of the runner's folders of modules whose archives, by their digests, are not here yet."""
        return [root for root, digest in digest_by_root.items() if not (self._scratch / MODULES / digest).is_dir()]

    def receive_modules(self, digest: str, archive: bytes) -> None:
        """Unpack an archive of modules, all of it or nothing. What fails shows when a cell needs them."""
        modules_folder = self._scratch / MODULES / digest
        temporary = modules_folder.with_name(f".{digest}.{os.getpid()}")
        try:
            machines.unpacked(archive, temporary)
            temporary.rename(modules_folder)
        except (OSError, tarfile.TarError):
            remove_tree(temporary)

    def start(self, job: Job, timeout_s: float, digest_by_root: Mapping[str, str]) -> None:
        """Start a cell, known by its nonce from now on; `digest_by_root` are its folders of modules, with digests."""
        if job.nonce in self._live:
            return
        job_here, warnings = job, tuple[str, ...]()
        try:
            self._check_space()
            self._check_modules(digest_by_root)
            job_here = self._here(job, digest_by_root)
            running, warnings = self._started(job_here, timeout_s)
        except OSError as error:
            running = Never(Outcome(infrastructure=self._unwritable(error)))
        self._live[job.nonce] = _Live(running, job_here, warnings)

    def free_port(self, address: str) -> int | None:
        """Return a port of this node's address that no process listens to; None if the address is not its own."""
        try:
            with socket.create_server((address, 0)) as server:
                return int(server.getsockname()[1])
        except OSError:
            return None

    def provide(self, job: Job, digest_by_root: Mapping[str, str]) -> None:
        """Start a cell's workers for the process that measures on another machine, until that process ends.

        They have no time limit of their own, and nothing of theirs is measured.
        """
        if job.nonce not in self._live:
            self.start(job, PROVIDED_S, digest_by_root)
            self._live[job.nonce].provide()

    def provided(self, nonce: str) -> FinishedCell:
        """Return how a cell's workers here have ended; those that still run after a while are ended."""
        live_cell = self._live[nonce]
        return self._ended(live_cell, live_cell.end_provided(ENDING_S))

    def call(self, nonce: str, number: int, method: str, *arguments: Any) -> Any:
        """Call a method of a live cell; the same number again returns the first answer."""
        live_cell = self._live[nonce]
        if number not in live_cell.answers:
            live_cell.answers = {number: getattr(self, f"_{method}")(live_cell, *arguments)}
        return live_cell.answers[number]

    def forget(self, nonce: str) -> None:
        """Remove what is left of a cell."""
        live_cell = self._live.pop(nonce, None)
        if live_cell is not None:
            remove_tree(live_cell.job.folder)
            remove_tree(live_cell.job.outputs_dir or live_cell.job.folder)

    def close(self) -> None:
        """End everything; only the caches of compilers stay, for the next time that the session measures here."""
        self._executor.close()
        self._clean()

    # The methods of a live cell.

    def _calibrated(self, live_cell: _Live) -> float | None:
        return live_cell.running.calibrated()

    def _resume(self, live_cell: _Live, steps: int) -> None:
        live_cell.running.resume(steps)

    def _turn(self, live_cell: _Live) -> bool:
        other_cells = [other_cell for other_cell in self._live.values() if other_cell is not live_cell]
        waiting_cells = [
            WaitingCell(_name(other_cell.job.settings), root)
            for other_cell in other_cells
            if (root := other_cell.running.root())
        ]
        return live_cell.running.turn(waiting_cells)

    def _resident_bytes(self, live_cell: _Live) -> int:
        return live_cell.running.resident_bytes()

    def _finish(self, live_cell: _Live) -> FinishedCell:
        return self._ended(live_cell, live_cell.running.finish())

    def _ended(self, live_cell: _Live, outcome: Outcome) -> FinishedCell:
        outcome = replace(outcome, warnings=(*live_cell.warnings, *outcome.warnings))
        if outcome.exit_code != 0 and outcome.infrastructure is None:
            try:
                self._check_space()
            except OSError as error:  # a cell that cannot write fails in any way
                outcome = replace(outcome, infrastructure=self._unwritable(error))
        if outcome.infrastructure is None and outcome.refused is None and outcome.missing_device is None:
            outcome = replace(outcome, machine=self._machine)
        try:
            return FinishedCell(outcome, *self._archives(live_cell.job))
        except (OSError, machines.TooLarge) as error:
            # Its figures are complete without the other files.
            warning = f"files_left: {error}; they were not copied from the node"
            result_paths = [path for path in (live_cell.job.result_path,) if path.is_file()]
            result_archive = machines.packed(Path(live_cell.job.folder), result_paths)
            return FinishedCell(replace(outcome, warnings=(*outcome.warnings, warning)), result_archive)

    def _archives(self, job: Job) -> tuple[bytes, bytes | None]:
        """Return the archives of a cell's files, without its home and temporary files, and of its outputs."""
        folder = Path(job.folder)
        paths = [path for path in sorted(walk(folder)) if path.relative_to(folder).parts[0] not in LEFT_THERE]
        return machines.packed(folder, paths), machines.packed(Path(job.outputs_dir)) if job.outputs_dir else None

    def _abandon(self, live_cell: _Live) -> None:
        live_cell.running.abandon()

    # Starting.

    def _started(self, job: Job, timeout_s: float) -> tuple[Running, tuple[str, ...]]:
        """Start a cell; return it with the warnings of the preflight."""
        try:
            processors.check([job.settings])
        except UsageError as error:
            return Never(Outcome(refused=str(error))), ()
        preflight = None
        if job.settings.device != "cpu" and job.task is None:
            from keras_matrix.runner.executors.preflight import preflight_of

            preflight = preflight_of([job.settings], in_containers=False)
        if preflight is None:
            return self._executor.start(job, timeout_s), ()
        if refusal := preflight.refused(job):
            return Never(refusal), ()
        return self._executor.start(job, timeout_s), preflight.warnings(job)

    def _here(self, job: Job, digest_by_root: Mapping[str, str]) -> Job:
        """Return the job with this node's folders, which are made."""
        # The arms of a comparison have the same cells, so that only the nonce distinguishes them.
        shared_folders: dict[str, Any] = {
            folder_name: self._cache(path) for folder_name in SHARED if (path := getattr(job, folder_name)) is not None
        }
        return replace(
            job,
            folder=self._made(CELLS, job.nonce),
            import_roots=[
                str(self._scratch / MODULES / digest_by_root[root])
                for root in job.import_roots
                if root in digest_by_root
            ],
            host_roots=[root for root in job.import_roots if root in digest_by_root],
            dataset_dir=job.dataset_dir or str(_home() / "datasets"),
            downloads=user_downloads() if is_users(job.settings.workload) else {},
            outputs_dir=self._made(CELLS, f"{job.nonce}-outputs") if job.outputs_dir is not None else None,
            **shared_folders,
        )

    def _cache(self, path: str) -> str:
        """Return this node's folder for one of the runner's, which differ between runs."""
        return self._made(CACHES, hashlib.sha256(path.encode()).hexdigest()[:16])

    def _clean(self) -> None:
        """Remove the files of cells, and old caches."""
        remove_tree(self._scratch / CELLS)
        now_s = Path(self._made(CELLS)).stat().st_mtime
        for cache in (self._scratch / CACHES).glob("*"):
            if now_s - cache.stat().st_mtime > OLD_S:
                remove_tree(cache)

    def _check_modules(self, digest_by_root: Mapping[str, str]) -> None:
        """Raise OSError if a folder of modules that was sent could not be written here."""
        if missing_roots := self.missing_modules(digest_by_root):
            raise OSError(f"the modules of {missing_roots[0]} could not be written")

    def _check_owner(self) -> None:
        """Raise OSError if the scratch folder is not this user's own, which another user of the node may have made."""
        if self._scratch.is_symlink() or self._scratch.stat().st_uid != os.getuid():
            raise OSError(f"{self._scratch}: belongs to another user of the node; remove it")

    def _check_space(self) -> None:
        """Raise OSError if the disk of the scratch folder is full."""
        space = os.statvfs(self._scratch)
        if space.f_bavail * space.f_frsize < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _unwritable(self, error: OSError) -> str:
        return f"scratch: {self._scratch}: {error}; free space there, or start the node with another TMPDIR"

    def _made(self, *parts: str) -> str:
        folder = self._scratch.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)


def restored() -> None:
    """Give this process the environment and priority with which its node was started.

    Ray sets OMP_NUM_THREADS, hides GPUs from workers that request none, and runs its workers at a lower priority.
    """
    raylet = os.getppid()
    variables = Path(f"/proc/{raylet}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    restored_variables = dict(variable.split("=", 1) for variable in variables if "=" in variable)
    own_variables = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    os.environ.clear()
    os.environ.update(restored_variables | own_variables)
    with contextlib.suppress(PermissionError):  # the warning of the node's facts says so
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, raylet))
    with contextlib.suppress(OSError):  # the kernel would end any worker before other programs of the machine
        score = Path(f"/proc/{raylet}/oom_score_adj").read_text(encoding="ascii")
        Path("/proc/self/oom_score_adj").write_text(score, encoding="ascii")


def _niceness_problem() -> str | None:
    own_niceness, node_niceness = os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, os.getppid())
    return (
        None
        if own_niceness == node_niceness
        else f"cells run at niceness {own_niceness}, the node at {node_niceness}: {NICENESS_ADVICE}"
    )


def _name(settings: Settings) -> str:
    """Return the name of a waiting cell, as the runner has it."""
    return f"{settings.backend}:{settings.workload}"


def _machine(labels: Mapping[str, str]) -> Machine:
    """Return this machine; with a label `machine`, nodes with another one count as other machines."""
    if name := labels.get("machine"):
        os.environ[machine.HOST_VARIABLE] = name
    detected = machine.detect()
    type_ = labels.get("machine-type")
    return replace(detected, machine_type=type_) if type_ else detected


def _device_problem(device: str, node_machine: Machine) -> str | None:
    return "no GPU" if device == "gpu" and not node_machine.gpus else None


def _home() -> Path:
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
