"""Counts of FLOPs are the same on every backend and equal to arithmetic; differences of tools are explained."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from keras_matrix.analysis.flops import agreements
from keras_matrix.models.flops import attention_flops, flat_matrix_elements, matrix_elements, recurrent_flops
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import decode
from keras_matrix.records.instruments.work import CountAnswer, CountOrder, FlopCheck, Target, Work
from keras_matrix.runner.executors.probe import probe_settings
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.matrix.catalog import CATALOG_PATH
from tests.imported import ran

ROOT = Path(__file__).parents[2]
SMALL = {"mnist_mlp": {"image_size": 14}, "cifar10_cnn": {"image_size": 16}, "lstm": {"sequence_length": 8}}
IMAGES = ("sam", "stable_diffusion_3")  # the first one has transposed convolutions
ENTRIES = json.loads(CATALOG_PATH.read_text())["workloads"]


def counted(backend: str, order: CountOrder) -> CountAnswer:
    answer = decode(CountAnswer, ProcessProbe().ask("keras_matrix.models.flops", order, probe_settings(backend), 200))
    assert answer.refused == {}
    return answer


def mlp_flops(inputs: int) -> int:
    return 2 * (inputs * 1024 + 3 * 1024 * 1024 + 1024 * 10)


@pytest.mark.nightly(why="every workload is built and counted: a minute")
@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_workload_is_the_same_work_on_every_backend_and_every_count_agrees_or_says_why_not(backend: str) -> None:
    targets = [Target("mnist_mlp", {}), Target("bert", {"sequence_length": 16}), *(Target(name, {}) for name in IMAGES)]
    checks = [Target(name, dict(params)) for name, params in SMALL.items()]
    answer = counted(backend, CountOrder(targets, checks, batch_size=4))
    mlp, bert, *images = answer.works
    check_works(mlp, bert)
    found = {work.workload: work.forward_flops_per_sample for work in images}
    assert found == {name: ENTRIES[name]["forward_flops_per_sample"] for name in IMAGES}
    check_counts(backend, answer.checks)


def check_works(mlp: Work, bert: Work) -> None:
    assert mlp.forward_flops_per_sample == ENTRIES["mnist_mlp"]["forward_flops_per_sample"]
    assert mlp.weight_elements == mlp.trainable_elements == mlp.slot_elements == ENTRIES["mnist_mlp"]["parameters"]
    assert mlp.kept_elements_per_sample == 784 + 4 * 1024
    width, hidden, length = 128, 512, 16
    block = 2 * length * (4 * width * width + 2 * width * hidden) + 2 * 2 * length**2 * width
    assert bert.forward_flops_per_sample == 2 * block + 2 * (width * width + width * 2)
    assert bert.lookup_elements == 30522 * 128
    assert bert.slot_elements == 2 * (bert.trainable_elements or 0)


def check_counts(backend: str, checks: list[FlopCheck]) -> None:
    by_name = {check.workload: check for check in checks}
    assert by_name["mnist_mlp"].counted == 4 * mlp_flops(14 * 14)
    for name in ("mnist_mlp", "cifar10_cnn"):
        assert by_name[name].counted == by_name[name].analytic
    assert [(c.workload, a) for c in checks for a in agreements(c) if a.agrees is False and not a.why] == []
    assert None not in {check.framework_train for check in checks}
    if backend == "torch":  # which counts products alone, as arithmetic does
        assert [check.framework_train for check in checks] == [check.analytic_train for check in checks]


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_recurrent_layers_and_attention_count_the_same_in_the_form_a_gpu_runs(backend: str) -> None:
    done = ran(backend, ROOT / "tests" / "models" / "count_as_on_a_gpu.py")
    assert done.returncode == 0, done.stderr
    expected = {name: 32 * ENTRIES[name]["forward_flops_per_sample"] for name in ("lstm", "gru")}
    expected["attention"] = 2 * 2 * 4 * 16 * 16 * (64 + 64)
    if backend == "torch":
        expected["training"] = 3 * 2 * 32 * 40 * 4 * 128 * ((60 + 128) + (128 + 128))
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize(("mode", "gates"), [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
def test_a_fused_recurrent_layer_counts_each_gate_of_each_step(mode: str, gates: int) -> None:
    batch, steps, features, units = 32, 40, 60, 128
    weights = [(gates * units, features), (gates * units, units), (gates * units,), (gates * units,)]
    parameters = sum(math.prod(shape) for shape in weights)
    expected = 2 * batch * steps * gates * units * (features + units)
    assert recurrent_flops((batch, steps, features), matrix_elements(weights)) == expected
    flat = flat_matrix_elements(parameters, mode, units, cells=1)
    assert recurrent_flops((steps, batch, features), flat) == expected


def test_a_bidirectional_layer_counts_both_directions() -> None:
    one_way = 4 * 128 * (60 + 128)
    assert flat_matrix_elements(2 * (one_way + 2 * 4 * 128), "lstm", 128, cells=2) == 2 * one_way


def test_fused_attention_counts_both_products() -> None:
    query, key, value = (2, 4, 16, 64), (2, 2, 24, 64), (2, 2, 24, 32)
    assert attention_flops(query, key, value) == 2 * 2 * 4 * 16 * 24 * 64 + 2 * 2 * 4 * 16 * 24 * 32


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_convolution_counts_each_output_and_a_transposed_one_each_input(backend: str) -> None:
    """Mutation: JAX's `_convolution` counts by outputs unless there is a stride."""
    program = f"""
import json, keras, numpy
from keras import layers
from keras_matrix.models.flops.{backend} import forward

def flops(layer):
    inputs = keras.Input((8, 8, 4))
    return forward(keras.Model(inputs, layer(inputs)), numpy.zeros((1, 8, 8, 4), "float32"))

print(json.dumps([
    flops(layers.Conv2D(6, 3)),
    flops(layers.Conv2D(6, 3, strides=2, padding="same")),
    flops(layers.Conv2DTranspose(6, 3, padding="same")),
    flops(layers.Conv2DTranspose(6, 3)),
    flops(layers.Conv2DTranspose(6, 3, strides=2)),
]))
"""
    done = ran(backend, program)
    assert done.returncode == 0, done.stderr
    products = 3 * 3 * 4 * 6
    counts = [2 * products * positions for positions in (6 * 6, 4 * 4, 8 * 8, 8 * 8, 8 * 8)]
    assert json.loads(done.stdout.splitlines()[-1]) == counts


