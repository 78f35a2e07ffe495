"""Cells in containers of their own, from the image of their backend and device: `runner --executor docker`.

By default each repeat is one container and one fresh interpreter. `warm` uses one container per backend and block, with
the fork server, as `runner.executors.process.executor` uses servers. In both cases a cell has no network, a read-only
root, no capability, and of the host only what `container_paths.mounts` lists: first its scratch folder, or with `warm`
those of all the run's cells. It is interleaved over the same two pipes in that folder.

A container that a killed runner left behind is removed by the next start on the same results folder. An engine on
another machine, whose processes are not visible here, is refused.

A module of its own: it is the seam `Executor`, and `registration` its row in the registry.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from keras_matrix.records.backends import service_name
from keras_matrix.records.fc import spec as fc
from keras_matrix.records.host import device_lists
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.schema import Container
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import Task
from keras_matrix.records.trees import remove_tree, walk
from keras_matrix.runner.cell.job import Job, make_home, write_job
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors import Outcome, Running
from keras_matrix.runner.executors.docker.container_paths import (
    ROOT,
    WORK,
    Mount,
    input_mounts,
    job_inside,
    mounts,
    variables_inside,
    with_inputs,
)
from keras_matrix.runner.executors.docker.containers import SOCKET, CellContainer, ContainerServer, Keeper, listening
from keras_matrix.runner.executors.docker.engine import (
    CELL_LABEL,
    NO_GPU,
    PREFIX,
    RESULTS_LABEL,
    RUN_LABEL,
    ContainerLimits,
    ContainerRefused,
    Engine,
    EngineGone,
    Image,
    Spec,
    Started,
)
from keras_matrix.runner.executors.process.fork_servers import Server, Servers
from keras_matrix.runner.executors.supervise.environment import allowed_cpus, autotuning, cell_environment, cuda_cache
from keras_matrix.runner.executors.supervise.visible_gpus import (
    CellClocks,
    GpusUnavailable,
    gpus_of,
    order_warnings,
    without_gpus,
)
from keras_matrix.runner.executors.supervise.watch import Never, ServerGone, Watch
from keras_matrix.runner.executors.tasks.start import NotStarted, contained
from keras_matrix.runner.executors.tasks.watch import TaskWatch, never
from keras_matrix.runner.interrupts import deferring_interrupts

IMAGES = "keras-benchmark-matrix"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PYTHON = "/opt/venv/bin/python"
HOME = f"{ROOT}/home"
NOBODY = "65534:65534"
USER = re.compile(r"[1-9][0-9]*:[0-9]+", re.ASCII)
# An engine that was restarted answers again within seconds; a machine that starts it again by hand takes a minute.
WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """The images of a run's containers, and the results folder and run that they are labelled with.

    `found` has the images by name at the beginning of the run, as `looked_up` returned them.
    """

    results: str
    run_id: str = ""
    images: str = IMAGES
    found: Mapping[str, Image | str] = field(default_factory=dict)


def image_name(images: str, backend: str, device: str) -> str:
    """Return the name of the image for a backend and device, as compose.yaml gives it, or as a release does.

    `images` is a repository, or a repository and a version: registry.example/images:0.2.0 has 0.2.0-jax-cpu.
    """
    versioned = ":" in images.rpartition("/")[2]  # the colon before a slash precedes a registry's port
    return f"{images}{'-' if versioned else ':'}{service_name(backend, device)}"


def end_leftovers(engine: Engine, results: str, but: Iterable[str] = ()) -> int:
    """Remove the containers that a killed runner left for this results folder, except `but`; return their number."""
    leftovers = [
        container_id for container_id in engine.labelled(RESULTS_LABEL, results) if container_id not in set(but)
    ]
    for container_id in leftovers:
        engine.remove(container_id)
    return len(leftovers)


class DockerExecutor:
    """Runs each cell in a container."""

    name = "docker"

    def __init__(
        self,
        engine: Engine,
        place: ContainerPlace,
        limits: ContainerLimits,
        *,
        warm: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine, self._place, self._limits, self._warm, self._sleep = engine, place, limits, warm, sleep
        self._images = dict(place.found)
        self._live: set[str] = set()
        self._servers: Servers[Spec] = Servers(self._launch)
        self._clocks = CellClocks()

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return why this backend cannot run here on this device: no image, or another architecture's."""
        image = self._image(image_name(self._place.images, backend, device))
        return image if isinstance(image, str) else None

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """End the warm containers of the last block; a new one starts with its first cell, whose folders it mounts."""
        self._servers.close()

    def await_block(self) -> None:
        """Return at once: nothing is launched in advance."""

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job in a container. Raises `ExecutorError` if the engine does not come back."""
        begun_s = time.perf_counter()
        if job.task is not None:
            return self._start_task(job, job.task, timeout_s)
        try:
            gpus = gpus_of(job.settings, choice=job.gpus)
        except GpusUnavailable as error:
            return Never(without_gpus(error))
        if refusal := self._clocks.suit(job.settings, gpus) or _refused(job.settings):
            return Never(Outcome(refused=refusal, wall_time_s=time.perf_counter() - begun_s))
        try:
            return self._watched(job, timeout_s)
        except (ContainerRefused, ServerGone, EngineGone) as error:
            if str(error).startswith(NO_GPU):  # this applies to every other cell of this image
                self._images[image_name(self._place.images, job.settings.backend, "gpu")] = str(error)
            return Never(Outcome(infrastructure=str(error), wall_time_s=time.perf_counter() - begun_s))

    def close(self) -> None:
        """Remove every container, and give the GPU's clocks back."""
        self._clocks.release()
        self._servers.close()
        for container in tuple(self._live):
            self._remove(container)

    # One cell.

    def _watched(self, job: Job, timeout_s: float) -> Running:
        job_mounts, inputs = mounts(job), input_mounts(job)
        job_in_container = with_inputs(job_inside(job, job_mounts), inputs)
        write_job(job, job_in_container)
        homes = variables_inside(make_home(job) | autotuning(job) | cuda_cache(job), job_mounts)
        name = image_name(self._place.images, job.settings.backend, job.settings.device)
        image = self._image(name)
        if isinstance(image, str):
            raise ContainerRefused(image)
        # No variable of the caller: the image has its own paths and language, and a container numbers its own GPUs.
        environment = cell_environment(job.settings, self._place.results, caller_environment={}) | homes
        spec = replace(
            self._spec(job, name, image),
            command=(PYTHON, "-P", "-m", "keras_matrix.runner.cell.entry", str(job_in_container.path)),
            environment=tuple(sorted(environment.items())),
            mounts=(*job_mounts, *chain.from_iterable(inputs.values())),
            gpus=gpus_of(job.settings, choice=job.gpus),
            terminal=bool(job.settings.script),
        )
        for mount in job_mounts:
            if mount.writable:
                give(Path(mount.source), spec.user)
        if self._warm and job.settings.device == "cpu":
            server = self._servers.of(_for_block(spec, job))
            if server is not None:
                return Watch(
                    server, job, {"job": str(job_in_container.path), "argv": None, "env": None, "cpus": None}, timeout_s
                )
        container = CellContainer(self._keeper(spec), lambda: self._begin(spec))
        return Watch(container, job, {}, timeout_s, order_warnings(spec.gpus))

    def _spec(self, job: Job, name: str, image: Image) -> Spec:
        """Return a job's container of this image, without its command, environment and mounts."""
        cpus = allowed_cpus(job.settings)
        return Spec(
            name=f"{PREFIX}-{job.cell_id}-{job.repeat}-{job.attempt}-{job.nonce[:8]}",
            image=name,
            image_id=image.image_id,
            command=(),
            environment=(),
            mounts=(),
            user=user_of(image),
            limits=self._limits,
            labels=self._labels(f"{job.cell_id}.{job.repeat}.{job.attempt}"),
            cpus=device_lists.cpu_text(cpus) if cpus else None,
        )

    def _launch(self, block: Spec) -> Server:
        """Launch a block's fork server. Raises `ServerGone`, `ContainerRefused`, `EngineGone`."""
        home = Path(tempfile.mkdtemp(prefix="runner-server-"))
        backend = dict(block.environment)["KERAS_BACKEND"]
        spec = replace(
            block,
            name=f"{PREFIX}-{home.name}",
            command=(PYTHON, "-P", "-m", "keras_matrix.runner.cell.server", f"{HOME}/{SOCKET}", backend),
            mounts=(*block.mounts, Mount(str(home), HOME, writable=True)),
            labels=self._labels("server"),
        )
        try:
            with listening(home) as listener:
                give(home, spec.user)
                return ContainerServer(self._keeper(spec), self._begin(spec), home, listener)
        except BaseException:
            remove_tree(home)
            raise

    # One external command.

    def _start_task(self, job: Job, task: Task, timeout_s: float) -> Running:
        """Start an external command in a container of its own image."""
        if task.image is None:
            advice = "a command without an image runs on this machine; omit --executor docker"
            return Never(Outcome(refused=f"image: missing: {advice}"))
        image = self._image(task.image)
        if isinstance(image, str):
            reason = image.partition("; ")[0]
            return Never(Outcome(infrastructure=f"{reason}; pull or build it before"))
        try:
            command, job_mounts = contained(job, self._place.results, os.environ)
            spec = replace(
                self._spec(job, task.image, image),
                command=tuple(command.argv),
                environment=tuple(sorted(command.environment.items())),
                mounts=job_mounts,
                gpus=command.gpus,
                folder=command.folder,
            )
            container = CellContainer(self._keeper(spec), lambda: self._begin_task(spec))
            return TaskWatch(container, job, command, timeout_s)
        except NotStarted as error:
            return Never(Outcome(task=never(job, error)))
        except (ContainerRefused, ServerGone, EngineGone) as error:
            return Never(Outcome(infrastructure=str(error)))

    def _begin_task(self, spec: Spec) -> Started:
        """Start a command's container after making its user the owner of the folders it writes to."""
        for mount in spec.mounts:
            if mount.writable:
                give(Path(mount.source), spec.user)
        return self._begin(spec)

    # Containers and images.

    def _begin(self, spec: Spec) -> Started:
        """Start a container, waiting for an engine that does not answer."""
        try:
            started_container = self._start_held(spec)
        except EngineGone as error:
            self._await_engine(error)
            started_container = self._start_held(spec)
        if not is_here(started_container):
            self._remove(started_container.container_id)
            raise ExecutorError(
                "--executor docker: the engine runs containers on another machine, or in a virtual one, where cells "
                "cannot be sampled; use an engine of this machine (DOCKER_HOST)"
            )
        return started_container

    def _start_held(self, spec: Spec) -> Started:
        """Start a container and store its id, with signals deferred: otherwise it might never be removed."""
        with deferring_interrupts():
            started_container = self._engine.start(spec)
            self._live.add(started_container.container_id)
        return started_container

    def _await_engine(self, gone: EngineGone) -> None:
        """Wait until the engine answers, and remove this results folder's containers that are not in use."""
        for wait_s in WAITS_S:
            self._sleep(wait_s)
            with contextlib.suppress(EngineGone):
                end_leftovers(self._engine, self._place.results, but=self._live)
                return
        raise ExecutorError(
            f"{gone}; it did not come back within {sum(WAITS_S):.0f} s; start it, and repeat the command to continue"
        ) from gone

    def _remove(self, container_id: str) -> None:
        """Remove a container; if the engine does not answer, the next start on this results folder removes it."""
        self._live.discard(container_id)
        with contextlib.suppress(EngineGone):
            self._engine.remove(container_id)

    def _keeper(self, spec: Spec) -> Keeper:
        limits = spec.limits
        seccomp = limits.seccomp.name if limits.seccomp else None
        container = Container(spec.image, spec.image_id, limits.memory_bytes, limits.shared_memory_bytes, seccomp)
        return Keeper(self._engine, container, self._remove)

    def _labels(self, cell_label: str) -> tuple[tuple[str, str], ...]:
        return (RESULTS_LABEL, self._place.results), (RUN_LABEL, self._place.run_id), (CELL_LABEL, cell_label)

    def _image(self, name: str) -> Image | str:
        """Return the image with a name, the same one throughout a run, or why it cannot be used."""
        if name not in self._images:
            self._images[name] = looked_up(self._engine, name)
        return self._images[name]


