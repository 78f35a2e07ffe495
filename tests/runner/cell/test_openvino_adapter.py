"""The adapter of OpenVINO: the options that a model is compiled with, what is counted, and what OpenVINO chose."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported, load
from keras_matrix.runner.executors.probe import probe_settings

NAME = "keras_matrix.runner.cell.backends.openvino"
Made = Callable[..., tuple[BackendAdapter, Any]]


class FakeOpenvino(ModuleType):
    """OpenVINO's function, which records its options and states what was chosen; `core` is Keras's module."""

    def __init__(self, computed_in: str) -> None:
        super().__init__("openvino")
        self.computed_in = computed_in
        self.options: list[dict[str, object]] = []
        self.core = SimpleNamespace(compile_model=self.compile_model)

    def compile_model(self, model: object, device_name: str, config: dict[str, object]) -> Any:
        self.options.append(config)
        chosen = {
            "EXECUTION_DEVICES": ["CPU"],
            "INFERENCE_NUM_THREADS": config.get("INFERENCE_NUM_THREADS", 7),
            "INFERENCE_PRECISION_HINT": SimpleNamespace(get_type_name=lambda: self.computed_in),
        }
        return SimpleNamespace(get_property=chosen.__getitem__)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return a function that configures the adapter over a fake OpenVINO."""

    def make(computed_in: str = "f32", cache: str | None = None, **changes: Any) -> tuple[BackendAdapter, Any]:
        fake = FakeOpenvino(computed_in)
        monkeypatch.setitem(sys.modules, "openvino", fake)
        monkeypatch.setitem(sys.modules, "keras.src.backend.openvino", fake)
        monkeypatch.delitem(sys.modules, NAME, raising=False)
        adapter = load("openvino")
        monkeypatch.delitem(sys.modules, NAME)
        adapter.configure(replace(probe_settings("openvino"), phase="predict", **changes), cache)
        return adapter, fake

    return make


def test_matched_cells_have_equal_threads_one_stream_and_float32(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: a league without its own options."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    expected = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    for changes, threads in (({}, 3), ({"threads": 2}, 2)):
        adapter, openvino = made(league="matched", **changes)
        openvino.compile_model("model", "CPU")
        assert openvino.options == [{**expected, "INFERENCE_NUM_THREADS": threads}]
        assert adapter.intra_op_threads() == threads


def test_cells_as_shipped_have_only_the_options_of_their_matrix(made: Made) -> None:
    for changes, options in (
        ({}, {}),
        ({"threads": 2, "cache": "/c"}, {"INFERENCE_NUM_THREADS": 2, "CACHE_DIR": "/c"}),
    ):
        _, openvino = made(**changes)
        openvino.core.compile_model("model", "CPU")
        assert openvino.options == [options]


def test_each_compilation_is_counted_by_either_name_of_the_function(made: Made) -> None:
    adapter, openvino = made()
    assert adapter.compilations() == 0
    openvino.compile_model("model", "CPU")
    openvino.core.compile_model("result", "CPU", config={"INFERENCE_PRECISION_HINT": "f32"})
    assert (adapter.compilations(), adapter.platforms([])) == (2, {"cpu"})
    assert openvino.options[1] == {"INFERENCE_PRECISION_HINT": "f32"}


def test_types_that_openvino_chose_are_stated(made: Made) -> None:
    """Mutation: the conversion of a single result, which Keras compiles with float32, hides what the model has."""
    adapter, openvino = made("bf16")
    openvino.compile_model("model", "CPU")
    openvino.computed_in = "f32"
    openvino.core.compile_model("result", "CPU", config={"INFERENCE_PRECISION_HINT": "f32"})
    text = "computed_in: OpenVINO chose bf16 for a model of float32; league: matched forces float32"
    assert adapter.notes() == [text]
    assert made()[0].notes() == []


@pytest.mark.parametrize("changes", [{"precision": "bfloat16"}, {"eager": True}], ids=str)
def test_what_openvino_does_not_do_is_refused(made: Made, changes: dict[str, Any]) -> None:
    [(key, value)] = changes.items()
    with pytest.raises(Unsupported, match=f"^{key}: must be .*, got {str(value).lower()}$"):
        made(**changes)
