"""The packages whose versions are recorded, from which an environment is made again. Pure.

KerasHub is recorded of a cell that imports it. Limit: other packages that a user's workload imports are not.
"""

from __future__ import annotations

from keras_matrix.records.backends import TABLE

KERAS_HUB = "keras-hub"
# What KerasHub requires, but not for models without a tokenizer: it brings TensorFlow.
NOT_NEEDED = "tensorflow-text"
_PLUGINS = tuple(name for one in TABLE.values() for name in one.plugins)
DISTRIBUTIONS = ("keras", *(name for one in TABLE.values() for name in one.packages), *_PLUGINS, "numpy", KERAS_HUB)
# Earlier records do not state these even if the cell used them.
STATED_LATER = frozenset({*_PLUGINS, KERAS_HUB})
