"""The categories of events in PyTorch's file, by their names of today, and which are of accelerators that nobody reads.

Until PyTorch 1.10 they were `Operator`, `Runtime`, `Kernel`, `Memcpy` and `Memset`, and an annotation was an operator.
Other accelerators call their runtime something else, with the same events (`xpu_runtime`), or have events of their own
kinds (`mtia_ccp_events`), whose meaning is theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from keras_matrix.records.traces.request import MARK

RENAMED = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "xpu_runtime": "cuda_runtime",
    "xpu_driver": "cuda_driver",
}
ANNOTATED = (MARK, "ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#", "DistributedDataParallel.", "## ")
# What a category of an accelerator begins with; events of its runtime are on the host.
ACCELERATORS = ("mtia_", "hpu_", "privateuse1_", "glow_", "npu_")
OF_HOST = ": the times are those of its host"
ON_HOST = ("_runtime", "_driver")
MOST_NAMED = 5


def category_of(event: Mapping[str, Any]) -> str | None:
    """Return the category of an event by its name of today; None if it has none."""
    category = event.get("cat")
    if category == "Operator" and str(event.get("name")).startswith(ANNOTATED):
        return "user_annotation"
    return RENAMED.get(category, category) if isinstance(category, str) else None


def is_unread_work(category: str) -> bool:
    """Return whether events of a category are work of an accelerator that is not read."""
    return category.startswith(ACCELERATORS) and not category.endswith(ON_HOST)


def unread(others: Counter[str], *, has_device: bool) -> str:
    """Return a sentence about the work of an accelerator that is not read, given the number of events by category.

    With work of a device that is read, the times are not those of the host.
    """
    counts = {category: count for category, count in others.items() if is_unread_work(category)}
    if not counts:
        return ""
    return (
        f"{sum(counts.values()):,} events of an accelerator ({', '.join(sorted(counts))}) are left out, because this"
        f" program does not know what they mean{'' if has_device else OF_HOST}"
    )


def kinds(others: Counter[str]) -> str:
    """Return which categories of events a file has in place of those that are read, in brackets; "" without any."""
    return f" (of the categories {', '.join(name for name, _ in others.most_common(MOST_NAMED))})" if others else ""