@pytest.mark.process
def test_arithmetic_counts_every_kind_of_convolution_and_no_unknown_layer() -> None:
    program = """
import json, keras
from keras import layers
from keras_matrix.models.flops.counting import layers_flops, forward_flops, train_flops

def flops(shape, *stack):
    inputs = x = keras.Input(shape)
    for layer in stack:
        x = layer(x)
    found = layers_flops(keras.Model(inputs, x))
    return None if found is None else [forward_flops(found), train_flops(found)]

print(json.dumps([
    flops((8, 8, 4), layers.Conv2D(6, 3, groups=2)),
    flops((8, 8, 4), layers.DepthwiseConv2D(3, padding="same")),
    flops((8, 8, 4), layers.SeparableConv2D(5, 3, padding="same")),
    flops((3, 4), layers.GRU(5)),
    flops((4,), layers.BatchNormalization(), layers.Dense(3)),
    flops((3, 4), layers.EinsumDense("abc,cd->abd", (3, 5))),
]))
"""
    done = ran("jax", program)
    assert done.returncode == 0, done.stderr
    conv, depthwise, pointwise = 2 * 9 * 2 * 36 * 6, 2 * 9 * 64 * 4, 2 * 64 * 4 * 5
    gru = 3 * 3 * 2 * 5 * (4 + 5)
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [conv, 2 * conv],
        [depthwise, 2 * depthwise],
        [depthwise + pointwise, 2 * depthwise + 3 * pointwise],
        [gru, 3 * gru - 3 * 2 * 5 * (3 * 4 + 5)],
        [24, 72],
        None,
    ]
