"""The context of a speed: parity, shares of the peak and caveats, without unchecked claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import RunContext, SameWork, WorkStatus, cell_caveats, same_work
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.roofline import roofline
from keras_matrix.records.fc.proof import ProvedMode
from keras_matrix.records.instruments.parity import Deviation, Pair, ParityFinding, ParityRecord
from keras_matrix.records.task import Goal, Metric, TaskRun
from tests.conftest import make_record, make_settings

VERSIONS = {name: {"keras": "3.15.1", name: "1.0"} for name in ("jax", "torch")}
EXPLAINED = ParityFinding("float64", "update", 0.04, 1e-6, explanation="rows of a token are squared one by one")


def row(phase: str = "fit", keras: str = "3.15.1", backends: tuple[str, ...] = ("jax", "torch")) -> Row:
    (found,) = table(
        make_record(settings=make_settings(backend=name, phase=phase), versions={"keras": keras, name: "1.0"})
        for name in backends
    )
    return found


def parity(*findings: ParityFinding, backends: tuple[str, str] = ("jax", "torch")) -> ParityRecord:
    deviations = {"float64": Deviation(loss=2e-12, gradient=3.2e-9), "float32": Deviation(gradient=1e-3)}
    pair = Pair([*backends], deviations, [*findings])
    return ParityRecord(1, "mnist_mlp", {}, 8, 20, 0, "2026-01-01", pairs=[pair], versions=VERSIONS)


@pytest.mark.parametrize(
    ("record", "phase", "text"),
    [
        (parity(), "fit", "same work: 3e-9 (float64 gradient)"),
        (parity(), "predict", "same work: 2e-12 (float64 loss)"),
        (parity(EXPLAINED), "fit", "same work, with an explained deviation: 3e-9 (float64 gradient)"),
        (parity(replace(EXPLAINED, explanation=None)), "fit", "deviates: 3e-9 (float64 gradient)"),
        (parity(backends=("tensorflow", "jax")), "fit", "same work not checked"),
        (replace(parity(), workload="lstm"), "fit", "same work not checked"),
    ],
)
def test_parity_result_is_summarised_as_text(record: ParityRecord, phase: str, text: str) -> None:
    assert same_work([record], row(phase)).text == text


def test_with_a_backend_that_does_not_train_the_worst_outputs_are_shown() -> None:
    versions = {**VERSIONS, "openvino": {"keras": "3.15.1", "openvino": "1.0"}}
    predicted = [
        Pair([name, "openvino"], {"float32": Deviation(outputs=value)})
        for name, value in (("jax", 2e-7), ("torch", 3e-7))
    ]
    record = replace(parity(), pairs=[*parity().pairs, *predicted], versions=versions)
    four = row("predict", backends=("jax", "torch", "openvino"))
    assert same_work([record], four).text == "same work: 3e-7 (float32 outputs)"
    assert same_work([record], four, "jax").text == "same work: 2e-7 (float32 outputs)"
    assert same_work([record], row("predict")).text == "same work: 2e-12 (float64 loss)"


def test_comparison_of_other_versions_is_stale_with_advice() -> None:
    found = same_work([parity()], row(keras="3.16.0"))
    assert found.text == "same work at other versions: 3e-9 (float64 gradient)"
    assert found.remarks[0].endswith("runner parity mnist_mlp")


def test_reasons_and_other_parameters_are_remarks() -> None:
    found = same_work([replace(parity(EXPLAINED), params={"image_size": 8})], row())
    assert (
        found.remarks[0] == "jax and torch, float64 update 4e-02, limit 1e-06: rows of a token are squared one by one"
    )
    assert found.remarks[1] == "compared at the workload's small parameters, not these"


THREE = ("tensorflow", "jax", "torch")
VERSIONS_OF_THREE = {name: {"keras": "3.15.1", name: "1.0"} for name in THREE}


def compared(found: dict[tuple[str, str], float], *findings: ParityFinding) -> ParityRecord:
    """Return a comparison of these pairs, with the deviation of each; the findings are the first pair's."""
    pairs = [
        Pair([*two], {"float64": Deviation(gradient=value)}, [*findings] if place == 0 else [])
        for place, (two, value) in enumerate(found.items())
    ]
    return replace(parity(), pairs=pairs, versions=VERSIONS_OF_THREE)


