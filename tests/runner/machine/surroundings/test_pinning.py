"""The CPUs for a setting `cpus`, on synthetic machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.machine.surroundings.processors import check, most_cores, pinned
from tests.conftest import make_settings
from tests.fakes.machine import CPU, machine

# Two nodes of four CPUs; CPUs that share a core are neighbours on the first node, and two apart on the second.
NODES = "/sys/devices/system/node"
SIBLINGS = ("0-1", "0-1", "2-3", "2-3", "4,6", "5,7", "4,6", "5,7")
EIGHT = {
    f"{CPU}/online": "0-7\n",
    f"{NODES}/node0/cpulist": "0-3\n",
    f"{NODES}/node1/cpulist": "4-7\n",
    **{f"{CPU}/cpu{cpu}/topology/thread_siblings_list": text for cpu, text in enumerate(SIBLINGS)},
}
ALL = range(8)


@pytest.fixture
def eight(tmp_path: Path) -> ProcTree:
    return machine(tmp_path, EIGHT)


@pytest.mark.parametrize(
    ("cpus", "allowed", "expected"),
    [
        ("all", ALL, None),
        ("0-1,6-6", ALL, (0, 1, 6)),
        (1, ALL, (0,)),
        (2, ALL, (0, 2)),
        (3, ALL, (0, 1, 2)),
        (4, ALL, (0, 1, 2, 3)),
        (2, (0, 1, 4, 5, 6), (4, 5)),
        (3, (0, 1, 4, 5, 6), (4, 5, 6)),
        (1, (1, 5), (1,)),
    ],
)
def test_a_count_takes_one_node_and_one_cpu_of_each_core_first(
    eight: ProcTree, cpus: int | str, allowed: range, expected: tuple[int, ...] | None
) -> None:
    assert pinned(cpus, eight, allowed) == expected


@pytest.mark.parametrize(
    ("cpus", "allowed", "text"),
    [
        ("0-9", ALL, "cpus: 0-9: CPUs 8-9 are not on this machine, which has 0-7"),
        ("8-8", ALL, "cpus: 8-8: CPU 8 is not on this machine, which has 0-7"),
        (
            "0-3",
            (0, 1, 2, 7),
            "cpus: 0-3: CPU 3 is not available to this process, whose cpuset or affinity is 0-2,7",
        ),
        (
            5,
            (0, 1, 2, 4),
            "cpus: 5: no NUMA node has so many that this process may use: node 0 has 3 (0-2), node 1 has 1 (4); "
            "use fewer, or list them",
        ),
    ],
)
def test_unavailable_cpus_are_refused_with_the_available_ones(
    eight: ProcTree, cpus: int | str, allowed: tuple[int, ...], text: str
) -> None:
    with pytest.raises(UsageError) as raised:
        pinned(cpus, eight, allowed)
    assert str(raised.value) == text


def test_kernel_without_topology_has_one_node_of_single_cores(tmp_path: Path) -> None:
    assert pinned(2, ProcTree(tmp_path), (3, 5, 6)) == (3, 5)
    assert most_cores(ProcTree(tmp_path), (3, 5, 6)) == 3


def test_the_most_cores_are_those_of_one_node(eight: ProcTree) -> None:
    assert most_cores(eight, ALL) == 2
    assert most_cores(eight, (0, 1, 2, 4)) == 2


def test_cells_that_cannot_run_here_are_refused_before_any_runs() -> None:
    check([make_settings(), make_settings(cpus=1)])
    with pytest.raises(UsageError, match="cpus: 60000-60000: CPU 60000 is not on this machine"):
        check([make_settings(), make_settings(cpus="60000-60000")])
