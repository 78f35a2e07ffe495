"""Memory and container engine of a synthetic host."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.host.system import (
    container_engine,
    free_memory_bytes,
    total_memory_bytes,
    usable_memory_bytes,
)
from tests.fakes.machine import CGROUP, machine

MEMORY = "MemTotal: 1000 kB\nMemAvailable: 500 kB\n"
KIB = 1024


@pytest.mark.parametrize(
    ("limit", "used", "left"),
    [
        ("300000", "100600", 300_000 - 100_400),
        ("1000", "1300", 0),
        ("800000", "300", 500 * KIB),
        ("max", "300", 500 * KIB),
        ("300000", None, 500 * KIB),
        (None, None, 500 * KIB),
    ],
)
def test_free_memory_is_limited_by_the_control_group(
    tmp_path: Path, limit: str | None, used: str | None, left: int
) -> None:
    group = {f"{CGROUP}/user/job/memory.max": limit, f"{CGROUP}/user/job/memory.current": used}
    assert free_memory_bytes(machine(tmp_path, {"/proc/meminfo": MEMORY, **group})) == left


@pytest.mark.parametrize(("limit", "usable"), [("4096", 4096), ("max", 1000 * KIB), ("9999999", 1000 * KIB)])
def test_usable_memory_is_the_smaller_of_machine_and_limit(tmp_path: Path, limit: str, usable: int) -> None:
    tree = machine(tmp_path, {"/proc/meminfo": MEMORY, f"{CGROUP}/user/job/memory.max": f"{limit}\n"})
    assert (usable_memory_bytes(tree), total_memory_bytes(tree)) == (usable, 1000 * KIB)


def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    empty = ProcTree(tmp_path)
    assert (free_memory_bytes(empty), usable_memory_bytes(empty), total_memory_bytes(empty)) == (None, None, None)


def test_this_host_states_its_memory() -> None:
    free, total = free_memory_bytes(), total_memory_bytes()
    assert free is not None
    assert total is not None
    assert 0 < free < total


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": ""}, "podman"),
        ({"/proc/self/cgroup": "0::/kubepods/pod1\n"}, "kubernetes"),
    ],
)
def test_container_engine_is_known_by_its_file_or_control_group(
    tmp_path: Path, changes: dict[str, str], expected: str | None
) -> None:
    assert container_engine(machine(tmp_path, changes)) == expected