def test_worst_of_several_pairs_is_shown_with_a_speed() -> None:
    found = {("tensorflow", "jax"): 1e-12, ("tensorflow", "torch"): 3e-9, ("jax", "torch"): 2e-9}
    three = row(backends=THREE)
    assert same_work([compared(found)], three).text == "same work: 3e-9 (float64 gradient)"
    assert same_work([compared(found)], three, "jax").text == "same work: 2e-9 (float64 gradient)"
    parted = replace(EXPLAINED, explanation=None)
    assert same_work([compared(found, parted)], three).text == "deviates: 3e-9 (float64 gradient)"
    assert (
        same_work([compared(found, EXPLAINED)], three).text
        == "same work, with an explained deviation: 3e-9 (float64 gradient)"
    )


def test_row_with_a_backend_that_was_left_out_is_not_checked() -> None:
    three, found = row(backends=THREE), {("tensorflow", "jax"): 1e-12}
    row_result = same_work([compared(found)], three)
    assert row_result.text == "same work not checked"
    assert row_result.remarks == ("torch was not compared with the others: runner parity mnist_mlp",)
    alone = {name: same_work([compared(found)], three, name).status for name in THREE}
    assert alone == {"tensorflow": WorkStatus.AGREES, "jax": WorkStatus.AGREES, "torch": WorkStatus.NOT_CHECKED}
    assert same_work([compared(found, EXPLAINED)], three).status is WorkStatus.NOT_CHECKED
    parted = replace(EXPLAINED, explanation=None)
    assert same_work([compared(found, parted)], three).status is WorkStatus.DEVIATES


def test_external_command_is_not_checked_and_no_command_is_advised() -> None:
    metric = Metric("speed", 100.0, "samples/s", goal=Goal.HIGHER)
    task = TaskRun("train", ["./train"], "speed", [metric])
    (found,) = table([make_record(None, settings=make_settings(workload="task train"), task=task)])
    assert same_work([], found).status is WorkStatus.NOT_CHECKED
    assert same_work([], found).remarks == ("the work of an external command cannot be checked",)


def test_single_backend_is_judged_by_its_own_pairs() -> None:
    assert same_work([parity()], row(), "jax").status is WorkStatus.AGREES
    assert same_work([parity()], row(), "tensorflow").status is WorkStatus.NOT_CHECKED
    assert same_work([], row()).remarks == ("compare the backends with: runner parity mnist_mlp",)


def test_row_of_one_backend_is_not_advised_to_compare_it() -> None:
    """Mutation: `same_work` does not ask how many backends a row has."""
    alone = row(backends=("jax",))
    assert same_work([], alone) == same_work([parity()], alone) == SameWork(WorkStatus.NOT_CHECKED)


def test_missing_peaks_give_no_share_and_name_the_command() -> None:
    cells = [("mnist_mlp", cell) for cell in row().cells.values()]
    found = roofline(cells, {}, None)
    run_context = RunContext((), {share.cell_id: share for share in found.shares}, found.notes)
    assert not run_context.has_peaks
    assert "runner roofline" in run_context.notes[0]
    assert cell_caveats(cells[0][1], run_context) == ()


def test_cell_above_the_measured_peak_gets_a_caveat() -> None:
    cell = row().cells["jax"]
    (share,) = roofline([("mnist_mlp", cell)], {}, None).shares
    above = replace(share, share_of_peak=1.2, note="above the measured peak: the machine was busier then")
    assert cell_caveats(cell, RunContext(shares={cell.cell_id: above})) == (above.note,)


