"""The container engine: the interface `Engine`, and Docker's engine through its SDK.

No image is ever pulled; a container gets what its `Spec` states and no more. Every failure of the engine itself raises
`EngineGone`, its refusal of one container `ContainerRefused`; the executor waits for an engine that is gone, and then
says what to do.

Measured with engine 20.10: an exit of 137 without `OOMKilled` is a kill; `OOMKilled` stays set when only a child was
killed; without an init process, process 1 survives the signals it sends itself.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from keras_matrix.records.host.inherited_environment import without_user
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors.docker.container_paths import Mount

if TYPE_CHECKING:
    from docker import APIClient
    from docker.errors import APIError

PREFIX = "keras-benchmark"
NO_GPU = "no_gpu"
RESULTS_LABEL, RUN_LABEL, CELL_LABEL = f"{PREFIX}.results", f"{PREFIX}.run", f"{PREFIX}.cell"
USUAL_ADDRESS = "unix:///var/run/docker.sock"
ANSWER_LIMIT_S = 60
SCRATCH = "rw,nosuid,nodev,size=256m"


class EngineGone(ExecutorError):
    """The engine does not answer, or stopped answering. The message names its address."""


class ContainerRefused(Exception):
    """The engine refused to create or start this container. The message begins with the reason's name."""


@dataclass(frozen=True, slots=True)
class Image:
    """A local image: its digest, its processor architecture, and the user of its processes."""

    image_id: str
    architecture: str
    user: str


@dataclass(frozen=True, slots=True)
class Seccomp:
    """A seccomp profile that replaces the engine's own: its name, and its text or "unconfined"."""

    name: str
    profile: str


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Resource limits of a container."""

    memory_bytes: int
    shared_memory_bytes: int = 1 << 30
    processes: int = 4096
    seccomp: Seccomp | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A container to create: everything that decides what runs in it and what it may do.

    `image` is the image's name, for messages; `cpus` a list of CPUs, None for all; `gpus` its GPUs, by index or UUID on
    the host; `folder` its working directory, None for the image's own. With `terminal` its output is a terminal.
    """

    name: str
    image: str
    image_id: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    user: str
    limits: ContainerLimits
    labels: tuple[tuple[str, str], ...]
    cpus: str | None = None
    gpus: tuple[str, ...] = ()
    folder: str | None = None
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A started container: its id, the host's pid of its first process, and its output as it arrives."""

    container_id: str
    pid: int
    output: Iterator[bytes]


class Engine(Protocol):
    """Creates containers. Each method raises `EngineGone`."""

    def image(self, name: str) -> Image | None:
        """Return the local image with this name; None if there is no such image."""

    def start(self, spec: Spec) -> Started:
        """Create and start a container, attached to its output. Raises `ContainerRefused`."""

    def wait(self, container_id: str) -> int:
        """Return the exit code of a container once it has ended, without a time limit."""

    def oom_killed(self, container_id: str) -> bool:
        """Return whether the kernel killed a process of the container for memory."""

    def kill(self, container_id: str) -> None:
        """End a container, unless it has already ended."""

    def remove(self, container_id: str) -> None:
        """End and remove a container, unless it is already gone or being removed."""

    def labelled(self, label: str, value: str) -> list[str]:
        """Return the containers with a label, including those that have ended."""


class DockerEngine:
    """Docker's engine, at DOCKER_HOST or its usual socket."""

    def __init__(self, client: APIClient, address: str = USUAL_ADDRESS) -> None:
        self._client, self._address = client, address

    def image(self, name: str) -> Image | None:
        from docker.errors import ImageNotFound

        try:
            with self._answered():
                inspected: dict[str, Any] = self._client.inspect_image(name)  # type: ignore[no-untyped-call]
        except ImageNotFound:
            return None
        return Image(inspected["Id"], inspected["Architecture"], (inspected.get("Config") or {}).get("User") or "")

    def start(self, spec: Spec) -> Started:
        from docker.errors import APIError

        with self._answered():
            try:
                config = configuration(self._client, spec)
                container_id = self._client.create_container_from_config(config, spec.name)["Id"]  # type: ignore[no-untyped-call]
            except APIError as error:
                raise ContainerRefused(refusal(error, spec)) from error
            try:
                output = self._client.attach(container_id, stdout=True, stderr=True, stream=True)
                self._client.start(container_id)
                pid = int(self._client.inspect_container(container_id)["State"]["Pid"])
            except BaseException as error:
                with contextlib.suppress(APIError):
                    self._client.remove_container(container_id, force=True)
                if isinstance(error, APIError):
                    raise ContainerRefused(refusal(error, spec)) from error
                raise
        return Started(container_id, pid, output)

    def wait(self, container_id: str) -> int:
        with self._answered():
            return int(self._client.wait(container_id, timeout=None)["StatusCode"])

    def oom_killed(self, container_id: str) -> bool:
        with self._answered():
            return bool(self._client.inspect_container(container_id)["State"]["OOMKilled"])

    def kill(self, container_id: str) -> None:
        with self._answered(404, 409):
            self._client.kill(container_id)

    def remove(self, container_id: str) -> None:
        with self._answered(404, 409):
            self._client.remove_container(container_id, force=True, v=True)

    def labelled(self, label: str, value: str) -> list[str]:
        with self._answered():
            containers = self._client.containers(all=True, quiet=True, filters={"label": f"{label}={value}"})
        return [container["Id"] for container in containers]

    @contextlib.contextmanager
    def _answered(self, *ignored: int) -> Iterator[None]:
        """Raise `EngineGone` if the engine does not answer; ignore these status codes, and raise its other refusals."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            yield
        except APIError as error:
            if error.status_code in ignored:
                return
            if error.status_code is not None and error.status_code < 500:
                raise
            raise EngineGone(f"engine: {error.explanation or error}") from error
        except (DockerException, RequestException, OSError, ValueError) as error:
            raise EngineGone(without_user(f"engine: no answer from {self._address}: {_cause(error)}")) from error


def connect() -> DockerEngine:
    """Return Docker's engine after a first answer. Raises `ExecutorError`."""
    import docker
    from docker.context import ContextAPI
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    place = kwargs_from_env()
    if "base_url" not in place:  # as the command `docker` finds it: `docker context use`
        place = ContextAPI.kwargs_from_context() | place
    address = place.get("base_url") or USUAL_ADDRESS
    try:
        _knock(address)
        client = docker.APIClient(**place, timeout=ANSWER_LIMIT_S)
        engine_info: Mapping[str, Any] = client.info()
    except (DockerException, OSError) as error:
        raise ExecutorError(_unreachable(address, error)) from error
    if fault := foreign_users(engine_info):
        raise ExecutorError(fault)
    return DockerEngine(client, address)


