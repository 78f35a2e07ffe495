"""The catalogue is current, and agrees with the literature and with arithmetic."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci.catalog import main
from keras_matrix.models.registry import workloads
from keras_matrix.runner.matrix.catalog import CATALOG_PATH

DATA = json.loads(CATALOG_PATH.read_text())
ENTRIES = DATA["workloads"]


def flops(name):
    return ENTRIES[name]["forward_flops_per_sample"]


def dense(*widths):
    return sum(2 * first * second for first, second in itertools.pairwise(widths))


def block(length, width, hidden):
    """Projections, attention scores and sums, feed forward."""
    return 4 * length * dense(width, width) + 2 * 2 * length**2 * width + length * dense(width, hidden, width)


def diffuser(patches, tokens, width):
    """Two blocks, of which the last gives its text no projection: patches, texts, times, and the output."""
    inputs = patches * dense(2 * 2 * 16, width) + tokens * dense(96, width)
    conditions = dense(48, width, width) + dense(256, width, width)
    attention = 2 * 2 * (patches + tokens) ** 2 * width
    stream = 4 * dense(width, width) + dense(width, 4 * width, width)
    image = dense(width, 6 * width) + patches * stream
    text = dense(width, 6 * width) + tokens * stream
    last_text = dense(width, 2 * width) + tokens * 3 * dense(width, width)
    output = dense(width, 2 * width) + patches * dense(width, 2 * 2 * 16)
    return inputs + conditions + 2 * (image + attention) + text + last_text + output


def test_the_catalogue_declares_what_the_registry_does():
    declared = {
        name: (item.family, item.summary, item.batch_size, item.samples, [param.name for param in item.params])
        for name, item in workloads().items()
    }
    written = {
        name: (item["family"], item["summary"], item["batch_size"], item["samples"], list(item["params"]))
        for name, item in ENTRIES.items()
    }
    assert {name: (*rest, sorted(params)) for name, (*rest, params) in declared.items()} == {
        name: (*rest, sorted(params)) for name, (*rest, params) in written.items()
    }


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vgg16", 138_357_544),
        ("resnet50", 25_636_712),
        ("resnet50_subclass", 25_636_712),
        ("xception", 22_910_480),
        ("mobilenet_v3_small", 2_554_968),
        ("efficientnet_v2_b0", 7_200_312),
        ("vit_tiny", 5_717_416),
        # google/bert_uncased_L-2_H-128_A-2 has 4,385,920; less two token types, more a head of two classes.
        ("bert", 4_385_920 - 2 * 128 + 128 * 2 + 2),
        ("cifar10_cnn", 1_250_858),
        ("mnist_mlp", 784 * 1024 + 1024 + 3 * (1024 * 1024 + 1024) + 10_250),
        ("lstm", 4 * 128 * (60 + 128 + 1) + 129 * 60),
        ("gru", 3 * 32 * (60 + 32 + 2) + 33 * 60),
        ("mnist_irnn", 100 * (1 + 100 + 1) + 101 * 10),
    ],
)
def test_parameter_counts_are_those_of_the_literature(name, parameters):
    assert ENTRIES[name]["parameters"] == parameters


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist_mlp", dense(784, 1024, 1024, 1024, 1024, 10)),
        ("lstm", 40 * 4 * (dense(60, 128) + dense(128, 128)) + dense(128, 60)),
        ("gru", 40 * 3 * (dense(60, 32) + dense(32, 32)) + dense(32, 60)),
        ("mnist_irnn", 784 * (dense(1, 100) + dense(100, 100)) + dense(100, 10)),
        ("bert", 2 * block(128, 128, 512) + dense(128, 128, 2)),
        ("decoder_lm", 4 * block(128, 256, 1024) + 128 * dense(256, 8192)),
        ("stable_diffusion_3", diffuser(patches=16, tokens=16, width=64)),
        ("vit_tiny", 196 * dense(16 * 16 * 3, 192) + 12 * block(197, 192, 768) + dense(192, 1000)),
    ],
)
def test_flops_are_those_of_arithmetic(name, expected):
    assert flops(name) == expected


def test_vgg16_needs_the_fifteen_and_a_half_giga_multiply_adds_of_its_paper():
    assert 15.4e9 < flops("vgg16") / 2 < 15.6e9


def test_every_workload_of_the_seed_notes_its_corrections():
    seed = "mnist_mlp cifar10_cnn lstm gru mnist_irnn lstm_text_generation resnet50 resnet50_subclass vgg16 xception"
    assert [name for name in seed.split() if not ENTRIES[name]["corrections"]] == []


def test_an_unknown_option_is_bad_input(capsys):
    assert main(["--chekc"]) == 2
    assert "Received: --chekc" in capsys.readouterr().err


@pytest.mark.nightly(why="builds every workload")
@pytest.mark.process
@pytest.mark.backends("torch")
def test_the_catalogue_is_current():
    command = [sys.executable, "ci/catalog.py", "--check"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
