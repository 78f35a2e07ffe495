"""Real cells, traced on each backend: the contents of the trace, and its effect on the figures."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.traces import read_table
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.store import Results
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Phase, Span, TrackKind
from keras_matrix.records.traces.request import BEGUN, NATIVE_NAME, TRACE_NAME, Trace
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.measure.record_builder import record_of
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.measure.traces import with_trace_stored
from lab.traces import kept_share
from tests.conftest import MACHINE, make_settings

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[4]
STEPS = 3
TIMEOUT_S = 120


def traced(executor: ProcessExecutor, folder: Path, workload: str, **changes: Any) -> tuple[Record, Path, Job]:
    """Run one traced cell; return its record, where its run is, and its job."""
    results = Results(folder / "results")
    run = results.create("20260101T000000Z-abcdef", {})
    trace, board = changes.pop("trace", Trace([2], STEPS)), changes.pop("board", False)
    name = workload if workload == "fc" else f"tests.workloads.traced:{workload}"
    changes = {"samples": 64, "batch_size": 32, "steps_per_epoch": 2, "epochs": 3} | changes
    settings = make_settings(workload=name, **changes)
    scratch = run.scratch("cell")
    plain = Job("nonce", cell_id(settings), 0, 0, settings, 2, str(scratch), [str(ROOT)], None, None)
    job = replace(plain, trace=trace, board=board)
    outcome = executor.start(job, TIMEOUT_S).finish()
    record = record_of(run.run_id, MACHINE, job, (outcome, utc_now()))
    return with_trace_stored(run, job, record), run.folder, job


def spans_of(record: Record, folder: Path) -> list[Span]:
    assert record.trace is not None
    assert record.trace.problem is None, record.trace.problem
    assert record.trace.folder is not None
    return list(neutral.spans(folder / record.trace.folder / TRACE_NAME))


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_traces_of_all_backends_have_the_same_names(executor: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    record, folder, _ = traced(executor, tmp_path, "nested", backend=backend)
    spans = spans_of(record, folder)
    place = folder / record.trace.folder  # type: ignore[union-attr, operator]
    assert record.status in MEASURED
    assert [span.step for span in spans if span.track.kind is TrackKind.STEPS] == [1, 2, 3]
    worked = [span for span in spans if span.track.kind in neutral.WORKING]
    found = {(span.phase, span.layer) for span in worked}
    assert {(phase, layer) for phase in (Phase.FORWARD, Phase.BACKWARD) for layer in ("wide", "inner/deep")} <= found
    assert Phase.UPDATE in {span.phase for span in worked}
    assert len([span for span in spans if span.track.kind is TrackKind.INPUT]) >= STEPS
    assert {1, 2, 3} <= {span.step for span in worked}
    assert kept_share(place) == pytest.approx(1, abs=0.01)
    assert bool(list(neutral.flows(place / TRACE_NAME))) is (backend == "torch")
    table = read_table(place / TRACE_NAME)
    assert (table.steps, table.workers, table.device) == (3, 1, "cpu")
    assert 0 < (table.busy_share or 0) <= 1


@pytest.mark.one_backend("jax")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_predict_calls_are_traced_as_steps_with_a_forward_pass_only(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    several = 1 if backend == "torch" else 2  # which Keras runs one by one
    record, folder, _ = traced(
        executor, tmp_path, "plain", backend=backend, phase="predict", steps_per_execution=several
    )
    spans = spans_of(record, folder)
    assert [span.step for span in spans if span.track.kind is TrackKind.STEPS] == [1, 2, 3]
    assert {span.phase for span in spans if span.track.kind in neutral.WORKING} <= {Phase.FORWARD, None}
    assert {"wide", "narrow"} <= {span.layer for span in spans}


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_workers_of_the_fc_modes_are_one_trace_in_one_clock(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    params = {"mode": "fc_data", "workers": 2, "level": 2, "weight_size": 64}
    record, folder, _ = traced(executor, tmp_path, "fc", backend=backend, params=params, samples=32)
    spans = spans_of(record, folder)
    place = folder / record.trace.folder  # type: ignore[union-attr, operator]
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE, Phase.COMMUNICATION} <= {span.phase for span in spans}
    assert {"layer_0", "layer_1", "layer_2"} <= {span.layer for span in spans}
    assert kept_share(place) == pytest.approx(1, abs=0.01)
    if backend == "torch":
        # They meet in each step: the clocks agree where their steps overlap.
        steps = {w: [s for s in spans if s.track.kind is TrackKind.STEPS and s.track.worker == w] for w in (0, 1)}
        own = {path.name for path in (place / NATIVE_NAME).iterdir()}
        assert own == {"epoch2.worker0.json", "epoch2.worker1.json", "names.json", "collectives.json"}
        assert all(a.start_ns < b.end_ns and b.start_ns < a.end_ns for a, b in zip(*steps.values(), strict=True))


def test_several_epochs_are_traced_each_by_itself(executor: ProcessExecutor, tmp_path: Path) -> None:
    record, folder, _ = traced(executor, tmp_path, "plain", backend="jax", trace=Trace([1, 3], 2))
    assert record.trace is not None
    assert [span.step for span in spans_of(record, folder) if span.track.kind is TrackKind.STEPS] == [1, 2, 3, 4]
    assert neutral.head_of(folder / str(record.trace.folder) / TRACE_NAME).epochs == 2


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_cell_that_is_not_traced_imports_nothing_of_tracing(
    executor: ProcessExecutor, tmp_path: Path, backend: str
) -> None:
    record, _, job = traced(executor, tmp_path, "telling", backend=backend, trace=None)
    imported = json.loads((Path(job.folder) / "modules.json").read_text())
    assert record.trace is None
    assert "keras_matrix.runner.cell.measure" in imported
    traces = [name for name in imported if "trac" in name or "profil" in name]
    assert traces == ["keras_matrix.records.traces", "keras_matrix.records.traces.request"]  # what a job may ask for


@pytest.mark.one_backend("tensorflow")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_profiler_that_refuses_leaves_the_figures(executor: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    record, folder, _ = traced(executor, tmp_path, "profiling", backend=backend)
    assert record.status in MEASURED
    assert len(record.times.epoch_times_s) == 2
    assert record.trace is not None
    assert "rofile" in (record.trace.problem or "")
    assert not list((folder / "traces").glob("*"))


@pytest.mark.one_backend("tensorflow")
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_disk_that_is_full_leaves_the_figures(executor: ProcessExecutor, tmp_path: Path, backend: str) -> None:
    record, _, _ = traced(executor, tmp_path, "without_room", backend=backend)
    assert record.status in MEASURED
    assert record.times.step_time_s is not None
    assert record.trace is not None
    assert record.trace.problem is not None
    assert record.warnings[-1].startswith("no_trace: ")


@pytest.mark.parametrize("board", [False, True])
def test_traced_cell_that_dies_after_measuring_has_its_figures(
    executor: ProcessExecutor, tmp_path: Path, board: bool
) -> None:
    record, _, _ = traced(executor, tmp_path, "dying", backend="torch", board=board)
    assert record.status in MEASURED
    assert record.evidence.signal == 11
    assert record.trace is not None
    assert record.trace.problem == f"{BEGUN}: ended by signal 11"


def test_memory_of_tracing_does_not_count_for_the_cell(executor: ProcessExecutor, tmp_path: Path) -> None:
    plain, _, _ = traced(executor, tmp_path / "plain", "plain", backend="torch", trace=None)
    with_trace, _, _ = traced(executor, tmp_path / "traced", "plain", backend="torch", trace=Trace([1], 200))
    peaks = [record.memory.peak_host_memory_bytes or 0 for record in (plain, with_trace)]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.05)


def test_the_official_trace_processor_reads_the_trace(executor: ProcessExecutor, tmp_path: Path) -> None:
    processor = pytest.importorskip("perfetto.trace_processor", reason="the package perfetto is not installed")
    if (program := shutil.which("trace_processor_shell")) is None:
        pytest.skip("trace_processor_shell is not on the path, and the package would download it")
    record, folder, _ = traced(executor, tmp_path, "plain", backend="torch")
    place = folder / str(record.trace.folder) / TRACE_NAME  # type: ignore[union-attr]
    expected = len(spans_of(record, folder))
    config = processor.TraceProcessorConfig(bin_path=program)
    with processor.TraceProcessor(trace=str(place), config=config) as opened:
        (row,) = opened.query("SELECT COUNT(*) AS spans FROM slice")
        names = {one.name for one in opened.query("SELECT DISTINCT name FROM thread")}
    assert row.spans == expected
    assert {"steps", "compute"} <= names
