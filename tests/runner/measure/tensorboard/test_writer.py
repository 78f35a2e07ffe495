"""The files in the log folder, and the problems in the record if a file could not be written."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.instruments.usage import UsageSeries
from keras_matrix.records.schema import Learning, Record, Status, TensorBoardOutput, Times
from keras_matrix.records.store import Results
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.tensorboard import ENDED
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure import tensorboard
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.measure.tensorboard import AttemptToWrite, Event, GraphDef, folder_of, points, written
from tests.conftest import make_record, make_settings
from tests.fakes.executor import LAYERS, FakeExecutor
from tests.sessions import newest_records

TIMES = Times(step_time_s=0.01, discarded_epoch_times_s=[2.0], epoch_times_s=[1.0, 1.5])
LEARNED = Learning([3.0, None, 1.0], {"accuracy": [0.1, 0.2, 0.3]})
RECORD = make_record(0.01, times=TIMES, learning=LEARNED)
SERIES = UsageSeries([0.0, 0.1], [5, None], device_power_w=[1.5, 2.5])
XPLANE = b"what a profiler wrote"
MATRIX = """\
version: 1
defaults: {repeats: 1}
backends: [jax, torch]
cells:
  - workload: mnist_mlp
"""

ROOT = Path(__file__).parents[4]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose process left a model and a profile."""
    folder = tmp_path / "scratch"
    (folder / "profile" / "plugins" / "profile" / "now").mkdir(parents=True)
    (folder / "profile" / "plugins" / "profile" / "now" / "host.xplane.pb").write_bytes(XPLANE)
    (folder / "model.json").write_text(json.dumps(LAYERS))
    return Job("n", RECORD.cell_id, 0, 0, make_settings(), 1, str(folder), [], None, None, board=True)


def write_all(job: Job, log_dir: Path, record: Record = RECORD, series: UsageSeries | None = SERIES) -> Record:
    return written(AttemptToWrite(record, series, job), log_dir)


def events(path: Path) -> list[Any]:
    """Return the content of an event file."""
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder / tensorboard.EVENTS):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_epochs_usage_and_figures_become_points_unless_not_measured() -> None:
    found = [(one.tag, one.step, one.value) for one in points(RECORD, SERIES)]
    assert found == [
        ("epoch/time_s", 0, 2.0),
        ("epoch/time_s", 1, 1.0),
        ("epoch/time_s", 2, 1.5),
        ("epoch/loss", 0, 3.0),
        ("epoch/loss", 2, 1.0),
        ("epoch/accuracy", 0, 0.1),
        ("epoch/accuracy", 1, 0.2),
        ("epoch/accuracy", 2, 0.3),
        ("use/host_anonymous_bytes", 0, 5.0),
        ("use/device_power_w", 0, 1.5),
        ("use/device_power_w", 1, 2.5),
        ("figure/step_time_s", 0, 0.01),
    ]


def test_command_s_metrics_are_points() -> None:
    task = TaskRun("t", ["true"], "speed", [Metric("speed", 3.5), Metric("lost", None)])
    found = [(one.tag, one.value) for one in points(make_record(None, task=task), None)]
    assert found == [("metric/speed", 3.5)]


def test_scalars_graph_and_profile_are_in_the_folder_of_the_attempt(job: Job, tmp_path: Path) -> None:
    found = write_all(job, tmp_path / "logs")
    assert found.tensorboard == TensorBoardOutput(folder_of(RECORD), ["scalars", "graph", "profile"])
    assert found.warnings == []
    folder = tmp_path / "logs" / folder_of(RECORD)
    assert folder_of(RECORD) == f"{RECORD.run_id}/jax-mnist_mlp-{RECORD.cell_id}/0.0"
    assert scalars(folder)["epoch/loss"] == [(0, 3.0), (2, 1.0)]
    assert events(folder / tensorboard.EVENTS)[0].file_version == "brain.Event:2"
    (profile,) = folder.glob("plugins/profile/*/*.xplane.pb")
    assert (profile.name, profile.read_bytes()) == ("jax.xplane.pb", XPLANE)


