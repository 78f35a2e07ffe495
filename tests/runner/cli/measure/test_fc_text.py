"""The texts of `runner fc` for cells and proofs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from keras_matrix.analysis.fc import FcFigure, fc_figures
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.fc.proof import Proof, ProofAnswer
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record, Status, Times
from keras_matrix.runner.cli.measure.fc import figure_lines, measured_lines, proof_lines
from keras_matrix.runner.matrix import catalog
from tests.synthetic_fc import fc_cells, fc_records

TWO = FcProblem(mode="fc_data", workers=2)


def lines_of(records: Sequence[Record]) -> list[str]:
    return measured_lines(records, {})


def test_the_summary_is_of_all_repeats_and_counts_the_samples_of_all_workers() -> None:
    task = TWO.changed(mode="fc_phy", phy_blocks=2, shared_ratio=0.0)
    records = [
        replace(record, times=Times(epoch_times_s=[epoch_s] * 3))
        for record, epoch_s in zip(fc_records(task, "torch", [0.1, 0.1]), (1.0, 3.0), strict=True)
    ]
    # Three epochs of ten steps in each of two repeats; four models with a batch of 128 each.
    assert lines_of(records)[:2] == [
        "2026-01-01T00:00:00+00:00: Training fc_phy+2+0+1024+128 across 60 steps, 0.200000 +/- 0.100000 sec / batch",
        "  torch, 2,560.0 samples/sec; nothing communicated; 2 devices with first weights of 1024x1024",
    ]


@pytest.mark.parametrize(
    ("mode", "workers", "device", "aggregated"),
    [
        ("fc_data", 2, "cpu", 0),
        ("fc_data", 2, "gpu", 1),
        ("fc_data", 1, "gpu", 0),
        ("fc_data_ff", 2, "gpu", 1),
        ("fc_data_manual", 2, "gpu", 0),
        ("fc_model", 2, "gpu", 0),
    ],
)
def test_the_summary_has_the_five_fields_of_the_original(mode: str, workers: int, device: str, aggregated: int) -> None:
    (record,) = fc_records(TWO.changed(mode=mode, workers=workers), "jax", [0.1])
    (first, *_) = lines_of([replace(record, settings=replace(record.settings, device=device))])
    name = re.search(r": Training (\S+) across (\d+) steps, (\S+) \+/- (\S+) sec / batch$", first)
    assert name is not None
    assert name[1] == f"{mode}+{workers}+{aggregated}+1024+128"


def test_workers_in_processes_are_printed_as_processes() -> None:
    (record,) = fc_records(TWO.changed(mode="fc_model"), "torch", [0.1])
    places = [replace(place, device="cpu", process=70 + place.worker) for place in record.parallel.places]
    own = replace(record, parallel=replace(record.parallel, places=places))
    assert lines_of([own])[1].endswith("; 2 processes with first weights of 512x1024")


@pytest.mark.parametrize(("partition", "wire"), [("program", "20.0 MiB"), ("dtensor", "30.0 MiB")])
def test_payload_and_bytes_on_the_wire_are_printed_separately(partition: str, wire: str) -> None:
    task = TWO.changed(mode="fc_model", partition=partition, batch_size=256)
    (record,) = fc_records(task, "torch", [0.1])
    places = [replace(place, device="cpu", process=70 + place.worker) for place in record.parallel.places]
    own = replace(record, parallel=spec.parallel_of(task, places, record.parallel.traffic, []))
    assert f"samples/sec; 20.0 MiB payload a step, {wire} on the wire; 2 processes" in lines_of([own])[1]
    assert "samples/sec; 20.0 MiB payload a step; 2 devices" in lines_of([record])[1]


def test_failures_and_warnings_are_printed_once() -> None:
    (record,) = fc_records(TWO, "jax", [0.1])
    bad = replace(record, status=Status.ERROR, reason="WorkerDied: rank 1", warnings=["WorkerDied: rank 1", "hot"])
    assert lines_of([bad]) == ["fc_data on jax: error: WorkerDied: rank 1", "  hot", ""]


def figure_of(task: FcProblem, communication: Communication | None = None, **share: float) -> FcFigure:
    cells = fc_cells(fc_records(task, "jax", [0.1], communication))
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(PeakShare))
    (found,) = fc_figures(cells, {cell.cell_id: PeakShare(**nothing | share) for cell in cells if share})
    return found


def test_cell_has_shares_of_both_products_communication_and_memory() -> None:
    watched = Communication(TimingMethod.TIMED, [0.2], [0.15])
    assert figure_lines(figure_of(TWO, watched, share_of_peak=0.45, share_of_own_gemm=0.9))[0].endswith(
        "FLOP/s: 45.0 % of the machine's best product, 90.0 % of jax's own"
    )
    assert figure_lines(figure_of(TWO, watched))[1] == (
        "  25.0 % of the time in communication (each collective timed by itself); efficiency not measured: this run "
        "has no such cell with one worker (--num-workers 1 2); peak memory 400 MiB of the largest worker"
    )


def test_one_worker_communicates_nothing_and_has_no_efficiency() -> None:
    line = figure_lines(figure_of(TWO.changed(workers=1)))[1]
    assert line == "  no time in communication; one worker; peak memory 400 MiB"


def test_memory_of_workers_in_one_process_is_labelled_as_that_of_all() -> None:
    figure = replace(figure_of(TWO), processes=1)
    assert figure_lines(figure)[1].endswith("peak memory 400 MiB, all 2 workers in one process")
    assert figure_lines(replace(figure, worker_memory_bytes=None))[1].endswith("; memory not measured")


def proof_of(task: FcProblem, **found: Any) -> Proof:
    places = [spec.WorkerPlacement(k, f"fake:{k}", *spec.expected_shapes(task, k)) for k in range(task.workers)]
    parallel = spec.parallel_of(task, places, spec.traffic_per_step(task), [])
    return replace(Proof(task, 1e-16, 1e-16, 1e-16, 1e-16, parallel, None), **found)


def test_table_of_a_proof_has_the_worst_error_and_marks_failures() -> None:
    task = TWO.changed(precision="float64")
    right = proof_of(task, weight_error=3e-13)
    wrong = proof_of(task, layout_problem="worker 1 is elsewhere")
    lines = proof_lines([ProofAnswer("jax", [right, proof_of(task)]), ProofAnswer("torch", [right, wrong])], {})
    assert lines[1].split() == ["fc_data", "float64", "1e-10", "3e-13", "3e-13", "*"]
    assert lines[2] == "* fc_data on torch, 2 workers, float64, sum: worker 1 is elsewhere"
    assert "bytes and layout as the formulas say: 3 of 4 tasks" in lines


def test_collectives_of_physics_without_shared_weights_are_counted() -> None:
    silent = proof_of(TWO.changed(mode="fc_phy", shared_ratio=0.0))
    called = replace(silent, parallel=replace(silent.parallel, traffic=replace(silent.parallel.traffic, calls=3)))
    assert proof_lines([ProofAnswer("jax", [silent, called])], {})[-1] == (
        "fc_phy with shared_ratio 0: 3 collectives in 2 tasks"
    )


def test_omitted_flags_have_the_workloads_defaults() -> None:
    workload = catalog.load().workloads[spec.WORKLOAD]
    defaults = {name: rule.default for name, rule in workload.params.items()} | {"batch_size": workload.batch_size}
    assert {field.name: field.default for field in fields(FcProblem)} == {**defaults, "precision": "float32"}
