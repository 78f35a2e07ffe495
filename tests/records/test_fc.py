"""The FC modes as data: what can be, what it costs by formula, what a layout must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from records import fc
from records.codec import decode, to_json
from records.fc import Parallel, Place, Task, Traffic
from tests.conftest import make_settings

TINY = Task(level=2, weight_size=8, batch_size=4)


def parallel(task: Task) -> Parallel:
    places = [Place(k, f"cpu:{k}", *fc.expected_shapes(task)) for k in range(task.workers)]
    return fc.parallel_of(task, places, fc.traffic_per_step(task), [])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mode": "fc_single_manual", "workers": 2}, "workers: must be 1 for fc_single_manual, got 2"),
        ({"mode": "fc_data", "workers": 3}, "workers: must divide batch_size (4), got 3"),
        ({"mode": "fc_data_ff", "workers": 8}, "workers: must divide batch_size (4), got 8"),
        ({"mode": "fc_data_slice", "workers": 3, "batch_size": 9}, "workers: must divide weight_size (8) for"),
        ({"mode": "fc_model", "workers": 3, "batch_size": 9}, "workers: must divide weight_size (8) for fc_model"),
        ({"mode": "fc_zero", "workers": 3, "batch_size": 9}, "workers: must divide weight_size (8) for fc_zero, got 3"),
        ({"mode": "fc_model", "workers": 8}, "workers: must divide batch_size (4), got 8"),
        ({"mode": "fc_phy", "shared_ratio": 1.5}, "shared_ratio: must be from 0 to 1, got 1.5"),
        ({"mode": "fc_data", "network": "fast"}, "network: must be local or a rate such as 200mbit, got fast"),
        ({"mode": "fc_data", "precision": "mixed_bfloat16"}, "precision: must be float64, float32, bfloat16 for"),
    ],
)
def test_a_task_that_cannot_be_says_why(changes: dict[str, Any], told: str) -> None:
    assert any(fault.startswith(told) for fault in fc.faults(TINY.changed(**changes)))


@pytest.mark.parametrize("mode", fc.MODES)
def test_every_mode_can_be_on_one_worker(mode: str) -> None:
    assert fc.faults(TINY.changed(mode=mode)) == []


def test_physics_divides_nothing() -> None:
    assert fc.faults(TINY.changed(mode="fc_phy", workers=3)) == []


def test_a_native_program_takes_no_setting_of_keras() -> None:
    settings = make_settings(workload="fc", params={"mode": "fc_data"}, phase="predict", steps_per_execution=4)
    assert fc.settings_faults(settings) == [
        "phase: must be fit for fc_data, got predict; fc_data_ff and fc_model_ff only go forward",
        "steps_per_execution: must be 1 for fc_data, got 4",
    ]
    assert fc.settings_faults(replace(settings, params={"mode": "fc_keras"})) == []


def test_only_workers_that_are_processes_speak_over_a_network() -> None:
    asked = make_settings(workload="fc", params={"mode": "fc_data", "workers": 2, "network": "200mbit"})
    (told,) = fc.settings_faults(asked)
    assert told.startswith("network: must be local for jax on cpu, got 200mbit; only torch on cpu has workers that")
    assert fc.settings_faults(replace(asked, backend="torch")) == []
    assert len(fc.settings_faults(replace(asked, backend="torch", device="gpu"))) == 1


def test_the_work_of_a_step_is_that_of_its_products() -> None:
    # Two layers of 8 x 8 and one of 8 x 1, four rows: 2 * 4 * (64 + 64 + 8) forward, as much for the weights'
    # gradients, and 2 * 4 * (64 + 8) for the inputs of the second and the last layer.
    forward, inputs = 2 * 4 * 136, 2 * 4 * 72
    assert fc.flops_per_step(TINY) == 2 * forward + inputs
    assert fc.flops_per_step(TINY.changed(mode="fc_model_ff")) == forward
    assert fc.flops_per_step(TINY.changed(mode="fc_phy", workers=3, phy_blocks=2)) == 6 * (2 * forward + inputs)


@pytest.mark.parametrize(
    ("changes", "traffic", "sent"),
    [
        ({"mode": "fc_data"}, Traffic(136 * 4), 2 * 136 * 4),
        ({"mode": "fc_data", "workers": 4}, Traffic(136 * 4), 6 * 136 * 4),
        ({"mode": "fc_data", "precision": "float64"}, Traffic(136 * 8), 2 * 136 * 8),
        ({"mode": "fc_data_slice"}, Traffic(0, 136 * 4, 136 * 4), 2 * 136 * 4),
        ({"mode": "fc_data_manual"}, Traffic(8 * 4, 128 * 4, 128 * 4), 2 * 136 * 4),
        ({"mode": "fc_data_ff"}, Traffic(), 0),
        # Two outputs of 4 x 8 and one of 4 x 1.
        ({"mode": "fc_model_ff"}, Traffic(0, 68 * 4, 0), 68 * 4),
        ({"mode": "fc_model"}, Traffic(0, 68 * 4, 68 * 4), 2 * 68 * 4),
        ({"mode": "fc_model_manual", "workers": 4}, Traffic(0, 68 * 4, 68 * 4), 6 * 68 * 4),
        # All weights gathered, then all but the first again; all gradients scattered.
        ({"mode": "fc_zero"}, Traffic(0, 136 * 4, (136 + 72) * 4), (136 + 136 + 72) * 4),
        # int(8 * 0.3) = 2 rows of 8, 8 and 1 columns.
        ({"mode": "fc_phy", "shared_ratio": 0.3}, Traffic(2 * 17 * 4), 2 * 2 * 17 * 4),
        ({"mode": "fc_phy", "shared_ratio": 0.0}, Traffic(), 0),
    ],
)
def test_what_the_workers_communicate_follows_from_the_sizes(
    changes: dict[str, Any], traffic: Traffic, sent: int
) -> None:
    task = TINY.changed(**{"workers": 2, **changes})
    assert (fc.traffic_per_step(task), traffic.sent_bytes(task.workers)) == (traffic, sent)
    assert fc.traffic_per_step(task.changed(workers=1)) == Traffic()


def test_what_cannot_fit_memory_is_known_before() -> None:
    task = Task(mode="fc_data", workers=2, weight_size=1 << 17)
    assert fc.memory_fault(task, 8 << 30) == (
        "weight_size: 131072 at level 10 and batch_size 128 needs at least 2560.7 GiB in fc_data with 2 workers, and "
        "8.0 GiB are free; lower weight_size, level or workers"
    )
    assert fc.memory_fault(TINY, 1 << 20) is None
    assert fc.memory_fault(task, None) is None


@pytest.mark.parametrize("mode", ["fc_data", "fc_model", "fc_zero", "fc_phy"])
def test_a_layout_as_it_must_be_has_no_fault(mode: str) -> None:
    task = TINY.changed(mode=mode, workers=2)
    assert fc.layout_fault(task, parallel(task)) is None


def test_a_layout_that_is_not_as_it_must_be_is_told() -> None:
    task = TINY.changed(mode="fc_model", workers=2)
    right = parallel(task)
    whole = [[8, 8], [8, 8], [8, 1]]
    shared = [replace(place, device="cpu:0") for place in right.places]
    replicated = [replace(place, weights=whole) for place in right.places]
    assert fc.layout_fault(task, replace(right, places=right.places[:1])) == "it shows 1 workers, not 2"
    assert "its 2 workers share a device" in (fc.layout_fault(task, replace(right, places=shared)) or "")
    assert fc.layout_fault(task, replace(right, places=replicated)) == (
        f"worker 0 holds weights of shape {whole}, not [[4, 8], [4, 8], [4, 1]]"
    )
    assert fc.layout_fault(task, replace(right, counted_bytes_per_step=0)) == (
        "its workers communicated 0, not 544 bytes a step"
    )


def test_processes_may_each_call_their_device_cpu() -> None:
    task = TINY.changed(mode="fc_data", workers=2)
    own = [replace(place, device="cpu", process=k) for k, place in enumerate(parallel(task).places)]
    assert fc.layout_fault(task, replace(parallel(task), places=own)) is None


def test_workers_that_speak_over_a_network_each_have_their_own() -> None:
    task = TINY.changed(mode="fc_data", workers=2, network="200mbit")
    own = [replace(place, network=f"net:[{k}]") for k, place in enumerate(parallel(task).places)]
    assert fc.layout_fault(task, replace(parallel(task), places=own)) is None
    shared = [replace(place, network="net:[1]") for place in own]
    assert fc.layout_fault(task, replace(parallel(task), places=shared)) == "its 2 workers share a network"
    assert fc.layout_fault(task, parallel(task)) == "its 2 workers share a network"


def test_what_a_cell_proved_survives_its_file() -> None:
    found = parallel(TINY.changed(mode="fc_model", workers=2))
    assert decode(Parallel, to_json(found)) == found
