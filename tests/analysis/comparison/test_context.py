"""The context of a speed: parity, shares of the peak and caveats, without unchecked claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_matrix.analysis.comparison.context import SHOWN, RunContext, SameWork, WorkStatus, cell_caveats, same_work
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.roofline import roofline
from keras_matrix.records.fc.proof import ProvedMode
from keras_matrix.records.instruments.parity import Deviation, Pair, ParityFinding, ParityRecord
from keras_matrix.records.settings import PHASES
from keras_matrix.records.task import Goal, Metric, TaskRun
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.messages import check_messages

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


THREE = ("tensorflow", "jax", "torch")
VERSIONS_OF_THREE = {name: {"keras": "3.15.1", name: "1.0"} for name in THREE}


def compared(found: dict[tuple[str, str], float], *findings: ParityFinding) -> ParityRecord:
    """Return a comparison of these pairs, with the deviation of each; the findings are the first pair's."""
    pairs = [
        Pair([*two], {"float64": Deviation(gradient=value)}, [*findings] if place == 0 else [])
        for place, (two, value) in enumerate(found.items())
    ]
    return replace(parity(), pairs=pairs, versions=VERSIONS_OF_THREE)


def test_row_with_a_backend_that_was_left_out_is_not_checked() -> None:
    three, found = row(backends=THREE), {("tensorflow", "jax"): 1e-12}
    alone = {name: same_work([compared(found)], three, name).status for name in THREE}
    assert alone == {"tensorflow": WorkStatus.AGREES, "jax": WorkStatus.AGREES, "torch": WorkStatus.NOT_CHECKED}
    assert same_work([compared(found, EXPLAINED)], three).status is WorkStatus.NOT_CHECKED
    parted = replace(EXPLAINED, explanation=None)
    assert same_work([compared(found, parted)], three).status is WorkStatus.DEVIATES


def test_single_backend_is_judged_by_its_own_pairs() -> None:
    assert same_work([parity()], row(), "jax").status is WorkStatus.AGREES
    assert same_work([parity()], row(), "tensorflow").status is WorkStatus.NOT_CHECKED


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


def test_proof_with_other_numbers_of_workers_is_none() -> None:
    alone = tuple(replace(proof, workers=[1, 4]) for proof in PROOFS)
    assert RunContext(proofs=alone).same_work(fc_row()).status is WorkStatus.NOT_CHECKED


def test_comparison_of_the_measured_versions_counts_before_a_newer_one_of_others() -> None:
    newer = replace(parity(), versions={}, started_at="2026-02-01")
    assert same_work([parity(), newer], row()).status is WorkStatus.AGREES


def of_settings(**changes: Any) -> Row:
    """Return the row of two backends with these settings."""
    (found,) = table(
        make_record(settings=make_settings(backend=name, **changes), versions=VERSIONS[name])
        for name in ("jax", "torch")
    )
    return found


def test_parity_is_no_advice_for_a_single_operation() -> None:
    """Mutation: rows of `keras:op` advise `runner parity`, which trains models."""
    work = same_work([], of_settings(workload="keras:op", params={"op": "sum"}, phase="predict"))
    assert work.status is WorkStatus.NOT_CHECKED
    assert work.remarks == ("outputs are compared with those of model(x) on the same backend, not between backends",)


def external_command() -> Row:
    task = TaskRun("train", ["./train"], "speed", [Metric("speed", 100.0, "samples/s", goal=Goal.HIGHER)])
    (found,) = table([make_record(None, settings=make_settings(workload="task train"), task=task)])
    return found


def test_text_and_remarks_of_all_evidence(golden: Golden) -> None:
    """The worst pair is shown; a failed proof in any precision deviates; advice names the command that compares."""
    unexplained = replace(EXPLAINED, explanation=None)
    three, pairs = (
        row(backends=THREE),
        {("tensorflow", "jax"): 1e-12, ("tensorflow", "torch"): 3e-9, ("jax", "torch"): 2e-9},
    )
    left_out = compared({("tensorflow", "jax"): 1e-12})
    proved = RunContext(proofs=PROOFS)
    failed = replace(PROOFS[1], failure="weights are 1.0e-03 from plain NumPy, limit 1e-05")
    keras_path = replace(parity(), workload="fc", params={"mode": "fc_keras"})
    found = {
        "a comparison": same_work([parity()], row()),
        "a comparison, of prediction": same_work([parity()], row("predict")),
        "a deviation with its cause, at other parameters": same_work(
            [replace(parity(EXPLAINED), params={"image_size": 8})], row()
        ),
        "a deviation without a cause": same_work([parity(unexplained)], row()),
        "a comparison of other backends": same_work([parity(backends=("tensorflow", "jax"))], row()),
        "a comparison of another workload": same_work([replace(parity(), workload="lstm")], row()),
        "no comparison": same_work([], row()),
        "a comparison of other versions": same_work([parity()], row(keras="3.16.0")),
        "three backends": same_work([compared(pairs)], three),
        "one of three backends": same_work([compared(pairs)], three, "jax"),
        "three backends, a deviation of one pair": same_work([compared(pairs, unexplained)], three),
        "three backends, a deviation of one pair with its cause": same_work([compared(pairs, EXPLAINED)], three),
        "three backends, one left out": same_work([left_out], three),
        "an external command": same_work([], external_command()),
        "a precision that is not compared": same_work([parity()], of_settings(precision="mixed_bfloat16")),
        "a comparison on a CPU, of GPUs": same_work([parity()], of_settings(device="gpu")),
        "a proof": proved.same_work(fc_row()),
        "a proof, of one backend": proved.same_work(fc_row(), "jax"),
        "a proof that failed": RunContext(proofs=(PROOFS[0], failed, *PROOFS[2:])).same_work(fc_row()),
        "a proof of other versions": proved.same_work(fc_row(version="2.0")),
        "a proof on a CPU, of GPUs": proved.same_work(fc_row(device="gpu")),
        "a proof of one backend of two": RunContext(proofs=PROOFS[:2]).same_work(fc_row()),
        "Keras's path of the FC network": RunContext((keras_path,), proofs=PROOFS).same_work(fc_row("fc_keras")),
    }
    check_messages(golden, "same_work.txt", {title: [work.text, *work.remarks] for title, work in found.items()})


def test_every_phase_has_a_figure_that_shows_its_computation() -> None:
    assert set(SHOWN) == set(PHASES)
