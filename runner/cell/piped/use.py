"""The record's `input` of a process: facts of its pipeline, and what its measured epochs read and waited for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.models.workload import InputPipeline
from keras_matrix.records.instruments.input_use import BAD_SAMPLES_FILE, InputUse
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.piped.page_cache import PageCache
from keras_matrix.runner.cell.piped.process_tree import total
from keras_matrix.runner.cell.piped.timers import Timers
from keras_matrix.runner.cell.piped.training import EpochsInput, PipedTraining

NAMES_RECORDED = 10
NAME_CHARACTERS = 200


def input_use(pipeline: InputPipeline | None, job: Job, work: object) -> InputUse | None:
    """Return the record's group; None without a pipeline. If the batches were held in memory: only the facts."""
    if pipeline is None:
        return None
    facts = InputUse(facts=pipeline.facts, batch_size=pipeline.batch_size)
    bad = bad_samples(job)
    facts = replace(facts, bad_samples=bad.count, bad_names=bad.names)
    if not isinstance(work, PipedTraining):
        return facts
    found = _with_reads(facts, work.epochs_input)
    found = replace(found, queue_capacity=pipeline.depth)
    if work.epochs_input.timers is not None:
        found = _with_timers(found, work.epochs_input, work.epochs_input.timers)
    return _with_page_cache(found, work.page_cache)


def _with_reads(use: InputUse, found: EpochsInput) -> InputUse:
    return replace(
        use,
        storage_read_bytes=_whole(total(one.storage_read_bytes for one in found.used)),
        storage_reads=_whole(total(one.device_reads for one in found.used)),
        file_read_bytes=_whole(total(one.file_read_bytes for one in found.used)),
        file_reads=_whole(total(one.file_reads for one in found.used)),
        cpu_time_s=total(one.cpu_time_s for one in found.used),
        wall_time_s=total(found.wall_times_s),
        lead_in_times_s=found.lead_in_times_s,
        settling_times_s=found.settling_times_s,
        restless_epochs=found.restless,
    )


def _with_timers(use: InputUse, found: EpochsInput, timers: Timers) -> InputUse:
    batches = found.steps * len(timers.wait_times_s)
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
