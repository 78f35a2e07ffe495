"""The layers of a graph, and texts that name some of them: `0-3,6`, `conv1,dense_2`, or `all`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.what_ifs.what_if import WhatIfError

RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
NUMBERED = re.compile(r"layer_([0-9]+)", re.ASCII)
ALL = "all"


def layers_of(graph: Graph) -> tuple[str, ...]:
    """Return the names of the layers, in the order in which the forward pass reaches them."""
    named = [node for node in graph.nodes if node.layer is not None]
    forward = [node for node in named if node.phase == "forward"]
    found = dict.fromkeys(node.layer for node in (*forward, *named) if node.layer is not None)
    if found and all(NUMBERED.fullmatch(name) for name in found):
        return tuple(sorted(found, key=lambda name: int(name.rpartition("_")[2])))
    return tuple(found)


def named(graph: Graph, text: str, what_if: str) -> tuple[str, ...]:
    """Return the layers that a text names: `a-b` are numbers from 0, anything else is a name. Raises `WhatIfError`."""
    known = layers_of(graph)
    if not known:
        raise WhatIfError(f"{what_if}: no operation of {graph.header.source} has a layer; trace with layers")
    if text == ALL:
        return known
    chosen: list[str] = []
    for part in text.split(","):
        if part in known:
            chosen.append(part)
        elif match := RANGE.fullmatch(part):
            first, last = int(match[1]), int(match[2] or match[1])
            if not first <= last < len(known):
                raise WhatIfError(f"{what_if}: must be layers from 0 to {len(known) - 1}, got {part!r}")
            chosen += known[first : last + 1]
        else:
            raise WhatIfError(f"{what_if}: has no layer {part!r}; layers are {', '.join(known[:8])}")
    return tuple(dict.fromkeys(chosen))


def as_text(graph: Graph, layers: Sequence[str]) -> str:
    """Return layers as numbers and ranges of them, such as `0-3,6`."""
    known = layers_of(graph)
    numbers = sorted(known.index(name) for name in layers)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
