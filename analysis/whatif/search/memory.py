"""Searches recomputation and gradient accumulation, only where the predicted peak memory exceeds a budget.

The peak is what does not depend on the batch, such as weights, gradients and the optimizer's state, plus the retained
inputs of the layers. Gradient accumulation divides the latter by the number of parts. With recomputation one input is
retained for each segment, and all inputs of one segment at a time.

The estimate ignores fragmentation and temporary buffers; verification measures the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.whatif.contention import exclusive
from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.replay import replay, step_time_s
from keras_matrix.analysis.whatif.search.trajectory import BEST, Trajectory, TrialCollector, skipped, strategy_of
from keras_matrix.analysis.whatif.what_ifs.layers import ALL
from keras_matrix.analysis.whatif.what_ifs.recomputation import segments_of

NAME = "memory"
PARTS = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory of one worker: the measured peak, and the bytes that each layer retains for its backward pass."""

    peak_bytes: int
    retained_bytes: Mapping[str, int]

    def predicted_bytes(self, segments: Sequence[Sequence[str]] | None = None, parts: int = 1) -> int:
        """Return the predicted peak with recomputed segments of layers, and the batch in parts."""
        retained = sum(self.retained_bytes.values())
        fixed = max(0, self.peak_bytes - retained)
        if segments is not None:
            inside = {layer for segment in segments for layer in segment}
            outside = sum(size for layer, size in self.retained_bytes.items() if layer not in inside)
            inputs = sum(self.retained_bytes.get(segment[0], 0) for segment in segments)
            largest = max(sum(self.retained_bytes.get(layer, 0) for layer in segment[1:]) for segment in segments)
            retained = outside + inputs + largest
        return fixed + retained // parts


def search(graph: Graph, use: WorkerMemory, budget_bytes: int, *, before: Sequence[str] = ()) -> Trajectory:
    """Return the fastest settings whose predicted peak is within the budget, or why there are none."""
    graph = exclusive(graph)
    baseline = replay(graph)
    if use.peak_bytes <= budget_bytes:
        return skipped(NAME, baseline, f"the peak of {use.peak_bytes} bytes is within the budget of {budget_bytes}")
    trials = TrialCollector(graph, tuple(before))
    least = use.peak_bytes
    for texts, peak_bytes in _candidates(graph, use):
        least = min(least, peak_bytes)
        if peak_bytes <= budget_bytes:
            try:
                trials.replayed(texts)
            except GraphError as error:
                return skipped(NAME, baseline, error)
    if not trials.found:
        return skipped(
            NAME, baseline, f"no setting fits: the least predicted peak is {least} bytes, above {budget_bytes}"
        )
    ranked = sorted(trials.found, key=lambda one: one.step_time_s)[:BEST]
    strategies = (strategy_of(graph, one.what_ifs, before) for one in ranked)
    return Trajectory(
        NAME,
        baseline.step_time_s,
        tuple(trials.found),
        tuple(sorted(strategies, key=lambda one: one.step_time_s)),
        before=tuple(before),
        screened_s=step_time_s(graph),
    )


def _candidates(graph: Graph, use: WorkerMemory) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield what-ifs and the peak that is predicted with them."""
    segments = segments_of(graph, (ALL,))
    accumulated = [(f"gradient_accumulation={parts}", parts) for parts in PARTS if _divides(graph, parts)]
    yield ("recomputation=all",), use.predicted_bytes(segments)
    for text, parts in accumulated:
        yield (text,), use.predicted_bytes(parts=parts)
    for text, parts in accumulated:
        yield ("recomputation=all", text), use.predicted_bytes(segments, parts)


def _divides(graph: Graph, parts: int) -> bool:
    batch = graph.header.settings.get("batch_size")
    return not isinstance(batch, int) or batch % (parts * graph.header.world_size) == 0
