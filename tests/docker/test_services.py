"""The services of compose.yaml: what their arguments do, and whose their files are."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from records.schema import MEASURED
from tests.docker.containers import BACKENDS, IMAGES, ROOT, SERVICES, docker, need
from tests.sessions import counted_records
from tests.uploader.stored import results_with

pytestmark = pytest.mark.docker
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 2}
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
  - workload: gru
"""
OTHER = 12345  # no user of this machine's


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as a clone of this project is, whose owner is its caller."""
    (tmp_path / "matrices").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def compose(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    files = ["--file", str(ROOT / "compose.yaml"), "--project-directory", str(project)]
    return docker("compose", *files, *arguments, timeout_s=600, env={**os.environ, **environment})


def run(project: Path, service: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    need(service)
    return compose(project, "run", "--rm", "-T", service, *arguments)


def owners(folder: Path) -> set[tuple[int, int]]:
    found = [folder, *folder.rglob("*")]
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in found}


def give(project: Path, *names: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder to another user needs root")
    for name in names:
        os.chown(project / name, OTHER, OTHER)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_measures_its_backends_cells_of_the_matrix(project: Path, service: str) -> None:
    done = run(project, service)
    assert done.returncode == 0, done.stdout + done.stderr
    found = counted_records(project)
    assert {r.settings.backend for r in found} == {BACKENDS[service]}
    assert len(found) == 2
    assert {r.status for r in found} <= MEASURED
    assert {r.machine.container for r in found} == {"docker"}
    assert (project / "results" / "latest" / "report.html").is_file()


@pytest.mark.parametrize("service", SERVICES)
def test_any_arguments_of_the_runner_may_follow_and_none_loses_the_backend(project: Path, service: str) -> None:
    planned = run(project, service, "plan", "--json")
    assert planned.returncode == 0, planned.stderr
    assert {cell["settings"]["backend"] for cell in json.loads(planned.stdout)["cells"]} == {BACKENDS[service]}
    other = next(name for name in BACKENDS.values() if name != BACKENDS[service])
    refused = run(project, service, "--backend", other)
    assert refused.returncode == 2
    assert f"--backend {other}: this service holds {BACKENDS[service]}" in refused.stderr


def test_the_records_are_the_owners_of_the_folder(project: Path) -> None:
    give(project, "matrix.yaml", "results")
    done = run(project, SERVICES[0], "--filter", "mnist_mlp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert owners(project / "results") == {(OTHER, OTHER)}


def test_a_folder_that_the_engine_makes_goes_to_who_owns_the_matrix(project: Path) -> None:
    give(project, "matrix.yaml")
    (project / "results").rmdir()
    done = run(project, SERVICES[0], "--filter", "mnist_mlp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert owners(project / "results") == {(OTHER, OTHER)}


def test_an_image_started_by_hand_says_that_it_may_not_write_the_folder(project: Path) -> None:
    service = SERVICES[0]
    need(service)
    mounts = [f"--volume={project}/matrix.yaml:/work/matrix.yaml:ro", f"--volume={project}/results:/work/results"]
    done = docker("run", "--rm", "--user", f"{OTHER + 1}", *mounts, f"{IMAGES}:{service}", "--filter", "mnist_mlp")
    assert done.returncode == 3
    assert "cannot be" in done.stderr
    assert "choose a writable folder with --results" in done.stderr
    assert list((project / "results").iterdir()) == []


def test_two_runs_of_a_service_are_of_one_host(project: Path) -> None:
    hosts = set()
    for _ in range(2):
        assert run(project, SERVICES[0], "--filter", "mnist_mlp", "--new").returncode == 0
        hosts |= {record.machine.host_id for record in counted_records(project)}
    assert len(hosts) == 1


def test_the_file_is_valid_and_every_service_shuts_what_need_not_be_open() -> None:
    done = compose(ROOT, "--profile", "*", "config", "--format", "json")
    if done.returncode != 0 and "unknown command" in done.stderr + done.stdout:
        pytest.skip("no Compose plugin")
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    measuring = {"tf-cpu", "tf-gpu", "jax-cpu", "jax-gpu", "torch-cpu", "torch-gpu", "jax-tpu"}
    assert set(services) == measuring | {"dashboard", "bigquery"}
    for name, service in services.items():
        assert service["profiles"] == ["measure" if name in measuring else name], "`up` starts what is asked for alone"
        if name in measuring:
            assert service["environment"]["KERAS_BENCHMARK_DEVICE"] == name.rpartition("-")[2]
        else:
            assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}, "seen by this machine alone"
        assert service["build"]["args"]["SERVICE"] == name
        assert service["image"] == f"{IMAGES}:{name}"
        assert (service["read_only"], service["init"], service["cap_drop"]) == (True, True, ["ALL"])
        gpus = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
        assert bool(gpus) == name.endswith("-gpu")


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


@pytest.fixture
def emulator(project: Path) -> Iterator[dict[str, str]]:
    """The service of the profile `bigquery`, with an empty volume; yields what an uploader needs to know of it."""
    need("bigquery")
    http, grpc = free_port(), free_port()
    ports = {"BIGQUERY_PORT": http, "BIGQUERY_GRPC_PORT": grpc, "COMPOSE_PROJECT_NAME": f"kbm-test-{os.getpid()}"}
    try:
        started = compose(project, "--profile", "bigquery", "up", "--detach", "--wait", **ports)
        assert started.returncode == 0, started.stderr
        yield {
            "BIGQUERY_EMULATOR_HOST": f"http://127.0.0.1:{http}",
            "BIGQUERY_EMULATOR_GRPC": f"127.0.0.1:{grpc}",
            "NO_GCE_CHECK": "true",
        }
    finally:
        compose(project, "--profile", "bigquery", "down", "--volumes", **ports)


def uploader(told: dict[str, str], *arguments: str) -> str:
    """Run the uploader against the emulator; it must end well."""
    command = [sys.executable, "-m", "uploader", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **told}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_profile_bigquery_is_an_emulator_that_takes_each_row_once(emulator: dict[str, str], tmp_path: Path) -> None:
    results = str(results_with(tmp_path / "measured", runs=1).root)
    for dataset, flags in (("merged", []), ("appended", ["--storage-write"])):
        to = ["--to", f"bigquery://emulated-project.{dataset}"]
        made = uploader(emulator, "init", *to, *(["--append-only"] if flags else []))
        assert f"dataset emulated-project.{dataset}" in made
        uploader(emulator, "push", *to, "--results", results, *flags)
        verified = uploader(emulator, "verify", *to, "--results", results, *(["--append-only"] if flags else []))
        assert "0 lost, 0 doubled" in verified
    again = uploader(emulator, "push", "--to", "bigquery://emulated-project.merged", "--results", results)
    assert "0 new rows" in again


def test_the_service_dashboard_shows_what_the_results_folder_holds(project: Path) -> None:
    need("dashboard")
    results_with(project / "results", runs=1)
    named = {"COMPOSE_PROJECT_NAME": f"kbm-test-{os.getpid()}"}
    command = ["run", "--rm", "--detach", "--publish", f"127.0.0.1:{free_port()}:8080", "dashboard"]
    started = compose(project, *command, **named)
    assert started.returncode == 0, started.stderr
    container = started.stdout.split()[-1]
    try:
        address = docker("port", container, "8080").stdout.split()[0]
        page = answered(f"http://{address}/", container)
    finally:
        docker("rm", "--force", container)
        compose(project, "down", **named)
    assert "mnist_mlp" in page
    assert 'id="matrix"' in page


def answered(url: str, container: str) -> str:
    """Return what a server in a container says, once it does."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())
        except OSError:
            assert docker("ps", "--quiet", "--no-trunc", "--filter", f"id={container}").stdout, "it ended"
            time.sleep(0.1)
    raise AssertionError("no answer within a minute")


@pytest.mark.parametrize("service", SERVICES[:1])
def test_an_image_says_what_it_is_and_what_it_holds(service: str) -> None:
    need(service)
    (image,) = json.loads(docker("image", "inspect", f"{IMAGES}:{service}").stdout)
    labels, user = image["Config"]["Labels"], image["Config"]["User"]
    assert labels["org.opencontainers.image.title"] == f"{IMAGES}:{service}"
    assert user == "10001:10001"
    bill = docker("run", "--rm", "--entrypoint", "cat", f"{IMAGES}:{service}", labels["keras-benchmark.sbom"]).stdout
    names = {component["name"] for component in json.loads(bill)["components"]}
    assert {"keras", "keras-benchmark-matrix", "libc6", "python3"} <= names
    compilers = docker(
        "run", "--rm", "--entrypoint", "sh", f"{IMAGES}:{service}", "-c", "command -v cc c++ gcc g++ clang"
    )
    assert compilers.stdout == ""
