"""The page docs/compatibility.md: what each lock pins, and the size of each image."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.scripts import script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compatibility() -> ModuleType:
    return script("compatibility")


def test_page_has_a_row_for_each_service_and_what_its_lock_pins(compatibility: ModuleType) -> None:
    text = compatibility.page()
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ") and ", Python " in line}
    assert list(rows) == [f"| {service}" for service in compatibility.SERVICES]
    for service in compatibility.SERVICES:
        pinned = re.findall(r"^keras==(\S+)", (ROOT / "locks" / f"{service}.txt").read_text(), re.MULTILINE)
        assert f" | {pinned[0]} | " in rows[f"| {service}"]
    cells = [line for line in text.partition("## Pythons")[2].splitlines() if line.startswith("| ") and "Keras" in line]
    names = [*compatibility.SERVICES, *compatibility.LOCK_ONLY]
    assert [line.split(" | ")[0] for line in cells] == [f"| {name}" for name in names]
    assert [line.count(", Keras ") for line in cells] == [3 if name.startswith("tf-") else 4 for name in names]
    assert set(compatibility.LOCK_ONLY) & set(compatibility.SERVICES) == set()


def test_page_has_the_size_of_every_image_that_is_built_without_a_gpu(compatibility: ModuleType) -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    built = {service["image"].rpartition(":")[2] for service in services if "build" in service}
    measured = {name for name in built if not name.endswith(("-gpu", "-tpu")) and name != "bigquery"}
    with_ray = {f"{name}-cpu-ray" for name in ("tf", "jax", "torch")}
    assert measured | with_ray == {*compatibility.SIZES_MB}
    assert "| tf-cpu | 1,505 MB | 1,616 MB |\n" in compatibility.page().partition("## Sizes")[2]


def test_row_names_cuda_and_the_driver_it_needs(compatibility: ModuleType) -> None:
    lock = "jax==0.10.2 \\\n    --hash=sha256:x\nkeras==3.15.1\nnvidia-cuda-runtime-cu12==12.9.79\n"
    pinned = compatibility.versions(lock, "3.11")
    row = compatibility.row("jax-gpu", "Debian 13, Python 3.13", pinned)
    assert (row.backend, row.cuda, row.cudnn, row.driver) == ("jax 0.10.2", "12.9.79", None, ">= 525.60.13")


def test_each_python_has_its_versions_and_what_was_not_run_is_marked(compatibility: ModuleType) -> None:
    lock = "# Pythons: 3.11 3.12\njax==0.10.2 ; python_full_version < '3.12' \\\n    --hash=sha256:x\n"
    lock += "jax==0.12.0 ; python_full_version >= '3.12'\nkeras==3\n"
    locks = {"jax-cpu": lock, "torch-cpu": "# Pythons: 3.11\ntorch==2+cpu\nkeras==3\n", "jax-tpu": lock}
    assert compatibility.by_python(locks, ("3.11", "3.12")).splitlines()[2:] == [
        "| jax-cpu | jax 0.10.2, Keras 3 | jax 0.12.0, Keras 3 |",
        "| torch-cpu | torch 2+cpu, Keras 3 | - |",
        "| jax-tpu | jax 0.10.2, Keras 3, not run here | jax 0.12.0, Keras 3, not run here |",
    ]


def test_row_names_the_compute_capabilities_of_its_build(compatibility: ModuleType) -> None:
    services = compatibility.page().partition("## Pythons")[0]
    lines = {line.split(" | ")[0]: line for line in services.splitlines() if line.startswith("| ")}
    expected = "| >= 525.60.13 | 6.0, 7.0, 8.0, 8.9 | from 9.0 on, with a driver for CUDA 12.5 |"
    assert lines["| tf-gpu"].endswith(expected)
    assert lines["| torch-gpu"].endswith("| >= 580 | 7.5, 8.0, 8.6, 9.0, 10.0, 12.0 | - |")
    assert lines["| jax-cpu"].endswith("| - | - | - |")


def test_lock_whose_build_is_not_in_the_table_is_an_error(compatibility: ModuleType) -> None:
    with pytest.raises(AssertionError, match="torch-gpu: add the GPU build of its lock"):
        compatibility.gpu_build("torch-gpu", {"torch": "9.9.9"})
    assert compatibility.gpu_build("torch-cpu", {"torch": "9.9.9"}) is None


def test_gpu_code_is_read_from_the_fat_binaries_of_a_library() -> None:
    def entry(kind: int, capability: int) -> bytes:
        return struct.pack("<HHIQ12xI32x", kind, 0, 64, 8, capability) + b"code...."

    body = entry(2, 80) + entry(2, 90) + entry(1, 90)
    library = b"ELF..." + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body + b"rest" * 20
    assert script("gpu_code").gpu_code(library) == {"sm_80": 1, "sm_90": 1, "compute_90": 1}
    assert script("gpu_code").gpu_code(library[:9]) == {}


def test_cuda_whose_drivers_are_unknown_is_an_error(compatibility: ModuleType) -> None:
    row = compatibility.row(
        "torch-gpu", "Debian 13, Python 3.13", {"torch": "9", "keras": "9", "nvidia-cuda-runtime": "99.0"}
    )
    with pytest.raises(KeyError):
        row.text()


def test_python_of_an_image_is_that_of_its_debian(compatibility: ModuleType) -> None:
    compose = "x:\n  BASE: ${BASE:-debian:trixie-slim}\ny:\n  BASE: ${TORCH_BASE:-debian:bookworm-slim}\n"
    assert compatibility.image_python(compose, "jax-cpu") == ("Debian 13", "3.13")
    assert compatibility.image_python(compose, "torch-cpu") == ("Debian 12", "3.11")
    with pytest.raises(KeyError):
        compatibility.image_python(compose.replace("trixie", "unheard"), "jax-cpu")


def test_every_service_of_compose_has_its_row(compatibility: ModuleType) -> None:
    services = [line[2:-1] for line in (ROOT / "compose.yaml").read_text().splitlines() if line.startswith("  ")]
    named = {service for service in services if service.endswith(("-cpu", "-gpu", "-tpu"))}
    assert named == set(compatibility.SERVICES)
    assert named & set(compatibility.LOCK_ONLY) == set()
