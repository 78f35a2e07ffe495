"""`runner --executor docker` with a real engine: every behaviour of a cell has its status, and no container is left."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.store import Results
from tests.docker.containers import BACKENDS, IMAGES, ROOT, SERVICES, docker, left, need
from tests.sessions import counted_records, newest_records

pytestmark = pytest.mark.docker
SERVICE = next((service for service in SERVICES if service == "jax-cpu"), SERVICES[0])
CRASHED = pytest.mark.fault("F1", mutation="judge() ignores the signal that ended a process")
WITHOUT_RESULT = pytest.mark.fault("F3", mutation="judge() takes a clean end without a result as measured")
DIVERGED = pytest.mark.fault("F11", mutation="judge() does not look at the losses")
REPLACED = pytest.mark.fault("F35", mutation="read_bounded() follows links and reads any kind of file")
# For every change a killed cell of a warm container shows that its end is seen there, too.
FRESH = pytest.mark.parametrize("start", ["fresh", pytest.param("warm", marks=pytest.mark.nightly)])
LIMIT_S = 900  # a machine that does other things measures disturbed blocks twice


# As on a machine without a backend: importing one of them raises `ImportError`.
WITHOUT_BACKENDS = "import sys; sys.modules.update(dict.fromkeys(('keras', 'tensorflow', 'jax', 'torch')));"
# A block that other tests disturbed is not measured again: most tests look at no figure.
WITHOUT_BACKENDS += " from keras_matrix.runner.measure import scheduler; scheduler.MOST_REPLACEMENTS = 0;"
WITHOUT_BACKENDS += " import keras_matrix.runner.__main__"


def command(folder: Path, *arguments: str) -> list[str]:
    """The runner as a user without any backend would start it."""
    places = ["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results")]
    return [sys.executable, "-c", WITHOUT_BACKENDS, "--executor", "docker", *places, *arguments]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(folder, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert left(folder / "results") == []
    return done


def matrix(folder: Path, services: list[str], *cells: str, **defaults: Any) -> None:
    for service in services:
        need(service)
    usual = {"repeats": 1, "epochs": 2, "steps_per_epoch": 2, "samples": 8, "batch_size": 4} | defaults
    settings = ", ".join(f"{key}: {value}" for key, value in usual.items())
    backends = ", ".join(BACKENDS[service] for service in services)
    entries = "".join(f"  - workload: {cell}\n" for cell in cells)
    (folder / "matrix.yaml").write_text(
        f"version: 1\ndefaults: {{{settings}}}\nbackends: [{backends}]\ncells:\n{entries}"
    )


def one(folder: Path, workload: str, *arguments: str, service: str = SERVICE, **defaults: Any) -> Record:
    """The record of one cell of a workload that misbehaves."""
    matrix(folder, [service], f"tests.workloads.misbehaving:{workload}", **defaults)
    done = run(folder, *arguments)
    found = counted_records(folder)
    assert len(found) == 1, done.stdout + done.stderr
    return found[0]


@pytest.mark.parametrize("start", ["fresh", pytest.param("warm", marks=pytest.mark.nightly)])
def test_every_backend_is_measured_in_its_image_from_a_host_without_one(tmp_path: Path, start: str) -> None:
    matrix(tmp_path, SERVICES, "mnist_mlp", "gru", steps_per_epoch="auto", samples=512, batch_size=32, repeats=2)
    done = run(tmp_path, "--start", start)
    assert done.returncode == 0, done.stdout + done.stderr
    found = counted_records(tmp_path)
    assert len(found) == 2 * 2 * len(SERVICES)
    assert {r.status for r in found} <= MEASURED
    assert {r.container.image for r in found} == {f"{IMAGES}:{service}" for service in SERVICES}
    assert {r.container.image_id.partition(":")[0] for r in found} == {"sha256"}
    assert {r.resolved.start for r in found} == {"fork" if start == "warm" else "fresh"}
    assert all(r.memory.peak_host_memory_bytes > 100 << 20 for r in found)


@pytest.mark.nightly(why="half a minute; the mounts are in the tests of services")
def test_cells_train_from_a_data_set_of_the_host(tmp_path: Path) -> None:
    images = tmp_path / "images"
    make = [sys.executable, "-m", "keras_matrix.runner", "make-images", "--count", "64", "--size", "64x48"]
    subprocess.run([*make, "--output-path", str(images)], cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    cell = f"finetune\n    base: timed_wait\n    step_time_ms: 5\n    image_size: 32\n    dataset_path: {images}"
    matrix(tmp_path, SERVICES, f"{cell}\n    page_cache: [warm, cold]", samples=64)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = counted_records(tmp_path)
    assert len(found) == 2 * len(SERVICES)
    assert {r.status for r in found} <= MEASURED, [r.reason for r in found]
    assert {r.input.facts.samples for r in found} == {64}
    assert {r.input.cold_files for r in found if r.settings.page_cache == "cold"} == {64}


@FRESH
@pytest.mark.parametrize(
    ("workload", "status", "reason"),
    [
        ("raising", Status.ERROR, "RuntimeError: the workload says no"),
        pytest.param("segfaulting", Status.CRASH, "ended by signal 11", marks=CRASHED),
        pytest.param("killed", Status.CRASH, "ended by signal 9", marks=CRASHED),
        pytest.param("exiting", Status.ERROR, "no_result: the process did not write one", marks=WITHOUT_RESULT),
        pytest.param("diverging", Status.DIVERGED, "the loss was not finite in epoch", marks=DIVERGED),
        pytest.param("linking", Status.ERROR, "bad_result: a link, which is not followed", marks=REPLACED),
    ],
)
def test_each_kind_of_end_has_its_status(
    tmp_path: Path, start: str, workload: str, status: Status, reason: str
) -> None:
    record = one(tmp_path, workload, "--start", start)
    assert record.status is status, record
    assert (record.reason or "").startswith(reason)


@CRASHED
def test_a_killed_cell_of_a_warm_container_is_a_crash(tmp_path: Path) -> None:
    record = one(tmp_path, "killed", "--start", "warm")
    assert (record.status, record.evidence.signal) == (Status.CRASH, 9), record
    assert record.reason.startswith("ended by signal 9")


@pytest.mark.fault("F4", mutation="no container is asked whether the kernel killed a process for memory")
@FRESH
def test_a_cell_that_takes_too_much_memory_is_oom_host(tmp_path: Path, start: str) -> None:
    record = one(tmp_path, "hoarding", "--memory", "800m", "--start", start)
    assert (record.status, record.evidence.signal, record.evidence.oom_kills) == (Status.OOM_HOST, 9, 1)
    assert record.container is not None
    assert record.container.memory_limit_bytes == 800 << 20
    assert (record.memory.peak_host_memory_bytes or 0) > 100 << 20


def test_sizes_above_a_containers_limit_are_refused_before_allocation(tmp_path: Path) -> None:
    matrix(tmp_path, [SERVICE], "fc\n    weight_size: 4096", batch_size=128)
    run(tmp_path, "--memory", "1g")
    (record,) = counted_records(tmp_path)
    assert record.status is Status.UNSUPPORTED, record
    assert (record.reason or "").startswith("weight_size: 4096 at level 10")


GROWING = "tests.workloads.growing:wide_samples"


@pytest.mark.nightly(why="a search in containers; its parts have tests of their own")
def test_a_cell_with_the_largest_batch_is_measured_with_what_fits_the_container(tmp_path: Path) -> None:
    matrix(tmp_path, [SERVICE], f"{GROWING}\n    batch_size: largest")
    done = run(tmp_path, "--memory", "1g")
    (record,) = counted_records(tmp_path)
    (found,) = json.loads(next((tmp_path / "results").glob("2*/run.json")).read_text())["largest_batch"]["cells"]
    tries = [r for run in Results(tmp_path / "results" / "fit-batch").runs() for r in run.load()[0]]
    assert left(tmp_path / "results" / "fit-batch") == []
    assert found["largest"] == record.settings.batch_size, done.stdout + done.stderr
    assert found["tries"] == len(tries)
    assert found["largest"] < found["smallest_too_large"]
    assert {(r.settings.batch_size, r.status) for r in tries if r.status not in MEASURED} >= {
        (found["smallest_too_large"], Status.OOM_HOST)
    }


def test_trial_has_as_many_samples_as_the_measured_cell(tmp_path: Path) -> None:
    matrix(tmp_path, [SERVICE], f"{GROWING}\n    params: {{samples: 8}}", samples=8, steps_per_epoch="seed")
    text = (tmp_path / "matrix.yaml").read_text().replace("samples: 8, batch_size", "batch_size")
    (tmp_path / "matrix.yaml").write_text(text)
    python, *flags = command(tmp_path, "--memory", "1g")
    fit_batch = [python, *flags[:2], "fit-batch", GROWING, *flags[2:]]
    done = subprocess.run(fit_batch, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done.stderr
    assert "batch 1 does not fit" in done.stdout


@pytest.mark.fault("F5", mutation="judge() makes no warning of kills for memory")
def test_a_child_that_takes_too_much_memory_is_a_warning(tmp_path: Path) -> None:
    record = one(tmp_path, "child_hoarding", "--memory", "1200m")
    assert record.status in MEASURED, record
    assert any(warning.startswith("child_oom") for warning in record.warnings)


@pytest.mark.fault("F7", mutation="the container of a cell is not killed at its time limit")
def test_a_hanging_cell_is_ended_at_its_limit(tmp_path: Path) -> None:
    begun_s = time.perf_counter()
    assert one(tmp_path, "hanging", timeout_s=15).status is Status.TIMEOUT
    assert time.perf_counter() - begun_s < 60


@pytest.mark.fault("F8", mutation="the container of a cell is not removed")
def test_a_grandchild_in_its_own_session_does_not_survive(tmp_path: Path) -> None:
    record = one(tmp_path, "orphaning")
    assert record.status in MEASURED
    assert all(b"time.sleep(600)" not in line for line in command_lines())


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


@pytest.mark.nightly(why="the same cap is tried on a process for every change")
@pytest.mark.fault("F9", mutation="more than a mebibyte of output counts as an interrupted stream")
def test_a_gigabyte_of_output_is_capped(tmp_path: Path) -> None:
    assert one(tmp_path, "flooding", timeout_s=200).status in MEASURED


def test_cell_in_a_container_has_no_unneeded_rights(tmp_path: Path) -> None:
    """It tries to write, to reach a network and to use rights of root. Mutation: `configuration` without `cap_drop`."""
    record = one(tmp_path, "confined")
    facts, _, place = (record.reason or "").partition(": ")[2].rpartition(" (")
    assert place.startswith(f"{ROOT}/tests/workloads/misbehaving.py:")
    assert json.loads(facts) == {
        "capabilities": 0,
        "no_new_privileges": 1,
        "root_user": False,
        "networks": ["lo"],
        "writable": [],
        "writes_import_root": False,
        "writes_scratch": True,
        "succeeded": [],
    }


@pytest.mark.skipif("torch-cpu" not in SERVICES, reason="PyTorch's service is not among those tried")
def test_too_little_shared_memory_for_torch_workers_is_reported(tmp_path: Path) -> None:
    record = one(tmp_path, "sharing", "--shm-size", "1m", service="torch-cpu")
    assert record.status in (Status.CRASH, Status.ERROR)
    output = f"{record.reason} {record.evidence.output_tail}"
    assert "shared memory" in output or "/dev/shm" in output
    (tmp_path / "enough").mkdir()
    assert one(tmp_path / "enough", "sharing", service="torch-cpu").status in MEASURED


TASK = """\
version: 1
defaults: {repeats: 1}
tasks:
  - task: holds
    image: %s
    command: ["{python}", -c, %s]
