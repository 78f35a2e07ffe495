"""What cells of the workload `fc`, and cells on several devices, are refused for, each with its complete messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_matrix.records import replicas
from keras_matrix.records.fc import rules
from keras_matrix.records.settings import Settings
from tests.conftest import make_settings
from tests.golden import Golden
from tests.messages import check_messages

# By title, what is not that of fc_data on two workers of torch, and settings of the cell.
OF_KERAS = {"phase": "predict", "steps_per_execution": 4, "gradient_accumulation_steps": 2, "remat": "full"}
CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "settings of Keras": ({}, {**OF_KERAS, "implementation": "native"}),
    "a parameter of another mode": ({"micro_batches": 8}, {}),
    "a parameter of two other modes": ({"mode": "fc_model", "overlap": "off"}, {}),
    "a parameter of no other mode": ({"mode": "fc_model", "phy_blocks": 2}, {}),
    "a partition of another backend": ({"partition": "named_sharding"}, {}),
    "a partition of models of another backend": (
        {"mode": "fc_model", "partition": "dtensor"},
        {"backend": "jax"},
    ),
    "a network of workers on GPUs": ({"network": "200mbit"}, {"device": "gpu"}),
    "a network of a mode without one on TensorFlow": (
        {"mode": "fc_zero", "network": "200mbit"},
        {"backend": "tensorflow"},
    ),
    "a network of a mode without one on JAX": ({"mode": "fc_pipeline", "network": "200mbit"}, {"backend": "jax"}),
    "a network of a partition on JAX": ({"partition": "named_sharding", "network": "200mbit"}, {"backend": "jax"}),
    "a network of a partition on TensorFlow": (
        {"partition": "mirrored_strategy", "network": "200mbit"},
        {"backend": "tensorflow"},
    ),
    "a network that is no rate": ({"network": "fast"}, {}),
    "packs on one host": ({"bytes_per_pack": 1}, {"backend": "tensorflow"}),
    "packs of another backend": ({"bytes_per_pack": 4096}, {}),
    "buckets of another number of gradients": ({"buckets": "2,2"}, {}),
    "buckets with a gap": ({"buckets": "3,,2"}, {}),
    "an empty bucket": ({"buckets": "0,5"}, {}),
    "buckets with another separator": ({"buckets": "3;2"}, {}),
    "buckets and their size": ({"buckets": "2,3", "bucket_cap_mb": 8.0}, {}),
    "a size of buckets without overlap": ({"bucket_cap_mb": 8.0, "overlap": "off"}, {}),
    "layers beyond the last one": ({"amp": "3-5"}, {}),
    "layers in another order": ({"amp": "2,1"}, {}),
    "layers by a word": ({"amp": "all"}, {}),
    "a precision of layers and of all": ({"amp": "1"}, {"precision": "float64"}),
    "blocks that overlap": ({"fuse": "0-2,2-4"}, {}),
    "blocks from the last to the first": ({"fuse": "3-1"}, {}),
    "a block without an end": ({"fuse": "1-"}, {}),
    "a batch that its parts do not divide": ({"gradient_accumulation": 5}, {}),
    "recomputation in a partition": ({"recompute": True, "partition": "named_sharding"}, {"backend": "jax"}),
}
DEVICES: Mapping[str, dict[str, Any]] = {
    "a model divided by torch": {"backend": "torch", "distribution": "model"},
    "a compiled step of TensorFlow": {"backend": "tensorflow", "jit": True},
    "a compiled step of torch": {"backend": "torch", "league": "matched"},
    "TPUs of torch": {"backend": "torch", "device": "tpu"},
}


def cell(params: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    small = {"mode": "fc_data", "workers": 2, "level": 4, "weight_size": 24}
    return make_settings(
        **{"workload": "fc", "backend": "torch", "batch_size": 24, "params": {**small, **params}, **changes}
    )


def test_every_refused_cell_of_fc_and_on_several_devices_has_its_messages(golden: Golden) -> None:
    messages = {title: rules.settings_problems(cell(*case)) for title, case in CASES.items()}
    for title, changes in DEVICES.items():
        found = replicas.backend_problem(make_settings(devices=2, **changes))
        messages[title] = [] if found is None else [found]
    messages["more devices than CPUs"] = [replicas.too_few_cpus(make_settings(devices=3), 2) or ""]
    check_messages(golden, "refused.txt", messages)
