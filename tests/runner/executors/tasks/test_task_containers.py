"""External commands in containers of their own image, with an engine that pretends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keras_matrix.records.schema import Status
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.docker.engine import Image
from keras_matrix.runner.executors.docker.executor import ARCHITECTURES
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.container_engine import KILLED, End, FakeContainer, FakeEngine
from tests.fakes.executor import FakeExecutor
from tests.sessions import newest_records

MATRIX = """\
version: 1
defaults: {repeats: 1}
tasks:
  - task: train
    image: mine:1
    command: ["{python}", train.py, "{outputs}"]
    environment: {PLACE: "{outputs}/x"}
    folder: work
    metrics: {speed: 'speed (.)'}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def engine_that(printed: bytes, end: End) -> FakeEngine:
    def command(container: FakeContainer) -> End:
        container.printed.put(printed)
        return end

    architecture = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    image = Image("sha256:mine", architecture, "10001:10001")
    return FakeEngine(images={"mine:1": image}, commands={"mine:1": command})


def runner(engine: FakeEngine) -> int:
    return main(["--executor", "docker"], Seams(engine=engine))


@pytest.mark.process
def test_command_runs_in_its_own_image_and_sees_its_folder(folder: Path) -> None:
    engine = engine_that(b"speed 7\n", End())
    assert runner(engine) == 0
    (spec,) = engine.specs
    assert (spec.command, spec.folder) == (("python3", "train.py", "/cell/outputs"), "/cell/task")
    assert {mount.target.rsplit("/", 1)[0]: mount.writable for mount in spec.mounts if "work" in mount.target} == {
        "/cell/work": True
    }
    assert [(mount.source, mount.writable) for mount in spec.mounts if mount.target == "/cell/task"] == [
        (str(folder / "work"), False)
    ]
    environment = dict(spec.environment)
    assert environment["PLACE"] == "/cell/outputs/x"
    assert all(environment[name].startswith("/cell/work/") for name in ("HOME", "TMPDIR", "KERAS_BENCHMARK_METRICS"))
    assert "PATH" not in environment
    (record,) = newest_records(folder)
    assert record.task.primary_metric.value == 7.0
    assert record.container.image == "mine:1"
    assert engine.containers == {}


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "status"),
    [(End(3), Status.ERROR), (End(KILLED, oom_killed=True), Status.OOM_HOST), (End(139), Status.CRASH)],
)
def test_each_end_of_a_container_has_its_status(folder: Path, end: End, status: Status) -> None:
    assert runner(engine_that(b"speed 7\n", end)) == 1
    assert {record.status for record in newest_records(folder)} == {status}


def test_missing_image_is_infrastructure(folder: Path) -> None:
    assert runner(FakeEngine()) == 3
    assert {record.reason for record in newest_records(folder)} == {
        "image_missing: mine:1 is missing and is never pulled; pull or build it before"
    }


def test_command_without_an_image_is_not_run_in_a_container(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(MATRIX.replace("    image: mine:1\n", ""))
    assert runner(FakeEngine()) == 0
    assert {record.status for record in newest_records(folder)} == {Status.UNSUPPORTED}


def test_image_is_part_of_the_identity_of_a_command(folder: Path) -> None:
    assert main([], Seams(executor=FakeExecutor())) == 0
    one = {record.cell_id for record in newest_records(folder)}
    (folder / "matrix.yaml").write_text(MATRIX.replace("mine:1", "mine:2"))
    assert main(["--new"], Seams(executor=FakeExecutor())) == 0
    assert one.isdisjoint(record.cell_id for record in newest_records(folder))


@pytest.mark.process
@pytest.mark.fault("F35", mutation="`TaskWatch` reads its files by their paths")
@pytest.mark.parametrize("kind", ["link", "pipe", "device", "missing"])
def test_files_that_a_command_puts_in_place_of_its_log_and_reports_are_not_read(folder: Path, kind: str) -> None:
    """It could otherwise read files of the runner's user through a link, or let the runner wait for a pipe."""
    secret = folder / "secret.txt"
    secret.write_text("speed 7, and a secret\n")

    def command(container: FakeContainer) -> End:
        container.printed.put(b"speed 3\n")
        [work] = [mount.source for mount in container.spec.mounts if mount.target.startswith("/cell/work/")]
        for name in ("log", "reported.jsonl"):
            path = Path(work) / name
            path.unlink()
            if kind == "link":
                path.symlink_to(secret)
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind == "device":
                path.symlink_to("/dev/zero")
        return End(3)

    image = next(iter(engine_that(b"", End()).images.values()))
    assert runner(FakeEngine(images={"mine:1": image}, commands={"mine:1": command})) == 1
    (record,) = newest_records(folder)
    assert (record.status, record.task.primary_metric.value) == (Status.ERROR, 3.0)
    assert record.evidence.output_tail == "speed 3\n"
    assert secret.read_text() == "speed 7, and a secret\n"
