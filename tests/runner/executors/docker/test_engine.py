"""The configuration sent to Docker's engine for a container permits only what a cell needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import pytest
import requests
from docker import APIClient
from docker.errors import ImageNotFound

from keras_matrix.runner.executors.docker.container_paths import Mount
from keras_matrix.runner.executors.docker.engine import ContainerLimits, DockerEngine, Seccomp, Spec, configuration

GIB = 1 << 30
SPEC = Spec(
    name="keras-benchmark-cell",
    image="keras-benchmark-matrix:jax-gpu",
    image_id="sha256:0",
    command=("/opt/venv/bin/python", "-P", "-m", "keras_matrix.runner.cell.entry", "/cell/work/x/job.json"),
    environment=(("KERAS_BACKEND", "jax"),),
    mounts=(Mount("/r/work/x", "/cell/work/x", writable=True), Mount("/home/user/data", "/cell/datasets")),
    user="1000:1000",
    limits=ContainerLimits(3 * GIB, shared_memory_bytes=64 << 20, processes=512),
    labels=(("keras-benchmark.results", "/r"),),
    cpus="2-3",
)


@pytest.fixture
def client() -> Iterator[APIClient]:
    """The SDK's client, which sends no request if the version is given."""
    made = APIClient(version="1.41")
    yield made
    made.close()


def host(client: APIClient, spec: Spec = SPEC) -> dict[str, Any]:
    found: dict[str, Any] = configuration(client, spec)["HostConfig"]
    return found


@pytest.mark.fault("F4", mutation="a container may use as much swap as memory")
def test_memory_and_swap_are_limited_together_and_so_are_processes_and_cpus(client: APIClient) -> None:
    config = host(client)
    assert (config["Memory"], config["MemorySwap"]) == (3 * GIB, 3 * GIB)
    assert (config["PidsLimit"], config["CpusetCpus"], config["ShmSize"]) == (512, "2-3", 64 << 20)
    assert config["Ulimits"] == [{"Name": "core", "Soft": 0, "Hard": 0}]


def test_a_container_may_have_4096_processes_unless_its_limits_name_another_number(client: APIClient) -> None:
    assert host(client, replace(SPEC, limits=ContainerLimits(3 * GIB)))["PidsLimit"] == 4096


def test_missing_image_is_not_pulled(client: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = [], requests.Response()
    answer.status_code = 404

    def missing(name: str) -> NoReturn:
        asked.append(name)
        raise ImageNotFound("no such image", answer)

    monkeypatch.setattr(client, "inspect_image", missing)
    monkeypatch.setattr(
        client, "_post", lambda *given, **named: pytest.fail(f"a request that changes something: {given}")
    )
    assert (DockerEngine(client).image("some/image:1"), asked) == (None, ["some/image:1"])


def test_a_container_has_no_network_no_capability_and_a_root_that_is_read_only(client: APIClient) -> None:
    config = host(client)
    assert (config["NetworkMode"], config["IpcMode"]) == ("none", "private")
    assert (config["ReadonlyRootfs"], config["Init"]) == (True, True)
    assert config["Tmpfs"] == {"/tmp": "rw,nosuid,nodev,size=256m"}
    assert (config["CapDrop"], config.get("CapAdd")) == (["ALL"], None)
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert not config.get("Privileged")


def test_engine_does_not_log_the_output_of_containers(client: APIClient) -> None:
    assert host(client)["LogConfig"] == {"Type": "none", "Config": {}}


def test_mounts_are_read_only_unless_writable(client: APIClient) -> None:
    found = [(one["Source"], one["Target"], one["Type"], one["ReadOnly"]) for one in host(client)["Mounts"]]
    assert found == [("/r/work/x", "/cell/work/x", "bind", False), ("/home/user/data", "/cell/datasets", "bind", True)]


def test_container_has_only_the_listed_gpus(client: APIClient) -> None:
    (request,) = host(client, replace(SPEC, gpus=("5", "GPU-8932f937")))["DeviceRequests"]
    assert (request["DeviceIDs"], request["Count"], request["Capabilities"]) == (["5", "GPU-8932f937"], 0, [["gpu"]])
    assert host(client).get("DeviceRequests") is None


def test_seccomp_profile_replaces_the_engines_own(client: APIClient) -> None:
    limits = replace(SPEC.limits, seccomp=Seccomp("mine.json", '{"defaultAction": "SCMP_ACT_ALLOW"}'))
    assert host(client, replace(SPEC, limits=limits))["SecurityOpt"] == [
        "no-new-privileges",
        'seccomp={"defaultAction": "SCMP_ACT_ALLOW"}',
    ]


def test_command_of_the_spec_replaces_the_images_entry_point(client: APIClient) -> None:
    config = configuration(client, SPEC)
    assert config["Entrypoint"] == ["/opt/venv/bin/python"]
    assert config["Cmd"] == ["-P", "-m", "keras_matrix.runner.cell.entry", "/cell/work/x/job.json"]
    assert (config["Image"], config["User"]) == ("sha256:0", "1000:1000")
    assert (config["Env"], config["Labels"]) == (["KERAS_BACKEND=jax"], {"keras-benchmark.results": "/r"})
