"""Another bandwidth or latency of the link that collectives use."""

from __future__ import annotations

import re
from dataclasses import replace

from keras_matrix.analysis.whatif.collectives import of_trace, ring, time_s, with_rate
from keras_matrix.analysis.whatif.graph import Graph, LinkCalibration, Node
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, WhatIf, WhatIfError, of_fc
from keras_matrix.records.fc.network import UNITS, normal_rate

RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:([kmg])?bit)?", re.ASCII)
TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(s|ms|us)", re.ASCII)
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def parse_rate(text: str) -> float:
    """Return bits per second of a text such as `500mbit`, or of a number."""
    match = RATE.fullmatch(text)
    rate = float(match[1]) * UNITS.get(match[2], 1) if match else 0.0
    if rate <= 0:
        raise WhatIfError(f"bandwidth: must be a rate such as 500mbit, or bits per second, got {text!r}")
    return rate


def parse_latency(text: str) -> float:
    """Return the seconds of a text such as `2ms`."""
    if (match := TIME.fullmatch(text)) is None:
        raise WhatIfError(f"latency: must be a time such as 2ms or 500us, got {text!r}")
    return float(match[1]) * SECONDS[match[2]]


def rate_text(bits_per_s: float) -> str | None:
    """Return a rate as the parameter `network` has it; None if it is not a whole number of kbit/s."""
    kilobits = bits_per_s / 1000
    return normal_rate(f"{round(kilobits)}kbit") if kilobits == round(kilobits) else None


def change_bandwidth(graph: Graph, bits_per_s: float, predict: Predict | None = None) -> Graph:
    """Return the graph with collectives that take as much longer as the calibration of the link says."""
    before = of_trace(graph)
    after = with_rate(before, bits_per_s)

    def changed(node: Node) -> Node:
        one = node.collective
        if one is None or len(one.ranks) < 2:
            return node
        was, is_now = (time_s(link, one.operation, len(one.ranks), one.bytes) for link in (before, after))
        factor = is_now / was if was else 1.0
        return replace(node, durations_ns=tuple(round(value * factor) for value in node.durations_ns))

    return graph.with_nodes((changed(node) for node in graph.nodes), link=after)


def change_latency(graph: Graph, latency_s: float, predict: Predict | None = None) -> Graph:
    """Return the graph with collectives that wait this much longer in each step of their ring."""

    def added_s(operation: str, ranks: int) -> float:
        return latency_s * ring(operation, ranks)[0]

    def changed(node: Node) -> Node:
        if (one := node.collective) is None:
            return node
        more_ns = round(added_s(one.operation, len(one.ranks)) * 1e9)
        return replace(node, durations_ns=tuple(value + more_ns for value in node.durations_ns))

    before = of_trace(graph)
    table = tuple((name, ranks, size, time + added_s(name, ranks)) for name, ranks, size, time in before.table)
    after: LinkCalibration = replace(
        before,
        alpha_s=before.alpha_s + added_s("all_reduce", before.ranks),
        table=table,
        source=f"{before.source}, with {latency_s * 1e3:g} ms of latency",
    )
    return graph.with_nodes((changed(node) for node in graph.nodes), link=after)


def bandwidth_settings(graph: Graph, bits_per_s: float) -> Realised:
    """Return the network of that rate, which `ci/netns` makes."""
    if (text := rate_text(bits_per_s)) is None:
        return Realised(None, f"the rate of a network must be a whole number of kbit/s, got {bits_per_s:g} bit/s")
    return of_fc(graph, "network", {"network": text})


def latency_settings(graph: Graph, latency_s: float) -> Realised:
    """Return that no setting adds latency."""
    return Realised(None, "predicted only: unverified, since no setting here adds latency to a link")


BANDWIDTH = WhatIf(
    "bandwidth", "another rate of the link", "RATE, such as 500mbit", parse_rate, change_bandwidth, bandwidth_settings
)
LATENCY = WhatIf(
    "latency", "more latency of the link", "TIME, such as 2ms", parse_latency, change_latency, latency_settings
)
