"""The share of a step spent in collectives."""

from __future__ import annotations

import pytest

from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.fc.communication import Communication, TimingMethod


def test_the_share_is_the_median_over_neighbouring_epochs() -> None:
    found = Communication(TimingMethod.PROFILED, [2.0, 4.0, 10.0], [1.0, 3.0, 1.0])
    assert found.share == pytest.approx(0.5)
    assert found.step_time_s == 4.0


def test_it_survives_its_file() -> None:
    found = Communication(TimingMethod.TIMED, [0.2], [0.1])
    assert decode(Communication, to_json(found)) == found
