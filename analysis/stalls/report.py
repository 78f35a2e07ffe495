"""The report of a stall analysis, as stored in `stalls.json`, and the figures of each block of its arms.

Promise: plain data, which `records.codec` converts to JSON and back. `None` means not measured. Shares are of the time
of a step of the observed arm: with a cold page cache if that was measured, else with a warm one.

Compares the measured speed-up of an advice with the predicted one.

The changed cell was measured interleaved with the unchanged one. "As predicted" means that the interval of measured /
predicted is within `TOLERANCE`; less or more, that it is entirely below or above. Otherwise more repeats would have to
decide. The interval of the ratio is that of the measured speed-up: the prediction is taken as it was printed.

A block is one repeat of every arm, measured interleaved. Times are in seconds per step unless a name says per sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, Estimate, of_logs, paired_logs
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_use import InputFacts
from keras_matrix.records.instruments.stall_arms import COLD, WARM, ArmName, arm_of, base_of
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import NOTHING, bytes_text, number, percentage, seconds

FILE = "stalls.json"
VERSION = 1
TOLERANCE = 0.15
MEGA = 1e6
Arms = Mapping[ArmName, Sequence[Record]]


class BottleneckKind(StrEnum):
    """What limits the pipeline. A closed set."""

    BANDWIDTH = "storage bandwidth"
    IOPS = "storage IOPS"
    LATENCY = "fetch latency"
    CPU = "preparation CPU"
    GIL = "GIL"
    COPY = "copy"
    NONE = "none (compute-bound)"
    UNDECIDED = "not named"  # too few blocks for an interval of the stall


class SpeedupVerdict(StrEnum):
    """A measured speed-up against the predicted one."""

    AS_PREDICTED = "as predicted"
    LESS = "less than predicted"
    MORE = "more than predicted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """An arm of the analysis: its cell, the time of its steps, and why processes of it failed."""

    arm: ArmName
    cell_id: str
    step_time: Estimate | None
    processes: int
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StallPart:
    """A part of the step's time. `share` and `time` (seconds) are None without the arms that they are computed from.

    A part that its interval does not separate from zero is not `resolved`, and its figures must not be used without
    their interval.
    """

    name: str
    share: Estimate | None
    time: Estimate | None
    resolved: bool
    meaning: str = ""

    @property
    def share_text(self) -> str:
        """The share, or why there is no figure."""
        if self.share is None or self.time is None:
            return "not measured"
        return percentage(self.share.centre) if self.resolved else "not resolved"

    @property
    def time_text(self) -> str:
        """The time of a step; a dash for a part without a figure."""
        return seconds(self.time.centre) if self.share and self.time and self.resolved else NOTHING


@dataclass(frozen=True, slots=True)
class Rates:
    """What the observed arm did, as means over the blocks; per second of the measured epochs."""

    samples_per_s: float | None = None
    fetch_wall_s: float | None = None
    fetch_cpu_s: float | None = None
    prepare_wall_s: float | None = None
    prepare_cpu_s: float | None = None
    sample_bytes: float | None = None
    storage_bytes_per_s: float | None = None
    storage_reads_per_s: float | None = None
    request_bytes: float | None = None
    cache_hit_share: float | None = None
    prepared_per_cpu_s: float | None = None
    concurrency: float | None = None
    process_cpus: float | None = None
    cores: int | None = None
    timers_cpu_share: float | None = None

    @property
    def storage_text(self) -> str:
        """What storage delivered, such as `40.0 MB/s, 400 requests/s of 97.7 KiB`; empty if it is not known."""
        if self.storage_bytes_per_s is None:
            return ""
        reads_text = "" if self.storage_reads_per_s is None else f", {number(self.storage_reads_per_s)} requests/s"
        size_text = "" if self.request_bytes is None else f" of {bytes_text(round(self.request_bytes))}"
        return f"{number(self.storage_bytes_per_s, MEGA)} MB/s{reads_text}{size_text}"


@dataclass(frozen=True, slots=True)
class Advice:
    """A change and its predicted gain.

    `params` are the parameters of the workload that change, `stored_as` the format to convert the data set to. Without
    either it cannot be verified: the parameters of a user's own pipeline are not known. `step_time_s` is the predicted
    time of a step; `speed_up` has the interval over blocks, which does not include the model's own error.
    """

    change: str
    text: str
    speed_up: Estimate
    step_time_s: float
    params: dict[str, Scalar] = field(default_factory=dict)
    stored_as: str | None = None
    note: str | None = None

    @property
    def verifiable(self) -> bool:
        """Whether the changed cell can be measured."""
        return bool(self.params or self.stored_as)


@dataclass(frozen=True, slots=True)
class VerifiedAdvice:
    """An advice that was applied and measured interleaved with the unchanged cell; `cell_id` is the changed one.

    One that could not be applied is undecided, has no `cell_id` (""), and its `reason` says why.
    """

    change: str
    text: str
    cell_id: str
    predicted: Estimate
    measured: Estimate | None
    verdict: SpeedupVerdict
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerPrediction:
    """The predicted throughput with a number of workers."""

    workers: int
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class StallReport:
    """A stall analysis of one cell on one backend.

    `cell_id` and `settings` are those of the pipeline without timers and with a warm page cache; `observed` is the arm
    that the shares refer to. `stall` is the differential share that is not compute; `input_bound` the in-band one, as
    TensorBoard's input-pipeline analyser defines it: time waiting for input / time of a step. `interference` is the
    part of `stall` in which training does not wait, but computes slower. `reason` says why there is no analysis.
    """

    cell_id: str
    settings: Settings
    observed: ArmName
    arms: list[ArmResult]
    blocks: int
    parts: list[StallPart] = field(default_factory=list)
    stall: Estimate | None = None
    input_bound: Estimate | None = None
    interference: Estimate | None = None
    bottleneck: BottleneckKind | None = None
    why: str = ""
    ceiling: Estimate | None = None
    advice: list[Advice] = field(default_factory=list)
    by_workers: list[WorkerPrediction] = field(default_factory=list)
    facts: InputFacts | None = None
    rates: Rates = field(default_factory=Rates)
    queue_sizes: list[float] = field(default_factory=list)
    queue_capacity: int | None = None
    caveats: list[str] = field(default_factory=list)
    verified: list[VerifiedAdvice] = field(default_factory=list)
    reason: str | None = None

    @property
    def observed_arm(self) -> ArmResult:
        """The arm that the shares refer to."""
        return next(arm for arm in self.arms if arm.arm is self.observed)

    @property
    def page_cache(self) -> str:
        """The page cache of the observed arm."""
        return f"{'cold' if self.observed is ArmName.COLD else 'warm'} page cache"

    @property
    def explanation(self) -> str:
        """Why this is the bottleneck, as a sentence; empty if it is not known."""
        return f"{self.why[:1].upper()}{self.why[1:]}." if self.why else ""

    @property
    def all_caveats(self) -> list[str]:
        """The caveats, and why processes of an arm failed."""
        return [*self.caveats, *(f"{arm.arm} arm: {text}" for arm in self.arms for text in arm.failures)]

    @property
    def without_advice(self) -> str:
        """What is said if no change helps."""
        return f"no change of the pipeline {'is predicted to help' if self.by_workers else 'could be predicted'}"

    @property
    def mean_queue(self) -> float | None:
        """The batches that are ready on average; None if they were not counted."""
        return fmean(self.queue_sizes) if self.queue_sizes else None

    @property
    def short_queue_share(self) -> float | None:
        """The share of the time in which less than one batch is ready; None if they were not counted."""
        return fmean(size < 1 for size in self.queue_sizes) if self.queue_sizes else None

    def applied(self, advice: Advice) -> VerifiedAdvice | None:
        """Return the result of an advice; None if it was not applied."""
        return next(
            (
                verified_advice
                for verified_advice in self.verified
                if (verified_advice.change, verified_advice.text) == (advice.change, advice.text)
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class StallReports:
    """The content of `stalls.json`: the analyses of a run, one per cell and backend."""

    version: int = VERSION
    reports: list[StallReport] = field(default_factory=list)


def verified(
    advice: Advice, cell_id: str, unchanged: Sequence[Record], changed_records: Sequence[Record]
) -> VerifiedAdvice:
    """Return the result of an advice from the records of the unchanged and the changed cell."""
    before, after = ({r.repeat: step_s(r) for r in side if _measured(r)} for side in (unchanged, changed_records))
    gain = of_logs(list(paired_logs(before, after).values()))
    if gain is None:
        failures_text = "; ".join(
            sorted({f"{r.status}: {r.reason}" for r in (*unchanged, *changed_records) if not _measured(r)})
        )
        why = failures_text or "no repeat of both cells was measured"
        return VerifiedAdvice(advice.change, advice.text, cell_id, advice.speed_up, None, SpeedupVerdict.UNDECIDED, why)
    return VerifiedAdvice(advice.change, advice.text, cell_id, advice.speed_up, gain, *verdict(gain, advice.speed_up))


def verdict(measured_ratio: Estimate, predicted: Estimate) -> tuple[SpeedupVerdict, str | None]:
    """Return the verdict, and why it is open."""
    if measured_ratio.low is None or measured_ratio.high is None:
        return SpeedupVerdict.UNDECIDED, too_few(measured_ratio.count)
    low, high = measured_ratio.low / predicted.centre, measured_ratio.high / predicted.centre
    least, most = 1 / (1 + TOLERANCE), 1 + TOLERANCE
    if least <= low and high <= most:
        return SpeedupVerdict.AS_PREDICTED, None
    if high < least:
        return SpeedupVerdict.LESS, None
    if low > most:
        return SpeedupVerdict.MORE, None
    return (
        SpeedupVerdict.UNDECIDED,
        f"measured / predicted is between {low:.2f} and {high:.2f}: more repeats would decide",
    )


def _measured(record: Record) -> bool:
    return record.status in MEASURED and bool(record.times.step_time_s)


def analyses(records: Iterable[Record]) -> dict[str, dict[ArmName, list[Record]]]:
    """Return the arms of each analysis that these records contain, by the cell_id of its warm arm.

    An analysis has at least a synthetic arm and one with a pipeline. Of two timed arms, cold and warm, the one counts
    whose page cache is that of the observed arm; if there is none, the timed arm is an empty list.
    """
    arms_by_cell: dict[str, dict[ArmName, list[Record]]] = {}
    for record in latest_attempts(list(records)):
        if record.settings.phase == "fit":
            arms = arms_by_cell.setdefault(cell_id(base_of(record.settings)), {})
            arms.setdefault(arm_of(record.settings), []).append(record)
    complete = {cell_id: arms for cell_id, arms in arms_by_cell.items() if ArmName.SYNTHETIC in arms and observed(arms)}
    return {
        cell_id: {**arms, ArmName.TIMED: _timed(arms)} if ArmName.TIMED in arms else arms
        for cell_id, arms in complete.items()
    }


def observed(arms: Arms) -> ArmName | None:
    """Return the arm that is explained: the cold one if it was measured, else the warm one; None without either."""
    present_arms = [arm for arm in (ArmName.COLD, ArmName.WARM) if arm in arms]
    return next(
        (arm for arm in present_arms if any(map(_measured, arms[arm]))), present_arms[0] if present_arms else None
    )


def _timed(arms: Arms) -> list[Record]:
    page_cache = COLD if observed(arms) is ArmName.COLD else WARM
    return [record for record in arms[ArmName.TIMED] if record.settings.page_cache == page_cache]


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
    records_by_arm = {arm: {r.repeat: r for r in records if _measured(r)} for arm, records in arms.items()}
    name = observed(arms)
    if name is None:
        return []
    repeats = records_by_arm[name].keys() & records_by_arm.get(ArmName.SYNTHETIC, {}).keys()
    return [
        _block({arm: arm_repeats[repeat] for arm, arm_repeats in records_by_arm.items() if repeat in arm_repeats})
        for repeat in sorted(repeats)
    ]


def mean(measured_blocks: Sequence[Block], figure: Callable[[Block], float | None]) -> float | None:
    """Return the mean of a figure over the blocks that have it; None without any."""
    known_values = [value for block in measured_blocks if (value := figure(block)) is not None]
    return statistics.fmean(known_values) if known_values else None


def _block(record_by_arm: Mapping[ArmName, Record]) -> Block:
    observed_record = record_by_arm[ArmName.COLD if ArmName.COLD in record_by_arm else ArmName.WARM]
    synthetic, timed_record = record_by_arm[ArmName.SYNTHETIC], record_by_arm.get(ArmName.TIMED)
    stages = _stages(timed_record) if timed_record else None
    per_step = _PerStep(observed_record)
    # Counters that only the timed arm has stand for the observed one: both read the same files.
    timed_step = _PerStep(timed_record) if timed_record else per_step
    return Block(
        repeat=observed_record.repeat,
        step_s=step_s(observed_record),
        synthetic_s=step_s(synthetic),
        batch=observed_record.settings.batch_size,
        workers=observed_record.input.facts.workers if observed_record.input and observed_record.input.facts else None,
        host_s=_step_of(record_by_arm.get(ArmName.HOST)),
        warm_s=_step_of(record_by_arm.get(ArmName.WARM)),
        timed_s=_step_of(timed_record),
        wait_share=_wait_share(timed_record) if timed_record else None,
        stages=stages,
        cpu_s=_first(per_step.of("cpu_time_s"), timed_step.of("cpu_time_s")),
        compute_cpu_s=_compute_cpu_s(per_step.of("cpu_time_s"), stages, observed_record.settings.batch_size),
        storage_bytes=_first(per_step.of("storage_read_bytes"), timed_step.of("storage_read_bytes")),
        reads=_first(per_step.of("storage_reads"), timed_step.of("storage_reads")),
        file_bytes=_first(per_step.of("file_read_bytes"), timed_step.of("file_read_bytes")),
        timers_cpu_share=_timers_share(timed_record) if timed_record else None,
    )


def too_few(block_count: int) -> str:
    """Return why so many blocks give no interval."""
    blocks_text = "1 block gives" if block_count == 1 else f"{block_count} blocks give"
    return f"{blocks_text} no interval: use --repeats {MIN_BLOCKS} or more"


def step_s(record: Record) -> float:
    """Return the measured time of a step."""
    time_s = record.times.step_time_s
    assert time_s is not None
    return time_s


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


def _wait_share(timed_record: Record) -> float | None:
    waits_s = timed_record.input.wait_times_s if timed_record.input else []
    total_s = sum(timed_record.times.epoch_times_s)
    return sum(waits_s) / total_s if waits_s and total_s else None


def _stages(timed_record: Record) -> Stages | None:
    input_use = timed_record.input
    if input_use is None or not input_use.batches or not input_use.batch_size:
        return None
    totals = (
        input_use.fetch_wall_time_s,
        input_use.fetch_cpu_time_s,
        input_use.prepare_wall_time_s,
        input_use.prepare_cpu_time_s,
    )
    known_totals = [total for total in totals if total is not None]
    if len(known_totals) < len(totals):
        return None
    sample_count = input_use.batches * input_use.batch_size
    fetch_s, fetch_cpu_s, prepare_s, prepare_cpu_s = (total / sample_count for total in known_totals)
    sample_bytes = None if input_use.fetched_bytes is None else input_use.fetched_bytes / sample_count
    return Stages(fetch_s, fetch_cpu_s, prepare_s, prepare_cpu_s, sample_bytes)


def _compute_cpu_s(cpu_s: float | None, stages: Stages | None, batch: int) -> float | None:
    return None if cpu_s is None or stages is None else max(0.0, cpu_s - batch * stages.cpu_s)


def _timers_share(timed_record: Record) -> float | None:
    input_use, total_s = timed_record.input, sum(timed_record.times.epoch_times_s)
    return (
        None
        if input_use is None or input_use.timers_cpu_time_s is None or not total_s
        else input_use.timers_cpu_time_s / total_s
    )
