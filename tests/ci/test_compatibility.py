"""docs/compatibility.md says what the locks say."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compatibility() -> ModuleType:
    return script("compatibility")


def test_the_document_is_current(compatibility: ModuleType) -> None:
    assert compatibility.DOCUMENT.read_text(encoding="utf-8") == compatibility.document()


def test_a_row_names_cuda_and_the_driver_it_needs(compatibility: ModuleType) -> None:
    pinned = compatibility.pins("jax==0.10.2 \\\n    --hash=x\nkeras==3.15.1\nnvidia-cuda-runtime-cu12==12.9.79\n")
    row = compatibility.row("jax-gpu", pinned)
    assert (row.backend, row.cuda, row.cudnn, row.driver) == ("jax 0.10.2", "12.9.79", None, ">= 525.60.13")


def test_a_cuda_whose_drivers_are_unknown_is_an_error(compatibility: ModuleType) -> None:
    row = compatibility.row("torch-gpu", {"torch": "9", "keras": "9", "nvidia-cuda-runtime": "99.0"})
    with pytest.raises(KeyError):
        row.text()


def test_the_images_python_is_that_of_the_debian_they_are_made_from(compatibility: ModuleType) -> None:
    assert compatibility.image_python("# x\nARG BASE=debian:bookworm-slim\nFROM ${BASE}\n") == ("Debian 12", "3.11")
    with pytest.raises(KeyError):
        compatibility.image_python("ARG BASE=debian:unheard-of\n")


def test_every_service_of_compose_has_its_row(compatibility: ModuleType) -> None:
    services = [line[2:-1] for line in (ROOT / "compose.yaml").read_text().splitlines() if line.startswith("  ")]
    named = {service for service in services if service.endswith(("-cpu", "-gpu", "-tpu"))}
    assert named == set(compatibility.SERVICES)
