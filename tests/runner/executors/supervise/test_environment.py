"""The variables of the caller's environment in a cell's process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.fc import network
from keras_matrix.records.host import device_lists, inherited_environment
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.supervise import environment
from keras_matrix.runner.executors.supervise.environment import allowed_cpus, cell_environment
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


@pytest.mark.fault("F31", mutation="the allowlist includes the variables of XLA's allocator")
def test_variables_that_set_how_gpu_memory_is_allocated_are_not_passed_on() -> None:
    names = ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH")
    found = cell_environment(make_settings(device="gpu"), "m", dict.fromkeys(names, "false"))
    assert set(names) & set(found) == set()


def test_tensorflow_on_a_gpu_may_log_why_it_does_not_use_it() -> None:
    levels = {
        device: cell_environment(make_settings(device=device), "m", {})["TF_CPP_MIN_LOG_LEVEL"]
        for device in ("cpu", "gpu")
    }
    assert levels == {"cpu": "2", "gpu": "0"}


def test_inherited_variables_that_may_change_a_figure_are_recorded_without_values() -> None:
    """The texts are equal where the values are, and name no folder."""
    caller = {"LD_LIBRARY_PATH": "/home/user/cudnn", "PATH": "/bin", "CUDA_HOME": "", "TOKEN": "secret"}
    passed_on = cell_environment(make_settings(device="gpu"), "m", caller)
    digest = hashlib.sha256(b"/home/user/cudnn").hexdigest()[:16]
    assert inherited_environment.recorded(passed_on) == [f"LD_LIBRARY_PATH=sha256:{digest}"]
    assert inherited_environment.recorded({}) == []


def test_every_variable_that_is_recorded_is_passed_on() -> None:
    assert set(inherited_environment.RECORDED) <= set(environment.ALLOWED)


def test_the_gpu_cells_of_a_run_share_the_drivers_cache_of_compiled_kernels(tmp_path: Path) -> None:
    job = Job("n", "c", 0, 0, make_settings(device="gpu"), 2, str(tmp_path), [], None, None)
    assert environment.cuda_cache(job) == {}
    variables = environment.cuda_cache(replace(job, cuda_cache_dir=str(tmp_path)))
    assert variables == {"CUDA_CACHE_PATH": str(tmp_path), "CUDA_CACHE_MAXSIZE": "4294967296"}
    assert inherited_environment.cuda_cache_state(variables) == "empty"
    (tmp_path / "index").touch()
    assert inherited_environment.cuda_cache_state(variables) == "filled"
    assert inherited_environment.cuda_cache_state({}) is None
    assert inherited_environment.cuda_cache_state({"CUDA_CACHE_PATH": str(tmp_path / "missing")}) is None


@pytest.mark.fault("F31", mutation="cell_environment() passes on every variable")
def test_nothing_else_of_the_caller_reaches_a_cell() -> None:
    found = cell_environment(make_settings(), "m", {"PATH": "/bin", "TOKEN": "secret", "XLA_FLAGS": "x"})
    assert "secret" not in found.values()
    ours = {"KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "KERAS_BENCHMARK_RESULTS"}
    assert set(found) == {"PATH", *ours, "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "KERAS_TORCH_DEVICE"}


def test_only_a_cell_that_requests_a_network_has_one() -> None:
    caller = {network.VARIABLE: "200mbit kbm-net-1-0"}
    asking = make_settings(workload="fc", params={"network": "200mbit"})
    assert cell_environment(asking, "m", caller)[network.VARIABLE] == "200mbit kbm-net-1-0"
    assert network.VARIABLE not in cell_environment(asking, "m", {})
    for params in ({}, {"network": "local"}):
        assert network.VARIABLE not in cell_environment(make_settings(workload="fc", params=params), "m", caller)
    own = make_settings(workload="m:build", params={"network": "200mbit"})  # a parameter of another workload
    assert network.VARIABLE not in cell_environment(own, "m", caller)


def test_pinned_cpus_set_the_cpus_and_threads_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(environment, "ProcTree", lambda: ProcTree(Path("/nowhere")))
    by_count, listed = make_settings(cpus=2), make_settings(cpus="1-3", threads=1)
    assert allowed_cpus(by_count) == [0, 1]
    assert allowed_cpus(listed) == [1, 2, 3]
    found = [cell_environment(one, "m", {}) for one in (by_count, listed)]
    assert [(one["OMP_NUM_THREADS"], one[device_lists.CPUS_VARIABLE]) for one in found] == [("2", "0-1"), ("1", "1-3")]


def test_threads_bind_a_cell_to_as_many_cpus() -> None:
    assert allowed_cpus(make_settings()) is None
    assert allowed_cpus(make_settings(threads=1)) == [max(os.sched_getaffinity(0))], "the first takes most interrupts"


@pytest.mark.process
@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="only glibc reads how to treat freed memory")
def test_retained_freed_memory_causes_no_page_faults() -> None:
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


def test_variables_of_the_matrix_reach_a_cell_and_its_flags_of_xla_go_before_those_of_autotuning() -> None:
    """Mutation: the flags of autotuning replace those of the matrix."""
    settings = make_settings(env="DATA_DIR=/data 'XLA_FLAGS=--a --b'", device="gpu", autotune="off", backend="jax")
    found = cell_environment(settings, "m", {"DATA_DIR": "/of/the/caller"})
    assert (found["DATA_DIR"], found["XLA_FLAGS"]) == ("/data", "--a --b")
    job = Job("n", "c", 0, 0, settings, 2, "/nowhere", [], None, None)
    assert environment.autotuning(job) == {"XLA_FLAGS": "--a --b --xla_gpu_autotune_level=0"}
    assert environment.autotuning(replace(job, settings=replace(settings, env="A=1"))) == {
        "XLA_FLAGS": "--xla_gpu_autotune_level=0"
    }
    both = replace(settings, xla_flags="--c")
    assert cell_environment(both, "m", {})["XLA_FLAGS"] == "--a --b --c"
    assert environment.autotuning(replace(job, settings=both)) == {
        "XLA_FLAGS": "--a --b --c --xla_gpu_autotune_level=0"
    }
    assert cell_environment(replace(both, env=""), "m", {})["XLA_FLAGS"] == "--c"
    assert "XLA_FLAGS" not in cell_environment(replace(both, env="", xla_flags=""), "m", {"XLA_FLAGS": "--d"})
