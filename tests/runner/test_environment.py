"""What a cell's process is given of the caller's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from records import cpu_list, network
from runner.executors import environment
from runner.executors.environment import allowed_cpus, cell_environment
from runner.surroundings.tree import Tree
from tests.conftest import make_settings


def test_a_cpu_cell_sees_no_gpu_and_its_own_threads() -> None:
    found = cell_environment(make_settings(threads=2), "m", {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"], found["JAX_PLATFORMS"]) == ("-1", "2", "cpu")


@pytest.mark.parametrize(("visible", "index"), [({}, "0"), ({"CUDA_VISIBLE_DEVICES": "3,1"}, "3")])
def test_a_gpu_cell_gets_one_gpu_for_itself(visible: dict[str, str], index: str) -> None:
    found = cell_environment(make_settings(device="gpu"), "m", visible)
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == (index, "PCI_BUS_ID")


def test_an_fc_cell_gets_a_gpu_for_each_worker() -> None:
    settings = make_settings(workload="fc", device="gpu", params={"mode": "fc_data", "workers": 2})
    assert cell_environment(settings, "m", {"CUDA_VISIBLE_DEVICES": "3,1,0"})["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_nothing_else_of_the_caller_reaches_a_cell() -> None:
    found = cell_environment(make_settings(), "m", {"PATH": "/bin", "TOKEN": "secret", "XLA_FLAGS": "x"})
    assert "secret" not in found.values()
    ours = {"KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "KERAS_BENCHMARK_RESULTS"}
    assert set(found) == {"PATH", *ours, "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "KERAS_TORCH_DEVICE"}


def test_only_a_cell_that_asks_for_a_network_is_given_one() -> None:
    caller = {network.VARIABLE: "200mbit kbm-net-1-0"}
    asking = make_settings(workload="fc", params={"network": "200mbit"})
    assert cell_environment(asking, "m", caller)[network.VARIABLE] == "200mbit kbm-net-1-0"
    assert network.VARIABLE not in cell_environment(asking, "m", {})
    for params in ({}, {"network": "local"}):
        assert network.VARIABLE not in cell_environment(make_settings(workload="fc", params=params), "m", caller)


def test_pinned_cpus_decide_where_and_threads_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(environment, "Tree", lambda: Tree(Path("/nowhere")))
    by_count, listed = make_settings(cpus=2), make_settings(cpus="1-3", threads=1)
    assert allowed_cpus(by_count) == [0, 1]
    assert allowed_cpus(listed) == [1, 2, 3]
    found = [cell_environment(one, "m", {}) for one in (by_count, listed)]
    assert [(one["OMP_NUM_THREADS"], one[cpu_list.VARIABLE]) for one in found] == [("2", "0-1"), ("1", "1-3")]


def test_threads_hold_a_cell_to_as_many_cpus() -> None:
    assert allowed_cpus(make_settings()) is None
    assert allowed_cpus(make_settings(threads=1)) == [max(os.sched_getaffinity(0))], "the first takes most interrupts"


@pytest.mark.process
@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="only glibc reads how to treat freed memory")
def test_freed_memory_that_is_kept_is_not_faulted_in_again() -> None:
    """Six blocks of eight mebibytes at a time: every page ten times over, or once."""
    program = (
        "import resource\nfor _ in range(10): [bytes([n]) * (8 << 20) for n in range(6)]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"
    )
    faults = {
        freed: int(
            subprocess.run(
                [sys.executable, "-c", program],
                env=cell_environment(make_settings(freed_memory=freed), "m"),
                check=True,
                capture_output=True,
            ).stdout
        )
        for freed in ("returned", "kept")
    }
    assert faults["returned"] > 4 * faults["kept"]
