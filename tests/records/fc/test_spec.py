"""The FC modes as data: validity, cost by formula, and expected layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.fc.communication import Traffic, together
from keras_matrix.records.fc.spec import FcProblem, Parallel, WorkerPlacement
from tests.conftest import make_settings

TINY = FcProblem(level=2, weight_size=8, batch_size=4)


def parallel(problem: FcProblem) -> Parallel:
    places = [WorkerPlacement(k, f"cpu:{k}", *spec.expected_shapes(problem, k)) for k in range(problem.workers)]
    return spec.parallel_of(problem, places, spec.traffic_per_step(problem), [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "fc_single_manual", "workers": 2}, "workers: must be 1 for fc_single_manual, got 2"),
        ({"mode": "fc_data", "workers": 3}, "workers: must divide batch_size (4), got 3"),
        ({"mode": "fc_data_ff", "workers": 8}, "workers: must divide batch_size (4), got 8"),
        ({"mode": "fc_data_slice", "workers": 3, "batch_size": 9}, "workers: must divide weight_size (8) for"),
        ({"mode": "fc_model", "workers": 3, "batch_size": 9}, "workers: must divide weight_size (8) for fc_model"),
        ({"mode": "fc_zero", "workers": 3, "batch_size": 9}, "workers: must divide weight_size (8) for fc_zero, got 3"),
        ({"mode": "fc_model", "workers": 8}, "workers: must divide batch_size (4), got 8"),
        (
            {"mode": "fc_hybrid", "workers": 4, "model_workers": 3},
            "model_workers: must divide workers (4) for fc_hybrid",
        ),
        ({"mode": "fc_hybrid", "model_workers": 4}, "model_workers: must divide workers (1) for fc_hybrid, got 4"),
        (
            {"mode": "fc_hybrid", "workers": 3, "batch_size": 9, "model_workers": 3},
            "model_workers: must divide weight_size (8) for fc_hybrid, got 3",
        ),
        ({"mode": "fc_hybrid", "workers": 8}, "workers: must divide batch_size (4), got 8"),
        ({"mode": "fc_pipeline", "workers": 3}, "workers: must be at most level (2) for fc_pipeline, got 3"),
        ({"mode": "fc_pipeline", "micro_batches": 3}, "micro_batches: must divide batch_size (4), got 3"),
        ({"mode": "fc_model", "overlap": "off"}, "overlap: must be on for fc_model, got off; only fc_data and fc_data"),
        (
            {"mode": "fc_data", "overlap": "off", "partition": "named_sharding"},
            "overlap: must be on with partition named_sharding, got off",
        ),
        ({"mode": "fc_zero", "partition": "named_sharding"}, "partition: must be program for fc_zero, got named_sha"),
        ({"mode": "fc_data", "partition": "dtensor"}, "partition: must be program for fc_data, got dtensor"),
        ({"mode": "fc_phy", "shared_ratio": 1.5}, "shared_ratio: must be from 0 to 1, got 1.5"),
        ({"mode": "fc_data", "network": "fast"}, "network: must be local or a rate such as 200mbit, got fast"),
        ({"mode": "fc_data", "precision": "mixed_bfloat16"}, "precision: must be float64, float32, bfloat16 for"),
    ],
)
def test_invalid_problem_is_reported_with_the_reason(changes: dict[str, Any], message: str) -> None:
    assert any(fault.startswith(message) for fault in rules.problems_of(TINY.changed(**changes)))


@pytest.mark.parametrize("mode", spec.MODES)
def test_every_mode_can_be_on_one_worker(mode: str) -> None:
    assert rules.problems_of(TINY.changed(mode=mode)) == []


def test_mesh_is_two_wide_by_default_for_an_even_number_of_workers() -> None:
    hybrid = TINY.changed(mode="fc_hybrid", batch_size=12, weight_size=12)
    shapes = [(hybrid.changed(workers=n).data_size, hybrid.changed(workers=n).model_size) for n in (1, 2, 3, 4, 6)]
    assert shapes == [(1, 1), (1, 2), (3, 1), (2, 2), (3, 2)]
    assert hybrid.changed(workers=6, model_workers=3).data_size == 2


@pytest.mark.parametrize(
    ("level", "workers", "stages"),
    [
        (10, 1, [range(11)]),
        (10, 2, [range(5), range(5, 11)]),
        (10, 4, [range(3), range(3, 6), range(6, 8), range(8, 11)]),
        (2, 2, [range(1), range(1, 3)]),
    ],
)
def test_stages_hold_every_layer_once_and_the_first_one_more(level: int, workers: int, stages: list[range]) -> None:
    problem = FcProblem(mode="fc_pipeline", level=level, workers=workers)
    assert [problem.layers_of(rank) for rank in range(workers)] == stages


def test_any_number_of_workers_can_be_stages() -> None:
    assert rules.problems_of(TINY.changed(mode="fc_pipeline", workers=5, level=7)) == []


def test_physics_divides_nothing() -> None:
    assert rules.problems_of(TINY.changed(mode="fc_phy", workers=3)) == []


def test_a_program_of_keras_takes_its_settings() -> None:
    ours = {"phase": "predict", "steps_per_execution": 4, "gradient_accumulation_steps": 2, "remat": "full"}
    ours |= {"implementation": "native"}
    settings = make_settings(workload="fc", params={"mode": "fc_keras"}, **ours)
    assert rules.settings_problems(settings) == []


def test_partition_is_accepted_only_on_its_backend() -> None:
    assert rules.backend_problems(TINY.changed(mode="fc_data", partition="named_sharding"), "jax") == []
    assert rules.backend_problems(TINY.changed(mode="fc_model", partition="dtensor"), "torch") == []
    assert [rules.backend_problems(TINY, backend) for backend in ("tensorflow", "jax", "torch")] == [[], [], []]


def test_workers_on_a_cpu_communicate_over_a_network() -> None:
    asked = make_settings(workload="fc", params={"mode": "fc_data", "workers": 2, "network": "200mbit"})
    for backend in ("tensorflow", "jax", "torch"):
        assert rules.settings_problems(replace(asked, backend=backend)) == []


def test_the_work_of_a_step_is_that_of_its_products() -> None:
    # Two layers of 8 x 8 and one of 8 x 1, four rows: 2 * 4 * (64 + 64 + 8) forward, as much for the weights'
    # gradients, and 2 * 4 * (64 + 8) for the inputs of the second and the last layer.
    forward, inputs = 2 * 4 * 136, 2 * 4 * 72
    assert spec.flops_per_step(TINY) == 2 * forward + inputs
    assert spec.flops_per_step(TINY.changed(mode="fc_model_ff")) == forward
    assert spec.flops_per_step(TINY.changed(mode="fc_phy", workers=3, phy_blocks=2)) == 6 * (2 * forward + inputs)


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
        # JAX sums the gradients and the loss.
        ({"mode": "fc_data", "partition": "named_sharding"}, Traffic(137 * 4), 2 * 137 * 4),
        ({"mode": "fc_data", "partition": "mirrored_strategy"}, Traffic(136 * 4), 2 * 136 * 4),
        ({"mode": "fc_model", "partition": "dtensor"}, Traffic(0, 68 * 4, 68 * 4), 2 * 68 * 4),
        # Two rows of two workers: along each the outputs of its 2 samples, down each column half of the weights.
        ({"mode": "fc_hybrid", "workers": 4}, Traffic(group_sent_bytes=2 * (68 + 136) * 4), 2 * (68 + 136) * 4),
        ({"mode": "fc_hybrid", "model_workers": 1}, Traffic(group_sent_bytes=2 * 136 * 4), 2 * 136 * 4),
        ({"mode": "fc_hybrid", "model_workers": 2}, Traffic(group_sent_bytes=2 * 68 * 4), 2 * 68 * 4),
        # One output of 4 x 8 forward, and its gradient back.
        ({"mode": "fc_pipeline"}, Traffic(handed_bytes=2 * 32 * 4), 2 * 32 * 4),
        # All weights gathered, then all but the first again; all gradients scattered.
        ({"mode": "fc_zero"}, Traffic(0, 136 * 4, (136 + 72) * 4), (136 + 136 + 72) * 4),
        # int(8 * 0.3) = 2 rows of 8, 8 and 1 columns.
        ({"mode": "fc_phy", "shared_ratio": 0.3}, Traffic(2 * 17 * 4), 2 * 2 * 17 * 4),
        ({"mode": "fc_phy", "shared_ratio": 0.0}, Traffic(), 0),
    ],
)
def test_traffic_follows_from_the_sizes(changes: dict[str, Any], traffic: Traffic, sent: int) -> None:
    problem = TINY.changed(**{"workers": 2, **changes})
    assert (spec.traffic_per_step(problem), traffic.sent_bytes(problem.workers)) == (traffic, sent)
    assert spec.traffic_per_step(problem.changed(workers=1)) == Traffic()


@pytest.mark.parametrize(
    ("changes", "place", "sent"),
    [
        ({"mode": "fc_data"}, {"device": "cpu", "process": 7}, 2 * 136 * 4),
        ({"mode": "fc_model", "workers": 4}, {"device": "cpu", "process": 7}, 6 * 68 * 4),
        ({"mode": "fc_pipeline"}, {"device": "cpu", "process": 7}, 2 * 32 * 4),
        ({"mode": "fc_data", "workers": 1}, {"device": "cpu", "process": 7}, 0),
        # gloo's own reduce-scatter, which DTensor calls, sums the whole array everywhere.
        ({"mode": "fc_model", "partition": "dtensor"}, {"device": "cpu", "process": 7}, 3 * 68 * 4),
        # Devices of one process share its memory; how GPUs send is their library's choice.
        ({"mode": "fc_data"}, {"device": "cpu:0"}, None),
        ({"mode": "fc_data"}, {"device": "cuda:0", "process": 7}, None),
    ],
)
def test_wire_bytes_follow_from_the_collectives(
    changes: dict[str, Any], place: dict[str, Any], sent: int | None
) -> None:
    problem = TINY.changed(**{"workers": 2, **changes})
    places = [replace(own, **place) for own in parallel(problem).places]
    assert spec.parallel_of(problem, places, spec.traffic_per_step(problem), []).wire_bytes_per_step == sent


def test_equal_counts_of_workers_count_once_and_transfers_are_added() -> None:
    found = [Traffic(all_reduce_bytes=8, calls=1, handed_bytes=n, hand_overs=1) for n in (3, 4)]
    assert together(found) == Traffic(all_reduce_bytes=8, calls=1, handed_bytes=7, hand_overs=2)
    with pytest.raises(RuntimeError, match="different collectives"):
        together([Traffic(8, calls=1), Traffic(8, calls=2)])


def test_mesh_has_its_weights_once_per_row() -> None:
    sizes = [spec.least_memory_bytes(TINY.changed(mode="fc_hybrid", workers=4, model_workers=n)) for n in (1, 2, 4)]
    # Weights and gradients of 136 numbers in four, two and one places; three layers' inputs of 4 x 8.
    assert sizes == [(2 * 136 * n + 3 * 32) * 4 for n in (4, 2, 1)]


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        # Weights and gradients of 136 numbers on each worker that has them whole, three layers' inputs of 4 x 8.
        ({"mode": "fc_single_manual", "workers": 1}, 2 * 136 + 3 * 32),
        ({"mode": "fc_data"}, 4 * 136 + 3 * 32),
        ({"mode": "fc_model"}, 2 * 136 + 3 * 32),
        ({"mode": "fc_pipeline"}, 2 * 136 + 3 * 32),
        ({"mode": "fc_zero"}, 2 * 136 + 3 * 32),
        ({"mode": "fc_phy", "phy_blocks": 3}, 6 * (2 * 136 + 3 * 32)),
        # Forward only there are no gradients, and of the inputs those of one layer and of the next.
        ({"mode": "fc_data_ff"}, 2 * 136 + 2 * 32),
        ({"mode": "fc_model_ff"}, 136 + 2 * 32),
    ],
)
@pytest.mark.parametrize("precision", spec.PRECISIONS)
def test_required_memory_covers_the_arrays_of_all_workers(
    changes: dict[str, Any], numbers: int, precision: str
) -> None:
    problem = TINY.changed(**{"workers": 2, "precision": precision, **changes})
    needed = spec.least_memory_bytes(problem)
    assert needed == numbers * ELEMENT_BYTES[precision]
    assert (rules.memory_problem(problem, needed), rules.memory_problem(problem, needed - 1) is None) == (None, False)


def test_problem_that_exceeds_memory_is_rejected_before_the_run() -> None:
    problem = FcProblem(mode="fc_data", workers=2, weight_size=1 << 17)
    assert rules.memory_problem(problem, 8 << 30) == (
        "weight_size: 131072 at level 10 and batch_size 128 needs at least 2.50 TiB in fc_data with 2 workers, but "
        "8.00 GiB are free; lower weight_size, level or workers"
    )
    assert rules.memory_problem(TINY, 1 << 20) is None
    assert rules.memory_problem(problem, None) is None


@pytest.mark.parametrize("mode", ["fc_data", "fc_model", "fc_hybrid", "fc_pipeline", "fc_zero", "fc_phy"])
def test_correct_layout_has_no_problem(mode: str) -> None:
    problem = TINY.changed(mode=mode, workers=2)
    assert spec.layout_problem(problem, parallel(problem)) is None


def test_wrong_layout_is_reported() -> None:
    problem = TINY.changed(mode="fc_model", workers=2)
    right = parallel(problem)
    whole = [[8, 8], [8, 8], [8, 1]]
    shared = [replace(place, device="cpu:0") for place in right.places]
    replicated = [replace(place, weights=whole) for place in right.places]
    assert spec.layout_problem(problem, replace(right, places=right.places[:1])) == "it has 1 workers, not 2"
    assert "its 2 workers share a device" in (spec.layout_problem(problem, replace(right, places=shared)) or "")
    assert spec.layout_problem(problem, replace(right, places=replicated)) == (
        f"worker 0 has weights of shape {whole}, not [[4, 8], [4, 8], [4, 1]]"
    )
    assert spec.layout_problem(problem, replace(right, counted_bytes_per_step=0)) == (
        "its workers communicated 0, not 544 bytes per step"
    )


def test_wrong_shapes_of_batch_or_labels_are_reported() -> None:
    problem = TINY.changed(mode="fc_data", workers=2)
    right = parallel(problem)
    for what, shape, must in (("batch", [4, 8], [2, 8]), ("labels", [4, 1], [2, 1])):
        whole = [right.places[0], replace(right.places[1], **{what: shape})]
        assert spec.layout_problem(problem, replace(right, places=whole)) == (
            f"worker 1 has {what} of shape {shape}, not {must}"
        )


def test_duplicate_worker_is_reported() -> None:
    problem = TINY.changed(mode="fc_data", workers=2)
    right = parallel(problem)
    twice = [replace(place, worker=0) for place in right.places]
    assert spec.layout_problem(problem, replace(right, places=twice)) == "it has the workers 0, 0, not 0 to 1"


def test_a_mesh_cuts_weights_one_way_and_the_batch_both() -> None:
    problem = TINY.changed(mode="fc_hybrid", workers=4)
    assert [spec.expected_shapes(problem, k) for k in range(4)] == [([[4, 8], [4, 8], [4, 1]], [2, 4], [1, 1])] * 4


def test_stages_hold_their_own_layers_and_the_ends_the_batch_and_its_labels() -> None:
    problem = TINY.changed(mode="fc_pipeline", workers=2)
    assert [spec.expected_shapes(problem, k) for k in range(2)] == [
        ([[8, 8]], [4, 8], [0, 1]),
        ([[8, 8], [8, 1]], [0, 8], [4, 1]),
    ]
    right = parallel(problem)
    swapped = [replace(place, weights=right.places[1 - place.worker].weights) for place in right.places]
    assert spec.layout_problem(problem, replace(right, places=swapped)) == (
        "worker 0 has weights of shape [[8, 8], [8, 1]], not [[8, 8]]"
    )


def test_processes_may_each_call_their_device_cpu() -> None:
    problem = TINY.changed(mode="fc_data", workers=2)
    own = [replace(place, device="cpu", process=k) for k, place in enumerate(parallel(problem).places)]
    assert spec.layout_problem(problem, replace(parallel(problem), places=own)) is None


def test_workers_that_speak_over_a_network_each_have_their_own() -> None:
    problem = TINY.changed(mode="fc_data", workers=2, network="200mbit")
    own = [replace(place, network=f"net:[{k}]") for k, place in enumerate(parallel(problem).places)]
    assert spec.layout_problem(problem, replace(parallel(problem), places=own)) is None
    shared = [replace(place, network="net:[1]") for place in own]
    assert spec.layout_problem(problem, replace(parallel(problem), places=shared)) == "its 2 workers share a network"
    assert spec.layout_problem(problem, parallel(problem)) == "its 2 workers share a network"


def test_layout_and_counts_survive_a_round_trip() -> None:
    found = parallel(TINY.changed(mode="fc_model", workers=2))
    assert decode(Parallel, to_json(found)) == found