def user_of(image: Image) -> str:
    """Return the user of a container's processes as `user:group`: the caller, or for root the image's own user."""
    if os.getuid() != 0:
        return f"{os.getuid()}:{os.getgid()}"
    return image.user if USER.fullmatch(image.user) else NOBODY


def give(folder: Path, user: str) -> None:
    """Make `user` the owner of a folder and its contents, if the caller is root."""
    if os.getuid() == 0:
        owner, group = map(int, user.split(":"))
        for path in (folder, *walk(folder)):
            os.chown(path, owner, group, follow_symlinks=False)


def is_here(started_container: Started) -> bool:
    """Return whether a container's processes are on this machine; assumed for one that has already ended."""
    if started_container.pid == 0:
        return True
    with contextlib.suppress(OSError):
        return started_container.container_id in Path(f"/proc/{started_container.pid}/cgroup").read_text(
            encoding="utf-8"
        )
    return False


def _refused(settings: Settings) -> str | None:
    if ":" not in settings.workload and settings.params.get("checkpoint_path"):
        return (
            "checkpoint_path: a cell's container writes to no folder of this machine, so that the model would be lost; "
            "omit it, or measure with --executor process"
        )
    if fc.network_of(settings) != fc.LOCAL:
        return "network: a cell's container has no network; measure on networks of ci/netns with --executor process"
    if settings.device == "tpu":
        return "device: tpu: not available in a cell's container; run the service jax-tpu of compose.yaml"
    return None


def looked_up(engine: Engine, name: str) -> Image | str:
    """Return the image that currently has this name, or why it cannot be used and what to do."""
    image = engine.image(name)
    if image is None:
        repository, _, service = name.rpartition(":")
        advice = f"build it with: docker compose build {service}"
        if repository != IMAGES:
            advice = f"get it with: docker pull {name}"
        return f"image_missing: {name} is missing and is never pulled; {advice}"
    architecture = ARCHITECTURES.get(PLATFORM.machine, PLATFORM.machine)
    if image.architecture != architecture:
        return f"image_architecture: {name} is for {image.architecture}, this machine is {architecture}; build it here"
    return image


def _for_block(spec: Spec, job: Job) -> Spec:
    """Return the container that all cells like this one share in a block, with the scratch folders of all cells."""
    homes = dict.fromkeys(("HOME", "KERAS_HOME", "TMPDIR"), HOME)
    return replace(
        spec,
        name="",
        command=(),
        labels=(),
        environment=tuple(sorted((dict(spec.environment) | homes).items())),
        mounts=(Mount(str(Path(job.folder).parent), WORK, writable=True), *spec.mounts[1:]),
        terminal=False,  # that of a cell is passed to its process
    )