def foreign_users(engine_info: Mapping[str, Any]) -> str | None:
    """Return why an engine cannot be used whose containers' users are not this machine's; None for any other."""
    marks = {str(option).partition(",")[0] for option in engine_info.get("SecurityOptions") or ()}
    for mark, name in (("name=rootless", "rootless"), ("name=userns", "with userns-remap")):
        if mark in marks:
            return (
                f"--executor docker: the engine runs {name}: users in its containers are other users here, who may not "
                "write a cell's results; use one without (docker context use, DOCKER_HOST), or docker compose run"
            )
    return None


def _knock(address: str) -> None:
    """Raise `OSError` if nothing listens at a socket's path: the SDK's error would hide the system's reason."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWER_LIMIT_S)
            probe.connect(address.removeprefix("unix://"))


def configuration(client: APIClient, spec: Spec) -> Mapping[str, Any]:
    """Return the container's configuration, which permits only what a cell needs."""
    from docker.types import DeviceRequest, LogConfig, Ulimit
    from docker.types import Mount as Bind

    restrictions = ["no-new-privileges", *([f"seccomp={spec.limits.seccomp.profile}"] if spec.limits.seccomp else [])]
    gpus = [DeviceRequest(device_ids=list(spec.gpus), capabilities=[["gpu"]])] if spec.gpus else None
    host = client.create_host_config(
        mounts=[Bind(mount.target, mount.source, type="bind", read_only=not mount.writable) for mount in spec.mounts],
        network_mode="none",
        ipc_mode="private",
        init=True,
        read_only=True,
        tmpfs={"/tmp": SCRATCH},  # noqa: S108 - in the container
        cap_drop=["ALL"],
        security_opt=restrictions,
        pids_limit=spec.limits.processes,
        mem_limit=spec.limits.memory_bytes,
        memswap_limit=spec.limits.memory_bytes,  # of memory and swap together: no swap
        shm_size=spec.limits.shared_memory_bytes,
        cpuset_cpus=spec.cpus,
        ulimits=[Ulimit(name="core", soft=0, hard=0)],
        log_config=LogConfig(type="none"),
        device_requests=gpus,
    )
    container_config: Mapping[str, Any] = client.create_container_config(
        spec.image_id,
        list(spec.command[1:]),
        user=spec.user,
        environment=dict(spec.environment),
        labels=dict(spec.labels),
        entrypoint=[spec.command[0]],
        working_dir=spec.folder,
        tty=spec.terminal,
        host_config=host,
    )
    return container_config


def refusal(error: APIError, spec: Spec) -> str:
    """Return why the engine refused to create or start a container, the reason's name first, and what to do."""
    text = str(error.explanation or error)
    if spec.gpus and any(word in text.lower() for word in ("device driver", "nvidia", "gpu vendor")):
        return (
            f"{NO_GPU}: the engine cannot give a container a GPU ({text}); install the driver and the NVIDIA Container "
            "Toolkit, or measure on device: cpu"
        )
    if "No such image" in text:
        return "image_missing: it was removed during the run"
    if "no space left" in text:
        return f"no_space: the engine has no room for a container ({text}); free some, for example: docker system prune"
    return f"refused: the engine would not start the container: {text}"


def _unreachable(place: str, error: BaseException) -> str:
    advice = {
        errno.EACCES: "this user may not use it: add the user to the group docker and log in again",
        errno.ENOENT: "is the engine installed and started? systemctl start docker; DOCKER_HOST names one elsewhere",
        errno.ECONNREFUSED: "is the engine started? systemctl start docker",
    }
    cause = _cause(error)
    number = cause.errno if isinstance(cause, OSError) else None
    hint = advice.get(number or 0, "DOCKER_HOST names the engine's address")
    reason = getattr(cause, "strerror", None) or cause
    return without_user(f"--executor docker: no engine answers at {place}: {reason}") + f"; {hint}"


def _cause(error: BaseException) -> BaseException:
    """Return the operating system's error that the libraries' exceptions wrap."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OSError) and current.errno is not None:
            return current
        inner = next((argument for argument in current.args if isinstance(argument, BaseException)), None)
        current = inner or current.__cause__ or current.__context__
    return error
