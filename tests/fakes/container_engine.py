"""A fake container engine: each cell runs in a thread instead of a container and writes a synthetic result.

main(["--matrix", "matrix.yaml", "--executor", "docker"], Seams(engine=FakeEngine()))

A cell reads its job from the mounted path, waits for its epochs on the job's own pipes and writes a result: the tests
exercise the Docker executor except for what the kernel does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import canonical
from keras_matrix.runner.cell.job import Job, Resting, read_job, write_result
from keras_matrix.runner.executors.docker.container_paths import Mount
from keras_matrix.runner.executors.docker.engine import EngineGone, Image, Spec, Started
from keras_matrix.runner.executors.docker.executor import ARCHITECTURES, IMAGES, image_name
from tests.fakes.executor import FakeExecutor

KILLED = 137


@dataclass(frozen=True, slots=True)
class End:
    """How a pretended container ends."""

    exit_code: int = 0
    oom_killed: bool = False


Pretence = Callable[[Job, "FakeContainer"], End]


class FakeContainer:
    """A pretended container: what it was made from, and what has become of it."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.serves = "keras_matrix.runner.cell.server" in spec.command
        self.killed = threading.Event()
        self.end: SimpleQueue[End | None] = SimpleQueue()
        self.ended: End | None = None
        self.printed: SimpleQueue[bytes] = SimpleQueue()

    def output(self) -> Iterator[bytes]:
        """Yield what it prints, until it has ended."""
        while data := self.printed.get():
            yield data

    def finish(self, end: End | None) -> None:
        """End it so, or, with None, have the engine go away under it."""
        self.printed.put(b"")
        self.end.put(end)


def here(**_: object) -> Mapping[str, Image]:
    """Return an image for each backend on a CPU, made for a processor such as this one."""
    architecture = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    return {
        image_name(IMAGES, backend, "cpu"): Image(f"sha256:{backend:0<12}", architecture, "10001:10001")
        for backend in BACKENDS
    }


@dataclass(slots=True)
class FakeEngine:
    """Pretends to make containers. `pretences` maps a workload to what its cells do instead of succeeding,
    `commands` an image to what its external commands do.

    `specs` and `made` record every container that was made; `containers` holds those that are there. With `silent`
    above 0 so many calls go unanswered.
    """

    images: Mapping[str, Image] = field(default_factory=here)
    pretences: Mapping[str, Pretence] = field(default_factory=dict)
    commands: Mapping[str, Callable[[FakeContainer], End]] = field(default_factory=dict)
    refusal: Exception | None = None
    silent: int = 0
    specs: list[Spec] = field(default_factory=list)
    containers: dict[str, FakeContainer] = field(default_factory=dict)
    made: dict[str, FakeContainer] = field(default_factory=dict)

    def image(self, name: str) -> Image | None:
        """Return a pretended image."""
        self._answer()
        return self.images.get(name)

    def start(self, spec: Spec) -> Started:
        """Start a pretended container."""
        self._answer()
        if self.refusal is not None:
            raise self.refusal
        container = FakeContainer(spec)
        self.specs.append(spec)
        name = f"{len(self.specs):064x}"
        self.containers[name] = self.made[name] = container
        run = self._serve if container.serves else self._run
        threading.Thread(target=run, args=(container,), daemon=True).start()
        return Started(name, 0, container.output())

    def wait(self, container_id: str) -> int:
        """Return how a pretended container ended, once it has."""
        container = self.made[container_id]
        container.ended = container.end.get()
        if container.ended is None:
            raise EngineGone("engine: pretended to be gone")
        return container.ended.exit_code

    def oom_killed(self, container_id: str) -> bool:
        """Return what the pretended container's end says."""
        self._answer()
        ended = self.made[container_id].ended
        return ended is not None and ended.oom_killed

    def kill(self, container_id: str) -> None:
        """End a fake container."""
        self._answer()
        if container := self.containers.get(container_id):
            container.killed.set()
            if container.serves:
                container.finish(container.ended or End(KILLED))

    def remove(self, container_id: str) -> None:
        """Forget a pretended container."""
        self._answer()
        if (container := self.containers.pop(container_id, None)) is not None:
            container.killed.set()

    def labelled(self, label: str, value: str) -> list[str]:
        """Return the pretended containers with a label."""
        self._answer()
        return [name for name, one in self.containers.items() if dict(one.spec.labels).get(label) == value]

    def _answer(self) -> None:
        if self.silent > 0:
            self.silent -= 1
            raise EngineGone("engine: pretended to be away")

    def _run(self, container: FakeContainer) -> None:
        try:
            end = self._pretend(container, container.spec.command[-1])
        except FileNotFoundError:  # the runner has let go of the cell's folder meanwhile
            end = End(KILLED)
        container.finish(end)

    def _pretend(self, container: FakeContainer, path: str) -> End:
        if container.spec.folder is not None:  # an external command gets no job
            return self.commands[container.spec.image](container)
        job = _outside(read_job(Path(_host(container.spec.mounts, path))), container.spec.mounts)
        return self.pretences.get(job.settings.workload, succeed)(job, container)

    def _serve(self, container: FakeContainer) -> None:
        """Speak as `runner.cell.server` does, until the runner lets go."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(_host(container.spec.mounts, container.spec.command[-2]))
            connection.send(json.dumps({"ready": 0.0, "mapped": 0}).encode() + b"\n")
            while True:
                message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
                if not message:
                    break
                os.close(descriptors[0])
                connection.send(json.dumps({"started": 1}).encode() + b"\n")
                container.ended = self._pretend(container, json.loads(message)["job"])
                status = container.ended.exit_code << 8
                status = container.ended.exit_code - 128 if container.ended.exit_code > 128 else status
                connection.send(json.dumps({"exited": status, "cpu_s": 0.0}).encode() + b"\n")
        container.finish(End())


def succeed(job: Job, container: FakeContainer) -> End:
    """Take every turn and leave a complete result with pretended durations."""
    executor = FakeExecutor()
    with job.orders_path.open(encoding="ascii") as orders, job.resting_path.open("w", encoding="ascii") as resting:

        def rest(step_time_s: float | None = None) -> int | None:
            resting.write(canonical(Resting(job.nonce, 0.0, step_time_s)) + "\n")
            resting.flush()
            line = orders.readline()
            steps: int | None = json.loads(line)["steps"] if line else None
            return steps

        if job.steps is None:
            job = replace(job, steps=rest(executor.step_time_s(job.settings, job.repeat)))
        for _ in range(job.settings.epochs - job.settings.discard + 1):
            rest()
    write_result(job, executor.result(job))
    return End()


def hang(job: Job, container: FakeContainer) -> End:
    """Do nothing until killed."""
    container.killed.wait()
    return End(KILLED)


def ending(exit_code: int, *, oom_killed: bool = False, printing: bytes = b"") -> Pretence:
    """Return a pretence: end at once, so."""

    def end(job: Job, container: FakeContainer) -> End:
        container.printed.put(printing or b"\n")
        return End(exit_code, oom_killed)

    return end


def _host(mounts: tuple[Mount, ...], path: str) -> str:
    """Return where the host has a path of a container's."""
    for mount in mounts:
        if path == mount.target or path.startswith(f"{mount.target}/"):
            return mount.source + path[len(mount.target) :]
    return path


def _outside(job: Job, mounts: tuple[Mount, ...]) -> Job:
    return replace(job, folder=_host(mounts, job.folder))
