"""One ratio for many workloads, to detect shifts that are common to all and too small to detect in one.

A shift of 2 % in every workload is within the noise of each; over thirty of them it is significant. The figure is the
geometric mean of the workloads' ratios, each of the same weight, with an interval over blocks: per block the mean of
the workloads' log ratios is taken first, so that an effect of a block on all of them counts once.

Guarantee: only blocks that every workload has are counted; a workload without a ratio is left out and named.
Which workload moved is visible in the rows only.

Source of the mean: Fleming and Wallace, "How not to lie with statistics: the correct way to summarize benchmark
results", CACM 29 (1986).
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from keras_matrix.analysis.stats.blocks import Estimate, of_logs, p_value
from keras_matrix.analysis.stats.sequential import FIXED, Looks

Block = TypeVar("Block", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SuiteRatio:
    """The geometric mean ratio of a suite, the workloads it is over, and those that were left out.

    `separate`: the two sides were measured in separate sessions, so that there are no blocks. `machines`: those over
    which the blocks of a workload are spread, if several; there is no interval then.
    """

    estimate: Estimate
    p_value: float | None
    workloads: tuple[str, ...]
    left_out: tuple[str, ...]
    separate: bool = False
    machines: tuple[str, ...] = ()

    def named(self, titles: Mapping[str, str]) -> SuiteRatio:
        """Return the ratio with the workloads under their titles instead of the keys that they were given by."""
        named, left_out = (tuple(titles[key] for key in keys) for keys in (self.workloads, self.left_out))
        return replace(self, workloads=named, left_out=left_out)


def suite_logs(logs: Mapping[str, Mapping[Block, float]]) -> dict[Block, float]:
    """Return, for each block that all workloads have, the mean of their log ratios."""
    if not logs:
        return {}
    first, *others = logs.values()
    common = [block for block in first if all(block in other for other in others)]
    return {block: statistics.fmean(workload[block] for workload in logs.values()) for block in common}


def suite_ratio(logs: Mapping[str, Mapping[Block, float]], looks: Looks = FIXED) -> SuiteRatio | None:
    """Return the suite's ratio from each workload's log ratio per block; None if no workload has one.

    Workloads without blocks are left out, as are those that share no block with the workloads before them. `looks` are
    those after which no more blocks were added: the interval has the same confidence as the workloads' intervals.
    """
    used: dict[str, Mapping[Block, float]] = {}
    for name, blocks in logs.items():
        if blocks and suite_logs({**used, name: blocks}):
            used[name] = blocks
    values = list(suite_logs(used).values())
    estimate = of_logs(values, looks.confidence(len(values)))
    left_out = tuple(name for name in logs if name not in used)
    return SuiteRatio(estimate, p_value(values), tuple(used), left_out) if estimate else None


def per_group(
    logs: Mapping[str, Mapping[str, Mapping[Block, float]]], looks: Looks = FIXED
) -> tuple[dict[str, SuiteRatio], SuiteRatio | None]:
    """Return the ratio of each group (a backend) and over all, from group -> workload -> block -> log ratio.

    In the overall ratio each workload of each group has the same weight.
    """
    groups = {group: suite_ratio(workloads, looks) for group, workloads in logs.items()}
    flat = {f"{group} {name}": blocks for group, named in logs.items() for name, blocks in named.items()}
    return {group: ratio for group, ratio in groups.items() if ratio}, suite_ratio(flat, looks)
