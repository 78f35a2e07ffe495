"""Cells on a real Ray cluster of several nodes on this machine, with nodes and runners that are killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.store import Results, latest_attempts
from tests.runner.executors.ray.local_cluster import LocalCluster, local_cluster
from tests.runner_once import COMMAND as RUNNER

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("ray")]
LIMIT_S = 240
CELL = """\
version: 1
defaults: {repeats: 1, epochs: 3, steps_per_epoch: 4}
backends: [jax]
cells:
  - {workload: mnist_mlp, batch_size: 64}
"""
SLEEPERS = """\
version: 1
defaults: {repeats: 1}
tasks:
  - task: sleeper
    command: "sleep SECONDS; echo value={number}"
    shell: true
    backends: [jax]
    params: {number: [NUMBERS]}
    metrics: {value: {pattern: 'value=([0-9]+)'}}
"""
LOOKING = """\
tasks:
  - {task: look, command: ["{python}", look.py, "{outputs}"], metrics: {value: {pattern: 'value=([0-9]+)'}}}
"""
LOOK = """\
import json, os, sys
paths = ("HOME", "TMPDIR", "KERAS_HOME", "PWD", "KERAS_BENCHMARK_RESULTS")
variables = {name: value for name, value in os.environ.items() if name not in paths and not value.startswith("/tmp")}
seen = {
    "variables": variables,
    "cpus": sorted(os.sched_getaffinity(0)),
    "niceness": os.nice(0),
    "oom_score": open("/proc/self/oom_score_adj").read(),
    "limits": open("/proc/self/limits").read(),
}
json.dump(seen, open(f"{sys.argv[1]}/seen.json", "w"))
print("value=1")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(["one", "two", "three"]) as found:
        yield found


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "matrix.yaml").write_text(CELL)
    return tmp_path


