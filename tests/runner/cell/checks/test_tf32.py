"""Whether a backend uses TF32 is computed, on a GPU alone, and never fails a cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import Resolved
from keras_matrix.runner.cell import options
from keras_matrix.runner.cell.checks import tf32
from keras_matrix.runner.cell.checks.tf32 import FINE, FIRST_WITH_TF32, PROBES, tf32_of, uses_tf32
from tests.conftest import make_settings

ROOT = Path(__file__).parents[4]
PROBES_ON = """
import json, sys
from keras_matrix.runner.cell import backends; from keras_matrix.runner.cell.checks import tf32
from tests.conftest import make_settings
backend, device, league = sys.argv[1:]
adapter = backends.load(backend)
adapter.configure(make_settings(backend=backend, device=device, league=league), None)
print(json.dumps([adapter.compute_capability(), tf32.tf32_of(adapter, jit=backend != "torch")]))
"""
OPERATIONS = """
import json, keras
from keras import layers
from keras_matrix.runner.cell.checks.tf32 import operations_of
class Own(layers.Layer): pass
image, text = keras.Input((8, 8, 3)), keras.Input((4, 5))
stacks = [(text, [layers.Dense(3)]), (image, [layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(3)]),
          (text, [layers.Bidirectional(layers.GRU(2))]), (text, [layers.Dense(3), Own()])]
print(json.dumps([operations_of(keras.Sequential([start, *stack])) for start, stack in stacks]))
"""
RESOLVED = Resolved(50, 32, "fresh", "float32", tf32=True)
NO_ADAPTER: Any = None
NOT_USED = dict.fromkeys(("tf32", *PROBES), False)


class FakePlug:
    """A backend on a GPU of this compute capability."""

    def __init__(self, capability: tuple[int, int] | None) -> None:
        self.capability = capability

    def compute_capability(self) -> tuple[int, int] | None:
        return self.capability


def as_tf32(values: Any) -> Any:
    """Return float32 values rounded to TF32's ten bits of mantissa, half up in magnitude, as `cvt.rna.tf32` does."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def cut_to_tf32(values: Any) -> Any:
    """Return float32 values without the bits that TF32 lacks, as tensor cores read them."""
    return (np.asarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))


def product(inputs: Any) -> Any:
    return inputs @ np.full((64, 64), 0.5, np.float32)


def lstm_step(gates: Any) -> Any:
    return sigmoid(gates) * np.tanh(sigmoid(gates) * np.tanh(gates))


def results(rounded: Any, after: Any = lambda values: values) -> tuple[Any, Any]:
    """Return the results of a product for operands of 1 and of FINE, its inputs first rounded by `rounded`."""
    one, fine = (np.full((64, 64), value, np.float32) for value in (1.0, FINE))
    return after(product(rounded(one))), after(product(rounded(fine)))


@pytest.mark.parametrize("after", [lambda values: values, lambda values: lstm_step(values / 64)])
@pytest.mark.parametrize(
    ("rounded", "expected"), [(as_tf32, True), (cut_to_tf32, True), (np.float32, False), (np.float64, False)]
)
def test_dropped_bits_decide_whether_tf32_was_used(rounded: Any, after: Any, expected: bool) -> None:
    assert uses_tf32(*results(rounded, after)) is expected


def test_rounding_of_a_float32_sum_is_not_mistaken_for_tf32() -> None:
    one, fine = results(np.float32)
    noise = np.random.default_rng(0).normal(0, 2e-6, fine.shape)
    assert uses_tf32(one, fine * (1 + noise)) is False


@pytest.mark.parametrize("useless", [np.nan, np.inf, 0.0])
def test_inconclusive_results_are_not_a_decision(useless: float) -> None:
    assert uses_tf32(np.full(4, useless), np.full(4, useless)) is None


def test_a_gpu_older_than_tf32_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf32, "PROBES", dict.fromkeys(PROBES))
    assert tf32_of(FakePlug((7, 5)), jit=False) == NOT_USED  # type: ignore[arg-type]


def test_a_probe_that_raises_leaves_its_field_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(adapter: Any, jit: bool) -> bool | None:
        raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")

    answers = {
        "tf32_matmul": lambda adapter, jit: False,
        "tf32_convolution": lambda adapter, jit: True,
        "tf32_rnn": failing,
    }
    monkeypatch.setattr(tf32, "PROBES", answers)
    assert tf32_of(FakePlug((8, 0)), jit=False) == {  # type: ignore[arg-type]
        "tf32": True,
        "tf32_matmul": False,
        "tf32_convolution": True,
        "tf32_rnn": None,
    }
    assert "CUDNN_STATUS_NOT_SUPPORTED" in capsys.readouterr().err


def test_on_a_cpu_nothing_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "tf32_of", None)
    assert options._with_tf32(RESOLVED, make_settings(device="cpu"), NO_ADAPTER, jit=False) == RESOLVED


def test_without_results_the_backends_setting_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "tf32_of", lambda adapter, jit: dict.fromkeys(NOT_USED))
    assert options._with_tf32(RESOLVED, make_settings(device="gpu"), NO_ADAPTER, jit=False) == RESOLVED


def test_a_gpu_cell_records_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"tf32": True, "tf32_matmul": False, "tf32_convolution": True, "tf32_rnn": None}
    monkeypatch.setattr(options, "tf32_of", lambda adapter, jit: answers)
    found = options._with_tf32(RESOLVED, make_settings(device="gpu"), NO_ADAPTER, jit=False)
    assert found == replace(RESOLVED, **answers)


def printed(script: str, *arguments: str) -> str:
    """Return the last line that a process of the backend named first in `arguments` prints."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": arguments[0],
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_the_probes_find_float32_on_a_cpu(backend: str) -> None:
    assert json.loads(printed(PROBES_ON, backend, "cpu", "as_shipped")) == [None, NOT_USED]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.parametrize("league", ["as_shipped", "matched"])
def test_the_probes_agree_with_the_documented_defaults_on_a_gpu(backend: str, league: str) -> None:
    capability, found = json.loads(printed(PROBES_ON, backend, "gpu", league))
    if capability is None:
        pytest.skip(f"{backend} finds no CUDA device")
    shipped = league == "as_shipped" and tuple(capability) >= FIRST_WITH_TF32
    assert found["tf32_matmul"] is (shipped and backend != "torch")
    assert found["tf32_convolution"] is shipped
    assert found["tf32_rnn"] is shipped


@pytest.mark.process
def test_the_operations_of_a_model_are_those_of_its_layers() -> None:
    expected = [["matmul"], ["convolution", "matmul"], ["matmul", "rnn"], []]
    assert json.loads(printed(OPERATIONS, "torch")) == expected
