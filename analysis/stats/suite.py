"""One ratio for many workloads, to detect shifts that are common to all and too small to detect in one.

A shift of 2 % in every workload is within the noise of each; over thirty of them it is significant. The figure is the
geometric mean of the workloads' ratios, each of the same weight, with an interval over blocks: per block the mean of
the workloads' log ratios is taken first, so that an effect of a block on all of them counts once.

Guarantee: only blocks that every workload has are counted; a workload without a ratio is left out and named; neither
the order of workloads nor that of backends changes a figure. Which workload moved is visible in the rows only.

Each league has such a ratio of each backend to the leading one (`suite`).

Source of the mean: Fleming and Wallace, "How not to lie with statistics: the correct way to summarize benchmark
results", CACM 29 (1986).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME
from keras_matrix.analysis.comparison.table import Row, in_order, log_ratios, logs_by_machine
from keras_matrix.analysis.stats.blocks import Estimate, of_logs, p_value
from keras_matrix.analysis.stats.sequential import FIXED, Looks
from keras_matrix.analysis.stats.sessions import geometric_mean, separate_ratio
from keras_matrix.records.settings import KERAS, ON_BATCH

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
        workload_titles, left_out = (tuple(titles[key] for key in keys) for keys in (self.workloads, self.left_out))
        return replace(self, workloads=workload_titles, left_out=left_out)


def suite_logs(logs: Mapping[str, Mapping[Block, float]]) -> dict[Block, float]:
    """Return, for each block that all workloads have, the mean of their log ratios."""
    if not logs:
        return {}
    first_logs, *others = logs.values()
    common = [block for block in first_logs if all(block in other for other in others)]
    return {block: statistics.fmean(workload[block] for workload in logs.values()) for block in common}


def suite_ratio(logs: Mapping[str, Mapping[Block, float]], looks: Looks = FIXED) -> SuiteRatio | None:
    """Return the suite's ratio from each workload's log ratio per block; None if no workload has one.

    Workloads without blocks are left out, as are those that share no block with all the workloads taken before them:
    first come those with the most blocks. `looks` are those after which no more blocks were added: the interval has
    the same confidence as the workloads' intervals.
    """
    used_logs: dict[str, Mapping[Block, float]] = {}
    for name, blocks in sorted(logs.items(), key=lambda named: (-len(named[1]), named[0])):
        if blocks and suite_logs({**used_logs, name: blocks}):
            used_logs[name] = blocks
    used_logs = {name: blocks for name, blocks in logs.items() if name in used_logs}
    values = list(suite_logs(used_logs).values())
    estimate = of_logs(values, looks.confidence(len(values)))
    left_out = tuple(name for name in logs if name not in used_logs)
    return SuiteRatio(estimate, p_value(values), tuple(used_logs), left_out) if estimate else None


def per_group(
    logs: Mapping[str, Mapping[str, Mapping[Block, float]]], looks: Looks = FIXED
) -> tuple[dict[str, SuiteRatio], SuiteRatio | None]:
    """Return the ratio of each group (a backend) and over all, from group -> workload -> block -> log ratio.

    In the overall ratio each workload of each group has the same weight.
    """
    groups = {group: suite_ratio(workloads, looks) for group, workloads in logs.items()}
    flat = {
        f"{group} {name}": blocks for group, blocks_by_name in logs.items() for name, blocks in blocks_by_name.items()
    }
    return {group: ratio for group, ratio in groups.items() if ratio}, suite_ratio(flat, looks)


@dataclass(frozen=True, slots=True)
class Suite:
    """The ratios of the suite's time on each backend to that on `against`, within one league.

    `several_devices`, `not_keras` and `other_calls` are the titles of the rows that are left out: on several devices,
    of other implementations than Keras, and of other calls than `predict_on_batch`.
    """

    league: str
    against: str
    ratios: dict[str, SuiteRatio]
    several_devices: tuple[str, ...] = ()
    not_keras: tuple[str, ...] = ()
    other_calls: tuple[str, ...] = ()

    @property
    def left_out(self) -> str:
        """What is left out and why, empty for nothing."""
        reasons = {
            "several devices": self.several_devices,
            "another implementation than Keras": self.not_keras,
            f"another call than {ON_BATCH}": self.other_calls,
        }
        return "; ".join(f"{', '.join(titles)} ({why})" for why, titles in reasons.items() if titles)


def suite(rows: Sequence[Row]) -> list[Suite]:
    """Return, per league, the geometric mean ratio of each backend to the leading one, over the comparable rows.

    Backends of one session are paired by block, those of separate sessions compared as in `analysis.stats.sessions`. If
    the blocks of a work are spread over several machines, a block's number is not one machine for all works: the mean
    of the works' ratios then has no interval. A work on several devices, by another implementation than Keras, or by
    another call than `predict_on_batch`, repeats another work, and is left out.
    """
    leagues: dict[str, list[Row]] = {}
    for row in rows:
        if row.ratios and all(cell.figure == STEP_TIME for cell in row.cells.values()):
            leagues.setdefault(next(iter(row.cells.values())).settings.league, []).append(row)
    return [made_suite for league, members in sorted(leagues.items()) if (made_suite := _suite(league, members))]


def _suite(league: str, members: Sequence[Row]) -> Suite | None:
    """Return the ratios of a league's backends, each over the rows in which it and the leading one both ran.

    The leading backend is the one that is compared with the most others; of several the one of which the others take
    the largest multiple, by the geometric mean. So it depends on figures alone, also where backends ran different rows.
    """
    rows = [row for row in members if not any(test(row) for test in _REPEATING)]
    names = in_order(name for row in rows for name in row.cells)
    present_backends = [b for b in names if any(b in row.cells and row.cells[b].step_time for row in rows)]
    ratios = {
        backend: {
            other: ratio
            for other in present_backends
            if other != backend and (ratio := _suite_ratio(rows, other, backend)) is not None
        }
        for backend in present_backends
    }
    if not any(ratios.values()):
        return None
    reference = max(
        present_backends,
        key=lambda backend: (
            len(ratios[backend]),
            math.fsum(math.log(ratio.estimate.centre) for ratio in ratios[backend].values()),
        ),
    )
    left_out = (tuple(row.title for row in members if test(row)) for test in _REPEATING)
    return Suite(league, reference, ratios[reference], *left_out)


def _on_several_devices(row: Row) -> bool:
    return any(cell.settings.devices > 1 for cell in row.cells.values())


def _not_keras(row: Row) -> bool:
    return any(cell.settings.implementation != KERAS for cell in row.cells.values())


def _other_call(row: Row) -> bool:
    return any(cell.settings.call != ON_BATCH for cell in row.cells.values())


_REPEATING = (_on_several_devices, _not_keras, _other_call)
"""Whether a row repeats another work, in the order of the titles that are left out."""


def _suite_ratio(rows: Sequence[Row], backend: str, reference: str) -> SuiteRatio | None:
    common_rows = [row for row in rows if backend in row.cells and reference in row.cells]
    # The two cells are of the same two sessions.
    separate_rows = [row for row in common_rows if row.apart(backend, reference)]
    titles = {row.key: row.title for row in common_rows}
    ratios = {row.key: separate_ratio(row.values[backend], row.values[reference]).estimate for row in separate_rows}
    if (estimate := geometric_mean(list(ratios.values()))) is not None:
        titles_without = tuple(row.title for row in common_rows if row.key not in ratios)
        return SuiteRatio(estimate, None, tuple(titles[key] for key in ratios), titles_without, separate=True)
    if any(row.machines for row in common_rows):
        return _over_machines(common_rows, backend, reference)
    logs = {row.key: log_ratios(row.cells[backend], row.cells[reference]) for row in common_rows}
    ratio = suite_ratio(logs, rows[0].looks)
    return ratio and ratio.named(titles)


def _over_machines(rows: Sequence[Row], backend: str, reference: str) -> SuiteRatio | None:
    """Return the mean of the works' ratios, each the mean of its machines', without an interval."""
    logs = {}
    for row in rows:
        if machine_logs := logs_by_machine(row.cells[backend], row.cells[reference]):
            logs[row.key] = statistics.fmean(map(statistics.fmean, machine_logs.values()))
    if not logs:
        return None
    estimate = Estimate(math.exp(statistics.fmean(logs.values())), None, None, len(logs))
    titles_used, titles_without = (
        tuple(row.title for row in rows if (row.key in logs) is is_present) for is_present in (True, False)
    )
    machines = tuple(sorted({machine for row in rows for machine in row.machines}))
    return SuiteRatio(estimate, None, titles_used, titles_without, machines=machines)
