"""Cells that differ in one setting, in one parameter, or in many settings at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from keras_matrix.records.fc.rules import stored_params
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.settings import OWN_OPTIONS, Scalar, Settings
from keras_matrix.records.task import ALONE
from keras_matrix.runner.matrix.task_rules import workload_of
from tests.conftest import make_settings

# For each setting, values other than that of `make_settings`. Add values for a new setting here.
OTHERS: Mapping[str, Sequence[Any]] = {
    "backend": ["torch"],
    "workload": ["gru", "my_package.my_module:build"],
    "params": [{"units": 64}],
    "batch_size": [64],
    "samples": [300],
    "phase": ["predict"],
    "epochs": [5],
    "discard": [2],
    "steps_per_epoch": ["seed", 50],
    "data": ["digits"],
    "seed": [7],
    "device": ["gpu"],
    "precision": ["mixed_bfloat16"],
    "jit": [True, False],
    "eager": [True],
    "steps_per_execution": [4],
    "feed": ["host_fed", "pipeline"],
    "threads": [1],
    "compile_cache": ["warm"],
    "league": ["matched"],
    "cpus": ["0-3,8"],
    "clocks": ["locked"],
    "autotune": ["pinned"],
    "freed_memory": ["kept"],
    "set_by_matrix": list(OWN_OPTIONS),
    "page_cache": ["cold"],
    "input_timers": [True],
    "nodes": [2],
    "devices": [2, 22],
    "distribution": ["model"],
    "gradient_accumulation_steps": [4],
    "remat": ["full"],
    "implementation": ["native"],
    "env": ["DATA_DIR=/data", "XLA_FLAGS=--xla_cpu_enable_fast_math=true"],
    "call": ["model"],
    "outputs": ["device"],
    "torch_compile": ["mode=max-autotune"],
    "xla_flags": ["--xla_cpu_enable_fast_math=true"],
    "matmul_precision": ["high"],
}
# Parameters whose values can be mistaken for each other or for other parameters.
ALIKE: Sequence[dict[str, Scalar]] = [
    {},
    {"a": 1},
    {"a": "1"},
    {"a": True},
    {"a": "true"},
    {"a": 1, "b": 2},
    {"a": "1, b=2"},
    {"a": '1","b":2'},
    {"a": '1", b="2'},
    {"a": "1", "b": "2"},
    {"a": "}"},
    {"a": ""},
    {"a": "x\\"},
    {"a": ","},
    {"ab": 1},
    {"eager": "eager"},
    {"a": 0.5},
    {"a": -0.0625},
]
FC_OTHERS: Mapping[str, Sequence[Scalar]] = {
    "mode": ["fc_data", "fc_phy"],
    "workers": [2, 12],
    "level": [1, 100],
    "weight_size": [102, 10240],
    "phy_blocks": [10],
    "shared_ratio": [0.5],
    "reduce": ["mean"],
    "overlap": ["off"],
    "partition": ["named_sharding"],
    "model_workers": [2],
    "micro_batches": [40],
    "network": ["100mbit"],
    "bucket_cap_mb": [8.0, 25.5],
    "buckets": ["3,5,2"],
    "bytes_per_pack": [4096],
    "forward_sleep_ms": [6.0],
    "backward_sleep_ms": [14.5],
    "gradient_accumulation": [2],
    "recompute": [True],
    "amp": ["0-3,6"],
    "fuse": ["0-3,4-7"],
}


def fc_settings(**changes: Any) -> Settings:
    params = {name: value for name, value in asdict(FcProblem()).items() if name not in ("batch_size", "precision")}
    stored = stored_params(params | changes)
    return make_settings(workload="fc", params=dict(sorted(stored.items())), batch_size=128, samples=128)


def command_settings(params: dict[str, Scalar], backend: str = ALONE) -> Settings:
    one = workload_of("train")
    return make_settings(
        workload=one.name,
        params=params,
        backend=backend,
        phase="task",
        batch_size=one.batch_size,
        samples=one.samples,
        data=one.data[0],
        epochs=1,
        discard=0,
        steps_per_epoch=1,
        precision="own",
        feed="own",
        league="tasks",
    )


def variants() -> Iterator[Settings]:
    """Every setting varied once, parameters of all kinds, FC tasks, external commands, and many settings at once."""
    yield make_settings()
    for name, values in OTHERS.items():
        yield from (make_settings(**{name: value}) for value in values)
    user = "my_package.my_module:build"
    yield from (make_settings(workload=user, params=params) for params in ALIKE)
    yield fc_settings()
    for name, choices in FC_OTHERS.items():
        yield from (fc_settings(**{name: value}) for value in choices)
    yield replace(fc_settings(), batch_size=64)
    yield replace(fc_settings(), precision="bfloat16")
    for definition in ("0" * 16, "f" * 16):
        yield command_settings({"definition": definition})
        yield command_settings({"batch_size": 32, "definition": definition})
        yield command_settings({"definition": definition}, backend="batch_size=32")
    draw = random.Random(18)
    plain = asdict(make_settings())
    for _ in range(60):
        yield make_settings(**{name: draw.choice([plain[name], *OTHERS[name]]) for name in OTHERS})
