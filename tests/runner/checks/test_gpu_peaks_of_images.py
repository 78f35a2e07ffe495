"""Peaks of one GPU from several images in one results folder, as a report of any of their runs reads them."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.analysis.roofline import backends
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments.peaks import Peaks, fingerprint
from keras_matrix.runner.checks import roofline as runs
from tests.conftest import MACHINE
from tests.synthetic_peaks import gemm, make_peaks

VERSIONS = {"torch": {"torch": "2.13.0"}, "jax": {"jax": "0.10.2"}, "tensorflow": {"tensorflow": "2.21.0"}}


def keep(results: Path, backend: str, uuid: str = "GPU-1") -> Peaks:
    versions = VERSIONS[backend]
    peaks = make_peaks(
        fingerprint=fingerprint(MACHINE, versions),
        versions=versions,
        gemms=[gemm(backend, "bfloat16", 600_000.0, device="gpu")],
        devices={"gpu": "NVIDIA H100 80GB HBM3"},
        gpu_uuid=uuid,
    )
    peak_files.keep(results, peaks)
    return peaks


def test_run_is_compared_with_the_peaks_of_all_images_on_its_gpu(tmp_path: Path) -> None:
    own = keep(tmp_path, "torch")
    keep(tmp_path, "jax")
    keep(tmp_path, "tensorflow", uuid="GPU-2")
    about = {"machine": to_json(MACHINE), "versions": VERSIONS["torch"]}
    found = runs.peaks_of(tmp_path, about)
    assert found is not None
    assert (found.fingerprint, backends(found)) == (own.fingerprint, ("jax", "torch"))


def test_damaged_file_of_another_image_is_left_out(tmp_path: Path) -> None:
    own = keep(tmp_path, "torch")
    (tmp_path / "peaks" / "0123456789abcdef.json").write_text("{", encoding="utf-8")
    assert runs.peaks_of(tmp_path, {"machine": to_json(MACHINE), "versions": VERSIONS["torch"]}) == own


def test_image_that_measured_no_peaks_has_none(tmp_path: Path) -> None:
    keep(tmp_path, "jax")
    assert runs.peaks_of(tmp_path, {"machine": to_json(MACHINE), "versions": VERSIONS["torch"]}) is None
