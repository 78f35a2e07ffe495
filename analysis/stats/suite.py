"""One ratio for many workloads: what moves them all together, and cannot be seen in any of them alone.

A shift of 2 % in every workload drowns in the noise of each; over thirty of them it stands out. The figure is the
geometric mean of the workloads' ratios, each of the same weight, with an interval over blocks: per block the mean of
the workloads' log ratios is taken first, so that what a block did to all of them counts once.

Promise: only blocks that every workload has are counted; a workload without a ratio is left out and named.
It does not know which workload moved: the rows say that.

Source of the mean: Fleming and Wallace, "How not to lie with statistics: the correct way to summarize benchmark
results", CACM 29 (1986).
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from keras_matrix.analysis.stats.blocks import Estimate, of_logs, p_value
from keras_matrix.analysis.stats.sequential import FIXED, Looks

Block = TypeVar("Block", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SuiteRatio:
    """The geometric mean ratio of a suite: over which workloads and blocks, and who was left out.

    `separate` where the two sides were measured in separate sessions; then there are no blocks.
    """

    estimate: Estimate
    p_value: float | None
    workloads: tuple[str, ...]
    left_out: tuple[str, ...]
    separate: bool = False


def suite_logs(logs: Mapping[str, Mapping[Block, float]]) -> dict[Block, float]:
    """Return, for each block that all workloads have, the mean of their log ratios."""
    if not logs:
        return {}
    first, *others = logs.values()
    common = [block for block in first if all(block in other for other in others)]
    return {block: statistics.fmean(workload[block] for workload in logs.values()) for block in common}


def suite_ratio(logs: Mapping[str, Mapping[Block, float]], looks: Looks = FIXED) -> SuiteRatio | None:
    """Return the suite's ratio from each workload's log ratio per block; None where no workload has one.

    Workloads without any block are left out; so are those that share no block with the workloads named before them.
    `looks` are those after which blocks stopped being added: its interval has the confidence that the workloads' have.
    """
    kept: dict[str, Mapping[Block, float]] = {}
    for name, blocks in logs.items():
        if blocks and suite_logs({**kept, name: blocks}):
            kept[name] = blocks
    values = list(suite_logs(kept).values())
    estimate = of_logs(values, looks.confidence(len(values)))
    if estimate is None:
        return None
    return SuiteRatio(estimate, p_value(values), tuple(kept), _without(list(logs), kept))


def per_group(
    logs: Mapping[str, Mapping[str, Mapping[Block, float]]], looks: Looks = FIXED
) -> tuple[dict[str, SuiteRatio], SuiteRatio | None]:
    """Return the ratio of each group (a backend) and of the whole, from group -> workload -> block -> log ratio.

    In the whole each workload of each group has the same weight.
    """
    groups = {group: suite_ratio(workloads, looks) for group, workloads in logs.items()}
    flat = {f"{group} {name}": blocks for group, named in logs.items() for name, blocks in named.items()}
    return {group: ratio for group, ratio in groups.items() if ratio}, suite_ratio(flat, looks)


def _without(names: Sequence[str], kept: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in kept)
