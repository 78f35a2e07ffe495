"""A GPU's peaks from several images are merged only if all of them measured the same GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.roofline import backends, merged, other_gpu_note, roofline, same_gpu
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.instruments.work import Work, work_key
from tests.analysis.hardware.test_roofline import RESOLVED, WORK, cell
from tests.conftest import MACHINE
from tests.synthetic_peaks import gemm, make_peaks, stream

H100 = {"gpu": "NVIDIA H100 80GB HBM3"}
WORKS: dict[str, Work] = {work_key("mnist_mlp", {}): WORK}


def image(backend: str, tera: float, uuid: str | None = "GPU-1", **changes: Any) -> Peaks:
    """Return the peaks that one GPU image measured: its own backend only."""
    given: dict[str, Any] = {
        "gemms": [gemm(backend, "bfloat16", tera * 1000, device="gpu"), gemm(backend, "float32", 100.0)],
        "streams": [stream(backend, "triad", 2000.0 + tera, device="gpu")],
        "devices": H100,
        "gpu_uuid": uuid,
    }
    return make_peaks(**(given | changes))


def shares(peaks: Peaks) -> Any:
    one = cell(
        (0.001,), resolved=replace(RESOLVED, precision="mixed_bfloat16"), device="gpu", precision="mixed_bfloat16"
    )
    return roofline([("mnist_mlp", one)], WORKS, peaks)


def test_peak_of_a_gpu_is_the_best_of_the_backends_measured_on_it() -> None:
    found = shares(merged(image("torch", 600), [image("jax", 700), image("tensorflow", 650)]))
    (share,) = found.shares
    assert share.peak_flop_per_s == 700e12
    assert share.peak_of == "jax, best of 3 backends"
    assert found.notes[0] == "the GPU's peaks are the best of jax, tensorflow, torch, each measured on this GPU"
    assert max(slope.best_byte_per_s for slope in found.slopes if slope.device == "gpu") == 2700e9


def test_peak_of_a_single_image_is_noted_as_its_own_backends() -> None:
    found = shares(image("torch", 600))
    assert found.shares[0].peak_of == "torch, this image's backend only"
    assert found.notes[0].startswith("the GPU's peaks are of torch, this image's backend only: measure them with")


def test_run_on_a_cpu_has_no_such_note() -> None:
    found = roofline([("mnist_mlp", cell())], WORKS, make_peaks())
    assert other_gpu_note(make_peaks()) is None
    assert (found.shares[0].peak_of, found.notes) == (None, ())


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"uuid": "GPU-2"}, False),
        ({"uuid": None}, True),
        ({"uuid": None, "devices": {"gpu": "NVIDIA L4"}}, False),
        ({"uuid": None, "devices": {}}, False),
        ({"uuid": None, "machine": replace(MACHINE, host_id="another")}, False),
        ({"machine": replace(MACHINE, host_id="another")}, True),
    ],
    ids=["UUID", "another UUID", "product and host", "another product", "no product", "another host", "UUID alone"],
)
def test_gpu_is_identified_by_uuid_or_by_product_and_host(changes: dict[str, Any], same: bool) -> None:
    assert same_gpu(image("torch", 600), image("jax", 700, **changes)) is same
    expected = ("jax", "torch") if same else ("torch",)
    assert backends(merged(image("torch", 600), [image("jax", 700, **changes)])) == expected


def test_newest_measurement_of_another_backend_counts_and_its_own_backend_stays() -> None:
    older = image("jax", 900, measured_at="2026-01-01T00:00:00+00:00")
    newer = image("jax", 700, measured_at="2026-02-01T00:00:00+00:00")
    found = merged(image("torch", 600), [older, newer, image("torch", 990)])
    rates = {one.backend: one.flop_per_s.best for one in found.gemms if one.device == "gpu"}
    assert rates == {"torch": 600e12, "jax": 700e12}


def test_figures_of_cpus_are_not_merged() -> None:
    found = merged(image("torch", 600), [image("jax", 700)])
    assert [one.backend for one in found.gemms if one.device == "cpu"] == ["torch"]


def test_images_with_different_numbers_of_cpus_share_one_roof() -> None:
    wide = image("jax", 700, gemms=[gemm("jax", "bfloat16", 700_000.0, threads=64, device="gpu")])
    narrow = image("tensorflow", 500, gemms=[gemm("tensorflow", "bfloat16", 500_000.0, threads=64, device="gpu")])
    assert [
        roof.backend for roof in shares(merged(image("torch", 600), [wide])).roofs if roof.place.device == "gpu"
    ] == ["jax"]
    assert shares(merged(image("torch", 600), [narrow])).shares[0].peak_flop_per_s == 600e12
