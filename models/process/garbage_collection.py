"""Python's garbage collector, kept out of what is measured."""

from __future__ import annotations

import gc


def settle() -> None:
    """Collect what is garbage by now, and have the collector pass over all else that is there.

    A search of all that a backend has imported takes it 0.2 s. In which epoch that falls would hang on how many objects
    were made by then: on the version of Python, on where its files lie. What an epoch makes is collected as ever.
    """
    gc.collect()
    gc.freeze()
