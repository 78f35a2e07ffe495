"""Epochs of `fit` from an input pipeline: each measured epoch begins in the steady state of the pipeline.

An epoch that begins with a full queue gets those batches for free, one that starts the pipeline pays for its start.
So before each epoch, in this order: the process waits for its turn, batches are dropped until the epoch of a cold cell
begins with a pass over the data, the files are evicted from the page cache if it is cold, else read into it, as many
batches are dropped as can be prepared ahead, and a few steps are trained;
then the clock starts. These steps belong to the same call of `fit` as the epoch: what workers prepare while `fit`
starts would be free, too, and threads that hold the interpreter make its start long. After an epoch the process waits
until its workers have filled their queue, so that they do not read in others' turns.

The record's `input` of a process: facts of its pipeline, and what its measured epochs read and waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_matrix.models.workload import Built, InputPipeline, UnsupportedWorkload
from keras_matrix.records.instruments.input_use import BAD_SAMPLES_FILE, InputUse
from keras_matrix.records.instruments.work_done import WorkStretch
from keras_matrix.records.schema import Learning, Times
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.runner.cell.backends import BackendAdapter, BatchStream, Unsupported
from keras_matrix.runner.cell.batches import Batch, Feeder
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.loop import EpochLog, Stretch
from keras_matrix.runner.cell.measured_epochs import MeasuredEpochs, Timeline, agreed
from keras_matrix.runner.cell.phases import Training, learning_of, unchanged
from keras_matrix.runner.cell.piped.process_tree import PageCache, ProcessTree, TreeCounters, Used, total, used_between
from keras_matrix.runner.cell.piped.stream import PythonStream
from keras_matrix.runner.cell.piped.timers import EachStep, StreamRequest, Timers
from keras_matrix.runner.cell.work import WeightChecksums

LEAD_IN_STEPS = 3
LEAST_QUIET_S = 0.2
QUIET_BATCHES = 1.5
MOST_REPEATED = 0.02  # of the batches of a cold epoch: those after the end of a pass, whose files may have been read
NAMES_RECORDED = 10
NAME_CHARACTERS = 200


@dataclass(slots=True)
class EpochsInput:
    """What the measured epochs read and waited for; `restless` counts all epochs whose workers did not come to rest."""

    steps: int = 0
    lead_in_times_s: list[float] = field(default_factory=list)
    settling_times_s: list[float] = field(default_factory=list)
    restless: int = 0
    wall_times_s: list[float] = field(default_factory=list)
    used: list[Used] = field(default_factory=list)
    timers: Timers | None = None


class PipedTraining(Training):
    """Epochs of `fit` whose batches come from the workload's input pipeline."""

    def __init__(self, workload: Built, adapter: BackendAdapter, job: Job, measured_epochs: MeasuredEpochs) -> None:
        super().__init__(workload, adapter, job, measured_epochs)
        assert workload.pipeline is not None
        self._pipeline: InputPipeline = workload.pipeline
        self.epochs_input = EpochsInput()
        self.page_cache = PageCache(self._pipeline.files(), cold=job.settings.page_cache == "cold")
        self._tree = ProcessTree(self.page_cache.files)
        self._stream = self._opened()

    def run(self, first_batches: Sequence[Batch]) -> tuple[Times, Learning, int]:
        """Take the first step, agree on the steps per epoch, train; return times, learning and steps."""
        settings, chunk = self._job.settings, self.steps_a_call
        self._fed = feeder = self._stream.feed
        first_step_s = self._fit("first_step", feeder, Stretch(chunk, 1)).times_s[0]
        self.page_cache.prepare()
        steps, calibration_s = agreed(self._job, self._measured.turns, self._call_time_s)
        self.ledger.before = WeightChecksums.of(self.model)
        log = self._epochs(steps)
        self._measured.end()
        return Timeline(first_step_s, calibration_s, steps, log).times(settings), learning_of(log), steps

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        """Train further epochs from the pipeline in its steady state, as those measured; nothing is recorded."""
        self._stream.drop(self._ready())
        super().again(Stretch(self._lead_in(), 1))
        super().again(stretch, change)

    def _lead_in(self) -> int:
        """Return the steps before the clock of an epoch starts: full calls of the backend."""
        return math.ceil(LEAD_IN_STEPS / self.steps_a_call) * self.steps_a_call

    def _in_pass(self) -> int | None:
        """Return the batches of a pass; None if they are not known, as where the last one may be left out."""
        return None if self._has_partial() else self._pipeline.batches_per_pass

    def _has_partial(self) -> bool:
        """Return whether a pass of the pipeline may have batches of fewer samples, which are left out."""
        return bool(getattr(self._pipeline, "has_partial_batches", False))

    def _ready(self) -> int:
        """Return the most batches that can be ready or in the making before an epoch."""
        return self._pipeline.depth + self._stream.prefetched

    def _fit(self, name: str, feeder: Feeder, stretch: Stretch) -> EpochLog:
        hooks = (EachStep(),) if self.epochs_input.timers else ()
        return super()._fit(name, feeder, replace(stretch, callbacks=hooks))

    def _opened(self) -> BatchStream:
        """Return the stream of the pipeline's batches, with timers if the cell has them."""
        timers = Timers() if self._job.settings.input_timers else None
        request = StreamRequest(
            self.model,
            _source(self._pipeline, timers),
            self._pipeline.batch_size,
            drops_partial=self._has_partial(),
            timers=timers,
        )
        self.epochs_input.timers = timers
        own_stream = self._adapter.own_stream(request)
        return own_stream or PythonStream(request, self._adapter.one_pass, self._adapter.reads_ahead())

    def _call_time_s(self, calls: int) -> float:
        """Return the time of a call of the backend over two short epochs, without batches prepared before them."""
        self._stream.drop(self._ready())
        stretch = Stretch(calls * self.steps_a_call, 2)
        return min(self._fit("calibration", self._stream.feed, stretch).times_s) / self.steps_a_call

    def _epochs(self, steps: int) -> EpochLog:
        """Train the discarded and the measured epochs, each with a call of `fit`; return their times and logs."""
        settings, epoch_log = self._job.settings, EpochLog()
        stretch = self._measured.stretch(settings, steps)
        self.epochs_input.steps = steps
        counted_stretches: list[WorkStretch] = []
        for epoch in range(stretch.epochs):
            stretch.before(epoch)
            is_measured = epoch >= settings.discard
            observed = _Observed(self.epochs_input, self._tree, monotonic()) if is_measured else None
            if self.page_cache.cold:
                position = self._stream.taken + self._ready() + self._lead_in()
                self._stream.drop(until_pass(position, steps, self._in_pass()))
            self.page_cache.prepare()
            self._stream.drop(self._ready())
            log = self._epoch(steps, observed)
            counted_stretches.append(self.ledger.stretches.pop())
            self._settle(log.times_s[-1] / steps, is_measured)
            epoch_log.times_s += log.times_s
            epoch_log.logs += log.logs
        self.ledger.stretches.append(merged(counted_stretches))
        return epoch_log

    def _epoch(self, steps: int, observed: _Observed | None) -> EpochLog:
        """Train an epoch and its lead-in, and record what the processes read and computed meanwhile if observed."""
        lead_in = self._lead_in()
        if observed is None:
            return self._fit("epochs", self._stream.feed, Stretch(steps, 1, lead_in=lead_in))
        log = self._fit("epochs", self._stream.feed, Stretch(steps, 1, lead_in=lead_in, started=observed.start))
        observed.end()
        return log

    def _settle(self, step_time_s: float, is_measured: bool) -> None:
        """Wait until the workers have filled their queue: until they are quiet for longer than a batch takes.

        A batch of one of several workers takes up to as many steps; a queue of unknown workers has at most its depth.
        """
        workers = self._pipeline.facts.workers
        at_once = max(1, self._pipeline.depth if workers is None else workers)
        begun_s = monotonic()
        rests = self._tree.await_idle(max(LEAST_QUIET_S, QUIET_BATCHES * at_once * step_time_s))
        self.epochs_input.restless += not rests
        if is_measured:
            self.epochs_input.settling_times_s.append(monotonic() - begun_s)


