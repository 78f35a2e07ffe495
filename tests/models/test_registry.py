"""The registry: names, parameters, data sources; no backend is started."""

import subprocess
import sys

import pytest

from keras_matrix.models.registry import UnknownWorkload, load, workloads
from keras_matrix.models.workload import Built, Param, Request, UnsupportedWorkload, Workload


def echo(request: Request) -> Built:
    return Built(model=request.params, samples=lambda count, seed: (count, seed))


SIZE = Param("size", 8, "Pixels.", minimum=2, maximum=16)
RATE = Param("rate", 0.5, "Share.", minimum=0.0)
KIND = Param("kind", "tiny", "Shape.", choices=("tiny", "base"))
TOY = Workload("toy", "toys", "A toy.", 4, 1000, (SIZE, RATE, KIND), ("synthetic",), (), echo)


def build(**params: object) -> object:
    return TOY(Request(params, "synthetic", None)).model


@pytest.mark.process
def test_importing_and_listing_imports_no_backend_keras_or_numpy():
    program = (
        "import sys; from keras_matrix.models.registry import workloads; workloads(); "
        "print(sorted({'keras', 'numpy', 'jax', 'torch', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_seed_suite_and_todays_models_are_registered():
    expected = (
        "mnist_mlp cifar10_cnn lstm gru lstm_text_generation mnist_irnn resnet50 vgg16 xception mobilenet_v3_small "
        "efficientnet_v2_b0 resnet50_subclass bert decoder_lm vit_tiny"
    )
    assert set(expected.split()) <= set(workloads())


def test_every_workload_has_a_summary_and_every_parameter_default_obeys_its_own_rule():
    for item in workloads().values():
        assert item.summary
        assert [param.checked(param.default) for param in item.params] == [param.default for param in item.params]


def test_every_image_workload_takes_an_image_size():
    for family in ("mlp", "cnn", "applications", "resnet_subclass", "vision_transformer"):
        for item in workloads().values():
            if item.family == family:
                assert "image_size" in [param.name for param in item.params]


def test_defaults_are_filled_in():
    assert build(size=4) == {"size": 4, "rate": 0.5, "kind": "tiny"}


def test_integer_is_accepted_for_a_float_parameter():
    assert build(rate=1)["rate"] == 1.0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"size": 1}, "toy: size: at least 2. Received: 1"),
        ({"size": 17}, "toy: size: at most 16. Received: 17"),
        ({"rate": float("nan")}, "toy: rate: at least 0.0. Received: nan"),
        ({"kind": "huge"}, "toy: kind: one of tiny, base. Received: 'huge'"),
        ({"sise": 4}, "toy: no parameter 'sise' (did you mean 'size'?). Received: 4"),
    ],
)
def test_a_parameter_out_of_its_rule_is_refused_with_rule_and_value(params, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the whole message is compared
        build(**params)
    assert str(raised.value) == message


@pytest.mark.parametrize("value", [True, "8", 8.0, None])
def test_a_parameter_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match=r"toy: size: takes int\. Received: "):
        build(size=value)


def test_data_the_workload_cannot_use_is_unsupported():
    with pytest.raises(
        UnsupportedWorkload, match=r"decoder_lm: its data is one of synthetic\. Received: data='digits'"
    ):
        load("decoder_lm")(Request({}, "digits", None))


def test_an_unknown_name_is_answered_with_a_near_one():
    with pytest.raises(UnknownWorkload, match=r"no workload 'mnist_mpl' \(did you mean 'mnist_mlp'\?\)"):
        load("mnist_mpl")
