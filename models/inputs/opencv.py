"""OpenCV, imported without its change of the environment: it prepends its folder to `LD_LIBRARY_PATH`.

That variable is part of a record, because an inherited one may change a figure, and later processes would inherit it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

VARIABLE = "LD_LIBRARY_PATH"


@lru_cache(maxsize=1)
def opencv() -> Any:
    """Return the module `cv2`, bound to one thread: workers already use the cores. Raises ImportError."""
    before = os.environ.get(VARIABLE)
    try:
        import cv2
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
    cv2.setNumThreads(1)
    return cv2
