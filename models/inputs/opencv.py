"""OpenCV, imported without its change of the environment: it prepends its folder to `LD_LIBRARY_PATH`.

That variable is part of a record, because an inherited one may change a figure, and later processes would inherit it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from keras_matrix.records.host.inherited_environment import kept


@lru_cache(maxsize=1)
def opencv() -> Any:
    """Return the module `cv2`, bound to one thread: workers already use the cores. Raises ImportError."""
    with kept(os.environ):
        import cv2
    cv2.setNumThreads(1)
    return cv2
