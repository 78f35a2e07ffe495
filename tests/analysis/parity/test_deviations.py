"""What twins' arrays become: deviations, findings, explanations, and where two backends part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis.parity import deviations
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


def make_twin(
    backend: str = "jax", losses: tuple[float | None, ...] = (1.0, 0.5), norm: float = 0.0, **changes: Any
) -> deviations.Twin:
    arrays = make_arrays(**changes)
    weights = [Weight(path, [3], trainable="moving" not in path, norm=norm) for path in PATHS]
    trace = ParityOutput("n", "0" * 64, weights, list(losses))
    return deviations.Twin(backend, trace, lambda kind, i: arrays[f"{kind}.{i}"])


def test_equal_twins_deviate_by_nothing() -> None:
    seen = deviations.deviation(make_twin(), make_twin("torch"), "float64")
    assert seen == Deviation(0.0, 0.0, 0.0, None, 0.0, None, 0.0)
    assert deviations.findings("float64", seen) == []


def test_losses_are_compared_over_the_steps_that_both_took() -> None:
    assert deviations.worst_loss([1.0, 0.5, 0.25], [1.0, 0.4]) == pytest.approx(0.2)


def test_a_scaled_gradient_is_found_with_its_weight() -> None:
    seen = deviations.deviation(make_twin(), make_twin(gradient_1=1.01), "float64")
    assert seen.gradient == pytest.approx(0.01 / 1.01)
    assert seen.gradient_at == "model/dense/bias"
    assert [finding.figure for finding in deviations.findings("float64", seen)] == ["gradient_norm", "gradient"]


def test_a_moving_statistic_is_compared_as_an_update() -> None:
    seen = deviations.deviation(make_twin(), make_twin(update_2=1.5), "float64")
    assert (seen.gradient, seen.update_at) == (0.0, "model/normal/moving_mean")


def test_a_permuted_gradient_of_the_same_norm_is_found() -> None:
    a, b = make_twin(), make_twin()
    turned = deviations.Twin("torch", b.trace, lambda kind, i: b.arrays(kind, i)[::-1])
    seen = deviations.deviation(a, turned, "float64")
    assert seen.gradient_norm == 0.0
    assert seen.gradient == pytest.approx(np.sqrt(8 / 14))


def test_a_gradient_of_rounding_only_is_listed_and_left_out() -> None:
    a, b = make_twin(gradient_1=1e-16), make_twin("torch", gradient_1=-1e-16)
    zero = deviations.zeros([a, b], "float64", "gradient")
    assert zero == {1}
    assert deviations.deviation(a, b, "float64").gradient == pytest.approx(2.0)
    assert deviations.deviation(a, b, "float64", deviations.Zeros(gradient=zero)).gradient == 0.0


def test_what_one_backend_takes_in_float32_may_be_zero_to_float32s_rounding_only() -> None:
    exact, rounded, other = (make_twin(gradient_1=factor) for factor in (1e-16, 1e-8, 1e-4))
    assert deviations.zeros([exact, rounded], "float64", "gradient") == {1}
    assert deviations.zeros([exact, other], "float64", "gradient") == frozenset()
    assert deviations.zeros([rounded, rounded], "float64", "gradient") == frozenset()
    assert deviations.zeros([rounded, rounded], "float32", "gradient") == {1}


def test_an_update_of_rounding_only_is_left_out() -> None:
    a, b = make_twin(update_2=1e-16), make_twin("torch", update_2=-1e-16)
    zero = deviations.zeros([a, b], "float64", "update")
    assert deviations.deviation(a, b, "float64").update == pytest.approx(2.0)
    assert deviations.deviation(a, b, "float64", deviations.Zeros(update=zero)).update == 0.0


def test_a_gradient_that_is_zero_on_one_backend_only_is_not_left_out() -> None:
    assert deviations.zeros([make_twin(), make_twin("torch", gradient_1=0.0)], "float64", "gradient") == frozenset()


def test_an_update_below_the_resolution_of_its_weight_is_no_deviation() -> None:
    coarse = make_twin(norm=2.0**23 * 10)
    assert deviations.deviation(coarse, make_twin(update_0=1.5), "float32").update == 0.0
    assert deviations.deviation(make_twin(), make_twin(update_0=1.5), "float32").update == pytest.approx(1 / 3)


def drawn(*initial: list[float], size: int = 200) -> ParityOutput:
    return ParityOutput("n", "0" * 64, [Weight(f"w{i}", [size], True, 1.0, each) for i, each in enumerate(initial)])


@pytest.mark.parametrize(("other", "errors"), [([0.4, 0.5], 8.0), ([0.0, 3.0], 25 / 3), ([0.0, 0.0], None)])
def test_weights_drawn_from_another_distribution_are_found(other: list[float], errors: float | None) -> None:
    (found,) = deviations.drawn_otherwise("float64", drawn([1.0, 0.0], [0.0, 0.5]), drawn([1.0, 0.0], other))
    assert (found.figure, found.at) == ("initial", "w1")
    assert found.value == (errors if errors is None else pytest.approx(errors))


def test_weights_drawn_from_one_distribution_may_differ() -> None:
    assert deviations.drawn_otherwise("float64", drawn([0.0, 0.5]), drawn([0.1, 0.6])) == []


def test_constant_initial_weights_must_be_equal() -> None:
    (found,) = deviations.drawn_otherwise("float64", drawn([1.0, 0.0]), drawn([0.5, 0.0]))
    assert (found.value, found.at) == (None, "w0")


def test_what_is_not_finite_is_beyond_every_limit() -> None:
    seen = deviations.deviation(make_twin(gradient_0=np.nan), make_twin(losses=(None, 0.5)), "float32")
    figures = {finding.figure: finding.value for finding in deviations.findings("float32", seen)}
    assert figures == {"loss": None, "gradient_norm": None, "gradient": None, "losses": None}


def sketch(layer: str, *projections: float, norm: float = 1.0) -> Sketch:
    return Sketch(layer, 9, norm, list(projections))


def test_the_first_layer_whose_output_differs_is_named() -> None:
    a = [sketch("model/first_1", 0.1, 0.2), sketch("model/second", 0.3, 0.4), sketch("model/third", 0.5, 0.6)]
    b = [sketch("model/first", 0.1, 0.2), sketch("model/second", 0.3, 0.9), sketch("model/third", 0.9, 0.6)]
    assert deviations.parting_layer(a, b, "float64") == "model/second"
    assert deviations.parting_layer(a, a, "float64") is None


def test_a_layer_seen_on_one_backend_only_is_passed_over() -> None:
    a = [sketch("loop/cell", 0.1, 0.2), sketch("loop", 0.1, 0.2)]
    assert deviations.parting_layer(a, [sketch("loop", 0.1, 0.2)], "float64") is None


def test_of_parting_gradients_the_nearest_to_the_output_is_named() -> None:
    a, b = make_twin(), make_twin("torch", gradient_0=1.5, gradient_1=1.5)
    pair = Pair(["jax", "torch"], {"float64": deviations.deviation(a, b, "float64")}, [])
    where = deviations.parted_after_forward(pair, (a, b), "float64")
    assert where == "the gradient of model/dense/bias; every layer's output agrees"


def test_a_step_that_parts_with_equal_gradients_is_the_optimisers() -> None:
    a, b = make_twin(), make_twin("torch", update_3=1.5)
    seen = deviations.deviation(a, b, "float64")
    pair = Pair(["jax", "torch"], {"float64": seen}, deviations.findings("float64", seen))
    where = deviations.parted_after_forward(pair, (a, b), "float64")
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


def test_the_newest_stored_comparison_of_a_workload_is_given_and_its_worst_figure() -> None:
    old, new = make_parity(), make_parity(started_at="2026-02-01T00:00:00+00:00", params={"image_size": 9})
    found = deviations.stored([new, old], "mnist_mlp")
    assert found is not None
    assert found.record == new
    assert found.worst("float64", "gradient") == 1e-15
    assert found.worst("float64", "gradient", ["tensorflow", "jax"]) is None
    exact = deviations.stored([new, old], "mnist_mlp", {"image_size": 8})
    assert (exact and exact.record, exact and exact.same_params) == (old, True)


def test_a_workload_never_compared_has_no_stored_deviation() -> None:
    assert deviations.stored([make_parity()], "lstm") is None


def test_a_comparison_under_other_versions_is_stale() -> None:
    now = {"jax": {"keras": "3.15.1", "jax": "0.11.0"}}
    found = deviations.stored([make_parity()], "mnist_mlp", versions=now)
    assert found is not None
    assert found.stale == ("jax",)
