"""The trees that scikit-learn learns predict the same as plain numbers."""

from __future__ import annotations

import math
import random
import sys

import pytest

from keras_matrix.analysis.whatif.cost_model import LEARNING_RATE, predicted
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.whatif import cost_regressor
from keras_matrix.runner.whatif.cost_regressor import regressor


def test_plain_trees_predict_what_the_library_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    fitted: list[GradientBoostingRegressor] = []
    fit = GradientBoostingRegressor.fit
    monkeypatch.setattr(GradientBoostingRegressor, "fit", lambda self, *data: fitted.append(fit(self, *data)) or self)
    chance = random.Random(0)
    rows = [[chance.uniform(0, 30), 1 / chance.randint(1, 99), float(chance.randint(0, 3))] for _ in range(200)]
    targets = [math.sin(row[0]) + 0.2 * row[2] for row in rows]
    trees = regressor().learn(rows, targets)
    assert {tree.problem(3) for tree in trees} == {None}
    assert len(trees) == cost_regressor.TREES
    own = [predicted(trees, LEARNING_RATE, row) for row in rows]
    assert own == pytest.approx(list(fitted[0].predict(rows)), abs=1e-12)


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UsageError, match=r"costmodel train: needs scikit-learn.*pip install 'keras-matrix\[whatif\]'"):
        regressor()
