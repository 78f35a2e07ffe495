"""Which traces and peaks a cost model is learned from, in results folders, runs, records and folders of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.whatif.cost_operations import MEASURED, OBSERVED
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results, Run
from keras_matrix.records.traces.request import Traced
from keras_matrix.runner.whatif import source
from keras_matrix.runner.whatif.cost_data import Collected, collected
from tests.analysis.whatif.cost.fake_machine import graph
from tests.conftest import MACHINE, make_record, make_settings
from tests.synthetic_peaks import VERSIONS, make_peaks

RUN_ID = "20260101T000000Z-abcdef"


def run_of(folder: Path, *records: Record) -> Run:
    """Return a run with these records, each with a trace of its own."""
    run = Results(folder).create(RUN_ID, {"machine": to_json(MACHINE), "versions": VERSIONS})
    for at, record in enumerate(records):
        name = f"traces/{at}"
        source.write(graph(), run.folder / name)
        run.publish(replace(record, trace=Traced(3, name)))
    return run


def collect(*paths: Path) -> Collected:
    return collected(paths, None, lambda line: None)


def names(found: Collected) -> Sequence[str]:
    return found.data.sources


def traced(backend: str = "torch", attempt: int = 0) -> Record:
    return make_record(settings=make_settings(backend=backend), attempt=attempt)


def test_all_traces_of_a_results_folder_are_collected_by_run_and_by_record(tmp_path: Path) -> None:
    one, other = traced("torch"), traced("jax")
    run = run_of(tmp_path, one, other)
    keys = {f"{RUN_ID} {record.cell_id}.0.0" for record in (one, other)}
    assert set(names(collect(tmp_path))) == keys
    assert set(names(collect(run.folder))) == keys
    record = run.folder / "records" / f"{one.cell_id}.0.0.json"
    assert names(collect(record)) == [f"{RUN_ID} {one.cell_id}.0.0"]


def test_of_several_attempts_the_last_one_counts(tmp_path: Path) -> None:
    run_of(tmp_path, traced(), traced(attempt=1))
    (name,) = names(collect(tmp_path))
    assert name.endswith(".0.1")


def test_a_damaged_trace_of_a_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    run = run_of(tmp_path, traced("torch"), traced("jax"))
    (run.folder / "traces" / "1" / "rank0.parquet").write_text("damaged")
    found = collect(tmp_path)
    assert len(names(found)) == 1
    (warning,) = found.warnings
    assert warning.startswith("left out: ")
    assert "traces/1/rank0.parquet" in warning


def test_measured_peaks_of_the_results_folder_are_used(tmp_path: Path) -> None:
    run_of(tmp_path, traced())
    peak_files.keep(tmp_path, make_peaks())
    (device,) = collect(tmp_path).devices
    assert (device.source, device.flop_per_s["float32"], device.byte_per_s) == (MEASURED, 400e9, 20e9)


def test_measured_peaks_replace_the_rates_of_the_same_device(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    source.write(graph(), alone)
    assert [one.source for one in collect(alone).devices] == [OBSERVED]
    run_of(tmp_path / "results", traced())
    peak_files.keep(tmp_path / "results", make_peaks())
    found = collect(alone, tmp_path / "results")
    assert [one.source for one in found.devices] == [MEASURED]
    assert {one.device for one in found.samples} == {0}
