"""The roofline of an operation, and what is learned of a kind: its overhead and its efficiency."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.cost_operations import DevicePeaks, device_peaks, fit, ideal_s
from tests.analysis.whatif.cost.fake_machine import PEAKS
from tests.synthetic_peaks import make_peaks


def test_an_operation_takes_the_longer_of_computing_and_moving() -> None:
    assert ideal_s(1e9, 1000, "float32", PEAKS) == 1e9 / 100e9
    assert ideal_s(1e6, 1e9, "float32", PEAKS) == 1e9 / 20e9
    assert ideal_s(1e9, None, "bfloat16", PEAKS) == 1e9 / 200e9


@pytest.mark.parametrize(
    ("spelled", "rate"), [("c10::BFloat16", 200e9), ("f32", 100e9), ("int64", 100e9), (None, 100e9)]
)
def test_a_type_without_a_peak_takes_that_of_float32(spelled: str | None, rate: float) -> None:
    assert 1e9 / rate == ideal_s(1e9, None, spelled, PEAKS)


def test_work_that_is_unknown_has_no_roofline() -> None:
    assert None is ideal_s(None, None, "float32", PEAKS)
    assert None is ideal_s(1e9, None, "float32", DevicePeaks("torch", "x", 1, {}, 20e9))


def test_overhead_and_efficiency_are_recovered_from_exact_times() -> None:
    points = [(ideal, 20e-6 + ideal / 0.4) for ideal in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)]
    found = fit(points)
    assert pytest.approx(found.efficiency, rel=0.1) == 0.4
    assert pytest.approx(found.overhead_s, rel=0.1) == 20e-6


def test_one_outlier_does_not_decide() -> None:
    points = [(n * 1e-4, n * 2e-4) for n in range(1, 20)]
    assert fit([*points, (1e-4, 10.0)]).efficiency == pytest.approx(0.5, rel=0.05)


def test_peaks_are_the_best_of_the_device_with_as_many_cores() -> None:
    found = device_peaks(make_peaks(), "torch", "cpu", 1)
    assert (found and (found.cores, found.flop_per_s, found.byte_per_s)) == (1, {"float32": 200e9}, 15e9)


def test_without_a_number_of_cores_the_peaks_are_those_of_all() -> None:
    found = device_peaks(make_peaks(), "jax", "cpu", None)
    assert found == DevicePeaks("jax", make_peaks().machine.cpu_model, 2, {"float32": 400e9, "bfloat16": 945e9}, 20e9)


def test_a_device_that_was_not_measured_has_no_peaks() -> None:
    assert None is device_peaks(make_peaks(), "torch", "gpu", None)
    assert None is device_peaks(make_peaks(), "torch", "cpu", 64)
