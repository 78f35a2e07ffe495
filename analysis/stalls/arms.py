"""From records to the arms of a stall analysis, and to the figures of each block.

A block is one repeat of every arm, measured interleaved. Times are in seconds per step unless a name says per sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.stall_arms import COLD, WARM, ArmName, arm_of, base_of
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.store import latest_attempts

Arms = Mapping[ArmName, Sequence[Record]]


def analyses(records: Iterable[Record]) -> dict[str, dict[ArmName, list[Record]]]:
    """Return the arms of each analysis that these records contain, by the cell_id of its warm arm.

    An analysis has at least a synthetic arm and one with a pipeline. Of two timed arms, cold and warm, the one counts
    whose page cache is that of the observed arm; if there is none, the timed arm is an empty list.
    """
    found: dict[str, dict[ArmName, list[Record]]] = {}
    for record in latest_attempts(list(records)):
        if record.settings.phase == "fit":
            arms = found.setdefault(cell_id(base_of(record.settings)), {})
            arms.setdefault(arm_of(record.settings), []).append(record)
    whole = {name: arms for name, arms in found.items() if ArmName.SYNTHETIC in arms and observed(arms)}
    return {
        name: {**arms, ArmName.TIMED: _timed(arms)} if ArmName.TIMED in arms else arms for name, arms in whole.items()
    }


def observed(arms: Arms) -> ArmName | None:
    """Return the arm that is explained: the cold one if it was measured, else the warm one; None without either."""
    there = [arm for arm in (ArmName.COLD, ArmName.WARM) if arm in arms]
    return next((arm for arm in there if any(map(_measured, arms[arm]))), there[0] if there else None)


def _timed(arms: Arms) -> list[Record]:
    wanted = COLD if observed(arms) is ArmName.COLD else WARM
    return [record for record in arms[ArmName.TIMED] if record.settings.page_cache == wanted]


@dataclass(frozen=True, slots=True)
class Stages:
    """What the timed arm spends on a sample, in seconds of the worker that prepares it, and its bytes."""

    fetch_s: float
    fetch_cpu_s: float
    prepare_s: float
    prepare_cpu_s: float
    sample_bytes: float | None

    @property
    def wall_s(self) -> float:
        """Return the time of a sample in a worker."""
        return self.fetch_s + self.prepare_s

    @property
    def cpu_s(self) -> float:
        """Return the CPU time of a sample."""
        return self.fetch_cpu_s + self.prepare_cpu_s


@dataclass(frozen=True, slots=True)
class Block:
    """One block: the time of a step in each arm, and what the observed and the timed arm used.

    `step_s` is that of the observed arm, `workers` the number that prepare batches, 0 for the training thread. CPU
    times are those of the process tree per step, `compute_cpu_s` that of neither fetching nor preparing;
    `storage_bytes` and `reads` are those that the storage served per step, in the observed arm.
    """

    repeat: int
    step_s: float
    synthetic_s: float
    batch: int = 1
    workers: int | None = None
    host_s: float | None = None
    warm_s: float | None = None
    timed_s: float | None = None
    wait_share: float | None = None
    stages: Stages | None = None
    cpu_s: float | None = None
    compute_cpu_s: float | None = None
    storage_bytes: float | None = None
    reads: float | None = None
    file_bytes: float | None = None
    timers_cpu_share: float | None = None


def blocks(arms: Arms) -> list[Block]:
    """Return the blocks in which the synthetic and the observed arm were measured, by repeat."""
    by_repeat = {arm: {r.repeat: r for r in records if _measured(r)} for arm, records in arms.items()}
    name = observed(arms)
    if name is None:
        return []
    there = by_repeat[name].keys() & by_repeat.get(ArmName.SYNTHETIC, {}).keys()
    return [_block({arm: own[repeat] for arm, own in by_repeat.items() if repeat in own}) for repeat in sorted(there)]


def mean(found: Sequence[Block], figure: Callable[[Block], float | None]) -> float | None:
    """Return the mean of a figure over the blocks that have it; None without any."""
    values = [value for block in found if (value := figure(block)) is not None]
    return statistics.fmean(values) if values else None


def _measured(record: Record) -> bool:
    return record.status in MEASURED and bool(record.times.step_time_s)


def _block(there: Mapping[ArmName, Record]) -> Block:
    own = there[ArmName.COLD if ArmName.COLD in there else ArmName.WARM]
    synthetic, timed = there[ArmName.SYNTHETIC], there.get(ArmName.TIMED)
    stages = _stages(timed) if timed else None
    per_step = _PerStep(own)
    # Counters that only the timed arm has stand for the observed one: both read the same files.
    other = _PerStep(timed) if timed else per_step
    return Block(
        repeat=own.repeat,
        step_s=step_s(own),
        synthetic_s=step_s(synthetic),
        batch=own.settings.batch_size,
        workers=own.input.facts.workers if own.input and own.input.facts else None,
        host_s=_step_of(there.get(ArmName.HOST)),
        warm_s=_step_of(there.get(ArmName.WARM)),
        timed_s=_step_of(timed),
        wait_share=_wait_share(timed) if timed else None,
        stages=stages,
        cpu_s=_first(per_step.of("cpu_time_s"), other.of("cpu_time_s")),
        compute_cpu_s=_compute_cpu_s(per_step.of("cpu_time_s"), stages, own.settings.batch_size),
        storage_bytes=_first(per_step.of("storage_read_bytes"), other.of("storage_read_bytes")),
        reads=_first(per_step.of("storage_reads"), other.of("storage_reads")),
        file_bytes=_first(per_step.of("file_read_bytes"), other.of("file_read_bytes")),
        timers_cpu_share=_timers_share(timed) if timed else None,
    )


def too_few(blocks: int) -> str:
    """Return why so many blocks give no interval."""
    given = "1 block gives" if blocks == 1 else f"{blocks} blocks give"
    return f"{given} no interval: use --repeats {MIN_BLOCKS} or more"


def step_s(record: Record) -> float:
    """Return the measured time of a step."""
    found = record.times.step_time_s
    assert found is not None
    return found


def _step_of(record: Record | None) -> float | None:
    return step_s(record) if record else None


@dataclass(frozen=True, slots=True)
class _PerStep:
    """The totals of a record's input, divided by its measured steps."""

    record: Record

    def of(self, name: str) -> float | None:
        """Return a total per step; None if it was not measured."""
        total = getattr(self.record.input, name) if self.record.input else None
        steps = (
            self.record.resolved.steps_per_epoch * len(self.record.times.epoch_times_s) if self.record.resolved else 0
        )
        return total / steps if total is not None and steps else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _wait_share(timed: Record) -> float | None:
    waits_s = timed.input.wait_times_s if timed.input else []
    total_s = sum(timed.times.epoch_times_s)
    return sum(waits_s) / total_s if waits_s and total_s else None


def _stages(timed: Record) -> Stages | None:
    use = timed.input
    if use is None or not use.batches or not use.batch_size:
        return None
    totals = (use.fetch_wall_time_s, use.fetch_cpu_time_s, use.prepare_wall_time_s, use.prepare_cpu_time_s)
    known = [total for total in totals if total is not None]
    if len(known) < len(totals):
        return None
    samples = use.batches * use.batch_size
    fetch_s, fetch_cpu_s, prepare_s, prepare_cpu_s = (total / samples for total in known)
    sample_bytes = None if use.fetched_bytes is None else use.fetched_bytes / samples
    return Stages(fetch_s, fetch_cpu_s, prepare_s, prepare_cpu_s, sample_bytes)


def _compute_cpu_s(cpu_s: float | None, stages: Stages | None, batch: int) -> float | None:
    return None if cpu_s is None or stages is None else max(0.0, cpu_s - batch * stages.cpu_s)


def _timers_share(timed: Record) -> float | None:
    use, total_s = timed.input, sum(timed.times.epoch_times_s)
    return None if use is None or use.timers_cpu_time_s is None or not total_s else use.timers_cpu_time_s / total_s
