"""All what-ifs by name, and texts such as `workers=4` that choose one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.what_ifs.batch import BATCH_SIZE, GRADIENT_ACCUMULATION
from keras_matrix.analysis.whatif.what_ifs.link import BANDWIDTH, LATENCY
from keras_matrix.analysis.whatif.what_ifs.op_fusion import OP_FUSION
from keras_matrix.analysis.whatif.what_ifs.precision import PRECISION
from keras_matrix.analysis.whatif.what_ifs.recomputation import RECOMPUTATION
from keras_matrix.analysis.whatif.what_ifs.removal import NO_INPUT_STALLS, NO_OVERLAP
from keras_matrix.analysis.whatif.what_ifs.tensor_fusion import TENSOR_FUSION
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, Scalar, WhatIf, WhatIfError
from keras_matrix.analysis.whatif.what_ifs.workers import WORKERS

WHAT_IFS: dict[str, WhatIf] = {
    one.name: one
    for one in (
        WORKERS,
        BANDWIDTH,
        LATENCY,
        TENSOR_FUSION,
        OP_FUSION,
        PRECISION,
        BATCH_SIZE,
        GRADIENT_ACCUMULATION,
        RECOMPUTATION,
        NO_OVERLAP,
        NO_INPUT_STALLS,
    )
}
# Names of settings and other tools for the same, which users may type.
ALIASES = {
    "network": "bandwidth",
    "buckets": "tensor_fusion",
    "bucket_cap_mb": "tensor_fusion",
    "bytes_per_pack": "tensor_fusion",
    "fuse": "op_fusion",
    "xla": "op_fusion",
    "amp": "precision",
    "recompute": "recomputation",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A what-if with its value, and the text that it was chosen by."""

    what_if: WhatIf
    value: Any
    text: str


def read(text: str) -> Choice:
    """Return the what-if of a text `name=value`. Raises `WhatIfError`, which suggests a name that is near."""
    name, _, value = text.partition("=")
    if (what_if := WHAT_IFS.get(name)) is None:
        near = difflib.get_close_matches(name, [*WHAT_IFS, *ALIASES], n=1, cutoff=0.6) if len(name) <= 64 else []
        best = ALIASES.get(near[0], near[0]) if near else None
        advice = f"did you mean {best}?" if best else f"known are {', '.join(WHAT_IFS)}"
        raise WhatIfError(f"--what-if: {name!r} is not known; {advice}")
    if what_if.value and not value:
        raise WhatIfError(f"--what-if: {name} needs a value: {name}={what_if.value}")
    return Choice(what_if, what_if.parse(value), text)


def apply(graph: Graph, choices: Iterable[Choice], predict: Predict | None = None) -> Graph:
    """Return the graph after all changes, one after the other. Raises `GraphError`."""
    for one in choices:
        graph = one.what_if.apply(graph, one.value, predict)
    return graph


def realised(graph: Graph, choices: Iterable[Choice], predict: Predict | None = None) -> Realised:
    """Return the settings that realise all changes together; None, with the reasons, if one has none."""
    settings: dict[str, Scalar] = {}
    reasons: list[str] = []
    for one in choices:
        found = one.what_if.settings(graph, one.value)
        if found.settings is None:
            reasons.append(f"{one.text}: {found.reason}")
        else:
            settings |= found.settings
        graph = one.what_if.apply(graph, one.value, predict)
    return Realised(None if reasons else settings, "; ".join(reasons))
