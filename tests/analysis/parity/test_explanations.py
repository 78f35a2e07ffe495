"""Deviations are explained only by known causes and by the backends' own rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis import parity
from keras_matrix.analysis.parity import (
    CAUSES,
    DeviationEvidence,
    adam_step_error,
    applying,
    correctable,
    explained_pairs,
    largest,
    needs_nudge,
)
from keras_matrix.records.instruments.parity import Deviation, Facts, Operation, Pair, ParityFinding


@pytest.mark.parametrize(("precision", "figure"), [(p, figure) for p in parity.LIMITS for figure in parity.LIMITS[p]])
def test_single_figure_beyond_its_limit_is_not_explained(precision: str, figure: str) -> None:
    def found(factor: float) -> list[ParityFinding]:
        changes: dict[str, Any] = {figure: factor * limit}
        observed = replace(Deviation(0.0, 0.0, 0.0, None, 0.0, None, 0.0), **changes)
        pair = Pair(["jax", "torch"], {precision: observed}, parity.findings(precision, observed))
        return explained_pairs(pair, DeviationEvidence()).findings

    limit = parity.LIMITS[precision][figure]
    assert found(1.0) == []
    assert found(1.1) == [ParityFinding(precision, figure, 1.1 * limit, limit)]


ADAM = Facts("Adam", {"beta_1": 0.9, "beta_2": 0.999})
SGD = Facts("SGD", {"momentum": 0.0})
ADAM_ERROR = 6.67e-6


def pair_of(
    value: float, backend: str = "tensorflow", figure: str = "update", corrected: float | None = 1e-15, **finding: Any
) -> Pair:
    """Return a backend and torch with one float64 figure beyond its limit, and the corrected deviation."""
    limit = parity.LIMITS["float64"][figure]
    found = ParityFinding("float64", figure, value, limit, **finding)
    changes: dict[str, Any] = {figure: corrected}
    remaining = {} if corrected is None else {"float64": Deviation(**changes)}
    return Pair([backend, "torch"], {}, [found], corrected=remaining)


def is_explained(pair: Pair, facts: Facts) -> bool:
    return explained_pairs(pair, DeviationEvidence(facts=dict.fromkeys(pair.backends, facts))).agrees


def test_rounded_betas_lengthen_or_shorten_adams_step_by_the_float32_error_of_the_bias_correction() -> None:
    assert adam_step_error(0.9, 0.999) == pytest.approx(ADAM_ERROR, rel=0.01)
    assert adam_step_error(0.9, 0.9999) == pytest.approx(8.3e-5, rel=0.01)
    assert adam_step_error(0.5, 0.75) == 0.0
    assert adam_step_error(0.9, 1.0) == 0.0


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_adams_rounded_betas_explain_an_update_on_tensorflow_in_any_workload(optimizer: str) -> None:
    pair = explained_pairs(pair_of(6.7e-6), DeviationEvidence(facts={"tensorflow": replace(ADAM, optimizer=optimizer)}))
    (finding,) = pair.findings
    assert finding.explanation is not None
    assert "rounds Adam's beta_1 and beta_2 to float32" in finding.explanation
    assert finding.explanation.endswith("Computed exactly instead, this figure is 1e-15")


def test_deviation_that_remains_when_the_cause_is_corrected_is_not_explained() -> None:
    assert is_explained(pair_of(6.7e-6, corrected=1e-7), ADAM)
    assert not is_explained(pair_of(6.7e-6, corrected=2e-6), ADAM)
    assert not is_explained(pair_of(6.7e-6, corrected=None), ADAM)


@pytest.mark.parametrize("figure", ["update", "losses", "gradient", "loss"])
def test_no_cause_but_repeated_rows_explains_a_deviation_above_one_in_a_thousand(figure: str) -> None:
    operations = [operation for operation in Operation if operation is not Operation.REPEATED_ROWS]
    facts = replace(ADAM, scheduled=True, operations=operations)
    extreme = replace(facts, hyperparameters={"beta_1": 0.9, "beta_2": 0.99999})
    assert not is_explained(pair_of(1.01e-3, "tensorflow", figure), facts)
    assert not is_explained(pair_of(1.01e-3, "tensorflow", figure), extreme)
    assert not is_explained(pair_of(1.01e-3, "jax", figure), facts)


def test_adams_betas_do_not_explain_an_update_of_another_backend_or_optimizer_or_a_gradient() -> None:
    assert not is_explained(pair_of(6.7e-6, "jax"), ADAM)
    assert not is_explained(pair_of(6.7e-6), SGD)
    assert not is_explained(pair_of(6.7e-6), Facts("RMSprop", {"rho": 0.9}))
    assert not is_explained(pair_of(6.7e-6, figure="gradient"), ADAM)


def test_adams_betas_that_float32_holds_exactly_explain_nothing() -> None:
    assert not is_explained(pair_of(2e-6), Facts("Adam", {"beta_1": 0.5, "beta_2": 0.75}))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts("SGD", {"momentum": 0.9}), True),
        (Facts("SGD", {"momentum": 0.5}), False),
        (Facts("SGD", {"momentum": 0.0}, scheduled=True), True),
        (Facts("RMSprop", {"weight_decay": 0.004}), True),
        (Facts("RMSprop", {"rho": 0.9, "momentum": 0.9}), False),
        (Facts("Nadam", {"beta_2": 0.999}), True),
    ],
)
def test_rounded_constants_explain_a_small_update_if_the_optimizer_has_such_constants(
    facts: Facts, expected: bool
) -> None:
    assert is_explained(pair_of(2e-6), facts) == expected
    assert not is_explained(pair_of(2e-5), facts)


@pytest.mark.parametrize(
    ("operation", "backend", "figure", "value"),
    [
        (Operation.GELU, "tensorflow", "gradient", 5e-8),
        (Operation.ATTENTION_SOFTMAX, "jax", "gradient", 1e-5),
        (Operation.REPEATED_ROWS, "tensorflow", "update", 0.1),
    ],
)
def test_inexact_operation_explains_figures_only_if_it_ran(
    operation: Operation, backend: str, figure: str, value: float
) -> None:
    ran = Facts("RMSprop", operations=[operation])
    assert is_explained(pair_of(value, backend, figure), ran)
    assert not is_explained(pair_of(value, backend, figure), Facts("RMSprop"))
    other = {"tensorflow": "jax", "jax": "tensorflow"}[backend]
    assert not is_explained(pair_of(value, other, figure), ran)
    assert not is_explained(pair_of(value * 1e4, backend, figure), ran)


def test_float32_layers_explain_a_figure_of_any_backends_and_are_corrected_on_both() -> None:
    pair = pair_of(1e-6, "jax", "gradient")
    facts = dict.fromkeys(pair.backends, Facts("RMSprop", operations=[Operation.FLOAT32_LAYERS]))
    (finding,) = explained_pairs(pair, DeviationEvidence(facts=facts)).findings
    assert finding.explanation is not None
    assert finding.explanation.count("layers compute in float32") == 1
    assert correctable(pair, facts) == {(name, "float64"): {Operation.FLOAT32_LAYERS} for name in pair.backends}


def test_repeated_rows_matter_only_to_an_optimizer_that_squares_gradients() -> None:
    rows = [Operation.REPEATED_ROWS]
    assert [
        cause.operation for cause in applying(["tensorflow"], "float32", {"tensorflow": Facts("SGD", {}, False, rows)})
    ] == []
    adam = {"tensorflow": replace(ADAM, operations=rows)}
    assert [cause.operation for cause in applying(["tensorflow"], "float32", adam)] == rows


def test_explanation_names_only_the_causes_that_may_be_as_large_as_the_figure() -> None:
    facts = {"tensorflow": replace(ADAM, operations=[Operation.GELU, Operation.REPEATED_ROWS])}
    (finding,) = explained_pairs(pair_of(0.04), DeviationEvidence(facts=facts)).findings
    assert finding.explanation is not None
    assert finding.explanation.startswith("Keras on TensorFlow hands an embedding's gradient to the optimizer as rows")
    assert "tf.nn.gelu" not in finding.explanation
    assert "Adam" not in finding.explanation


def test_all_causes_that_apply_to_a_backend_are_corrected_together() -> None:
    facts = {"tensorflow": replace(ADAM, operations=[Operation.GELU]), "jax": SGD}
    expected = {("tensorflow", "float64"): frozenset({Operation.GELU, Operation.PYTHON_FLOATS})}
    assert correctable(pair_of(6.7e-6), facts) == expected
    assert correctable(pair_of(0.5), facts) == {}
    assert correctable(replace(pair_of(1.0), findings=[]), facts) == {}


def test_float32_is_compared_with_a_float64_from_which_known_causes_are_removed() -> None:
    pair = Pair(
        ["tensorflow", "torch"],
        {"float64": Deviation(update=6.7e-6)},
        [ParityFinding("float32", "update", 0.1, 5e-2)],
        corrected={"float64": Deviation(update=1e-15)},
    )
    rounding = dict.fromkeys(pair.backends, Deviation(update=0.1))
    assert needs_nudge(pair, rounding)
    assert not needs_nudge(replace(pair, corrected={}), rounding)


def test_no_cause_names_a_workload() -> None:
    from keras_matrix.models.registry import workloads

    texts = " ".join(cause.text for cause in CAUSES)
    assert [name for name in workloads() if name in texts] == []


@pytest.mark.parametrize(("own", "is_explained"), [(0.004, True), (0.003, False), (0.0, False)])
def test_training_loss_is_explained_by_three_times_a_backends_own_deviation(own: float, is_explained: bool) -> None:
    pair = Pair(["jax", "torch"], {}, [ParityFinding("float32", "losses", 0.01, 1e-3)])
    found = explained_pairs(pair, DeviationEvidence({"torch": own}))
    assert found.agrees == is_explained


@pytest.mark.parametrize(
    ("torch", "exact", "nudged", "is_explained"),
    [
        (2e-3, 1e-15, 0.01, True),
        (2e-3, 1e-15, 0.005, False),
        (2e-3, 1e-15, None, False),
        (1e-5, 1e-15, 0.01, False),
        (None, 1e-15, 0.01, False),  # its float64 is not known
        (2e-3, 1e-3, 0.01, False),
    ],
)
def test_float32_gradient_is_explained_only_where_both_backends_round_so_and_a_nudge_moves_one_as_far(
    torch: float | None, exact: float, nudged: float | None, is_explained: bool
) -> None:
    pair = Pair(
        ["jax", "torch"], {"float64": Deviation(gradient=exact)}, [ParityFinding("float32", "gradient", 0.02, 1e-2)]
    )
    rounding = {"jax": Deviation(gradient=0.02), "torch": Deviation(gradient=torch)}
    evidence = DeviationEvidence({}, rounding, {"torch": Deviation(gradient=nudged)})
    assert explained_pairs(pair, evidence).agrees == is_explained


@pytest.mark.parametrize(("gradient", "is_explained"), [(0.03, True), (0.3, False)])
def test_norm_that_agrees_by_chance_is_judged_by_the_gradients_rounding(gradient: float, is_explained: bool) -> None:
    observed = {"float64": Deviation(gradient_norm=0.0), "float32": Deviation(gradient_norm=9e-4, gradient=gradient)}
    pair = Pair(["jax", "torch"], observed, [ParityFinding("float32", "gradient_norm", 9e-4, 1e-4)])
    rounding = {b: Deviation(gradient_norm=norm, gradient=0.025) for b, norm in (("jax", 1e-9), ("torch", 9e-4))}
    evidence = DeviationEvidence({}, rounding, {"torch": Deviation(gradient_norm=5e-4)})
    assert explained_pairs(pair, evidence).agrees == is_explained


def test_nudged_weights_are_needed_only_if_they_could_explain() -> None:
    pair = Pair(
        ["jax", "torch"], {"float64": Deviation(gradient=0.0)}, [ParityFinding("float32", "gradient", 0.02, 1e-2)]
    )
    rounding = {"jax": Deviation(gradient=0.02), "torch": Deviation(gradient=0.02)}
    assert needs_nudge(pair, rounding)
    assert not needs_nudge(pair, rounding | {"torch": Deviation(gradient=1e-5)})
    assert not needs_nudge(replace(pair, findings=[ParityFinding("float64", "gradient", 0.02, 1e-8)]), rounding)


def test_largest_figure_of_several_nudges_counts() -> None:
    observed = [Deviation(loss=1e-7, gradient=0.02, losses=1.0), Deviation(loss=1e-6, gradient=0.01)]
    assert largest(observed) == Deviation(loss=1e-6, gradient=0.02)


def test_other_deviations_are_not_explained() -> None:
    others = [ParityFinding("float64", "losses", 0.01, 1e-6), ParityFinding("float32", "loss", 0.01, 1e-5)]
    pair = Pair(["jax", "torch"], {}, others)
    assert explained_pairs(pair, DeviationEvidence({"torch": 1.0, "jax": 1.0})) == pair
