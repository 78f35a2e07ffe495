"""The name of a device says nothing twice."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.history.sessions import device_name


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("cpu cpu", "cpu"),
        ("cpu cpu:0", "cpu:0"),
        ("cpu", "cpu"),
        ("gpu gpu:1", "gpu:1"),
        ("gpu NVIDIA H100 80GB HBM3", "gpu NVIDIA H100 80GB HBM3"),
    ],
)
def test_platform_and_model_are_named_once(stored: str, shown: str) -> None:
    assert device_name(stored) == shown
