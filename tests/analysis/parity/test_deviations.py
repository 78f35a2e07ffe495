"""Deviations between parity processes: figures, findings, and the location of a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis import parity
from keras_matrix.analysis.comparison import context
from keras_matrix.records.instruments.parity import Deviation, Pair, ParityOutput, ParityRecord, Sketch, Weight

PATHS = ("model/dense/kernel", "model/dense/bias", "model/normal/moving_mean", "model/last/kernel")


def make_arrays(**changes: Any) -> dict[str, Any]:
    """Three trainable weights and one moving statistic; `gradient_0=2.0` multiplies an array."""
    arrays = {
        f"{kind}.{i}": np.arange(1.0, 4.0) * (i + 1) for kind in ("gradient", "update") for i in range(len(PATHS))
    }
    for name, factor in changes.items():
        arrays[name.replace("_", ".")] = arrays[name.replace("_", ".")] * factor
    return arrays


def make_process(
    backend: str = "jax", losses: tuple[float | None, ...] = (1.0, 0.5), norm: float = 0.0, **changes: Any
) -> parity.ParityProcess:
    arrays = make_arrays(**changes)
    weights = [Weight(path, [3], trainable="moving" not in path, norm=norm) for path in PATHS]
    trace = ParityOutput("n", "0" * 64, weights, list(losses))
    return parity.ParityProcess(backend, trace, lambda kind, i: arrays[f"{kind}.{i}"])


def test_equal_processes_have_no_deviation() -> None:
    found = parity.deviation(make_process(), make_process("torch"), "float64")
    assert found == Deviation(0.0, 0.0, 0.0, None, 0.0, None, 0.0)
    assert parity.findings("float64", found) == []


def test_losses_are_compared_over_common_steps() -> None:
    assert parity.worst_loss([1.0, 0.5, 0.25], [1.0, 0.4]) == pytest.approx(0.2)


def test_scaled_gradient_is_found_with_its_weight() -> None:
    found = parity.deviation(make_process(), make_process(gradient_1=1.01), "float64")
    assert found.gradient == pytest.approx(0.01 / 1.01)
    assert found.gradient_at == "model/dense/bias"
    assert [finding.figure for finding in parity.findings("float64", found)] == ["gradient_norm", "gradient"]


def test_moving_statistic_is_compared_as_an_update() -> None:
    found = parity.deviation(make_process(), make_process(update_2=1.5), "float64")
    assert (found.gradient, found.update_at) == (0.0, "model/normal/moving_mean")


def test_permuted_gradient_of_the_same_norm_is_found() -> None:
    a, b = make_process(), make_process()
    turned = parity.ParityProcess("torch", b.trace, lambda kind, i: b.arrays(kind, i)[::-1])
    found = parity.deviation(a, turned, "float64")
    assert found.gradient_norm == 0.0
    assert found.gradient == pytest.approx(np.sqrt(8 / 14))


def test_gradient_of_rounding_only_is_listed_and_excluded() -> None:
    a, b = make_process(gradient_1=1e-16), make_process("torch", gradient_1=-1e-16)
    zero = parity.zeros([a, b], "float64", "gradient")
    assert zero == {1}
    assert parity.deviation(a, b, "float64").gradient == pytest.approx(2.0)
    assert parity.deviation(a, b, "float64", parity.Zeros(gradient=zero)).gradient == 0.0


def test_gradient_of_a_float32_operation_may_be_zero_within_float32_rounding() -> None:
    exact, rounded, other = (make_process(gradient_1=factor) for factor in (1e-16, 1e-8, 1e-4))
    assert parity.zeros([exact, rounded], "float64", "gradient") == {1}
    assert parity.zeros([exact, other], "float64", "gradient") == frozenset()
    assert parity.zeros([rounded, rounded], "float64", "gradient") == frozenset()
    assert parity.zeros([rounded, rounded], "float32", "gradient") == {1}


def test_update_of_rounding_only_is_excluded() -> None:
    a, b = make_process(update_2=1e-16), make_process("torch", update_2=-1e-16)
    zero = parity.zeros([a, b], "float64", "update")
    assert parity.deviation(a, b, "float64").update == pytest.approx(2.0)
    assert parity.deviation(a, b, "float64", parity.Zeros(update=zero)).update == 0.0


def test_gradient_that_is_zero_on_one_backend_only_is_compared() -> None:
    a, b = make_process(), make_process("torch", gradient_1=0.0)
    assert parity.zeros([a, b], "float64", "gradient") == frozenset()


def test_update_below_the_resolution_of_its_weight_does_not_deviate() -> None:
    coarse = make_process(norm=2.0**23 * 10)
    assert parity.deviation(coarse, make_process(update_0=1.5), "float32").update == 0.0
    assert parity.deviation(make_process(), make_process(update_0=1.5), "float32").update == pytest.approx(1 / 3)


def drawn(*initial: list[float], size: int = 200) -> ParityOutput:
    return ParityOutput("n", "0" * 64, [Weight(f"w{i}", [size], True, 1.0, each) for i, each in enumerate(initial)])


@pytest.mark.parametrize(("other", "errors"), [([0.4, 0.5], 8.0), ([0.0, 3.0], 25 / 3), ([0.0, 0.0], None)])
def test_weights_drawn_from_another_distribution_are_found(other: list[float], errors: float | None) -> None:
    (found,) = parity.initializer_findings("float64", drawn([1.0, 0.0], [0.0, 0.5]), drawn([1.0, 0.0], other))
    assert (found.figure, found.at) == ("initial", "w1")
    assert found.value == (errors if errors is None else pytest.approx(errors))


def test_weights_drawn_from_one_distribution_may_differ() -> None:
    assert parity.initializer_findings("float64", drawn([0.0, 0.5]), drawn([0.1, 0.6])) == []


def test_constant_initial_weights_must_be_equal() -> None:
    (found,) = parity.initializer_findings("float64", drawn([1.0, 0.0]), drawn([0.5, 0.0]))
    assert (found.value, found.at) == (None, "w0")


def test_non_finite_value_is_beyond_every_limit() -> None:
    found = parity.deviation(make_process(gradient_0=np.nan), make_process(losses=(None, 0.5)), "float32")
    figures = {finding.figure: finding.value for finding in parity.findings("float32", found)}
    assert figures == {"loss": None, "gradient_norm": None, "gradient": None, "losses": None}


def sketch(layer: str, *projections: float, norm: float = 1.0) -> Sketch:
    return Sketch(layer, 9, norm, list(projections))


def test_first_layer_whose_output_differs_is_named() -> None:
    a = [sketch("model/first_1", 0.1, 0.2), sketch("model/second", 0.3, 0.4), sketch("model/third", 0.5, 0.6)]
    b = [sketch("model/first", 0.1, 0.2), sketch("model/second", 0.3, 0.9), sketch("model/third", 0.9, 0.6)]
    assert parity.first_differing_layer(a, b, "float64") == "model/second"
    assert parity.first_differing_layer(a, a, "float64") is None


def test_layer_of_only_one_backend_is_skipped() -> None:
    a = [sketch("loop/cell", 0.1, 0.2), sketch("loop", 0.1, 0.2)]
    assert parity.first_differing_layer(a, [sketch("loop", 0.1, 0.2)], "float64") is None


def test_differing_gradient_nearest_to_the_output_is_named() -> None:
    a, b = make_process(), make_process("torch", gradient_0=1.5, gradient_1=1.5)
    pair = Pair(["jax", "torch"], {"float64": parity.deviation(a, b, "float64")}, [])
    where = parity.backward_difference(pair, (a, b), "float64")
    assert where == "the gradient of model/dense/bias; every layer's output agrees"


def test_difference_with_equal_gradients_is_attributed_to_the_optimiser() -> None:
    a, b = make_process(), make_process("torch", update_3=1.5)
    found = parity.deviation(a, b, "float64")
    pair = Pair(["jax", "torch"], {"float64": found}, parity.findings("float64", found))
    where = parity.backward_difference(pair, (a, b), "float64")
    assert where == "the optimiser's step on model/last/kernel; every gradient agrees"


def make_parity(**changes: Any) -> ParityRecord:
    pair = Pair(["jax", "torch"], {"float32": Deviation(loss=1e-7), "float64": Deviation(gradient=1e-15)})
    record = ParityRecord(
        version=1,
        workload="mnist_mlp",
        params={"image_size": 8},
        batch_size=8,
        steps=20,
        seed=0,
        started_at="2026-01-01T00:00:00+00:00",
        pairs=[pair],
        versions={"jax": {"keras": "3.15.1", "jax": "0.10.2"}},
    )
    return replace(record, **changes)


def test_latest_comparison_of_a_workload_is_returned() -> None:
    old, new = make_parity(), make_parity(started_at="2026-02-01T00:00:00+00:00", params={"image_size": 9})
    found = context.latest_comparison([new, old], "mnist_mlp")
    assert found is not None
    assert found.record == new
    exact = context.latest_comparison([new, old], "mnist_mlp", {"image_size": 8})
    assert (exact and exact.record, exact and exact.same_params) == (old, True)


def test_workload_without_comparison_has_no_deviation() -> None:
    assert context.latest_comparison([make_parity()], "lstm") is None


def test_comparison_under_other_versions_is_stale() -> None:
    now = {"jax": {"keras": "3.15.1", "jax": "0.11.0"}}
    found = context.latest_comparison([make_parity()], "mnist_mlp", versions=now)
    assert found is not None
    assert found.stale == ("jax",)