def started(work: Path, cluster: LocalCluster, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    command = [*RUNNER, *arguments, "--executor", "ray", "--address", cluster.address]
    return subprocess.Popen(
        command,
        cwd=work,
        env=cluster.variables | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(work: Path, cluster: LocalCluster, *arguments: str, **variables: str) -> tuple[int, str]:
    process = started(work, cluster, *arguments, **variables)
    printed, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, printed


def records(work: Path, results: str = "results") -> list[Record]:
    newest = Results(work / results).latest()
    assert newest is not None
    return newest.load()[0]


def sleepers(work: Path, count: int, seconds: float) -> None:
    text = SLEEPERS.replace("SECONDS", str(seconds)).replace("NUMBERS", ", ".join(map(str, range(count))))
    (work / "matrix.yaml").write_text(text)


def seen(work: Path, results: str) -> dict[str, object]:
    """Return what the command of `LOOK` saw."""
    (found,) = (work / results).glob("latest/outputs/*/seen.json")
    seen: dict[str, object] = json.loads(found.read_text())
    return seen


@pytest.fixture(scope="module")
def both(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one matrix from the cluster, in `results`, and from this machine, in `here`."""
    work = tmp_path_factory.mktemp("both")
    (work / "look.py").write_text(LOOK)
    (work / "matrix.yaml").write_text(CELL + LOOKING)
    code, printed = run(work, cluster)
    assert code == 0, printed
    done = subprocess.run(
        [*RUNNER, "--results", "here"], cwd=work, env=cluster.variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return work


@pytest.mark.nightly
def test_a_process_on_a_node_has_the_same_surroundings_as_here(both: Path) -> None:
    """Ray sets the threads of OpenMP, hides GPUs and lowers priorities; nothing of that reaches a cell."""
    there, here = seen(both, "results"), seen(both, "here")
    assert there == here
    assert here["niceness"] == os.nice(0)


def test_a_cell_is_the_same_as_a_process_of_this_machine(both: Path) -> None:
    there, here = (
        next(record for record in latest_attempts(records(both, results)) if record.task is None)
        for results in ("results", "here")
    )
    assert there.cell_id == here.cell_id
    assert there.resolved == here.resolved
    assert there.versions == here.versions
    assert there.machine.host_id != here.machine.host_id
    assert there.machine.cpu_model == here.machine.cpu_model


@pytest.mark.nightly(why="the folders that travel have unit tests")
def test_a_users_own_workload_travels_to_the_node(work: Path, cluster: LocalCluster) -> None:
    (work / "mine.py").write_text("""\
import keras
import numpy


def small():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    model.compile(optimizer="sgd", loss="mse")
    return model, numpy.ones((64, 8), "float32"), numpy.ones((64, 4), "float32")
""")
    (work / "matrix.yaml").write_text(CELL.replace("workload: mnist_mlp", "workload: 'mine:small'"))
    code, printed = run(work, cluster)
    assert code == 0, printed
    (record,) = latest_attempts(records(work))
    assert record.status in MEASURED, record.reason
    assert record.times.step_time_s


@pytest.mark.nightly
def test_what_no_node_offers_is_unsupported_and_the_rest_runs(work: Path, cluster: LocalCluster) -> None:
    sleepers(work, 2, 0.1)
    with (work / "matrix.yaml").open("a") as file:
        file.write("  - {task: elsewhere, command: ['true'], machine: n1-standard-16}\n")
    code, printed = run(work, cluster)
    assert code == 0, printed
    reasons = [record.reason for record in records(work) if record.status is Status.UNSUPPORTED]
    assert reasons == ["no node offers machine: n1-standard-16; the cluster has one, three, two"]


TOGETHER = """\
version: 1
defaults: {repeats: 1, epochs: 3, steps_per_epoch: 4}
backends: [tensorflow, jax, torch]
cells:
  - {workload: fc, mode: fc_data, workers: 2, nodes: NODES, level: 3, weight_size: 64, batch_size: 64}
"""


@pytest.mark.nightly  # as those of nodes in namespaces, with loopback addresses and compared with one machine
def test_workers_of_one_cell_are_on_two_machines_on_every_backend(work: Path, cluster: LocalCluster) -> None:
    (work / "matrix.yaml").write_text(TOGETHER.replace("NODES", "[1, 2]"))
    code, printed = run(work, cluster)
    assert code == 0, printed
    found = latest_attempts(records(work))
    assert {record.status for record in found} <= MEASURED, [record.reason for record in found]
    together = [record for record in found if record.settings.nodes == 2]
    assert {record.settings.backend for record in together} == set(TRAINING_BACKENDS)
    for record in together:
        assert record.parallel is not None
        machines = [place.machine for place in record.parallel.places]
        assert machines[0] == record.machine.host_id
        assert len(set(machines)) == 2
        (alone,) = [one for one in found if one.settings.backend == record.settings.backend and one.settings.nodes == 1]
        assert record.learning.loss == pytest.approx(alone.learning.loss, rel=1e-5)
        assert record.cell_id != alone.cell_id


def test_a_cell_of_several_machines_that_keras_cannot_train_is_unsupported(work: Path, cluster: LocalCluster) -> None:
    (work / "matrix.yaml").write_text(CELL.replace("batch_size: 64", "batch_size: 64, nodes: 2"))
    code, printed = run(work, cluster)
    assert code == 0, printed
    (record,) = records(work)
    assert record.status is Status.UNSUPPORTED
    assert "keras-team/keras issue 20585" in str(record.reason)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["one", "two"])
def test_a_machine_lost_during_a_cell_of_several_is_replaced(work: Path, cluster: LocalCluster, name: str) -> None:
    """The cell is on "two", which measures, and "one"; it is measured again on the machine that is left and "three"."""
    text = TOGETHER.replace("NODES", "2").replace("level: 3", "level: 3, forward_sleep_ms: 20, backward_sleep_ms: 20")
    (work / "matrix.yaml").write_text(text.replace("steps_per_epoch: 4", "steps_per_epoch: 20"))
    begun_s = time.time()
    process = started(work, cluster, "--backend", "torch")
    await_jobs(begun_s, 2)
    time.sleep(3)
    cluster.kill(name)
    printed, _ = process.communicate(timeout=LIMIT_S)
    cluster.add(name)
    assert process.returncode == 0, printed
    lost, *complete = records(work)
    assert lost.status is Status.INFRA
    assert str(lost.reason).startswith("node_lost: two and one: ")
    assert complete
    left = {host_id(other) for other in ("one", "two", "three") if other != name}
    for record in complete:  # a disturbed one is measured again
        assert record.status in MEASURED
        assert record.parallel is not None
        assert {place.machine for place in record.parallel.places} == left


@pytest.mark.fault("F30", mutation="a lost attempt keeps its number for the next one")
def test_a_killed_node_costs_one_cell_and_every_cell_is_counted_once(work: Path, cluster: LocalCluster) -> None:
    sleepers(work, 12, 1.0)
    process = started(work, cluster)
    await_records(work, 4)
    cluster.kill("two")
    printed, _ = process.communicate(timeout=LIMIT_S)
    cluster.add("two")
    assert process.returncode == 0, printed
    found = records(work)
    lost = [record for record in found if record.status is Status.INFRA]
    assert len(lost) <= 1
    assert all(record.reason and record.reason.startswith("node_lost: two: ") for record in lost)
    assert Counter(record.status for record in latest_attempts(found)) == {Status.OK: 12}
    assert len({(record.cell_id, record.repeat) for record in found}) == 12


@pytest.mark.nightly(why="half a minute; a killed node is tried for every change")
def test_a_killed_runner_leaves_no_cell_and_its_run_is_continued(work: Path, cluster: LocalCluster) -> None:
    sleepers(work, 12, 1.7)
    process = started(work, cluster)
    await_records(work, 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    await_none(b"sleep 1.7")
    before = len(records(work))
    code, printed = run(work, cluster)
    assert code == 0, printed
    assert "continuing results/" in printed
    found = records(work)
    assert len(Results(work / "results").runs()) == 1
    assert Counter(record.status for record in latest_attempts(found)) == {Status.OK: 12}
    assert before < 12


@pytest.mark.nightly(why="an interrupted run of this machine is tried for every change")
def test_an_interrupted_runner_ends_its_cells_and_says_130(work: Path, cluster: LocalCluster) -> None:
    sleepers(work, 12, 2.3)
    process = started(work, cluster)
    await_records(work, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    await_none(b"sleep 2.3")


@pytest.mark.nightly
def test_a_node_with_another_version_of_this_program_is_named(work: Path, cluster: LocalCluster) -> None:
    about = work / "newer" / "keras_matrix-9.9.9.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: keras-matrix\nVersion: 9.9.9\n")
    cluster.add("newer", inside=["env", f"PYTHONPATH={work / 'newer'}"])
    try:
        code, printed = run(work, cluster)
    finally:
        cluster.kill("newer")
    assert code == 3, printed
    own = version("keras-matrix")
    assert f"has keras-matrix 9.9.9, here is {own}; install the same on all nodes" in " ".join(printed.split())


@pytest.mark.nightly  # as a full disk of this machine, in every process tier
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small disk of a node")
def test_a_full_disk_of_a_node_is_infrastructure_and_the_other_nodes_measure(work: Path, cluster: LocalCluster) -> None:
    sleepers(work, 12, 0.5)
    disk = work / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(disk)], check=True)
    try:
        cluster.add("full", inside=["env", f"TMPDIR={disk}"])
        code, printed = run(work, cluster)
        cluster.kill("full")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    assert code == 0, printed
    found = records(work)
    assert Counter(record.status for record in latest_attempts(found)) == {Status.OK: 12}
    failed = [str(record.reason) for record in found if record.status is Status.INFRA]
    assert failed
    assert all("No space left on device" in reason and "(node full)" in reason for reason in failed)


@pytest.mark.parametrize(
    ("address", "variables", "message"),
    [
        ("127.0.0.1:1", {}, "--address: no Ray cluster at 127.0.0.1:1: "),
        pytest.param(
            *(None, {"RAY_AUTH_TOKEN": "another token"}, "use the token with which the cluster was started"),
            marks=pytest.mark.nightly(why="Ray tries for a third of a minute"),
        ),
        (None, {"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "/none"}, "RAY_AUTH_TOKEN: no token of the cluster in"),
        (None, {"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE: must be token, got 'disabled'"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_error_with_exit_code_3(
    work: Path, cluster: LocalCluster, address: str | None, variables: dict[str, str], message: str
) -> None:
    process = subprocess.run(
        [*RUNNER, "--executor", "ray", "--address", address or cluster.address],
        cwd=work,
        env=cluster.variables | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert process.returncode == 3
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def await_records(work: Path, count: int) -> None:
    """Wait until a run has published so many records."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if len(list((work / "results").glob("2*/records/*.json"))) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("no records")


def await_jobs(begun_s: float, count: int) -> None:
    """Wait until nodes have so many jobs that were written after a time."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        jobs = Path(tempfile.gettempdir()).glob("keras-matrix-node-*/cells/*/job.json")
        if sum(path.stat().st_mtime > begun_s for path in jobs) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("no jobs")


def host_id(name: str) -> str:
    """Return the identity of a node with this label."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def await_none(words: bytes) -> None:
    """Wait until no process has these words in its command line."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        commands = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" "))
                except OSError:
                    continue
        if not any(words in command and b"runner" not in command for command in commands):
            return
        time.sleep(0.1)
    raise AssertionError(f"{words!r} is still running")
