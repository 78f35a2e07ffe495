"""Agreement of several counts of one batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.flops import LOOPS_ONCE, Agreement, agreements, all_agree
from keras_matrix.records.instruments.work import FlopCheck

CHECK = FlopCheck("mnist_mlp", {}, "torch", 32, 1000, 2800, 1000, 1000.0, 2800.0, None, False, 100, "a tool")
COUNTED, FORWARD, CONVENTION, STEP = range(4)


def verdicts(check: FlopCheck) -> tuple[Agreement, ...]:
    return agreements(check)


def test_equal_counts_agree_and_the_first_layers_gradient_is_within_the_convention() -> None:
    assert [one.agrees for one in verdicts(CHECK)] == [True, True, True, True]
    assert verdicts(CHECK)[CONVENTION].ratio == pytest.approx(2800 / 3000)


def test_count_beyond_half_a_per_cent_of_arithmetic_is_an_unexplained_difference() -> None:
    wrong = replace(CHECK, counted=1010)
    assert (verdicts(wrong)[COUNTED].agrees, verdicts(wrong)[COUNTED].why) == (False, "")
    assert not all_agree([CHECK, wrong])
    assert all_agree([CHECK, replace(CHECK, counted=1004)])


def test_tool_that_counts_a_loop_once_is_explained_for_recurrent_models_only() -> None:
    once = replace(CHECK, framework=30.0, framework_train=80.0)
    assert {one.why for one in verdicts(replace(once, loops=True))[FORWARD:]} == {LOOPS_ONCE}
    assert not all_agree([once])


def test_counting_more_than_products_is_explained() -> None:
    more = replace(CHECK, framework=1200.0, framework_train=3500.0)
    assert [one.agrees for one in verdicts(more)] == [True, False, False, False]
    assert all_agree([more])
    assert "sizes a convolution" in verdicts(replace(more, backend="tensorflow"))[STEP].why


def test_large_first_layer_is_explained_if_arithmetic_covers_it() -> None:
    first = replace(CHECK, analytic_train=2100, framework_train=2100.0)
    assert verdicts(first)[CONVENTION].why == "the gradient of the first layer's input is not computed"
    assert not all_agree([replace(first, analytic_train=None)])


def test_missing_count_gives_no_verdict() -> None:
    none = replace(CHECK, analytic=None, analytic_train=None, framework_train=None)
    assert [one.agrees for one in verdicts(none)] == [None, True, None, None]
