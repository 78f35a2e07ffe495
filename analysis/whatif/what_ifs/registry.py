"""All what-ifs by name, and texts such as `workers=4` that choose one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.what_ifs.gradients import NO_INPUT_STALLS, NO_OVERLAP, TENSOR_FUSION
from keras_matrix.analysis.whatif.what_ifs.layers import OP_FUSION, PRECISION, RECOMPUTATION
from keras_matrix.analysis.whatif.what_ifs.what_if import (
    Predict,
    Realised,
    Scalar,
    WhatIf,
    WhatIfError,
    setting,
)
from keras_matrix.analysis.whatif.what_ifs.workers import BANDWIDTH, BATCH_SIZE, GRADIENT_ACCUMULATION, LATENCY, WORKERS

WHAT_IFS: dict[str, WhatIf] = {
    what_if.name: what_if
    for what_if in (
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
# Those whose prediction is one of collectives.
COMMUNICATION = (WORKERS, BANDWIDTH, LATENCY, TENSOR_FUSION, NO_OVERLAP)
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
class ChosenWhatIf:
    """A what-if with its value, and the text that it was chosen by."""

    what_if: WhatIf
    value: Any
    text: str


def read(text: str) -> ChosenWhatIf:
    """Return the what-if of a text `name=value`. Raises `WhatIfError`, which suggests a name that is near."""
    name, _, value = text.partition("=")
    if (what_if := WHAT_IFS.get(name)) is None:
        close_matches = (
            difflib.get_close_matches(name, [*WHAT_IFS, *ALIASES], n=1, cutoff=0.6) if len(name) <= 64 else []
        )
        best = ALIASES.get(close_matches[0], close_matches[0]) if close_matches else None
        advice = f"did you mean {best}?" if best else f"known are {', '.join(WHAT_IFS)}"
        raise WhatIfError(f"--what-if: {name!r} is not known; {advice}")
    if what_if.value and not value:
        raise WhatIfError(f"--what-if: {name} needs a value: {name}={what_if.value}")
    return ChosenWhatIf(what_if, what_if.parse(value), text)


def apply(graph: Graph, choices: Iterable[ChosenWhatIf], predict: Predict | None = None) -> Graph:
    """Return the graph after all changes that have an effect, one after the other.

    Raises `WhatIfError`, which names the text of the what-if.
    """
    for choice in effective(graph, tuple(choices)):
        graph = _changed(graph, choice, predict)
    return graph


def realised(graph: Graph, choices: Iterable[ChosenWhatIf], predict: Predict | None = None) -> Realised:
    """Return the settings that realise all changes together; None, with the reasons, if one has none.

    Raises `WhatIfError` as `apply`.
    """
    settings: dict[str, Scalar] = {}
    reasons: dict[str, list[str]] = {}
    effective_choices = effective(graph, tuple(choices))
    for choice in effective_choices:
        with _named(choice):
            realisation = choice.what_if.settings(graph, choice.value)
        if realisation.settings is None:
            reasons.setdefault(realisation.reason, []).append(choice.text)
        else:
            settings |= realisation.settings
        graph = _changed(graph, choice, predict)
    texts = [
        reason if 1 < len(names) == len(effective_choices) else f"{', '.join(names)}: {reason}"
        for reason, names in reasons.items()
    ]
    return Realised(None if reasons else settings, "; ".join(texts))


def effective(graph: Graph, choices: Sequence[ChosenWhatIf]) -> list[ChosenWhatIf]:
    """Return the what-ifs that have an effect in a combination, in their order: all but those of `without_effect`."""
    ineffective_choices = [choice for choice, _ in without_effect(graph, choices)]
    return [choice for choice in choices if all(choice is not other for other in ineffective_choices)]


def without_effect(graph: Graph, choices: Sequence[ChosenWhatIf]) -> list[tuple[ChosenWhatIf, str]]:
    """Return the what-ifs that another one of the combination excludes, each with the reason."""
    one_worker = next((choice for choice in choices if choice.what_if is WORKERS and choice.value == 1), None)
    if one_worker is not None and graph.header.world_size > 1:
        communicating = [
            choice for choice in choices if choice.what_if in COMMUNICATION and choice.what_if is not WORKERS
        ]
        return [(choice, f"with {one_worker.text} nothing is sent or summed over workers") for choice in communicating]
    summing = [choice for choice in choices if choice.what_if in (TENSOR_FUSION, NO_OVERLAP)]
    if {TENSOR_FUSION.name, NO_OVERLAP.name} != {choice.what_if.name for choice in summing}:
        return []
    first_choice, last_choice = summing[0], summing[-1]
    if last_choice.what_if is TENSOR_FUSION:
        return [(first_choice, f"the sums of {last_choice.text}, which comes later, overlap with the backward pass")]
    if setting(graph, "workload") == "fc":
        return [(first_choice, f"with {last_choice.text} the workload fc sums each gradient by itself, in no buckets")]
    return []


def _changed(graph: Graph, choice: ChosenWhatIf, predict: Predict | None) -> Graph:
    with _named(choice):
        return choice.what_if.apply(graph, choice.value, predict)


@contextmanager
def _named(choice: ChosenWhatIf) -> Iterator[None]:
    """Make an error begin with the text of the what-if, as it was written."""
    try:
        yield
    except GraphError as error:
        raise WhatIfError(f"{choice.text}: {str(error).removeprefix(f'{choice.what_if.name}: ')}") from error
