"""Shares of the peak: from records, counts and peaks to findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import CellSummary, summarise
from keras_matrix.analysis.roofline import (
    SHEETS,
    ComputePlace,
    Roofline,
    bytes_per_step,
    datasheet,
    flops_per_step,
    roofline,
)
from keras_matrix.records.instruments.work import Work, work_key
from keras_matrix.records.schema import Resolved
from tests.conftest import make_record, make_settings
from tests.synthetic_peaks import GIGA, gemm, make_peaks, stream

WORK = Work("mnist_mlp", {}, 8_000_000, 4_000_000, 4_000_000, 0, 4_000_000, 784, 4880)
RESOLVED = Resolved(50, 32, "fork", "float32", cpus=2)


def cell(step_times_s: tuple[float, ...] = (0.01,), resolved: Resolved = RESOLVED, **settings: Any) -> CellSummary:
    chosen = make_settings(**settings)
    return summarise(
        [make_record(t, repeat, settings=chosen, resolved=resolved) for repeat, t in enumerate(step_times_s)]
    )


def against(one: CellSummary, **changes: Any) -> Roofline:
    return roofline([("mnist_mlp", one)], {work_key("mnist_mlp", {}): WORK}, make_peaks(**changes))


def test_training_step_counts_three_times_forward_and_a_call_once() -> None:
    assert flops_per_step(make_settings(batch_size=32), WORK) == 3 * 32 * 8_000_000
    assert flops_per_step(make_settings(batch_size=32, phase="predict"), WORK) == 32 * 8_000_000


def test_fc_mode_counts_what_all_its_workers_do_and_not_three_times_forward() -> None:
    params = {"mode": "fc_data_ff", "workers": 2, "level": 1, "weight_size": 4}
    settings = make_settings(workload="fc", params=params, batch_size=8)
    forward = 2 * 8 * (16 + 4)
    assert flops_per_step(settings, None) == forward
    assert flops_per_step(replace(settings, params={**params, "mode": "fc_phy"}), None) == 2 * (
        3 * forward - 2 * 8 * 16
    )
    assert bytes_per_step(settings, None) is None


def test_cell_is_compared_with_the_best_and_its_own_product() -> None:
    (share,) = against(cell(backend="torch")).shares
    assert share.achieved_flop_per_s == pytest.approx(76.8 * GIGA)
    assert share.peak_flop_per_s == 400 * GIGA
    assert share.share_of_peak == pytest.approx(76.8 / 400)
    assert share.own_gemm_flop_per_s == 199 * GIGA
    assert share.share_of_own_gemm == pytest.approx(76.8 / 199)
    assert (share.mfu, share.note) == (None, None)


def on_gpus(devices: int, **settings: Any) -> Roofline:
    gemms = [gemm("jax", "float32", 10_000.0, device="gpu")]
    streams = [stream("jax", kernel, 1_000.0, device="gpu") for kernel in ("triad", "copy")]
    return against(cell(device="gpu", devices=devices, **settings), gemms=gemms, streams=streams)


def test_peak_of_several_gpus_is_that_of_all_together() -> None:
    (one,), (two,) = on_gpus(1).shares, on_gpus(2).shares
    assert (one.peak_flop_per_s, two.peak_flop_per_s) == (10_000 * GIGA, 20_000 * GIGA)
    assert (one.own_gemm_flop_per_s, two.own_gemm_flop_per_s) == (10_000 * GIGA, 20_000 * GIGA)
    assert one.flops_per_step == two.flops_per_step
    assert two.share_of_peak == pytest.approx((one.share_of_peak or 0) / 2)
    assert one.peak_of == "jax, this image's backend only"
    assert two.peak_of == "jax, this image's backend only; 2 GPUs together"
    assert two.roof_flop_per_s == pytest.approx((two.intensity_flop_per_byte or 0) * 2_000 * GIGA)


def test_devices_on_a_cpu_share_the_peak_of_the_machine() -> None:
    (one,), (two,) = against(cell()).shares, against(cell(devices=2)).shares
    assert (one.peak_flop_per_s, two.peak_flop_per_s) == (400 * GIGA, 400 * GIGA)
    assert (one.peak_of, two.peak_of) == (None, "of the machine, which 2 devices share")


def test_each_device_of_data_parallelism_moves_its_own_copy_of_the_weights() -> None:
    one, two, divided = (
        bytes_per_step(make_settings(**given), WORK) or 0
        for given in ({}, {"devices": 2}, {"devices": 2, "distribution": "model"})
    )
    weights_gradients_and_slots = 3 * 4_000_000
    assert two - one == 4 * 2 * weights_gradients_and_slots
    assert divided == one


def test_bounds_of_the_interval_are_swapped_as_shares() -> None:
    one = cell((0.009, 0.010, 0.011, 0.010, 0.0095))
    (share,) = against(one).shares
    assert one.step_time is not None
    assert share.low is not None
    assert share.low == pytest.approx(0.768 * GIGA / one.step_time.high / (400 * GIGA))  # type: ignore[operator]
    assert share.low < share.share_of_peak < share.high  # type: ignore[operator]


def test_peak_matches_the_number_of_cpus_and_the_computed_precision() -> None:
    one_cpu = replace(RESOLVED, cpus=1)
    assert against(cell(resolved=one_cpu, threads=1)).shares[0].peak_flop_per_s == 200 * GIGA
    assert against(cell(precision="mixed_bfloat16")).shares[0].peak_flop_per_s == 945 * GIGA
    assert against(cell(precision="float64")).shares[0].note == "no float64 peak measured on cpu with 2 CPUs"
    assert against(cell(resolved=replace(RESOLVED, cpus=4))).shares[0].share_of_peak is None


def test_roof_is_the_best_size_of_the_best_backend() -> None:
    (roof,) = [r for r in against(cell()).roofs if r.place == ComputePlace("cpu", "float32", 2)]
    assert (roof.backend, roof.size, roof.best_flop_per_s, roof.calls) == ("tensorflow", 2048, 400 * GIGA, 3)
    assert roof.median_flop_per_s == pytest.approx(380 * GIGA)


def test_product_of_each_backend_has_its_share_of_the_best() -> None:
    own = {(o.backend, o.place.precision): o.share_of_best for o in against(cell()).own if o.place.threads == 2}
    assert own["torch", "float32"] == pytest.approx(199 / 400)
    assert own["torch", "bfloat16"] == 1.0


def test_slope_is_the_best_triad_with_the_best_copy() -> None:
    slope = next(s for s in against(cell()).slopes if s.threads == 2)
    assert (slope.by, slope.best_byte_per_s, slope.copy_byte_per_s) == ("jax", 20 * GIGA, 24 * GIGA)


def test_lower_bound_of_bytes_of_a_training_step() -> None:
    variables = 4 * (2 + 2 + 2) * 4_000_000
    activations = 4 * 32 * (784 + 2 * 4880)
    assert bytes_per_step(make_settings(batch_size=32), WORK) == variables + activations
    half = 4 * (2 + 2 + 2) * 4_000_000 + 2 * 32 * (784 + 2 * 4880)
    assert bytes_per_step(make_settings(batch_size=32, precision="mixed_bfloat16"), WORK) == half


def test_predict_call_reads_its_weights_without_embedding_tables() -> None:
    work = replace(WORK, lookup_elements=3_000_000)
    assert bytes_per_step(make_settings(batch_size=2, phase="predict"), work) == 4 * 1_000_000 + 4 * 2 * 784


def test_roof_over_a_cell_is_the_lower_of_memory_and_products() -> None:
    (low,) = against(cell(batch_size=1)).shares
    assert low.roof_flop_per_s == pytest.approx(20 * GIGA * low.intensity_flop_per_byte)  # type: ignore[operator]
    (high,) = against(cell(batch_size=4096)).shares
    assert high.roof_flop_per_s == 400 * GIGA


@pytest.mark.parametrize(
    ("works", "peaks", "note"),
    [
        ({}, make_peaks(), "FLOPs not known"),
        ({work_key("mnist_mlp", {}): replace(WORK, forward_flops_per_sample=None)}, make_peaks(), "FLOPs not known"),
        ({work_key("mnist_mlp", {}): WORK}, None, "no float32 peak measured on cpu with 2 CPUs"),
    ],
)
def test_unknown_figures_are_none_with_a_note(works: Any, peaks: Any, note: str) -> None:
    (share,) = roofline([("mnist_mlp", cell())], works, peaks).shares
    assert (share.share_of_peak, share.note) == (None, note)


def test_cell_that_was_not_measured_has_no_share() -> None:
    (share,) = against(summarise([make_record(None, status="timeout")])).shares  # type: ignore[arg-type]
    assert (share.achieved_flop_per_s, share.share_of_peak, share.note) == (None, None, "not measured")


def test_cell_above_the_measured_peak_has_a_note() -> None:
    (share,) = against(cell((0.001,))).shares
    assert share.note is not None
    assert share.note.startswith("above the measured peak")


@pytest.mark.parametrize(("share", "doubtful"), [(0.5, False), (1.01, False), (1.03, True)])
def test_cell_has_a_note_from_two_per_cent_above_the_peak(share: float, doubtful: bool) -> None:
    (found,) = against(cell((0.768 / 400 / share,))).shares
    assert found.share_of_peak == pytest.approx(share)
    assert (found.note is not None) is doubtful


@pytest.mark.parametrize(("share", "notes"), [(0.04, 0), (0.06, 1)])
def test_use_of_a_twentieth_of_the_cpu_by_others_is_noted(share: float, notes: int) -> None:
    assert len(against(cell(), other_cpu_share=share).notes) == notes


def test_busy_measurement_and_a_refusal_are_notes() -> None:
    notes = against(cell(), other_cpu_share=0.5, refused={"jax cpu": "not installed"}).notes
    assert [note.split(":")[0] for note in notes] == [
        "other processes used 50.0 % of the CPU time while the peaks were measured",
        "not timed",
    ]
    assert against(cell()).notes == ()


def test_limit_of_a_peak_is_a_note() -> None:
    notes = against(cell(), notes={"torch gpu triad": "arrays of 512 MiB in place of 1024 MiB"}).notes
    assert notes == ("torch gpu triad: arrays of 512 MiB in place of 1024 MiB",)


def test_mfu_is_against_the_stated_peak() -> None:
    changes = {
        "gemms": [gemm("jax", "tf32", 400_000.0, threads=16, device="gpu")],
        "devices": {"gpu": "NVIDIA H100 80GB HBM3"},
    }
    (share,) = against(cell((0.00001,), resolved=replace(RESOLVED, tf32=True), device="gpu"), **changes).shares
    assert share.place == ComputePlace("gpu", "tf32", 2)
    assert share.share_of_peak == pytest.approx(76.8 / 400)
    assert share.mfu == pytest.approx(76.8 / 494.7)


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", None),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2"),
        ("Tesla V100-PCIE-32GB", "V100-PCIE"),
        ("Tesla T4", "T4"),
        ("NVIDIA Tesla T4", "T4"),
        ("A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GB200", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A100 80GB PCIe MIG 7g.80gb", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("GRID A10-24Q", None),
        ("NVIDIA A10-24Q", None),
        ("NVIDIA A100-40C", None),
        ("GRID A100-10C", None),
        ("GRID T4-16Q", None),
        ("NVIDIA L4-24C", None),
        ("GRID V100D-32C", None),
        ("Tesla V100-SXM2-32GB-LS", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX 6000 Ada Generation", None),
        ("NVIDIA RTX A4000", None),
        ("AMD EPYC", None),
        ("", None),
        (None, None),
    ],
)
def test_datasheet_is_found_by_the_exact_product_name(name: str | None, product: str | None) -> None:
    found = datasheet(name)
    assert (found.product if found else None) == product


@pytest.mark.parametrize("extension", ["X", " NVL", " MIG 1g.5gb", "-24Q", "-4C", " PCIe", "-SXM", " 141GB"])
@pytest.mark.parametrize("prefix", ["", "NVIDIA ", "Tesla "])
def test_no_datasheet_matches_a_name_that_extends_its_own(prefix: str, extension: str) -> None:
    names = {sheet.product for sheet in SHEETS}
    for sheet in SHEETS:
        longer = sheet.product + extension
        found = datasheet(prefix + longer)
        assert (found.product if found else None) == (longer if longer in names else None)
        assert datasheet(f"{prefix}G{sheet.product}") is None
        assert datasheet(prefix + sheet.product) == sheet


def test_datasheets_state_dense_rates_that_grow_as_precision_falls() -> None:
    order = ("float64", "float32", "tf32", "bfloat16", "float16")
    for sheet in SHEETS:
        rates = [sheet.flop_per_s[name] for name in order if name in sheet.flop_per_s]
        assert rates == sorted(rates)
        if "tf32" in sheet.flop_per_s:
            assert sheet.flop_per_s["bfloat16"] == pytest.approx(2 * sheet.flop_per_s["tf32"], rel=0.02)


@pytest.mark.parametrize(
    ("precision", "computed_in", "stated"),
    [
        ("float32", "float32", 67),
        ("float64", "float64", 67),
        ("mixed_bfloat16", "bfloat16", 989.4),
        ("bfloat16", "bfloat16", 989.4),
        ("mixed_float16", "float16", 989.4),
    ],
)
def test_mfu_on_a_gpu_is_against_the_peak_of_the_precision_computed_in(
    precision: str, computed_in: str, stated: float
) -> None:
    names = ("float32", "tf32", "bfloat16", "float16", "float64")
    changes = {
        "gemms": [gemm("jax", name, 50_000.0, device="gpu") for name in names],
        "devices": {"gpu": "NVIDIA H100 80GB HBM3"},
    }
    resolved = replace(RESOLVED, precision=precision)
    (share,) = against(cell((0.00001,), resolved=resolved, device="gpu", precision=precision), **changes).shares
    assert share.place == ComputePlace("gpu", computed_in, 2)
    assert share.mfu == pytest.approx(76.8 / stated)
