"""Which gradients are summed together: other buckets (torch, JAX) or packs (TensorFlow).

Each bucket is summed as soon as its last gradient is complete, by the time of the link's calibration. That time is
corrected by the ratio of measured to calibrated time of the traced collectives, step by step, so that a prediction of
the traced setting is the measured one. What waited for a traced collective waits for all buckets with its gradients.

Not modelled: the host's work for each bucket, which stays as it was traced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from keras_matrix.analysis.whatif.collectives import (
    MOST_CORRECTION,
    ddp_buckets,
    groups_of,
    of_trace,
    tf_packs,
    time_s,
)
from keras_matrix.analysis.whatif.graph import Collective, Graph, LinkCalibration, Node
from keras_matrix.analysis.whatif.what_ifs.gradients import Sums, sums_of
from keras_matrix.analysis.whatif.what_ifs.rewriting import in_order, renumbered
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, WhatIf, WhatIfError, of_fc, setting
from keras_matrix.records.fc import layer_groups, rules
from keras_matrix.records.text import MIB

NAME, EACH = "tensor_fusion", "each"
CAP = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(?:mb)?", re.ASCII)
BYTES = re.compile(r"([0-9]{1,15})b", re.ASCII)
LINK_LANE = "link"


@dataclass(frozen=True, slots=True)
class Fusion:
    """Buckets by a capacity in MiB, or numbers of gradients, or bytes of a pack; all None: every gradient alone."""

    cap_mb: float | None = None
    counts: tuple[int, ...] | None = None
    bytes_per_pack: int | None = None


def parse(text: str) -> Fusion:
    """Return the fusion of a text: `8` or `8mb`, `3,5,2` or `12,`, `4000000b`, or `each`. Raises `WhatIfError`."""
    if text == EACH:
        return Fusion()
    if match := BYTES.fullmatch(text):
        return Fusion(bytes_per_pack=int(match[1]))
    if (match := CAP.fullmatch(text)) and float(match[1]) > 0:
        return Fusion(cap_mb=float(match[1]))
    try:
        counts = layer_groups.counts(text.removesuffix(","))
    except ValueError:
        counts = ()
    if not counts:
        raise WhatIfError(
            f"{NAME}: must be a capacity in MiB such as 8, numbers of gradients such as 3,5,2, bytes such as 4000000b,"
            f" or each, got {text!r}"
        )
    return Fusion(counts=counts)


def groups(sums: Sums, fusion: Fusion) -> list[list[int]]:
    """Return the positions of the gradients of each bucket. Raises `WhatIfError` for counts that do not fit."""
    sizes = [one.bytes for one in sums.gradients]
    if fusion.counts is not None:
        if (total := sum(fusion.counts)) != len(sizes):
            raise WhatIfError(
                f"{NAME}: its numbers add up to {total}, the trace has {len(sizes)} gradients; give numbers that add up"
                f" to {len(sizes)}, or a capacity in MiB such as 8"
            )
        return groups_of(fusion.counts, len(sizes))
    if fusion.cap_mb is not None:
        return ddp_buckets(sizes, fusion.cap_mb)
    if fusion.bytes_per_pack is not None:
        return tf_packs(sizes, fusion.bytes_per_pack)
    return [[at] for at in range(len(sizes))]


def change(graph: Graph, fusion: Fusion, predict: Predict | None = None) -> Graph:
    """Return the graph with other buckets. Raises `GraphError` without sums of gradients."""
    sums = sums_of(graph)
    return with_groups(graph, sums, groups(sums, _of_backend(graph, fusion)))


def _of_backend(graph: Graph, fusion: Fusion) -> Fusion:
    """Return the fusion as the backend can have it: TensorFlow has no capacity but the bytes of a pack."""
    if graph.header.backend == "tensorflow" and fusion.cap_mb is not None:
        return Fusion(bytes_per_pack=int(fusion.cap_mb * MIB))
    return fusion


def with_groups(graph: Graph, sums: Sums, groups: Sequence[Sequence[int]], *, overlap: bool = True) -> Graph:
    """Return the graph with these buckets, each a list of positions of `sums.gradients`.

    Without `overlap` each waits for all gradients.
    """
    link = of_trace(graph)
    correction = corrections(graph, sums, link)
    first = len(graph.nodes)
    made: list[Node] = []
    by_position: dict[tuple[int, int], int] = {}
    lane, lanes = _lane(graph, sums)
    last = max(node.collective.ordinal for node in graph.nodes if node.collective is not None)
    for rank, pattern in sums.collectives[0].items():
        gaps = _gaps(sums, rank)
        for ordinal, group in enumerate(groups):
            waits = range(len(sums.gradients)) if not overlap else group
            ready = sorted({number for at in waits for number in sums.gradients[at].ready[rank]})
            one = _collective(pattern, sums, last + 1 + ordinal, group)
            nominal_ns = time_s(link, one.operation, len(one.ranks), one.bytes) * 1e9
            node = replace(
                pattern,
                number=first + len(made),
                lane=lane,
                depends=tuple(ready),
                depends_before=(),
                durations_ns=tuple(round(nominal_ns * factor) for factor in correction),
                gaps_ns=gaps,
                starts_ns=(),
                bytes=one.bytes,
                shape=None,
                collective=one,
            )
            by_position |= {(rank, at): node.number for at in group}
            made.append(node)
    removed = {node.number for node in sums.nodes}
    instead = {
        node.number: tuple(dict.fromkeys(by_position[rank, at] for at in sums.groups[of]))
        for of, members in enumerate(sums.collectives)
        for rank, node in members.items()
    }
    kept = [node for node in graph.nodes if node.number not in removed]
    ordered = in_order(graph, kept, made, instead)
    return renumbered(graph, ordered, instead, parallel_lanes=lanes, caveats=_caveats(graph, sums))


def corrections(graph: Graph, sums: Sums, link: LinkCalibration) -> list[float]:
    """Return the measured time of the traced sums by the calibrated one, for each traced step.

    1 for all if ranks are missing, whose waits are in the measured times, or if the link is clearly another one.
    """
    members = [list(one.values()) for one in sums.collectives]
    steps = max(len(node.durations_ns) for node in members[0])
    nominal_ns = 0.0
    for nodes in members:
        if (one := nodes[0].collective) is not None:
            nominal_ns += time_s(link, one.operation, len(one.ranks), one.bytes) * 1e9
    measured_ns = [
        sum(min(node.durations_ns[step % len(node.durations_ns)] for node in nodes) for nodes in members)
        for step in range(steps)
    ]
    found = [value / nominal_ns if nominal_ns else 1.0 for value in measured_ns]
    usual = median(found)
    if graph.header.missing_ranks or not 1 / MOST_CORRECTION <= usual <= MOST_CORRECTION:
        return [1.0] * steps
    return found


def _collective(pattern: Node, sums: Sums, ordinal: int, group: Sequence[int]) -> Collective:
    gradients = [sums.gradients[at] for at in group]
    layers = tuple(one.layer for one in gradients if one.layer is not None)
    sizes = tuple(one.bytes for one in gradients)
    before = pattern.collective
    if before is None:
        raise WhatIfError(f"{NAME}: node {pattern.number} ({pattern.name!r}) is not a collective")
    return replace(
        before,
        ordinal=ordinal,
        bytes=sum(sizes),
        tensors=sizes,
        tensor_layers=layers if len(layers) == len(sizes) else (),
    )


def _gaps(sums: Sums, rank: int) -> tuple[int, ...]:
    """Return the median gap before a rank's sums, for each traced step."""
    rows = [one[rank].gaps_ns for one in sums.collectives]
    return tuple(round(median(values)) for values in zip(*rows, strict=False))