def test_graph_contains_the_layers_and_their_edges(job: Job, tmp_path: Path) -> None:
    write_all(job, tmp_path / "logs")
    (_, event) = events(tmp_path / "logs" / folder_of(RECORD) / f"{tensorboard.EVENTS}.graph")
    graph = GraphDef.FromString(event.graph_def)
    assert [(node.name, node.op, list(node.input)) for node in graph.node] == [
        ("model/dense_1", "Dense", []),
        ("model/dense_2", "Dense", ["model/dense_1"]),
    ]


def test_pytorch_trace_is_converted_for_the_profile_plugin(job: Job, tmp_path: Path) -> None:
    for left in job.profile_dir.rglob("*.xplane.pb"):
        left.unlink()
    event = {"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2, "tid": 3}
    (job.profile_dir / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
    assert "profile" in write_all(job, tmp_path / "logs").tensorboard.written
    (profile,) = (tmp_path / "logs").rglob("*.xplane.pb")
    assert b"aten::mm" in profile.read_bytes()


def test_missing_files_of_a_cell_are_skipped_and_failures_reported(job: Job, tmp_path: Path) -> None:
    job.model_path.unlink()
    for left in job.profile_dir.rglob("*.xplane.pb"):
        left.unlink()
    job.undone_path.write_text("profile: RuntimeError: no\x1b[31m profiler\n")
    found = write_all(job, tmp_path / "logs")
    assert found.tensorboard == TensorBoardOutput(folder_of(RECORD), ["scalars"], "profile: RuntimeError: no profiler")
    assert found.warnings == ["tensorboard: profile: RuntimeError: no profiler; the figures are not affected"]


def test_incomplete_profile_is_not_written(job: Job, tmp_path: Path) -> None:
    job.undone_path.write_text(f"profile: {ENDED}\n")
    found = write_all(job, tmp_path / "logs")
    assert found.tensorboard == TensorBoardOutput(folder_of(RECORD), ["scalars", "graph"], f"profile: {ENDED}")


INFINITE = '{"traceEvents": [{"ph": "X", "ts": 1}, {"ph": "X", "ts": Infinity}]}'


@pytest.mark.parametrize("text", ["not JSON", "[]", '{"config": 3}', '{"traceEvents": [3]}', INFINITE, "null"])
def test_invalid_file_of_a_cell_affects_only_its_own_part(job: Job, tmp_path: Path, text: str) -> None:
    job.model_path.write_text(text)
    for left in job.profile_dir.rglob("*.xplane.pb"):
        left.unlink()
    (job.profile_dir / "trace.json").write_text(text)
    found = write_all(job, tmp_path / "logs")
    assert found.tensorboard is not None
    assert found.tensorboard.written == ["scalars"]
    assert found.tensorboard.problem is not None


def test_names_with_half_a_surrogate_pair_are_written(job: Job, tmp_path: Path) -> None:
    half = "\ud800"
    layer = {"class_name": f"D{half}", "config": {"name": f"d{half}"}}
    job.model_path.write_text(json.dumps({"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}))
    record = make_record(0.01, task=TaskRun("t", ["true"], half, [Metric(half, 3.5)]))
    assert write_all(job, tmp_path / "logs", record).tensorboard == TensorBoardOutput(
        folder_of(record), ["scalars", "graph", "profile"]
    )
    assert scalars(tmp_path / "logs" / folder_of(record))["metric/\\ud800"] == [(0, 3.5)]


def test_link_written_by_a_cell_is_not_followed(job: Job, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps(LAYERS))
    job.model_path.unlink()
    job.model_path.symlink_to(tmp_path / "secret")
    found = write_all(job, tmp_path / "logs").tensorboard
    assert found is not None
    assert "graph" not in found.written


def test_profile_folder_that_is_a_link_is_ignored(job: Job, tmp_path: Path) -> None:
    job.profile_dir.rename(tmp_path / "elsewhere")
    job.profile_dir.symlink_to(tmp_path / "elsewhere")
    found = write_all(job, tmp_path / "logs").tensorboard
    assert found == TensorBoardOutput(
        folder_of(RECORD), ["scalars", "graph"], "profile: the profile folder of the cell is a link"
    )


@pytest.mark.parametrize(
    ("link", "written_all_the_same"),
    [(RECORD.run_id, []), (f"{folder_of(RECORD)}/plugins", ["scalars", "graph"])],
)
def test_no_file_is_written_through_a_link_out_of_the_log_folder(
    job: Job, tmp_path: Path, link: str, written_all_the_same: list[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "logs" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "elsewhere")
    found = write_all(job, tmp_path / "logs").tensorboard
    assert found is not None
    assert found.written == written_all_the_same
    assert "is outside of the log folder, because of a link" in str(found.problem)
    assert [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()] == []


def test_file_that_is_a_link_is_replaced_and_not_written_through(job: Job, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    names = [tensorboard.EVENTS, f"{tensorboard.EVENTS}.graph", f"plugins/profile/{RECORD.run_id}/jax.xplane.pb"]
    for name in names:
        place = tmp_path / "logs" / folder_of(RECORD) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(tmp_path / "kept")
    assert write_all(job, tmp_path / "logs").tensorboard == TensorBoardOutput(
        folder_of(RECORD), ["scalars", "graph", "profile"]
    )
    assert (tmp_path / "kept").read_text() == "kept"


@pytest.mark.fault("F33", mutation="the folder of TensorBoard's files has the name of the workload unchanged")
@pytest.mark.parametrize("name", ["..", "../../up:f", "a/b:c", "/etc/passwd:x", "x" * 300, "\x00"])
def test_workload_with_any_name_is_written_below_the_log_folder(job: Job, tmp_path: Path, name: str) -> None:
    record = make_record(0.01, settings=make_settings(workload=name))
    assert write_all(job, tmp_path / "logs", record).tensorboard.problem is None
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "scratch" not in path.parts]
    assert all(path.is_relative_to(tmp_path / "logs") for path in files)


@pytest.mark.fault("F18", mutation="an error of the disk while TensorBoard's files are written ends the runner")
def test_full_disk_adds_only_a_warning(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("keras_matrix.runner.measure.tensorboard.RecordWriter.write", full)
    found = write_all(job, tmp_path / "logs")
    assert found.tensorboard is not None
    assert (found.tensorboard.written, found.status) == (["profile"], Status.OK)
    assert found.tensorboard.problem == "scalars: No space left on device; graph: No space left on device"
    assert found.warnings[0].endswith("; free some space, or set another --log-dir")
    assert replace(found, tensorboard=None, warnings=[]) == RECORD
    assert list((tmp_path / "logs").rglob("events*")) == []


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    """A disk of 16 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.fault("F18", mutation="an error of the disk while TensorBoard's files are written ends the runner")
@pytest.mark.process
def test_run_on_a_full_disk_is_ok(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    places = ["--matrix", str(tmp_path / "matrix.yaml"), "--results", str(tmp_path / "results")]
    (tiny / "filler").write_bytes(b"x" * 8192)
    assert main([*places, "--log-dir", str(tiny), "--json"], Seams(executor=FakeExecutor())) == 0
    records = newest_records(tmp_path)
    assert [record.status for record in records] == [Status.OK] * 2
    assert any("No space left" in str(r.tensorboard.problem) for r in records if r.tensorboard)


def test_run_with_a_log_folder_writes_and_records_each_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert main(["--log-dir", "logs", "--json"], Seams(executor=FakeExecutor())) == 0
    records = newest_records(tmp_path)
    assert [record.tensorboard.written for record in records] == [["scalars", "graph"]] * 2
    for record in records:
        folder = tmp_path / "logs" / record.tensorboard.log_dir
        assert scalars(folder)["figure/step_time_s"] == [(0, pytest.approx(record.times.step_time_s))]
        assert len(scalars(folder)["use/host_anonymous_bytes"]) == 3


def imported(arguments: list[str], names: tuple[str, ...]) -> list[str]:
    """Return the modules with these prefixes that a separate runner process has imported after a measurement."""
    script = (
        "import sys; from keras_matrix.runner.cli.main import main\n"
        "from keras_matrix.runner.measure.seams import Seams\n"
        "from tests.fakes.executor import FakeExecutor\n"
        f"assert main(['--json', '--new', *{arguments}], Seams(executor=FakeExecutor())) == 0\n"
        f"print('imported', *[name for name in sys.modules if name.startswith({names})])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.process
def test_run_without_a_log_folder_writes_and_imports_no_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    executor = FakeExecutor()
    assert main(["--json"], Seams(executor=executor)) == 0
    assert [job.board for job in executor.jobs] == [False] * 2
    assert {record.tensorboard for record in newest_records(tmp_path)} == {None}
    assert (
        imported(
            [],
            ("keras_matrix.runner.measure.tensorboard", "tensorboard", "keras_matrix.runner.cell.tensorboard"),
        )
        == []
    )


@pytest.mark.process
@pytest.mark.backends
def test_writing_tensorboard_files_imports_no_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert imported(["--log-dir", "logs"], ("keras.", "tensorflow", "jax", "torch")) == []
    assert list((tmp_path / "logs").rglob(tensorboard.EVENTS)) != []


@pytest.mark.parametrize(("name", "message"), [("", "must name a folder"), ("matrix.yaml", "must name a folder, got")])
def test_invalid_log_folder_is_refused_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert main(["--log-dir", name], Seams(executor=FakeExecutor())) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


# runner tensorboard


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that this process would have become."""
    found: list[list[str]] = []

    class Became(SystemExit):
        pass

    def become(program: str, argv: list[str]) -> None:
        found.append(argv)
        raise Became(0)

    monkeypatch.setattr("os.execv", become)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None))
    return found


def test_tensorboard_opens_the_newest_log_folder_locally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    for places in (["--log-dir", "logs"], ["--new"]):
        assert main([*places, "--json"], Seams(executor=FakeExecutor())) == 0
    with pytest.raises(SystemExit):
        main(["tensorboard"])
    logs = str(tmp_path / "logs")
    assert started == [
        [sys.executable, "-P", "-m", "tensorboard.main", "--logdir", logs, "--host", "127.0.0.1", "--port", "6006"]
    ]


def test_run_that_was_continued_with_a_log_folder_is_opened_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert main(["--json"], Seams(executor=FakeExecutor())) == 0
    runs = Results(tmp_path / "results").runs()
    next((runs[0].folder / "records").glob("*.json")).unlink()
    assert main(["--log-dir", "logs", "--json"], Seams(executor=FakeExecutor())) == 0
    assert [run.run_id for run in Results(tmp_path / "results").runs()] == [run.run_id for run in runs]
    with pytest.raises(SystemExit):
        main(["tensorboard"])
    assert started[0][5] == str(tmp_path / "logs")


def test_missing_profile_plugin_is_reported_when_tensorboard_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[list[str]],
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if "plugin" in name else ModuleSpec(name, None))
    with pytest.raises(SystemExit):
        main(["tensorboard", "--log-dir", str(tmp_path)])
    assert len(started) == 1
    assert "pip install tensorboard-plugin-profile" in capsys.readouterr().err


def test_missing_tensorboard_is_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["tensorboard", "--log-dir", str(tmp_path)]) == 3
    assert "pip install 'keras-matrix[tensorboard]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log-dir", "nowhere"], "there is no folder"),
        ([], "no run of results has a log folder"),
        (["--log-dir", ".", "--listen", "6006"], "--listen:"),
    ],
)
def test_bad_input_of_tensorboard_is_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tensorboard", *arguments]) == 2
    assert message in capsys.readouterr().err
