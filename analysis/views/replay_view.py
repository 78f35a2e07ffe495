"""A replay as it is shown: its step, what the critical path consists of, and its errors. Pure.

Terminal and JSON document render it: they choose columns, units and words. The figures of what-ifs are those of their
`Strategy`, the figures of a verification those of its `Verification`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import HeldOut, PathPart, Replay, Share, explained


@dataclass(frozen=True, slots=True)
class PathOperation:
    """The parts of a critical path with one name and phase: their time in seconds, its share of a step, and number."""

    name: str
    phase: str
    share: float
    time_s: float
    count: int


@dataclass(frozen=True, slots=True)
class ReplayView:
    """A replay of a graph with the errors of held-out steps; what-ifs start from `baseline`, without the profiler."""

    graph: Graph
    replay: Replay
    held_out: tuple[HeldOut, ...]
    baseline: Replay

    @property
    def coverage(self) -> float:
        """The share of the traced step that is explained."""
        return explained(self.graph, self.replay.step_time_s)

    @property
    def exposed_share(self) -> float:
        """The share of the step in which a rank only communicates."""
        return self.replay.exposed_communication_s / self.replay.step_time_s

    @property
    def mean_error(self) -> float:
        """The mean absolute error of the held-out steps; there must be one."""
        return fmean(abs(step.error) for step in self.held_out)

    @property
    def mean_difference(self) -> float:
        """The mean absolute error of taking the step before as the prediction: by how much steps differ."""
        return fmean(abs(step.repeated_error) for step in self.held_out)

    @property
    def shares(self) -> dict[str, tuple[Share, ...]]:
        """The shares of the critical path by phase, layer and kind."""
        return {"phase": self.replay.by_phase, "layer": self.replay.by_layer, "kind": self.replay.by_kind}

    def operations(self, most: int) -> list[PathOperation]:
        """Return the operations of the critical path with the most time, and the sum of the others."""
        parts_by_operation: dict[tuple[str, str], list[PathPart]] = {}
        for path_part in self.replay.critical_path:
            parts_by_operation.setdefault((path_part.node.name, path_part.node.phase or ""), []).append(path_part)
        ordered = sorted(parts_by_operation.items(), key=lambda item: -sum(path_part.time_s for path_part in item[1]))
        shown_count = _shown(len(ordered), most)
        rows = [self._operation(name, phase, path_parts) for (name, phase), path_parts in ordered[:shown_count]]
        if remaining_parts := [path_part for _, path_parts in ordered[shown_count:] for path_part in path_parts]:
            rows.append(self._operation(f"{len(ordered) - shown_count} others", "", remaining_parts))
        return rows

    def _operation(self, name: str, phase: str, path_parts: Sequence[PathPart]) -> PathOperation:
        time_s = sum(path_part.time_s for path_part in path_parts)
        return PathOperation(name, phase, time_s / self.replay.step_time_s, time_s, len(path_parts))


def largest_shares(shares: Sequence[Share], most: int) -> list[Share]:
    """Return the largest shares, and the sum of the others."""
    shown_count = _shown(len(shares), most)
    remaining_shares = shares[shown_count:]
    time_s, share = sum(share.time_s for share in remaining_shares), sum(share.share for share in remaining_shares)
    return [
        *shares[:shown_count],
        *([Share(f"{len(remaining_shares)} others", time_s, share)] if remaining_shares else []),
    ]


def _shown(count: int, most: int) -> int:
    """Return how many of so many rows are shown: at most `most`, but never all except one."""
    return count if count <= most + 1 else most