def _lane(graph: Graph, sums: Sums) -> tuple[str, dict[str, int]]:
    """Return the lane of the new sums, and how many run at a time in each lane: as many as in the traced lanes."""
    before = dict(graph.header.parallel_lanes)
    used = {node.lane for node in sums.collectives[0].values()} | {node.lane for node in sums.nodes}
    if len(used) == 1:
        return used.pop(), before
    per_rank: dict[int, set[str]] = {}
    for node in sums.nodes:
        per_rank.setdefault(node.rank, set()).add(node.lane)
    at_a_time = max(sum(before.get(lane, 1) for lane in lanes) for lanes in per_rank.values())
    return LINK_LANE, {**before, LINK_LANE: at_a_time}


def _caveats(graph: Graph, sums: Sums) -> tuple[str, ...]:
    found: list[str] = []
    if not sums.is_exact:
        found.append(
            f"{NAME}: the trace does not say when each gradient was complete; those of one traced collective count as"
            " complete together"
        )
    return tuple(dict.fromkeys((*graph.header.caveats, *found)))


def settings(graph: Graph, fusion: Fusion) -> Realised:
    """Return the parameters of the backend that make these buckets, whose sums overlap with the backward pass."""
    found = _grouping(graph, fusion)
    if found.settings is None or setting(graph, "overlap") != "off":
        return found
    return replace(found, settings={**found.settings, "overlap": rules.DEFAULTS["overlap"]})


def _grouping(graph: Graph, fusion: Fusion) -> Realised:
    backend, fusion = graph.header.backend, _of_backend(graph, fusion)
    if backend == "tensorflow":
        if fusion.bytes_per_pack is None:
            return Realised(None, "TensorFlow's packs have one size: give bytes, such as 4000000b")
        return of_fc(graph, "bytes_per_pack", {"bytes_per_pack": fusion.bytes_per_pack})
    if backend == "torch" and fusion.cap_mb is not None:
        return of_fc(graph, "bucket_cap_mb", {"bucket_cap_mb": fusion.cap_mb, "buckets": ""})
    counts = ",".join(str(len(group)) for group in groups(sums_of(graph), fusion))
    if backend == "torch":
        return of_fc(graph, "buckets", {"buckets": counts, "bucket_cap_mb": 0.0})
    if backend == "jax":
        return of_fc(graph, "buckets", {"buckets": counts})
    return Realised(None, f"no setting of {backend} determines which gradients are summed together")


TENSOR_FUSION = WhatIf(
    NAME,
    "other gradients that are summed together",
    "MIB, such as 8, or NUMBERS of gradients, such as 3,5,2, or BYTES, such as 4000000b, or each",
    parse,
    change,
    settings,
)
