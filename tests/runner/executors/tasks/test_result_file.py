"""`dlbenchmark_result.json`, from the records of a task."""

from __future__ import annotations

from typing import Any

from keras_matrix.records.instruments.usage import MemoryUse, Usage
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.task import Metric, TaskRun
from keras_matrix.runner.executors.tasks.result_file import Labels, document
from tests.conftest import make_record, make_settings

KIB, MIB = 1 << 10, 1 << 20


def used(host_kib: float, gpu_mib: float | None) -> Usage:
    """Memory with different mean, deviation and maximum."""
    host = MemoryUse(host_kib * KIB, 1.0, int(2 * host_kib * KIB), 9, int(3 * host_kib * KIB))
    gpu = None if gpu_mib is None else MemoryUse(gpu_mib * MIB, 7.5 * MIB, int(2 * gpu_mib * MIB), 9, 1 << 50)
    return Usage(1.0, 0.1, "processes", host_resident=host, device_memory=gpu)


def ran(repeat: int, speed: float | None, usage: Usage | None = None, **changes: Any) -> Record:
    task = TaskRun("train", ["true"], "speed", [Metric("speed", speed), Metric("lost", None, problem="no_match: so")])
    return make_record(None, repeat, task=task, usage=usage, **changes)


def test_figure_is_the_median_of_the_repeats_and_missing_ones_have_no_key() -> None:
    records = [ran(0, 3.0, used(100, 10)), ran(1, 5.0, used(300, 30)), ran(2, 100.0, used(200, 20))]
    assert document(records, Labels()) == {
        "train.speed": 5.0,
        "train.cpu_memory_usage": 200.0,
        "train.gpu_memory_usage_mean": 20.0,
        "train.gpu_memory_usage_std": 7.5,
        "train.gpu_memory_usage_max": 40.0,
    }


def test_framework_is_put_before_each_key_and_the_suffix_after_it() -> None:
    found = document([ran(0, 3.0, used(100, None))], Labels("mxnet", "daily"))
    assert found == {"mxnet.train.speed.daily": 3.0, "mxnet.train.cpu_memory_usage.daily": 100.0}


def test_failed_repeats_have_no_figures() -> None:
    assert document([ran(0, 3.0, status=Status.ERROR)], Labels()) == {}
    assert document([ran(0, 3.0, status=Status.ERROR), ran(1, 5.0)], Labels()) == {"train.speed": 5.0}


def without_primary(repeat: int, other: float, **changes: Any) -> Record:
    metrics = [Metric("speed", None, problem="no_match: so"), Metric("loss", other)]
    changes = {"status": Status.ERROR, "reason": "metric speed: no_match: so"} | changes
    return make_record(None, repeat, task=TaskRun("train", ["true"], "speed", metrics), **changes)


def test_other_figures_remain_without_the_primary_metric() -> None:
    assert document([without_primary(0, 0.5)], Labels()) == {"train.loss": 0.5}
    diverged = without_primary(0, 0.5, status=Status.DIVERGED, reason="metric speed: not_finite: nan")
    assert document([diverged, without_primary(1, 1.5)], Labels()) == {"train.loss": 1.0}


def test_failed_command_has_no_figures_despite_its_output() -> None:
    assert document([without_primary(0, 0.5, reason="exit code 3: oops")], Labels()) == {}
    assert document([without_primary(0, 0.5, reason="log_limit: so")], Labels()) == {}
    assert document([without_primary(0, 0.5, status=Status.TIMEOUT, reason="the time limit passed")], Labels()) == {}


def test_cells_of_a_task_have_separate_names() -> None:
    records = [
        ran(0, speed, settings=make_settings(backend=backend, params={"rate": 0.5, "definition": "0123"}))
        for backend, speed in (("batch_size=8", 1.0), ("batch_size=32", 2.0))
    ]
    found = document(records, Labels())
    assert found == {"train.batch_size=8.0.5.speed": 1.0, "train.batch_size=32.0.5.speed": 2.0}


def test_each_cell_has_its_own_keys_whatever_its_parameters_are_called() -> None:
    params: list[dict[str, Any]] = [
        {"definition": "abc", "lr": 7},  # the definition is not the last one in alphabetical order
        {"definition": "abc", "lr": 8},
        {"a": "x.y", "b": "z", "definition": "abc"},
        {"a": "x", "b": "y.z", "definition": "abc"},
        {"a": 1, "definition": "abc"},
        {"a": "1", "definition": "abc"},
    ]
    cells = [make_settings(workload="task train", params=one) for one in params]
    found = document([ran(0, float(n), settings=one) for n, one in enumerate(cells, 1)], Labels())
    assert sorted(found.values()) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert (found["train.jax.7.speed"], found["train.jax.8.speed"]) == (1.0, 2.0)