"""
HOLDING = """\
import glob, time
held = bytearray(1 << 30)
for path in glob.glob("/opt/venv/lib/python3*/site-packages/**/*.so", recursive=True):
    with open(path, "rb") as file:
        while file.read(1 << 20):
            pass
time.sleep(1)
"""


def test_host_memory_is_that_of_the_container_s_own_group_without_page_cache(tmp_path: Path) -> None:
    need(SERVICE)
    (tmp_path / "matrix.yaml").write_text(TASK % (f"{IMAGES}:{SERVICE}", json.dumps(HOLDING)))
    done = run(tmp_path)
    (record,) = counted_records(tmp_path)
    assert record.status is Status.OK, done.stdout + done.stderr
    assert record.usage is not None
    assert record.usage.host_source == "cgroup"
    assert record.usage.host_anonymous is not None
    peak = record.usage.host_anonymous.peak_bytes
    assert peak is not None
    assert 1 << 30 <= peak <= 1.02 * (1 << 30)


@pytest.mark.fault("F28", mutation="a missing image ends the runner")
def test_missing_image_is_reported_and_other_backends_continue(tmp_path: Path) -> None:
    need(SERVICE)
    matrix(tmp_path, [SERVICE], "mnist_mlp")
    text = (tmp_path / "matrix.yaml").read_text().replace("backends: [", "backends: [torch, ")
    (tmp_path / "matrix.yaml").write_text(text.replace("torch, torch", "tensorflow, torch"))
    docker("tag", f"{IMAGES}:{SERVICE}", f"kbm-test-one:{SERVICE}")
    try:
        done = run(tmp_path, "--images", "kbm-test-one")
    finally:
        docker("rmi", f"kbm-test-one:{SERVICE}")
    assert done.returncode == 3
    assert "get it with: docker pull" in done.stderr
    statuses = {r.settings.backend: r.status for r in counted_records(tmp_path)}
    assert statuses.pop(BACKENDS[SERVICE]) in MEASURED
    assert set(statuses.values()) == {Status.INFRA}


@pytest.mark.fault("F28", mutation="the processor of an image is not checked")
def test_an_image_for_another_processor_is_refused(tmp_path: Path) -> None:
    need(SERVICE)
    name = f"kbm-test-other:{SERVICE}"
    loaded = subprocess.run(["docker", "load"], input=empty_image(name, "s390x"), capture_output=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    matrix(tmp_path, [SERVICE], "mnist_mlp")
    try:
        done = run(tmp_path, "--images", "kbm-test-other")
    finally:
        docker("rmi", name)
    assert done.returncode == 3
    assert f"image_architecture: {name} is for s390x" in done.stderr


def empty_image(name: str, architecture: str) -> bytes:
    """An archive as `docker save` writes them: one empty layer, labelled for that processor."""
    layer = archive({})
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": rootfs, "history": [{}]}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    texts = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    return archive({**texts, "layer.tar": layer})


def archive(files: dict[str, bytes]) -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
    return made.getvalue()


@pytest.mark.fault("F13", mutation="the preflight does not refuse cells")
def test_missing_gpu_is_reported_once(tmp_path: Path) -> None:
    need(SERVICE)
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    name = f"kbm-test-gpu:{SERVICE.replace('cpu', 'gpu')}"
    docker("tag", f"{IMAGES}:{SERVICE}", name)
    matrix(tmp_path, [SERVICE], "mnist_mlp", device="gpu")
    try:
        done = run(tmp_path, "--images", "kbm-test-gpu")
    finally:
        docker("rmi", name)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("no NVIDIA driver is loaded") == 1


@pytest.mark.fault("F20", mutation="an unfinished run is not continued")
@pytest.mark.fault("F29", mutation="end_leftovers() removes nothing")
def test_a_runner_that_was_killed_leaves_containers_that_the_next_one_removes(tmp_path: Path) -> None:
    matrix(tmp_path, [SERVICE], "mnist_mlp", repeats=3, steps_per_epoch=20)
    process = start(tmp_path)
    while not published(tmp_path):
        assert process.poll() is None
        time.sleep(0.05)
    wait_for_a_container(tmp_path, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = published(tmp_path)
    assert left(tmp_path / "results") != []
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "continuing" in done.stdout
    records = counted_records(tmp_path)
    assert len(records) == 3
    assert {name: stored for name, stored in published(tmp_path).items() if name in before} == before


class ForwardedEngine:
    """A socket in front of the engine's, which goes away and returns as that of an engine that is started again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "engine.sock"
        self._open: list[socket.socket] = []
        self.listen()

    @property
    def address(self) -> str:
        """The value of DOCKER_HOST."""
        return f"unix://{self._path}"

    def listen(self) -> None:
        """Accept connections and pass them on to the engine."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen()
        self._open.append(listener)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Close the socket and every connection."""
        self._path.unlink()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect("/var/run/docker.sock")
                self._open += [caller, engine]
                for pair in ((caller, engine), (engine, caller)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.fault("F27", mutation="the runner does not wait for an engine that does not answer")
def test_engine_that_goes_away_during_a_cell_costs_one_attempt(
    tmp_path: Path, reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix(tmp_path, [SERVICE], "tests.workloads.misbehaving:napping")
    engine = ForwardedEngine(reachable)
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    process = start(tmp_path)
    monkeypatch.delenv("DOCKER_HOST")
    try:
        while not left(tmp_path / "results", "status=running"):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # the runner has read the id of the process and waits for its end
        engine.cut()
        time.sleep(2)
        engine.listen()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        engine.cut()
    first, *others = sorted(newest_records(tmp_path), key=lambda record: record.attempt)
    assert (first.status, (first.reason or "").partition(":")[0]) == (Status.INFRA, "engine")
    assert others
    assert {record.status for record in others} <= MEASURED
    assert left(tmp_path / "results") == []


@pytest.mark.fault("F19", mutation="an interrupted executor does not remove its containers")
@pytest.mark.parametrize("start_", ["fresh", "warm"])
def test_an_interrupt_ends_the_container_and_the_runner(tmp_path: Path, start_: str) -> None:
    matrix(tmp_path, [SERVICE], "tests.workloads.misbehaving:hanging")
    process = start(tmp_path, "--start", start_)
    wait_for_a_container(tmp_path, process)
    # Not SIGINT: what starts tests in the background may have it ignored, and children inherit that.
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert left(tmp_path / "results") == []
    assert published(tmp_path) == {}


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(folder, *arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def published(folder: Path) -> dict[str, float]:
    newest = Results(folder / "results").latest()
    found = (newest.folder / "records").glob("*.json") if newest else []
    return {path.name: path.stat().st_mtime for path in found}


def wait_for_a_container(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while not left(folder / "results"):
        assert process.poll() is None
        time.sleep(0.05)


OTHER = 12345  # no user of this machine's


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that another user can come to: pytest makes its own for one user alone, and shuts them again."""
    with tempfile.TemporaryDirectory(prefix="another-user-") as folder:
        yield Path(folder)


def as_another(folder: Path, groups: list[int]) -> subprocess.CompletedProcess[str]:
    """Run the runner as a user who is not root, in these groups in addition to its own."""
    python = reachable_python()
    if os.geteuid() != 0 or python is None:
        pytest.skip("becoming another user needs root, and a Python that the other user may run")
    for path in (folder, folder / "matrix.yaml"):
        os.chown(path, OTHER, OTHER)
    return subprocess.run(
        [python, *command(folder)[1:]],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))},
        user=OTHER,
        group=OTHER,
        extra_groups=groups,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


PACKAGES = [ROOT, *(path for path in sys.path if path and not path.startswith(sys.base_prefix))]


def reachable_python() -> str | None:
    """Return a Python such as this one that others may run; the user's own may lie in a home that is shut."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        importing = [
            python,
            "-c",
            "import yaml; from docker import APIClient; from keras_matrix.runner.cli import main",
        ]
        try:
            done = subprocess.run(
                importing,
                env={"PYTHONPATH": os.pathsep.join(map(str, PACKAGES))},
                user=OTHER,
                group=OTHER,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


def test_user_without_root_measures_and_owns_the_results(reachable: Path) -> None:
    matrix(reachable, [SERVICE], "mnist_mlp")
    done = as_another(reachable, [Path("/var/run/docker.sock").stat().st_gid])
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.lstat().st_uid for path in (reachable / "results").rglob("*")} == {OTHER}
    assert left(reachable / "results") == []


def test_user_without_access_to_the_socket_gets_an_error(reachable: Path) -> None:
    matrix(reachable, [SERVICE], "mnist_mlp")
    done = as_another(reachable, [])
    assert done.returncode == 3
    assert "this user may not use it: add the user to the group docker" in done.stderr
