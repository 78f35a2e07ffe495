"""The packages whose versions are recorded, from which an environment is made again. Pure.

KerasHub is recorded of a cell that imports it. Limit: other packages that a user's workload imports are not.
"""

from __future__ import annotations

from keras_matrix.records.backends import TABLE

KERAS_HUB = "keras-hub"
# What KerasHub requires, but not for models without a tokenizer: it brings TensorFlow.
NOT_NEEDED = "tensorflow-text"
DISTRIBUTIONS = ("keras", *(name for one in TABLE.values() for name in one.packages), "numpy", KERAS_HUB)
