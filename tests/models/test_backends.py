"""Every workload builds, trains a batch and predicts on every backend, in single and in mixed precision."""

import json
import math
from pathlib import Path

import pytest

from keras_matrix.models.registry import workloads
from tests.imported import ran

SCRIPT = Path(__file__).with_name("train_every_workload.py")
DEEP_FAMILIES = ("applications", "resnet_subclass")
DEEP = [name for name, item in workloads().items() if item.family in DEEP_FAMILIES]
SHALLOW = [name for name in workloads() if name not in DEEP]
QUICK = [*{workloads()[name].family: name for name in SHALLOW}.values(), "mobilenet_v3_small"]  # of nearly each family


def trained(backend, policy, names):
    done = ran(backend, SCRIPT, policy, *names, limit_s=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(backend, policy, names):
    seen = trained(backend, policy, names)
    assert list(seen) == names
    assert [name for name, one in seen.items() if not math.isfinite(one["loss"])] == []
    assert {(one["output_dtype"], one["output_rows"]) for one in seen.values()} == {("float32", 2)}


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_quick_workloads_train_on_a_backend_that_need_not_compile(backend):
    check(backend, "float32", QUICK)


@pytest.mark.nightly
@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_every_workload_trains_on_a_backend_that_need_not_compile(backend, policy):
    check(backend, policy, [*SHALLOW, *DEEP])


@pytest.mark.process
@pytest.mark.nightly
def test_the_stack_of_layers_of_the_fc_modes_begins_with_the_same_weights_on_every_backend():
    losses = [trained(backend, "float32", ["fc"])["fc"]["loss"] for backend in ("tensorflow", "jax", "torch")]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


@pytest.mark.process
def test_recurrent_layer_with_bfloat16_weights_is_unsupported_with_an_alternative():
    seen = trained("torch", "bfloat16", ["lstm", "mnist_mlp"])
    assert "use mixed_bfloat16. Received: precision 'bfloat16'" in seen["lstm"]["unsupported"]
    assert seen["mnist_mlp"]["output_dtype"] == "float32"


@pytest.mark.nightly(why="XLA compiles them for two minutes")
@pytest.mark.process
def test_the_shallow_workloads_train_on_jax():
    check("jax", "mixed_bfloat16", SHALLOW)


@pytest.mark.process
@pytest.mark.nightly(why="XLA compiles them for three minutes")
def test_the_deep_workloads_train_on_jax():
    check("jax", "mixed_bfloat16", DEEP)
