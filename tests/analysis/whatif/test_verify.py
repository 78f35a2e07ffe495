"""Verdicts on predictions, against measurements whose outcome is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.whatif import verify
from keras_matrix.analysis.whatif.verify import (
    BASELINE,
    ErrorLimits,
    Measurement,
    Prediction,
    PredictionVerdict,
    judge,
    judge_again,
)
from keras_matrix.records.codec import canonical


def predicted(time: float, *, numerics: bool = False) -> Prediction:
    return Prediction(time, time * 0.99, time * 1.01, numerics)


def measured(time: float, noise: float = 0.002, count: int = 5, losses: tuple[float, ...] = ()) -> Measurement:
    """Return processes around a time, in a fixed pattern of this noise whose geometric mean is the time."""
    pattern = [(-1) ** at * (at + 1) // 2 if at else 0 for at in range(count)]
    middle = sum(pattern) / count
    return Measurement({at: time * math.exp(noise * (one - middle)) for at, one in enumerate(pattern)}, losses)


def compared(**pairs: tuple[float, float]) -> verify.Round:
    """Judge settings given by their predicted and measured times."""
    found = judge(
        {name: predicted(one) for name, (one, _) in pairs.items()},
        {name: measured(other) for name, (_, other) in pairs.items()},
    )
    return found.rounds[0]


def test_predictions_within_the_limit_are_verified() -> None:
    found = compared(baseline=(1.0, 1.01), fast=(0.8, 0.82))
    assert (found.verdict, found.reasons) == (PredictionVerdict.VERIFIED, ())
    assert [row.verdict for row in found.rows] == [PredictionVerdict.VERIFIED] * 2
    assert found.rows[1].error == pytest.approx(0.8 / 0.82 - 1)
    assert found.rows[1].error_low is not None
    assert found.rows[1].error_low < found.rows[1].error < (found.rows[1].error_high or 0)
    assert found.mean_error == pytest.approx((1 - 1 / 1.01 + 1 - 0.8 / 0.82) / 2)
    assert found.largest_error == pytest.approx(1 - 0.8 / 0.82)


def test_a_prediction_outside_the_limit_is_refuted() -> None:
    found = compared(baseline=(1.0, 1.0), fast=(0.6, 0.8))
    assert found.verdict is PredictionVerdict.REFUTED
    assert found.reasons[0].startswith("fast: the error is between -2")
    assert found.rows[0].verdict is PredictionVerdict.VERIFIED


def test_a_noisy_measurement_decides_nothing() -> None:
    found = judge({"a": predicted(1.0)}, {"a": measured(1.05, noise=0.1)}).rounds[0]
    assert found.verdict is PredictionVerdict.INCONCLUSIVE
    assert "more processes would decide about 10.0 %" in found.reasons[0]


def test_few_processes_give_no_verdict() -> None:
    found = judge({"a": predicted(1.0)}, {"a": measured(1.0, count=4)}).rounds[0]
    assert found.verdict is PredictionVerdict.INCONCLUSIVE
    assert found.reasons == ("a: 4 processes give no interval; measure 5 or more",)
    assert (found.rows[0].error_low, found.rows[0].error_high) == (None, None)


def test_a_reason_of_several_settings_is_given_once_with_their_names() -> None:
    found = judge(
        {name: predicted(time) for name, time in (("a", 1.0), ("b", 2.0), ("c", 3.0))},
        {"a": measured(1.0, count=4), "b": measured(2.0, count=4), "c": measured(3.0)},
    )
    reason = "4 processes give no interval; measure 5 or more"
    assert found.rounds[0].reasons == (f"a and b: {reason}",)
    few = judge({"a": predicted(1.0), "b": predicted(2.0)}, {"a": measured(1.0, count=4), "b": measured(2.0, count=4)})
    assert few.rounds[0].reasons == (f"every setting: {reason}",)


def test_a_choice_that_is_clearly_slower_than_the_best_is_refuted() -> None:
    """Each prediction is within 10 %, but the setting predicted to be best is 8 % slower than another."""
    found = compared(a=(0.92, 1.0), b=(0.93, 0.92))
    assert (found.chosen, found.best, found.verdict) == ("a", "b", PredictionVerdict.REFUTED)
    assert found.regret == pytest.approx(1.0 / 0.92 - 1)
    assert found.reasons == ("a was predicted to be best and is 8.7 % slower than b",)


def test_regret_is_zero_if_the_best_was_chosen() -> None:
    assert compared(a=(0.9, 0.9), b=(0.95, 1.0)).regret == 0


def test_the_correlation_ranks_only_settings_that_differ_by_more_than_their_noise() -> None:
    """b is predicted on the wrong side of a, from which it does not differ."""
    found = compared(a=(1.002, 1.0), b=(1.0, 1.001), c=(1.1, 1.1), d=(1.2, 1.25))
    assert (found.ranked, found.correlation, found.pairs_in_order) == (("a", "c", "d"), pytest.approx(1.0), 1.0)


def test_a_wrong_order_lowers_the_correlation() -> None:
    found = compared(a=(1.0, 1.0), b=(1.05, 1.1), c=(1.04, 1.2), d=(1.3, 1.3))
    assert found.correlation == pytest.approx(0.8)
    assert found.pairs_in_order == pytest.approx(5 / 6)


def test_an_order_that_is_wrong_refutes_predictions_whose_errors_are_small() -> None:
    found = compared(a=(1.09, 1.0), b=(1.06, 1.03), c=(1.03, 1.06), d=(1.0, 1.09))
    assert (found.verdict, found.correlation) == (PredictionVerdict.REFUTED, pytest.approx(-1))
    assert found.reasons[-1] == "the rank correlation of 4 settings that differ is -1.00"
    assert all(row.verdict is PredictionVerdict.VERIFIED for row in found.rows)


def test_an_order_that_is_partly_wrong_leaves_predictions_undecided() -> None:
    found = compared(a=(1.0, 1.0), b=(1.07, 1.03), c=(1.06, 1.06))
    assert (found.verdict, found.correlation) == (PredictionVerdict.INCONCLUSIVE, pytest.approx(0.5))


def test_two_settings_have_no_correlation() -> None:
    assert compared(a=(1.0, 1.0), b=(2.0, 2.0)).correlation is None


def test_a_change_of_numerics_needs_the_same_loss() -> None:
    def outcome(base: tuple[float, ...], losses: tuple[float, ...]) -> verify.Round:
        predictions = {BASELINE: predicted(1.0), "amp": predicted(0.8, numerics=True)}
        found = {BASELINE: measured(1.0, losses=base), "amp": measured(0.8, losses=losses)}
        return judge(predictions, found).rounds[0]

    assert outcome((2.0,), (2.05,)).verdict is PredictionVerdict.VERIFIED
    assert outcome((2.0,), (2.5,)).reasons == ("amp: it reaches another loss than the baseline",)
    assert outcome((2.0,), (math.nan,)).verdict is PredictionVerdict.REFUTED
    assert outcome((), ()).reasons == ("amp: its loss has not been compared with the baseline's",)


def test_a_loss_may_differ_as_much_as_the_processes_of_the_baseline() -> None:
    assert verify.loss_agrees((2.0, 2.4, 2.2), (2.55,)) is True
    assert verify.loss_agrees((2.2, 2.2, 2.2), (2.55,)) is False


def test_a_setting_that_was_not_measured_has_no_row() -> None:
    found = judge({"a": predicted(1.0), "b": predicted(1.0)}, {"a": measured(1.0)}).rounds[0]
    assert [row.name for row in found.rows] == ["a"]


def test_a_recalibration_adds_a_second_round_and_keeps_the_first() -> None:
    measurements = {name: measured(time) for name, time in (("a", 1.0), ("b", 1.5), ("c", 1.6))}
    first = judge({"a": predicted(1.0), "b": predicted(1.1), "c": predicted(1.2)}, measurements)
    after = {"a": predicted(1.0), "b": predicted(1.5), "c": predicted(1.58)}
    again = judge_again(first, after, measurements, "alpha 3 ms", fitted=["b"])
    assert (first.verdict, again.verdict, again.recalibration) == (
        PredictionVerdict.REFUTED,
        PredictionVerdict.VERIFIED,
        "alpha 3 ms",
    )
    assert again.rounds[0] == first.rounds[0]
    assert [row.fitted for row in again.rounds[1].rows] == [False, True, False]
    assert again.rounds[1].largest_error == pytest.approx(0.02 / 1.6)


def test_a_recalibration_is_not_judged_by_what_it_was_fitted_to() -> None:
    measurements = {"a": measured(1.0)}
    first = judge({"a": predicted(2.0)}, measurements)
    again = judge_again(first, {"a": predicted(1.0)}, {"a": measured(1.001)}, "fit", fitted=["a"])
    assert again.verdict is PredictionVerdict.VERIFIED


def test_other_limits_may_be_set() -> None:
    found = judge({"a": predicted(1.0)}, {"a": measured(1.05)}, ErrorLimits(error=0.02))
    assert found.verdict is PredictionVerdict.REFUTED


def test_a_verification_is_stored_as_json() -> None:
    assert '"verdict":"verified"' in canonical(judge({"a": predicted(1.0)}, {"a": measured(1.0)}))


@settings(deadline=None, max_examples=40, database=None)
@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=8, unique=True))
def test_the_correlation_of_predictions_that_are_right_is_one(times: list[float]) -> None:
    found = compared(**{f"s{at}": (time, time) for at, time in enumerate(times)})
    assert found.correlation in (None, pytest.approx(1.0))
    assert found.regret == pytest.approx(0)


def test_a_change_of_numerics_whose_processes_all_diverged_is_refuted() -> None:
    predictions = {BASELINE: predicted(1.0), "amp": predicted(0.8, numerics=True)}
    found = judge(predictions, {BASELINE: measured(1.0, losses=(2.0,)), "amp": Measurement({}, (math.nan,))}).rounds[0]
    assert [row.name for row in found.rows] == [BASELINE]
    assert (found.verdict, found.reasons) == (PredictionVerdict.REFUTED, ("amp: its loss is not finite",))


def test_a_change_of_numerics_of_which_one_process_diverged_is_refuted() -> None:
    """The other four give no interval."""
    predictions = {BASELINE: predicted(1.0), "amp": predicted(0.8, numerics=True)}
    found = {
        BASELINE: measured(1.0, losses=(2.0,)),
        "amp": measured(0.8, count=4, losses=(2.0, 2.0, 2.0, 2.0, math.nan)),
    }
    assert judge(predictions, found).rounds[0].verdict is PredictionVerdict.REFUTED
