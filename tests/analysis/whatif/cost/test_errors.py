"""Errors of operations that were held out, and the choice of a predictor by them."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.cost_model import HeldOutError, OperationPrediction, Predictor, choose, held_out_error


def error(median: float, of_time: float) -> HeldOutError:
    return HeldOutError(median, 2 * median, of_time)


def test_errors_are_relative_and_large_operations_count_more_in_the_share_of_time() -> None:
    found = held_out_error(
        [OperationPrediction(1.1, 1.0, 10), OperationPrediction(50.0, 100.0, 1), OperationPrediction(0.8, 1.0, 10)]
    )
    assert found is not None
    assert [pytest.approx(one) for one in (found.median, found.p90, found.of_time)] == [0.2, 0.44, (1 + 50 + 2) / 120]


def test_without_predictions_no_error_was_measured() -> None:
    assert None is held_out_error([])


@pytest.mark.parametrize(
    ("regression", "roofline", "used", "reason"),
    [
        (error(0.1, 0.1), error(0.2, 0.2), Predictor.REGRESSION, "better than the roofline"),
        (
            error(0.3, 0.1),
            error(0.2, 0.2),
            Predictor.ROOFLINE,
            "worse than the roofline: median 30.0 % against 20.0 %",
        ),
        (error(0.1, 0.3), error(0.2, 0.2), Predictor.ROOFLINE, "share of time 30.0 % against 20.0 %"),
        (None, error(0.2, 0.2), Predictor.ROOFLINE, "too few distinct operations"),
        (None, error(0.6, 0.2), Predictor.NOTHING, "errors of the roofline are above 50.0 %: too few distinct"),
        (
            error(0.1, 0.6),
            error(0.2, 0.7),
            Predictor.NOTHING,
            "errors of the regression are above 50.0 %",
        ),
        (None, None, Predictor.NOTHING, "no operation was held out"),
    ],
)
def test_a_regression_is_used_only_if_it_is_better_in_every_respect(
    regression: HeldOutError | None, roofline: HeldOutError | None, used: Predictor, reason: str
) -> None:
    chosen, why = choose(regression, roofline)
    assert used == chosen
    assert reason in why
