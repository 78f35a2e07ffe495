"""Speed-up, efficiency and communication of Keras workloads on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.scaling import DeviceScaling, device_scalings
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.instruments.gpu_place import GpuPlace
from keras_matrix.records.replicas import FED_FROM_HOST
from keras_matrix.records.schema import Record, Status
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.messages import check_messages
from tests.synthetic_devices import device_records, replicas_of, scaled_run

ROOT = Path(__file__).parents[3]
ALONE = [0.8, 1.6, 0.4, 3.2, 0.1]


def scaling(records: Sequence[Record]) -> DeviceScaling:
    [found] = device_scalings(table(records))
    return found


def test_speed_up_is_paired_by_block_and_efficiency_is_its_share_of_the_devices() -> None:
    found = scaling(device_records(1, ALONE) + device_records(4, [s / 3 for s in ALONE]))
    assert found.speed_up is not None
    assert found.efficiency is not None
    assert (found.speed_up.centre, found.speed_up.low, found.speed_up.high) == (*[pytest.approx(3)] * 3,)
    assert (found.efficiency.centre, found.efficiency.low, found.efficiency.high) == (*[pytest.approx(0.75)] * 3,)
    assert (found.speed_up.count, found.devices, found.missing) == (5, 4, "")


def test_only_blocks_of_both_cells_count() -> None:
    found = scaling(device_records(1, ALONE) + device_records(2, [0.4]))
    assert found.speed_up is not None
    assert (found.speed_up.centre, found.speed_up.count, found.speed_up.bounds) == (pytest.approx(2), 1, None)
    assert found.verdict == "fewer than 5 repeats give no interval"


def test_interval_covers_the_scatter_of_the_blocks() -> None:
    found = scaling(device_records(1, [1.0] * 5) + device_records(2, [0.6, 0.7, 0.65, 0.62, 0.68]))
    assert found.speed_up is not None
    assert found.speed_up.bounds is not None
    low, high = found.speed_up.bounds
    assert low < found.speed_up.centre < high
    assert found.speed_up.excludes(1.0)


@pytest.mark.parametrize(
    ("several_s", "verdict"),
    [
        ([0.5] * 5, "faster than one device"),
        ([1.5] * 5, "slower than one device"),
        ([0.9, 1.1, 0.95, 1.05, 1.0], "not separable from no gain"),
        ([0.5] * 4, "fewer than 5 repeats give no interval"),
    ],
)
def test_verdict_is_decided_by_the_interval(several_s: Sequence[float], verdict: str) -> None:
    assert scaling(device_records(1, [1.0] * 5) + device_records(2, several_s)).verdict == verdict


@pytest.mark.parametrize(
    "other",
    [
        [],
        device_records(1, [1.0] * 5, batch_size=64),
        device_records(1, [1.0] * 5, precision="mixed_bfloat16"),
        device_records(1, [1.0] * 5, backend="tensorflow"),
    ],
)
def test_without_the_same_cell_on_one_device_the_reason_says_what_to_set(other: list[Record]) -> None:
    found = scaling(device_records(2, [0.5] * 5) + other)
    assert (found.speed_up, found.efficiency, found.verdict) == (None, None, "not known")
    assert found.missing == "one device not measured: set devices: [1, 2]"


def test_failed_cell_on_one_device_is_named_with_its_status() -> None:
    failed = make_record(None, 0, Status.TIMEOUT, settings=make_settings())
    assert scaling([*device_records(2, [0.5] * 5), failed]).missing == "one device not measured: timeout"


def test_different_work_is_not_compared() -> None:
    other = [replace(r, resolved=replace(r.resolved, parameters=999)) for r in device_records(1, ALONE) if r.resolved]
    found = scaling(other + device_records(2, ALONE))
    assert found.speed_up is None
    assert found.missing == "not comparable with one device: parameters differ: 2 devices 1,000, one device 999"


def test_numbers_of_steps_that_each_found_by_itself_do_not_prevent_the_comparison() -> None:
    alone = [
        replace(r, resolved=replace(r.resolved, steps_per_epoch=7)) for r in device_records(1, ALONE) if r.resolved
    ]
    assert scaling(alone + device_records(2, ALONE)).speed_up is not None


def test_divided_weights_are_compared_with_one_device_too() -> None:
    found = scaling(device_records(1, [1.0] * 5) + device_records(2, [0.5] * 5, distribution="model"))
    assert found.speed_up is not None
    assert (found.speed_up.centre, found.work) == (pytest.approx(2), "mnist_mlp")


def fed_from_host() -> list[Record]:
    replicas = replicas_of("tensorflow", 2, semantics=[FED_FROM_HOST])
    return [replace(record, replicas=replicas) for record in device_records(2, ALONE, "tensorflow")]


def test_what_is_said_of_several_devices(golden: Golden) -> None:
    """What only one side compiles, or has in its memory, is said with the speed-up, and not of equal sides."""
    one, tensorflow = device_records(1, [1.0] * 5), device_records(1, ALONE, "tensorflow")
    both_compiled = device_records(1, ALONE, jit=True) + device_records(2, ALONE, jit=True)
    untimed = [replace(r, replicas=replace(r.replicas, communication=None)) for r in device_records(2, [0.625] * 5)]
    cells = {
        "faster": one + device_records(2, [0.625] * 5),
        "slower": one + device_records(2, [1.25] * 5),
        "one device not measured": device_records(2, [0.5] * 5),
        "collectives timed one by one, on torch": device_records(2, [0.5], "torch"),
        "communication not measured": one + untimed,
        "one device compiles its step": device_records(1, ALONE, "tensorflow", jit=True)
        + device_records(2, ALONE, "tensorflow"),
        "both compile their steps": both_compiled,
        "several devices get their batches from host memory": tensorflow + fed_from_host(),
        "several devices get their batches from host memory, one was not measured": fed_from_host(),
    }
    check_messages(golden, "devices.txt", {title: [scaling(records).text] for title, records in cells.items()})


def test_sentence_on_the_feed_is_the_one_that_the_cell_states() -> None:
    source = ROOT / "runner" / "cell" / "replicated" / "tensorflow.py"
    assert "semantics.append(FED_FROM_HOST)" in source.read_text(encoding="utf-8")


def test_communication_is_the_median_over_the_repeats_and_none_if_not_timed() -> None:
    timings = [Communication(TimingMethod.PROFILED, [1.0], [1 - share]) for share in (0.1, 0.3, 0.2)]
    records = [
        replace(r, replicas=replace(r.replicas, communication=one))
        for r, one in zip(device_records(2, [0.5] * 3), timings, strict=True)
        if r.replicas
    ]
    found = scaling(records)
    assert found.spent is not None
    assert (found.spent.share, found.spent.method) == (pytest.approx(0.2), TimingMethod.PROFILED)
    untimed = [replace(r, replicas=replace(r.replicas, communication=None)) for r in records if r.replicas]
    assert scaling(untimed).spent is None


def test_every_backend_and_number_of_devices_is_compared_in_the_order_of_the_table() -> None:
    found = device_scalings(table(scaled_run()))
    assert [(one.devices, one.settings.backend) for one in found] == [
        (devices, backend) for devices in (2, 4) for backend in ("tensorflow", "jax", "torch")
    ]
    assert {one.work for one in found} == {"mnist_mlp"}


def at_gpus(records: Sequence[Record], *gpus: str) -> list[Record]:
    """Return records of a session on several GPUs; each entry is of a repeat, the last one of all others."""
    each = [GpuPlace(one.split("+")) for one in gpus]
    return [replace(r, gpu_place=each[min(n, len(each) - 1)]) for n, r in enumerate(records)]


@pytest.mark.parametrize("own", ["GPU-a", "GPU-b"])
def test_one_gpu_of_the_group_is_paired_by_repeat(own: str) -> None:
    found = scaling(at_gpus(device_records(1, ALONE), own) + at_gpus(device_records(2, ALONE), "GPU-a+GPU-b"))
    assert found.speed_up is not None
    assert (found.speed_up.centre, found.speed_up.count, found.missing) == (pytest.approx(1), 5, "")


def test_one_device_on_another_gpu_than_the_group_is_not_compared() -> None:
    alone = at_gpus(device_records(1, ALONE), "GPU-c")
    found = scaling(alone + at_gpus(device_records(2, ALONE), "GPU-a+GPU-b"))
    assert (found.speed_up, found.missing) == (None, "one device was measured on another GPU")


def test_only_repeats_whose_one_gpu_is_in_the_group_count() -> None:
    alone = at_gpus(device_records(1, ALONE), "GPU-a", "GPU-c", "GPU-d")
    several = at_gpus(device_records(2, ALONE), "GPU-a+GPU-b", "GPU-a+GPU-b", "GPU-c+GPU-d")
    found = scaling(alone + several)
    assert found.speed_up is not None
    assert found.speed_up.count == 4


def test_repeats_without_a_named_gpu_are_not_paired_with_those_that_have_one() -> None:
    found = scaling(device_records(1, ALONE) + at_gpus(device_records(2, ALONE), "GPU-a+GPU-b"))
    assert found.missing == "a part of the run began without parallel_devices, and names no GPU"


def test_without_a_common_repeat_nothing_is_compared() -> None:
    other = [replace(record, repeat=record.repeat + 5) for record in device_records(1, ALONE)]
    assert scaling(other + device_records(2, ALONE)).missing == "no repeat in common with one device"


def rotated(speed_ups: Sequence[float], repeats: int) -> DeviceScaling:
    """Return the scaling of one device on GPUs a and b alternately, with these speed-ups, against both."""
    times_s = [speed_ups[n % 2] * (1 + 0.001 * n) for n in range(repeats)]
    alone = at_gpus(device_records(1, times_s), *["GPU-a", "GPU-b"] * (repeats // 2))
    return scaling(alone + at_gpus(device_records(2, [1.0] * repeats), "GPU-a+GPU-b"))


def test_few_repeats_over_several_gpus_say_how_many_are_missing() -> None:
    assert rotated((1.5, 1.5), 4).verdict == (
        "4 repeats over 2 GPUs give no interval: it needs 4 more repeats than GPUs, 2 more than there are at these GPUs"
    )


def test_gpus_that_disagree_about_the_speed_up_give_no_interval_but_each_its_own() -> None:
    found = rotated((1.2, 1.8), 10)
    assert found.speed_up is not None
    assert found.speed_up.bounds is None
    assert found.verdict.startswith("the GPUs disagree: 1.20x at GPU-a, 1.81x at GPU-b (p ")
    assert rotated((1.5, 1.5), 10).verdict == "faster than one device"


def test_cells_on_one_device_have_no_scaling() -> None:
    assert device_scalings(table([make_record()])) == []
