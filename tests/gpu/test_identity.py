"""The GPU that peaks are measured on, read through the real nvidia-ml-py from the fake driver library."""

from __future__ import annotations

from typing import Any

import pytest

from keras_matrix.analysis.roofline import datasheet
from keras_matrix.runner.machine.gpus.nvml import GpuIdentity, gpu_identity
from tests.gpu.fake_nvml import NOT_SUPPORTED, FakeDriver

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("pynvml")]  # it compiles a library

CARD, PART = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"


def divided(driver: FakeDriver, **values: Any) -> None:
    """GPU 0 in MIG mode, with two MIG devices."""
    parts = {"mig_uuids": "MIG-a,MIG-b", "mig_profile": "1g.5gb", "mig_memory_total": 5 << 30, "mig_memory_used": 0}
    driver.set(gpu0={"mig": 1, "name": CARD} | parts | values)


@pytest.mark.parametrize(("name", "uuid"), [("0", "MIG-a"), ("GPU-00000000", "MIG-a"), ("MIG-b", "MIG-b")])
def test_a_gpu_in_mig_mode_is_identified_as_a_mig_device(driver: FakeDriver, name: str, uuid: str) -> None:
    divided(driver)
    assert gpu_identity(name) == GpuIdentity(uuid, PART, 5 << 30)


def test_a_gpu_in_mig_mode_without_a_mig_device_has_no_uuid_and_no_data_sheet(driver: FakeDriver) -> None:
    divided(driver, mig_uuids="")
    found = gpu_identity("0")
    assert found == GpuIdentity(None, f"{CARD} MIG", None)
    assert (datasheet(found.product), datasheet(PART)) == (None, None)


def test_a_gpu_that_cannot_be_divided_is_itself(driver: FakeDriver) -> None:
    driver.set(gpu0={"name": CARD, "uuid": "GPU-a", "memory_total": 40 << 30, "memory_used": 0})
    driver.refuse("nvmlDeviceGetMigMode", NOT_SUPPORTED)
    assert gpu_identity("0") == GpuIdentity("GPU-a", CARD, 40 << 30)