class _Observed:
    """What the processes of a measured epoch read, computed and waited for, from the start of its clock to its end."""

    def __init__(self, epochs_input: EpochsInput, tree: ProcessTree, begun_s: float) -> None:
        self._found, self._tree, self._begun_s = epochs_input, tree, begun_s
        self._started_s = begun_s
        self._before: TreeCounters | None = None

    def start(self) -> None:
        """Begin to record."""
        self._before = self._tree.snapshot()
        if self._found.timers:
            self._found.timers.begin()
        self._started_s = monotonic()
        self._found.lead_in_times_s.append(self._started_s - self._begun_s)

    def end(self) -> None:
        """End the epoch."""
        assert self._before is not None
        self._found.wall_times_s.append(monotonic() - self._started_s)
        if self._found.timers:
            self._found.timers.end()
        self._found.used.append(used_between(self._before, self._tree.snapshot()))


def until_pass(first_step: int, steps: int, in_pass: int | None) -> int:
    """Return the batches to drop before the files of a cold epoch are evicted, so that it does not read them twice.

    The epoch would begin with batch `first_step` and take `steps` batches, of passes of `in_pass` over the data (None:
    not known). The next pass reads the same files in another order. So an epoch that fits into a pass, but would reach
    far into the next one, begins with the next one. Batches of the end of a pass that are dropped or trained before the
    clock starts are still read after the files are evicted.
    """
    if not in_pass or steps > in_pass:
        return 0
    begun = first_step % in_pass
    return in_pass - begun if begun + steps - in_pass > MOST_REPEATED * steps else 0