PROOFS = tuple(
    ProvedMode(name, "fc_data", precision, "cpu", [1, 2], 24, error, version="1.0", started_at="2026-01-01")
    for name, error in (("jax", 2e-16), ("torch", 6e-16))
    for precision in ("float64", "float32")
)


def fc_row(mode: str = "fc_data", version: str = "1.0", device: str = "cpu") -> Row:
    (found,) = table(
        make_record(
            settings=make_settings(
                backend=name, workload="fc", params={"mode": mode, "workers": 2}, batch_size=8, device=device
            ),
            versions={"keras": "9", name: version},
        )
        for name in ("jax", "torch")
    )
    return found


def test_fc_mode_has_the_worst_error_of_its_proof_against_numpy() -> None:
    context = RunContext(proofs=PROOFS)
    assert context.same_work(fc_row()).text == "same work: 6e-16 (float64, against NumPy)"
    assert context.same_work(fc_row(), "jax").text == "same work: 2e-16 (float64, against NumPy)"
    assert context.same_work(row()).status is WorkStatus.NOT_CHECKED


def test_failed_proof_in_any_precision_deviates_and_says_why() -> None:
    failed = replace(PROOFS[1], failure="weights are 1.0e-03 from plain NumPy, limit 1e-05")
    found = RunContext(proofs=(PROOFS[0], failed, *PROOFS[2:])).same_work(fc_row())
    assert found.status is WorkStatus.DEVIATES
    assert found.remarks[0] == "jax, float32: weights are 1.0e-03 from plain NumPy, limit 1e-05"


def test_proof_of_another_version_is_stale_and_one_on_a_cpu_says_so_on_a_gpu() -> None:
    context = RunContext(proofs=PROOFS)
    found = context.same_work(fc_row(version="2.0"))
    assert found.text == "same work at other versions: 6e-16 (float64, against NumPy)"
    assert found.remarks[0].endswith("compare again with: runner fc --prove --mode fc_data --num-workers 2")
    assert context.same_work(fc_row(device="gpu")).text == (
        "same work: 6e-16 (float64, against NumPy, compared on a CPU)"
    )
    assert context.same_work(fc_row()).remarks == ("proved on a small network: docs/fc.md",)


def test_proof_with_other_numbers_of_workers_is_none() -> None:
    alone = tuple(replace(proof, workers=[1, 4]) for proof in PROOFS)
    assert RunContext(proofs=alone).same_work(fc_row()).status is WorkStatus.NOT_CHECKED


def test_precision_that_is_not_compared_is_a_remark() -> None:
    (found,) = table(
        make_record(settings=make_settings(backend=name, precision="mixed_bfloat16"), versions=VERSIONS[name])
        for name in ("jax", "torch")
    )
    assert same_work([parity()], found).remarks[-1] == "compared in float64 and float32 only"


def test_mode_without_a_proof_on_a_backend_is_not_checked() -> None:
    found = RunContext(proofs=PROOFS[:2]).same_work(fc_row())
    assert found.status is WorkStatus.NOT_CHECKED
    assert found.remarks == (
        "not compared with NumPy with 2 workers: torch: runner fc --prove --mode fc_data --num-workers 2",
    )


def test_keras_path_of_the_fc_network_has_its_parity_as_other_workloads() -> None:
    record = replace(parity(), workload="fc", params={"mode": "fc_keras"})
    assert (
        RunContext((record,), proofs=PROOFS)
        .same_work(fc_row("fc_keras"))
        .text.startswith("same work at other versions")
    )


def test_comparison_of_the_measured_versions_counts_before_a_newer_one_of_others() -> None:
    newer = replace(parity(), versions={}, started_at="2026-02-01")
    assert same_work([parity(), newer], row()).status is WorkStatus.AGREES


def test_comparison_on_a_cpu_says_so_on_a_gpu() -> None:
    (found,) = table(
        make_record(settings=make_settings(backend=name, device="gpu"), versions=VERSIONS[name])
        for name in ("jax", "torch")
    )
    assert same_work([parity()], found).text == "same work: 3e-9 (float64 gradient, compared on a CPU)"
