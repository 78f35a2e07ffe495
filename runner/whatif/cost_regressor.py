"""Learns regression trees with scikit-learn, and returns them as plain numbers.

Gradient boosting of small trees (Friedman, "Greedy function approximation: a gradient boosting machine", Annals of
Statistics 29(5), 2001) on absolute errors, so that a few outliers do not decide. `HistGradientBoostingRegressor` would
be faster on many samples, but its trees are private attributes, and a kind has a few thousand samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from keras_matrix.analysis.whatif.cost_model import LEARNING_RATE, DecisionTree, Regressor
from keras_matrix.runner.errors import UsageError

LIBRARY = "scikit-learn"
TREES, DEPTH, LEAST_IN_LEAF, SEED = 100, 3, 3, 0


def regressor() -> Regressor:
    """Return the regressor. Raises `UsageError` if its library is not installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"costmodel train: needs {LIBRARY}, which is not installed ({error}); install it with: "
            "pip install 'keras-matrix[whatif]'. Reading and using a model does not need it"
        ) from error
    return Regressor(_learn, {LIBRARY: version(LIBRARY)})


def _learn(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[DecisionTree]:
    """Return trees whose sum x `LEARNING_RATE` predicts the targets."""
    from sklearn.ensemble import GradientBoostingRegressor

    regressor = GradientBoostingRegressor(
        loss="absolute_error",
        learning_rate=LEARNING_RATE,
        n_estimators=TREES,
        max_depth=DEPTH,
        min_samples_leaf=LEAST_IN_LEAF,
        init="zero",  # the roofline is the starting point; without a constant the trees are the complete model
        random_state=SEED,
    ).fit(rows, targets)
    return [_plain(estimator.tree_) for estimator in regressor.estimators_[:, 0]]


def _plain(tree: object) -> DecisionTree:
    """Return a tree from the documented arrays of `sklearn.tree._tree.Tree`."""
    left, right, feature, threshold, value = (
        getattr(tree, name) for name in ("children_left", "children_right", "feature", "threshold", "value")
    )
    return DecisionTree(
        feature=[max(0, int(number)) for number in feature],
        threshold=[float(number) for number in threshold],
        left=[int(number) for number in left],
        right=[int(number) for number in right],
        value=[float(number) for number in value[:, 0, 0]],
    )