def _source(pipeline: InputPipeline, timers: Timers | None) -> Any:
    """Return a new source of the pipeline, with the times of its stages if there are timers and it has them."""
    if timers is None:
        return pipeline.source(timed=False)
    try:
        source = pipeline.source(timed=True)
    except UnsupportedWorkload:
        return pipeline.source(timed=False)
    timers.has_stages = True
    return source


def merged(stretches: Sequence[WorkStretch]) -> WorkStretch:
    """Return the work of several calls of `fit` as that of one with all their epochs."""
    first_stretch = stretches[0]
    batches_drawn = [stretch.batches_drawn for stretch in stretches]
    lookaheads = [stretch.lookahead for stretch in stretches]
    updates_outside = [stretch.updates_outside for stretch in stretches]
    return WorkStretch(
        first_stretch.name,
        first_stretch.steps,
        sum(stretch.epochs for stretch in stretches),
        [count for stretch in stretches for count in stretch.updates],
        [count for stretch in stretches for count in stretch.samples],
        [count for stretch in stretches for count in stretch.skipped_updates],
        batches_drawn=_sum(batches_drawn),
        lookahead=_sum(lookaheads),
        updates_outside=_sum(updates_outside),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if len(known_counts) == len(counts) else None


def check(workload: Built, settings: Settings) -> None:
    """Raise `Unsupported` for settings of the input that this workload cannot apply."""
    if settings.feed != PIPELINE:
        for key, value, usual in (
            ("page_cache", settings.page_cache, "warm"),
            ("input_timers", settings.input_timers, False),
        ):
            if value != usual:
                raise Unsupported(f"{key}: only feed: pipeline reads files while it trains, got feed: {settings.feed}")
        return
    if workload.pipeline is None:
        raise Unsupported(
            f"feed: pipeline: {settings.workload} has no input pipeline; return (model, source) from a workload of "
            "your own, or use one whose catalog entry names a pipeline"
        )
    if settings.phase != "fit":
        raise Unsupported(f"feed: pipeline: only fit reads a pipeline; set feed: device_resident, got {settings.phase}")
    if settings.input_timers and settings.steps_per_execution != 1:
        raise Unsupported(
            f"input_timers: a wait can be timed only between steps; set steps_per_execution: 1, got "
            f"{settings.steps_per_execution}"
        )
    if settings.page_cache == "cold" and not workload.pipeline.files():
        raise Unsupported(
            "page_cache: cold: the files that the source reads are not known; return them from your workload: "
            'return model, source, {"files": [...]}'
        )


def input_use(pipeline: InputPipeline | None, job: Job, work: object) -> InputUse | None:
    """Return the record's group; None without a pipeline. If the batches were held in memory: only the facts."""
    if pipeline is None:
        return None
    facts = InputUse(facts=pipeline.facts, batch_size=pipeline.batch_size)
    bad = bad_samples(job)
    facts = replace(facts, bad_samples=bad.count, bad_names=bad.names)
    if not isinstance(work, PipedTraining):
        return facts
    use = _with_reads(facts, work.epochs_input)
    use = replace(use, queue_capacity=pipeline.depth)
    if work.epochs_input.timers is not None:
        use = _with_timers(use, work.epochs_input, work.epochs_input.timers)
    return _with_page_cache(use, work.page_cache)


def _with_reads(use: InputUse, epochs_input: EpochsInput) -> InputUse:
    return replace(
        use,
        storage_read_bytes=_whole(total(used.storage_read_bytes for used in epochs_input.used)),
        storage_reads=_whole(total(used.device_reads for used in epochs_input.used)),
        file_read_bytes=_whole(total(used.file_read_bytes for used in epochs_input.used)),
        file_reads=_whole(total(used.file_reads for used in epochs_input.used)),
        cpu_time_s=total(used.cpu_time_s for used in epochs_input.used),
        wall_time_s=total(epochs_input.wall_times_s),
        lead_in_times_s=epochs_input.lead_in_times_s,
        settling_times_s=epochs_input.settling_times_s,
        restless_epochs=epochs_input.restless,
    )


def _with_timers(use: InputUse, epochs_input: EpochsInput, timers: Timers) -> InputUse:
    batches = epochs_input.steps * len(timers.wait_times_s)
    use = replace(
        use,
        wait_times_s=timers.wait_times_s,
        queue_sizes=timers.queue_course(),
        timers_cpu_time_s=timers.own_cpu_time_s(batches),
    )
    if not timers.has_stages:
        return use
    fetch_wall_s, fetch_cpu_s, prepare_wall_s, prepare_cpu_s, fetched_bytes, _ = timers.stages.tolist()
    return replace(
        use,
        batches=timers.batches,
        fetch_wall_time_s=fetch_wall_s,
        fetch_cpu_time_s=fetch_cpu_s,
        prepare_wall_time_s=prepare_wall_s,
        prepare_cpu_time_s=prepare_cpu_s,
        fetched_bytes=round(fetched_bytes),
    )


def _with_page_cache(use: InputUse, cache: PageCache) -> InputUse:
    use = replace(use, resident_share=cache.resident_share)
    if not cache.cold:
        return use
    return replace(use, cold_files=cache.evicted, cold_meaning=cache.cold_meaning)


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


@dataclass(frozen=True, slots=True)
class BadSamples:
    """The samples that a pipeline's workers replaced: their number, and the first names."""

    count: int
    names: list[str]


def bad_samples_path(job: Job) -> Path:
    """Return the file of the replaced samples, in the cell's scratch folder."""
    return Path(job.folder) / BAD_SAMPLES_FILE


def bad_samples(job: Job) -> BadSamples:
    """Return the replaced samples, each counted once, however often it was read."""
    try:
        text = bad_samples_path(job).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return BadSamples(0, [])
    names = list(dict.fromkeys(line for line in text.splitlines() if line))
    return BadSamples(len(names), [name[:NAME_CHARACTERS] for name in names[:NAMES_RECORDED]])
