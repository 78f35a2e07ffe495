"""The texts of `runner fc` for cells and proofs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from keras_matrix.analysis.fc import FcFigure, fc_figures
from keras_matrix.analysis.roofline import PeakShare
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.fc.proof import Proof, ProofAnswer
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import Record, Status, Times
from keras_matrix.runner.cli.measure.fc import figure_lines, measured_lines, proof_lines
from keras_matrix.runner.matrix import catalog
from tests.golden import Golden
from tests.synthetic_fc import fc_cells, fc_records

TWO = FcProblem(mode="fc_data", workers=2)
# What the original calls the aggregation of gradients: only of these modes, on several GPUs.
SUMMARIES = [
    ("fc_data", 2, "cpu"), ("fc_data", 2, "gpu"), ("fc_data", 1, "gpu"), ("fc_data_ff", 2, "gpu"),
    ("fc_data_manual", 2, "gpu"), ("fc_model", 2, "gpu"),
]  # fmt: skip


def only(task: FcProblem, backend: str = "torch") -> Record:
    (record,) = fc_records(task, backend, [0.1])
    return record


def in_processes(record: Record) -> Record:
    """Return a record whose workers have a process each."""
    places = [replace(place, device="cpu", process=70 + place.worker) for place in record.parallel.places]
    return replace(record, parallel=replace(record.parallel, places=places))


def in_processes_by(partition: str) -> Record:
    """Return a record of `fc_model` in processes, with the bytes on the wire of this partition."""
    task = TWO.changed(mode="fc_model", partition=partition, batch_size=256)
    record = in_processes(only(task))
    return replace(record, parallel=spec.parallel_of(task, record.parallel.places, record.parallel.traffic, []))


def measured() -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of cells."""
    physics = fc_records(TWO.changed(mode="fc_phy", phy_blocks=2, shared_ratio=0.0), "torch", [0.1, 0.1])
    both = [replace(r, times=Times(epoch_times_s=[s] * 3)) for r, s in zip(physics, (1.0, 3.0), strict=True)]
    yield "three epochs of ten steps in each of two repeats; four models, a batch of 128 each", measured_lines(both, {})
    for mode, workers, device in SUMMARIES:
        record = only(TWO.changed(mode=mode, workers=workers), "jax")
        record = replace(record, settings=replace(record.settings, device=device))
        yield f"{mode} of {workers} on a {device}", measured_lines([record], {})
    yield "workers in processes", measured_lines([in_processes(only(TWO.changed(mode="fc_model")))], {})
    for partition in ("program", "dtensor"):
        yield f"payload and bytes on the wire: {partition}", measured_lines([in_processes_by(partition)], {})
    failed = replace(
        only(TWO, "jax"), status=Status.ERROR, reason="WorkerDied: rank 1", warnings=["WorkerDied: rank 1", "hot"]
    )
    yield "a failure that is also a warning", measured_lines([failed], {})


def figure_of(task: FcProblem, communication: Communication | None = None, **share: float) -> FcFigure:
    cells = fc_cells(fc_records(task, "jax", [0.1], communication))
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(PeakShare))
    (found,) = fc_figures(cells, {cell.cell_id: PeakShare(**nothing | share) for cell in cells if share})
    return found


def figures() -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of figures."""
    watched = Communication(TimingMethod.TIMED, [0.2], [0.15])
    yield "shares of both products", figure_lines(figure_of(TWO, watched, share_of_peak=0.45, share_of_own_gemm=0.9))
    yield "without peaks", figure_lines(figure_of(TWO, watched))
    yield "one worker", figure_lines(figure_of(TWO.changed(workers=1)))
    in_one_process = replace(figure_of(TWO), processes=1)
    yield "the memory of workers in one process", figure_lines(in_one_process)
    yield "memory that was not measured", figure_lines(replace(in_one_process, worker_memory_bytes=None))


def proof_of(task: FcProblem, **found: Any) -> Proof:
    places = [spec.WorkerPlacement(k, f"fake:{k}", *spec.expected_shapes(task, k)) for k in range(task.workers)]
    parallel = spec.parallel_of(task, places, spec.traffic_per_step(task), [])
    return replace(Proof(task, 1e-16, 1e-16, 1e-16, 1e-16, parallel, None), **found)


def proofs() -> Iterator[tuple[str, list[str]]]:
    """Yield the tables of proofs."""
    task = TWO.changed(precision="float64")
    right, wrong = proof_of(task, weight_error=3e-13), proof_of(task, layout_problem="worker 1 is elsewhere")
    answers = [ProofAnswer("jax", [right, proof_of(task)]), ProofAnswer("torch", [right, wrong])]
    yield "the worst error of four tasks, one of which failed", proof_lines(answers, {})
    silent = proof_of(TWO.changed(mode="fc_phy", shared_ratio=0.0))
    called = replace(silent, parallel=replace(silent.parallel, traffic=replace(silent.parallel.traffic, calls=3)))
    yield "collectives of physics without shared weights", proof_lines([ProofAnswer("jax", [silent, called])], {})


def test_what_is_printed_of_cells_figures_and_proofs(golden: Golden) -> None:
    cases = [*measured(), *figures(), *proofs()]
    texts = ["\n".join([f"# {title}", *lines]).rstrip() + "\n" for title, lines in cases]
    golden.check("fc_text.txt", "\n".join(texts))


def test_omitted_flags_have_the_workloads_defaults() -> None:
    workload = catalog.load().workloads[spec.WORKLOAD]
    defaults = {name: rule.default for name, rule in workload.params.items()} | {"batch_size": workload.batch_size}
    assert {field.name: field.default for field in fields(FcProblem)} == {**defaults, "precision": "float32"}
