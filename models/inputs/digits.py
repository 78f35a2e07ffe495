"""Real handwritten digits that need no network: scikit-learn's 1797 images of 8x8 in 17 grey levels.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.inputs.keras_datasets import DatasetUnavailable


def load_digits() -> tuple[Any, Any]:
    """(1797, 8, 8, 1) uint8 in 0..255 and (1797,) class numbers. Raises DatasetUnavailable without scikit-learn."""
    try:
        from sklearn import datasets
    except ImportError as problem:
        raise DatasetUnavailable(
            "data 'digits' comes with scikit-learn, which is not installed here; install scikit-learn>=1.7, "
            "or use data: synthetic"
        ) from problem
    bunch = datasets.load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return grey[..., None], bunch.target.astype(np.int32)
