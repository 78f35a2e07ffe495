"""The services of compose.yaml: their arguments, and the owners of their files."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from keras_matrix.records.schema import MEASURED
from keras_matrix.records.store import Results
from tests.docker.containers import (
    BACKENDS,
    IMAGES,
    ROOT,
    SERVICES,
    compose,
    composing,
    containers_of,
    docker,
    need,
    project_label,
)
from tests.sessions import counted_records, newest_records

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
# As engines of different ages say that they have none to give.
GPU_REFUSALS = ("could not select device driver", "nvidia-container-cli", "GPU vendor")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as a clone of this project is, whose owner is its caller."""
    (tmp_path / "matrices").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def run(project: Path, service: str, *arguments: str, mounts: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    need(service)
    return compose(project, "run", "--rm", "-T", *mounts, service, *arguments)


@pytest.fixture
def without_rm(project: Path) -> Iterator[Path]:
    """The same folder, whose services' containers stay when they stop; removed at the test's end."""
    need(SERVICES[0])
    try:
        yield project
    finally:
        for container in containers_of(project):
            docker("rm", "--force", container)


def run_without_rm(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a service as `docker compose run` without `--rm` does."""
    return compose(project, "run", "-T", *arguments)


def states(project: Path) -> list[str]:
    """Return the state and exit code of each container of a folder's services, the newest first."""
    found = docker("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", *containers_of(project))
    return found.stdout.splitlines()


def misbehave(project: Path, workload: str) -> list[str]:
    """Write a matrix with this workload alone; return the arguments that mount it."""
    cell = f"  - workload: tests.workloads.misbehaving:{workload}\n"
    (project / "matrix.yaml").write_text(MATRIX.partition("  - workload")[0] + cell)
    return ["--volume", f"{ROOT}/tests/workloads:/work/tests/workloads:ro"]


@contextlib.contextmanager
def hanging(project: Path, stream: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """Give a service that measures a cell which never ends, at a terminal or at none."""
    need(SERVICES[0])
    usual = ["run", "--rm", *(["-T"] if stream == subprocess.DEVNULL else [])]
    command = ["docker", *composing(project), *usual, *misbehave(project, "hanging"), SERVICES[0]]
    process = subprocess.Popen(command, stdin=stream, stdout=stream, stderr=stream, process_group=0)
    try:
        while Results(project / "results").latest() is None:
            assert process.poll() is None
            time.sleep(0.05)
        yield process
    finally:
        for container in containers_of(project):
            docker("rm", "--force", container)
        process.wait(60)


def await_end(project: Path, limit_s: float = 30) -> None:
    """Wait for a container that got a signal to end: `docker`, which got it too, does not wait.

    On a busy machine Compose 2.40 sometimes ends without passing the signal on: then the container gets it directly.
    """
    begun_s = time.monotonic()
    passed_on = False
    while containers := containers_of(project):
        waited_s = time.monotonic() - begun_s
        assert waited_s < limit_s, "a container goes on"
        if waited_s > limit_s / 3 and not passed_on:
            passed_on = True
            for container in containers:
                docker("kill", "--signal", "TERM", container)
        time.sleep(0.05)


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Give a terminal's two ends: where keys are pressed, and where a program reads and writes."""
    ours, theirs = pty.openpty()
    reading = threading.Thread(target=read_all, args=(ours,), daemon=True)
    reading.start()
    try:
        yield ours, theirs
    finally:
        os.close(theirs)
        reading.join(60)
        os.close(ours)


def read_all(descriptor: int) -> None:
    """Read until the other end is closed, which a terminal reports as an error."""
    with contextlib.suppress(OSError):
        while os.read(descriptor, 4096):
            pass


def owners(folder: Path) -> set[tuple[int, int]]:
    found = [folder, *folder.rglob("*")]
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in found}


def give(project: Path, *names: str, owner: int = OTHER) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder to another user needs root")
    for name in names:
        os.chown(project / name, owner, owner)


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
    assert owners(project / "results") == {(os.getuid(), os.getgid())}, "the caller's, root or not"


@pytest.mark.parametrize("service", SERVICES)
def test_any_runner_arguments_preserve_the_services_backend(project: Path, service: str) -> None:
    planned = run(project, service, "plan", "--json")
    assert planned.returncode == 0, planned.stderr
    assert {cell["settings"]["backend"] for cell in json.loads(planned.stdout)["cells"]} == {BACKENDS[service]}
    other = next(name for name in BACKENDS.values() if name != BACKENDS[service])
    refused = run(project, service, "--backend", other)
    assert refused.returncode == 2
    assert f"--backend {other}: this service has {BACKENDS[service]}" in refused.stderr


def test_the_records_are_the_owners_of_the_folder(project: Path) -> None:
    give(project, "matrix.yaml", "results")
    done = run(project, SERVICES[0], "--filter", "mnist_mlp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert owners(project / "results") == {(OTHER, OTHER)}


@pytest.mark.parametrize("owner", [OTHER, 0])
def test_cell_of_a_service_has_no_unneeded_rights_for_any_owner(project: Path, owner: int) -> None:
    give(project, "matrix.yaml", "results", owner=owner)
    run(project, SERVICES[0], mounts=misbehave(project, "confined"))
    (record,) = counted_records(project)
    facts, _, place = (record.reason or "").partition(": ")[2].rpartition(" (")
    assert place.startswith("/work/tests/workloads/misbehaving.py:")
    assert json.loads(facts) == {
        "capabilities": 0,
        "no_new_privileges": 1,
        "root_user": owner == 0,
        "networks": ["lo"],
        "writable": [],
        "writes_import_root": False,
        "writes_scratch": True,
        "succeeded": [],
    }


def test_folder_created_by_the_engine_is_given_to_the_owner_of_the_matrix(project: Path) -> None:
    give(project, "matrix.yaml")
    (project / "results").rmdir()
    done = run(project, SERVICES[0], "--filter", "mnist_mlp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert owners(project / "results") == {(OTHER, OTHER)}


def test_a_gpu_service_where_there_is_no_gpu_is_refused_and_measures_nothing(project: Path) -> None:
    service = SERVICES[0]
    need(service)
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    gpu_service = service.replace("cpu", "gpu")
    override = project / "override.yaml"  # the CPU's image in its place: the engine refuses before anything runs
    override.write_text(f"services: {{{gpu_service}: {{image: '{IMAGES}:{service}'}}}}\n")
    done = compose(project, "--file", str(override), "run", "--rm", "-T", gpu_service)
    assert done.returncode != 0
    assert any(word in done.stderr for word in GPU_REFUSALS), done.stderr
    assert list((project / "results").iterdir()) == []


def test_interrupt_ends_a_service_without_incomplete_results(project: Path) -> None:
    with hanging(project) as process:
        # To the group, as a terminal does: `docker` keeps it from the plugin. And not SIGINT: what starts tests in the
        # background may have it ignored, and children inherit that.
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == 130
        await_end(project)
    assert newest_records(project) == []


def test_a_key_at_the_terminal_interrupts_a_service(project: Path) -> None:
    with terminal() as (keys, screen), hanging(project, screen) as process:
        os.write(keys, b"\x03")
        assert process.wait(60) == 130
        assert containers_of(project) == []
    assert newest_records(project) == []


def test_second_service_on_the_same_results_is_refused(project: Path) -> None:
    with hanging(project):
        second = run(project, SERVICES[0], mounts=misbehave(project, "hanging"))
        assert second.returncode == 3
        assert "another runner measures into this folder" in second.stderr


def test_image_without_write_access_reports_the_folder(project: Path) -> None:
    service = SERVICES[0]
    need(service)
    mounts = [f"--volume={project}/matrix.yaml:/work/matrix.yaml:ro", f"--volume={project}/results:/work/results"]
    done = docker("run", "--rm", "--user", f"{OTHER + 1}", *mounts, f"{IMAGES}:{service}", "--filter", "mnist_mlp")
    assert done.returncode == 3
    assert "cannot be" in done.stderr
    assert "choose a writable folder with --results" in done.stderr
    assert list((project / "results").iterdir()) == []


@pytest.mark.nightly(why="two services one after the other")
def test_two_runs_of_a_service_have_the_same_host(project: Path) -> None:
    hosts = set()
    for _ in range(2):
        assert run(project, SERVICES[0], "--filter", "mnist_mlp", "--new").returncode == 0
        hosts |= {record.machine.host_id for record in counted_records(project)}
    assert len(hosts) == 1


@pytest.mark.nightly(why="three services one after the other")
def test_stopped_container_without_rm_does_not_affect_the_next_run(without_rm: Path) -> None:
    names, runs = set(), set()
    for number in (1, 2):
        done = run_without_rm(without_rm, SERVICES[0], "--filter", "mnist_mlp")
        assert done.returncode == 0, done.stdout + done.stderr
        assert states(without_rm) == ["exited 0"] * number
        names |= set(containers_of(without_rm))
        runs |= {record.run_id for record in counted_records(without_rm)}
    assert (len(names), len(runs)) == (2, 2)
    assert owners(without_rm / "results") == {(os.getuid(), os.getgid())}
    down = compose(without_rm, "down", "--remove-orphans")
    assert (down.returncode, containers_of(without_rm)) == (0, [])
    assert len(Results(without_rm / "results").runs()) == 2


def test_without_rm_the_run_of_a_container_that_was_killed_is_continued(without_rm: Path) -> None:
    mounts = misbehave(without_rm, "waiting")
    command = ["docker", *composing(without_rm), "run", "-T", *mounts, SERVICES[0]]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while (begun := Results(without_rm / "results").latest()) is None:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        docker("kill", *containers_of(without_rm))
        process.wait(60)
    assert states(without_rm) == ["exited 137"]
    (without_rm / "results" / "go").touch()
    done = run_without_rm(without_rm, *mounts, SERVICES[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"continuing results/{begun.run_id}" in done.stdout
    assert {record.run_id for record in counted_records(without_rm)} == {begun.run_id}
    pruned = docker("container", "prune", "--force", "--filter", f"label={project_label(without_rm)}")
    assert (pruned.returncode, containers_of(without_rm)) == (0, [])


def test_without_rm_a_service_at_a_terminal_leaves_a_stopped_container_too(without_rm: Path) -> None:
    with terminal() as (_, screen):
        command = ["docker", *composing(without_rm), "run", SERVICES[0], "--filter", "mnist_mlp"]
        assert (
            subprocess.run(command, stdin=screen, stdout=screen, stderr=screen, timeout=300, check=False).returncode
            == 0
        )
    assert states(without_rm) == ["exited 0"]


def test_what_a_service_cannot_run_is_left_out_and_a_command_runs_from_the_mounted_matrices(project: Path) -> None:
    backend = BACKENDS[SERVICES[0]]
    (project / "matrices" / "train.py").write_text("print('speed: 12')\n")
    (project / "matrices" / "mine.yaml").write_text(
        f"version: 1\ndefaults: {{repeats: 1}}\ntasks:\n"
        f"  - task: train\n    command: ['{{python}}', train.py]\n    backends: [{backend}]\n"
        f"    metrics: {{speed: 'speed: (.+)'}}\n"
        f"  - task: test\n    command: ['{{python}}', test.py]\n    backends: [{backend}]\n"
    )
    done = run(project, SERVICES[0], "--matrix", "matrices/mine.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(r.settings.workload, r.status) for r in counted_records(project)] == [("task train", "ok")]
    line = (
        "  matrices/mine.yaml:8: task test: command: this container has no file test.py in /work/matrices; "
        "put it into matrices, which is mounted"
    )
    assert done.stdout.splitlines().count(line) == 2
