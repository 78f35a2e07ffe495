"""Real backends: each leaves its graph and a profile after everything measured, and TensorBoard's own readers agree."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.runner.cell.tensorboard import ENDED
from keras_matrix.runner.cli.main import main
from tests.sessions import counted_records

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("tensorboard")]
ROOT = Path(__file__).parents[4]
Logs = Callable[[str], Path]
"""The folder with the results and the logs of a backend."""
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 4}
backends: [BACKEND]
cells:
  - workload: mnist_mlp
  - workload: mnist_mlp
    phase: predict
"""
# For every change the backend whose profile we convert ourselves; the others write theirs.
EVERY = [pytest.param(name, marks=() if name == "torch" else pytest.mark.nightly) for name in TRAINING_BACKENDS]

DYING = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 2}
backends: [torch]
cells:
  - {workload: "tests.workloads.traced:dying", batch_size: 32, samples: 64}
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """Measure a backend's cells as they are asked for, once."""

    @functools.cache
    def measured(backend: str) -> Path:
        folder = tmp_path_factory.mktemp("logs")
        (folder / "matrix.yaml").write_text(MATRIX.replace("BACKEND", backend))
        places = ["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results")]
        assert main([*places, "--log-dir", str(folder / "logs"), "--json"]) == 0
        return folder

    return measured


def of(logs: Logs, backend: str, phase: str = "fit") -> tuple[Record, Path]:
    folder = logs(backend)
    (record,) = (record for record in counted_records(folder) if record.settings.phase == phase)
    assert record.tensorboard is not None
    return record, folder / "logs" / record.tensorboard.log_dir


@pytest.mark.parametrize("phase", ["fit", "predict"])
@pytest.mark.parametrize("backend", EVERY)
def test_scalars_graph_and_profile_are_written_of_every_backend(logs: Logs, backend: str, phase: str) -> None:
    record, _ = of(logs, backend, phase)
    assert record.status in MEASURED
    assert record.tensorboard is not None
    assert (record.tensorboard.written, record.tensorboard.problem) == (["scalars", "graph", "profile"], None)


@pytest.mark.parametrize("backend", EVERY)
def test_tensorboard_reads_scalars_and_graph(logs: Logs, backend: str) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    record, folder = of(logs, backend)
    found = reading.EventAccumulator(str(folder))
    found.Reload()
    assert [one.value for one in found.Scalars("epoch/loss")] == pytest.approx(record.learning.loss)
    names = {node.name for node in reading.graph_pb2.GraphDef.FromString(found._graph).node}
    assert any("dense" in name for name in names)


@pytest.mark.parametrize("backend", EVERY)
def test_profile_plugin_opens_the_profile(logs: Logs, backend: str) -> None:
    converting = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="no xprof")
    _, folder = of(logs, backend)
    (profile,) = folder.glob("plugins/profile/*/*.xplane.pb")
    content, _ = converting.xspace_to_tool_data([str(profile)], "trace_viewer", {})
    assert content is not None
    assert '"ph":"X"' in content.replace(" ", "")


@pytest.mark.parametrize("backend", EVERY)
def test_profile_plugin_names_the_time_of_a_step(logs: Logs, backend: str) -> None:
    converting = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="no xprof")
    _, folder = of(logs, backend)
    (profile,) = folder.glob("plugins/profile/*/*.xplane.pb")
    content, _ = converting.xspace_to_tool_data([str(profile)], "input_pipeline_analyzer", {})
    found = next(one["p"] for one in json.loads(content) if "steptime_ms_average" in one.get("p", {}))
    assert float(found["steptime_ms_average"]) > 0, found["input_conclusion"]


@pytest.mark.parametrize("backend", EVERY)
def test_profile_marks_the_steps_of_fit(logs: Logs, backend: str) -> None:
    _, folder = of(logs, backend)
    (profile,) = folder.glob("plugins/profile/*/*.xplane.pb")
    content = profile.read_bytes()
    assert (b"train" in content, b"step_num" in content) == (True, True)


@pytest.mark.parametrize("backend", EVERY)
def test_profile_contains_operations(logs: Logs, backend: str) -> None:
    words = {"tensorflow": b"MatMul", "jax": b"dot", "torch": b"aten::"}
    _, folder = of(logs, backend)
    (profile,) = folder.glob("plugins/profile/*/*.xplane.pb")
    assert words[backend] in profile.read_bytes()


def test_process_that_dies_while_writing_its_profile_retains_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # where the workload is found
    (tmp_path / "matrix.yaml").write_text(DYING)
    places = ["--matrix", str(tmp_path / "matrix.yaml"), "--results", str(tmp_path / "results")]
    assert main([*places, "--log-dir", str(tmp_path / "logs"), "--json"]) == 0
    (record,) = counted_records(tmp_path)
    assert (record.status in MEASURED, record.evidence.signal) == (True, 11)
    assert record.tensorboard is not None
    assert (record.tensorboard.written, record.tensorboard.problem) == (["scalars", "graph"], f"profile: {ENDED}")
