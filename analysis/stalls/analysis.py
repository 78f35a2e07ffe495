"""From the records of a stall analysis to its report.

`reports` finds every analysis that a run contains, `analyse` makes the report of one. Promise: pure, and never raises
for records of failed cells: the report then states the reason.

What would help an input pipeline: changes with their predicted speed-ups, best first.

A change is advised only if its predicted speed-up is above 1 beyond its interval and at least `LEAST_GAIN`. Changes
that cannot help are not even predicted: more workers for threads that share an interpreter or for a saturated storage,
more threads than CPUs for preparation that needs CPU, another format where storage is not what is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stalls import predict
from keras_matrix.analysis.stalls.bottleneck import (
    LOCK_HELD,
    NamedBottleneck,
    PreparingWorkers,
    bottleneck,
    caveats,
    concurrency,
    mean_stages,
    process_cpus,
    step_split,
)
from keras_matrix.analysis.stalls.predict import Change, Demand, PredictionInputs
from keras_matrix.analysis.stalls.report import (
    Advice,
    ArmResult,
    Arms,
    Block,
    BottleneckKind,
    Rates,
    StallReport,
    WorkerPrediction,
    analyses,
    blocks,
    mean,
    observed,
    too_few,
)
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, Estimate, geometric, of_logs, paired_logs
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_use import MOST_PREFETCH, InputFacts, InputProbe, InputUse
from keras_matrix.records.instruments.stall_arms import ArmName, base_of
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.records.text import bytes_text, percentage, seconds

SHOWN_WORKERS = 8
MOST_HITS = 0.1  # of a cold arm, whose files were evicted
MOST_RESIDENT = 0.05  # of the files of a cold arm, when its epochs begin
LEAST_GAIN = 1.02
LEAST_GAIN_WITHOUT_INTERVAL = 1.05
MOST_THREADS, MOST_PROCESSES_PER_CPU = 64, 4
# Of the best possible step time: the fewest workers that come this close are advised.
GOOD_ENOUGH = 1.02
CHANNELS = 3
CACHE_SHARE = 0.5  # of the memory that decoded samples may fill
RUNS_PER_BATCH = 4  # contiguous runs of a record file that make a batch
REQUEST_BYTES = 512 << 10  # the kernel splits a long read into requests of about this size
DEEPER = 4  # times the depth of the queue
EACH_PROCESS = "each worker process fills a cache of its own: complete only after many passes over the data"
STORAGE = (BottleneckKind.BANDWIDTH, BottleneckKind.IOPS)


def reports(records: Iterable[Record], probes: Mapping[str, InputProbe] | None = None) -> list[StallReport]:
    """Return the report of every analysis in these records, by workload and backend; `probes` are by its cell_id."""
    stall_reports = [analyse(arms, (probes or {}).get(name)) for name, arms in analyses(records).items()]
    return sorted(stall_reports, key=lambda report: (report.settings.workload, report.settings.backend, report.cell_id))


def analyse(arms: Arms, probe: InputProbe | None = None) -> StallReport:
    """Return the report of one analysis; `arms` are those of `arms.analyses`."""
    name = observed(arms)
    assert name is not None
    base = base_of(arms[name][0].settings)
    empty_report = StallReport(
        cell_id(base),
        base,
        name,
        [_arm_result(arm, arm_records) for arm, arm_records in arms.items() if arm_records],
        0,
    )
    measured_blocks = blocks(arms)
    if not measured_blocks:
        return _without_blocks(empty_report, arms, name)
    return _of_blocks(empty_report, arms, measured_blocks, probe)


def _of_blocks(
    empty_report: StallReport, arms: Arms, measured_blocks: Sequence[Block], probe: InputProbe | None
) -> StallReport:
    observed_records = [record for record in arms[empty_report.observed] if record.status in MEASURED]
    timed_records = [record for record in arms.get(ArmName.TIMED, ()) if record.status in MEASURED]
    input_use, timed_use = observed_records[0].input, timed_records[0].input if timed_records else None
    facts = (input_use or timed_use or InputUse()).facts
    shares = step_split(measured_blocks)
    workers = _workers(observed_records[0], input_use or timed_use)
    stored_as = facts.stored_as if facts else None
    named_bottleneck = bottleneck(measured_blocks, shares, workers, probe, stored_as)
    limits = PredictionInputs(workers, named_bottleneck, probe, shares.host_resolved, stored_as)
    pairs = [(block, demand) for block in measured_blocks if (demand := predict.demand(block, limits)) is not None]
    situation = Situation(
        empty_report.settings, facts, _memory_bytes(observed_records[0], probe), workers, named_bottleneck, pairs, probe
    )
    step_s = {block.repeat: block.step_s for block in measured_blocks}
    synthetic_s = {block.repeat: block.synthetic_s for block in measured_blocks}
    return StallReport(
        cell_id=empty_report.cell_id,
        settings=empty_report.settings,
        observed=empty_report.observed,
        arms=empty_report.arms,
        blocks=len(measured_blocks),
        parts=list(shares.parts),
        stall=shares.stall,
        input_bound=shares.input_bound,
        interference=shares.interference,
        bottleneck=named_bottleneck.name if shares.stall.bounds else BottleneckKind.UNDECIDED,
        why=named_bottleneck.why if shares.stall.bounds else too_few(len(measured_blocks)),
        ceiling=of_logs(list(paired_logs(step_s, synthetic_s).values())),
        advice=advice(situation),
        by_workers=_by_workers(situation),
        facts=facts,
        rates=_rates(measured_blocks, workers),
        queue_sizes=_queue_sizes(observed_records) or _queue_sizes(timed_records),
        queue_capacity=(input_use or timed_use or InputUse()).queue_capacity,
        caveats=[
            *([too_few(len(measured_blocks))] if len(measured_blocks) < MIN_BLOCKS else []),
            *caveats(shares),
            *_not_timed(arms),
            *_not_probed(probe),
            *_not_predicted(situation),
            *_caveats(empty_report.observed, observed_records, measured_blocks, named_bottleneck),
        ],
    )


def _arm_result(arm: ArmName, records: Sequence[Record]) -> ArmResult:
    step_times_s = [r.times.step_time_s for r in records if r.status in MEASURED and r.times.step_time_s]
    failure_counts = Counter(f"{r.status}: {r.reason}" for r in records if r.status not in MEASURED)
    return ArmResult(arm, records[0].cell_id, geometric(step_times_s), len(step_times_s), sorted(failure_counts))


def _without_blocks(empty_report: StallReport, arms: Arms, name: ArmName) -> StallReport:
    """Return the report of an analysis that lacks a measured arm, with the reason."""
    for arm in (name, ArmName.SYNTHETIC):
        result = _arm_result(arm, arms[arm])
        if not result.processes:
            why = "; ".join(result.failures) or "no process has ended"
            return StallReport(
                empty_report.cell_id, empty_report.settings, name, empty_report.arms, 0, reason=f"{arm} arm: {why}"
            )
    why = "the synthetic and the observed arm have no repeat in common"
    return StallReport(empty_report.cell_id, empty_report.settings, name, empty_report.arms, 0, reason=why)


def _workers(record: Record, input_use: InputUse | None) -> PreparingWorkers:
    facts = input_use.facts if input_use else None
    core_count = (record.resolved.cpus if record.resolved else None) or record.machine.logical_cpus
    return PreparingWorkers(
        facts.workers if facts else None, facts is None or facts.worker_kind != "process", max(1, core_count)
    )


def _memory_bytes(record: Record, probe: InputProbe | None) -> int | None:
    """Return the memory that a cell may use: the machine's, or a lower limit of its container or control group."""
    container = record.container.memory_limit_bytes if record.container else None
    sizes = (record.machine.memory_bytes, container, probe.memory_bytes if probe else None)
    return min((size for size in sizes if size), default=None)


def _rates(measured_blocks: Sequence[Block], workers: PreparingWorkers) -> Rates:
    stages = mean_stages(measured_blocks)
    reads = mean(measured_blocks, lambda b: b.reads / b.step_s if b.reads is not None else None)
    served = mean(measured_blocks, lambda b: b.storage_bytes / b.step_s if b.storage_bytes is not None else None)
    return Rates(
        samples_per_s=mean(measured_blocks, lambda b: b.batch / b.step_s),
        fetch_wall_s=stages.fetch_s if stages else None,
        fetch_cpu_s=stages.fetch_cpu_s if stages else None,
        prepare_wall_s=stages.prepare_s if stages else None,
        prepare_cpu_s=stages.prepare_cpu_s if stages else None,
        sample_bytes=stages.sample_bytes if stages else None,
        storage_bytes_per_s=served,
        storage_reads_per_s=reads,
        request_bytes=served / reads if served and reads else None,
        cache_hit_share=mean(measured_blocks, _cache_hits),
        prepared_per_cpu_s=1 / stages.prepare_cpu_s if stages and stages.prepare_cpu_s else None,
        concurrency=concurrency(measured_blocks),
        process_cpus=process_cpus(measured_blocks),
        cores=workers.cores,
        timers_cpu_share=mean(measured_blocks, lambda b: b.timers_cpu_share),
    )


def _cache_hits(block: Block) -> float | None:
    """Return the share of the samples' bytes that the page cache served; without timers, of all bytes read."""
    sample_bytes = block.stages.sample_bytes if block.stages else None
    read_bytes = sample_bytes * block.batch if sample_bytes else block.file_bytes
    if block.storage_bytes is None or not read_bytes:
        return None
    return max(0.0, 1 - block.storage_bytes / read_bytes)


def _queue_sizes(records: Sequence[Record]) -> list[float]:
    """Return the mean queue over the processes that read it, at each hundredth of the epochs.

    As a rule only those of the timed arm do, which has the page cache of the observed one.
    """
    series = [record.input.queue_sizes for record in records if record.input and record.input.queue_sizes]
    return [sum(sizes) / len(sizes) for sizes in zip(*series, strict=False)]


def _by_workers(situation: Situation) -> list[WorkerPrediction]:
    """Return the predicted throughput by worker count, for a picture."""
    if not situation.pairs:
        return []
    batch_size, most = situation.settings.batch_size, max(SHOWN_WORKERS, situation.workers.count or 0)
    predictions = []
    for count in range(most + 1):
        change = predict.with_workers(count)
        step_s = sum(change(demand).step_s() for _, demand in situation.pairs) / len(situation.pairs)
        predictions.append(WorkerPrediction(count, batch_size / step_s))
    return predictions


def _caveats(
    name: ArmName,
    observed_records: Sequence[Record],
    measured_blocks: Sequence[Block],
    named_bottleneck: NamedBottleneck,
) -> list[str]:
    lines = [named_bottleneck.caveat] if named_bottleneck.caveat else []
    if name is ArmName.COLD:
        lines += [*_cold(observed_records), *_second_pass(measured_blocks)]
        lines += [] if named_bottleneck.name is BottleneckKind.NONE else _fits_in_memory(observed_records[0])
    return lines + _bad_samples(observed_records)


def _cold(observed_records: Sequence[Record]) -> list[str]:
    """Return what "cold" means in the cold arm: a stall that was not found may be one that the page cache hid."""
    uses = [record.input for record in observed_records if record.input]
    lines = sorted({f"cold means: {input_use.cold_meaning}" for input_use in uses if input_use.cold_meaning})
    if resident_shares := [
        input_use.resident_share
        for input_use in uses
        if input_use.resident_share and input_use.resident_share > MOST_RESIDENT
    ]:
        lines.append(
            f"up to {percentage(max(resident_shares))} of the files stayed in the page cache: the cold arm was not "
            "entirely cold"
        )
    return lines


def _not_timed(arms: Arms) -> list[str]:
    if ArmName.TIMED not in arms or arms[ArmName.TIMED]:
        return []
    return ["the timed arm is left out: its page cache is not that of the observed arm, so stage times are not known"]


def _not_probed(probe: InputProbe | None) -> list[str]:
    if probe is None:
        return ["the data set was not probed: limits of its storage, other decoders and the interpreter are not known"]
    return [f"the data set could not be probed: {probe.problem}"] if probe.problem else []


def _not_predicted(situation: Situation) -> list[str]:
    if situation.pairs or situation.named.name is BottleneckKind.NONE:
        return []
    return ["no change could be predicted: the pipeline does not state its number of workers"]


def _bad_samples(observed_records: Sequence[Record]) -> list[str]:
    uses = [record.input for record in observed_records if record.input and record.input.bad_samples]
    if not uses:
        return []
    names_text = ", ".join(uses[0].bad_names[:3])
    return [f"{uses[0].bad_samples} samples could not be decoded and were replaced: {names_text}"]


def _second_pass(measured_blocks: Sequence[Block]) -> list[str]:
    hit_share = mean(measured_blocks, _cache_hits)
    if hit_share is None or hit_share <= MOST_HITS:
        return []
    return [
        f"the page cache served {percentage(hit_share)} of the bytes although it was emptied before each epoch: an "
        "epoch with its lead-in reads more than one pass; set a smaller steps_per_epoch, or use more samples"
    ]


def _fits_in_memory(record: Record) -> list[str]:
    facts, memory_bytes = record.input.facts if record.input else None, record.machine.memory_bytes
    stored_bytes = facts.stored_bytes if facts else None
    if not stored_bytes or not memory_bytes or stored_bytes > memory_bytes / 2:
        return []
    size = bytes_text(stored_bytes)
    return [f"the data set ({size}) fits into memory: only the first pass after a start reads from storage, as here"]


@dataclass(frozen=True, slots=True)
class Situation:
    """A pipeline with its measurements; `pairs` are the blocks that have stage times, with their demands.

    `memory_bytes` is the memory that a cell may use, None if it is not known.
    """

    settings: Settings
    facts: InputFacts | None
    memory_bytes: int | None
    workers: PreparingWorkers
    named: NamedBottleneck
    pairs: Sequence[tuple[Block, Demand]]
    probe: InputProbe | None

    def param(self, name: str) -> Scalar | None:
        """Return a parameter of a workload of the catalog; None if it has no such parameter, or is a user's own."""
        return None if ":" in self.settings.workload else self.settings.params.get(name)

    def changed(self, **params: Scalar) -> dict[str, Scalar]:
        """Return the parameters to change, empty if the workload does not have all of them."""
        return params if all(self.param(name) is not None for name in params) else {}


@dataclass(frozen=True, slots=True)
class _Candidate:
    change: str
    text: str
    demand: Change
    params: dict[str, Scalar]
    stored_as: str | None = None
    note: str | None = None


def advice(situation: Situation) -> list[Advice]:
    """Return the changes that help, one of each name, the largest predicted speed-up first."""
    if not situation.pairs or situation.named.name is BottleneckKind.NONE:
        return []
    predicted = [_predicted(situation, candidate) for candidate in _candidates(situation)]
    helpful = sorted(
        (suggestion for suggestion in predicted if helps(suggestion.speed_up)),
        key=lambda suggestion: suggestion.speed_up.centre,
    )
    best = {
        suggestion.change: suggestion for suggestion in helpful
    }  # of two changes with the same name, the better one
    return sorted(best.values(), key=lambda suggestion: -suggestion.speed_up.centre)


def helps(gain: Estimate) -> bool:
    """Return whether a predicted speed-up is above 1 beyond its interval and large enough to matter."""
    if gain.low is None:
        return gain.centre >= LEAST_GAIN_WITHOUT_INTERVAL
    return gain.low > 1 and gain.centre >= LEAST_GAIN


def fewest_workers(situation: Situation) -> int | None:
    """Return the fewest workers that come close to the best step time; None if more workers cannot help."""
    worker_count, name = situation.workers.count, situation.named.name
    if worker_count is None or name in STORAGE or name in (BottleneckKind.GIL, BottleneckKind.COPY):
        return None
    core_count = situation.workers.cores
    most_waiting = MOST_THREADS if situation.workers.threads else MOST_PROCESSES_PER_CPU * core_count
    most = max(worker_count, core_count if name is BottleneckKind.CPU else most_waiting)
    step_s = {n: _mean_step(situation, predict.with_workers(n)) for n in range(worker_count + 1, most + 1)}
    if not step_s:
        return None
    best_s = min(step_s.values())
    return next(n for n, found_s in step_s.items() if found_s <= GOOD_ENOUGH * best_s)


def _predicted(situation: Situation, candidate: _Candidate) -> Advice:
    gain = predict.speed_up(situation.pairs, candidate.demand)
    step_s = _mean_step(situation, candidate.demand)
    note = (
        candidate.note
        if candidate.params or candidate.stored_as
        else _join(candidate.note, "parameters of your own pipeline: not verifiable")
    )
    return Advice(candidate.change, candidate.text, gain, step_s, candidate.params, candidate.stored_as, note)


def _mean_step(situation: Situation, change: Change) -> float:
    return sum(change(demand).step_s() for _, demand in situation.pairs) / len(situation.pairs)


def _candidates(situation: Situation) -> Iterator[_Candidate]:
    yield from _more_workers(situation)
    yield from _processes(situation)
    yield from _cheaper_decoding(situation)
    yield from _device_preprocessing(situation)
    yield from _records(situation)
    yield from _deeper_queue(situation)
    yield from _memory(situation)


def _more_workers(situation: Situation) -> Iterator[_Candidate]:
    count = fewest_workers(situation)
    if count is None:
        return
    worker_count = situation.workers.count
    kind_text = "threads" if situation.workers.threads else "processes"
    note = None
    # A thread that waits for bytes releases the interpreter; only one that prepares may hold it.
    if situation.workers.threads and (worker_count or 0) < 2 and situation.named.name is BottleneckKind.CPU:
        held = situation.probe.lock_held_share if situation.probe else None
        if held is not None and held > LOCK_HELD:
            return  # several threads would share one interpreter
        note = "if the code that prepares releases the interpreter's lock" if held is None else None
    params = situation.changed(input_workers=count)
    text = f"{count} {kind_text} in place of {_now_text(situation)}"
    yield _Candidate("workers", text, predict.with_workers(count), params, note=note)


def _processes(situation: Situation) -> Iterator[_Candidate]:
    """Yield processes in place of threads that share one interpreter, or that would."""
    worker_count, held_share = (
        situation.workers.count or 0,
        situation.probe.lock_held_share if situation.probe else None,
    )
    holds_lock = (
        worker_count < 2
        and held_share is not None
        and held_share > LOCK_HELD
        and situation.named.name is BottleneckKind.CPU
    )
    if not situation.workers.threads or not (holds_lock or situation.named.name is BottleneckKind.GIL):
        return
    count = max(worker_count, situation.workers.cores) if holds_lock else worker_count
    separate = predict.with_own_interpreters(_alone_cpu_s(situation))

    def change(demand: Demand) -> Demand:
        return predict.with_workers(count)(separate(demand))

    text = f"{count} worker processes in place of {_now_text(situation)}"
    params = {
        **situation.changed(worker_kind="process"),
        **(situation.changed(input_workers=count) if holds_lock else {}),
    }
    if situation.facts is not None and situation.facts.pipeline == "tf_data":  # it has threads only
        text, params = f"{text} of tf.data, with pipeline: grain", params | situation.changed(pipeline="grain")
    yield _Candidate("processes", text, change, params, note="without the cost of passing batches")


def _alone_cpu_s(situation: Situation) -> float | None:
    """Return the probe's CPU time of a sample made alone; None if the probe does not have the pipeline's decoder."""
    probe, facts = situation.probe, situation.facts
    if probe is None or facts is None or facts.decoder not in probe.decoders:
        return None
    return probe.alone_cpu_s


def _now_text(situation: Situation) -> str:
    count, kind = situation.workers.count, "thread" if situation.workers.threads else "process"
    if not count:
        return "the training thread"
    return f"{count} {kind}" + ("" if count == 1 else "s" if kind == "thread" else "es")


def _cheaper_decoding(situation: Situation) -> Iterator[_Candidate]:
    """Yield the decoder with the lowest cost, and decoding at a smaller scale, by the probe's costs."""
    facts, probe = situation.facts, situation.probe
    if probe is None or facts is None or facts.decoder is None:
        return
    decoder_cost = probe.decoders.get(facts.decoder)
    if decoder_cost is None:
        yield from _another_library(situation, facts.decoder, probe.alone_cpu_s)
        return
    is_scaled = situation.param("decode_scale") == "dct"
    own_s = decoder_cost.scaled_s if is_scaled and decoder_cost.scaled_s is not None else decoder_cost.full_s
    costs = {name: cost.scaled_s if is_scaled else cost.full_s for name, cost in probe.decoders.items()}
    known_costs_s = {name: cost_s for name, cost_s in costs.items() if cost_s is not None and name != facts.decoder}
    best = min(known_costs_s, key=lambda name: known_costs_s[name], default=None)
    if best is not None and known_costs_s[best] < own_s:
        change = predict.with_prepare_cost(own_s - known_costs_s[best])
        text = f"decode with {best} ({seconds(known_costs_s[best])} of CPU per sample) in place of {facts.decoder}"
        yield _Candidate("decoder", f"{text} ({seconds(own_s)})", change, situation.changed(decoder=best))
    if not is_scaled and decoder_cost.scaled_s is not None and decoder_cost.scaled_s < decoder_cost.full_s:
        change = predict.with_prepare_cost(decoder_cost.full_s - decoder_cost.scaled_s)
        params = situation.changed(decode_scale="dct")
        text = f"decode at a smaller scale (DCT scaling with {facts.decoder})"
        yield _Candidate("scale", text, change, params, note="changes pixels slightly")


def _another_library(situation: Situation, decoder: str, alone_cpu_s: float | None) -> Iterator[_Candidate]:
    """Yield the decoder that `auto` means, in place of one that the probe does not know: one that needs its backend.

    The probe made samples with it, so that the costs compared are those of entire samples. Threads that wait for the
    interpreter spend CPU time on passing its lock on, which is no cost of a decoder: then nothing is known.
    """
    if situation.named.name is BottleneckKind.GIL:
        return
    cpu_s = mean([block for block, _ in situation.pairs], lambda b: b.stages.cpu_s if b.stages else None)
    if alone_cpu_s is None or cpu_s is None or alone_cpu_s >= cpu_s:
        return
    text = f"the fastest decoder outside the backend ({seconds(alone_cpu_s)} of CPU per sample in all) in place of"
    change = predict.with_prepare_cost(cpu_s - alone_cpu_s)
    yield _Candidate("decoder", f"{text} {decoder} ({seconds(cpu_s)})", change, situation.changed(decoder="auto"))


def _device_preprocessing(situation: Situation) -> Iterator[_Candidate]:
    """Yield preprocessing on the device: cheaper preparation, and a quarter of the bytes to batch and copy."""
    if situation.param("preprocess") != "host":
        return
    saved_s = (situation.probe.host_preprocess_s if situation.probe else None) or 0.0
    text = "preprocess on the device: bytes in place of floats are batched and copied"
    change = predict.with_device_preprocessing(saved_s)
    yield _Candidate("device", text, change, situation.changed(preprocess="device"))


def _records(situation: Situation) -> Iterator[_Candidate]:
    """Yield contiguous reads, where storage is waited for request by request: records, or their order."""
    bottleneck_kind, facts = situation.named.name, situation.facts
    from_storage = mean([block for block, _ in situation.pairs], lambda b: b.storage_bytes)
    storage = situation.probe.storage if situation.probe else None
    read_s = storage.one_read_s if storage and bottleneck_kind is BottleneckKind.LATENCY else None
    waits = bottleneck_kind is BottleneckKind.IOPS or (read_s is not None and bool(from_storage))
    if not waits or facts is None:
        return
    reads = max(RUNS_PER_BATCH, (from_storage or 0.0) / REQUEST_BYTES)
    # A globally shuffled record file needs a request per sample, as a folder does.
    params = situation.changed(shuffle="window") if situation.param("shuffle") == "global" else {}
    change, requests_text = predict.with_fewer_reads(reads, read_s), f"about {reads:.0f} requests per batch"
    if facts.stored_as in (None, "folder"):
        convert = "tfrecord" if situation.param("dataset_path") else None
        text = f"TFRecord in place of single files: {requests_text} (runner convert)"
        yield _Candidate("format", text + (", with shuffle: window" if params else ""), change, params, convert)
    elif params:
        yield _Candidate("shuffle", f"shuffle within a window in place of all records: {requests_text}", change, params)


def _deeper_queue(situation: Situation) -> Iterator[_Candidate]:
    """Yield more prefetching, where workers are fast enough on average and training waits all the same."""
    depth = situation.facts.prefetch if situation.facts else None
    if depth is None or not situation.workers.count:
        return
    if not all(demand.pipeline_s() < demand.floor_s for _, demand in situation.pairs):
        return
    deeper = min(max(1, depth) * DEEPER, MOST_PREFETCH)
    if deeper <= depth:
        return
    params = situation.changed(prefetch=deeper)
    note = "at most: workers are fast enough on average, and only their variation is waited for"
    yield _Candidate(
        "prefetch", f"prefetch {deeper} batches in place of {depth}", predict.with_deep_queue, params, note=note
    )


def _memory(situation: Situation) -> Iterator[_Candidate]:
    """Yield a cache of decoded samples, if they fit into half of the memory; each worker process has its own."""
    facts, size, memory_bytes = situation.facts, situation.param("image_size"), situation.memory_bytes
    if facts is None or facts.cache == "ram" or not facts.samples or not memory_bytes or not isinstance(size, int):
        return
    floats = 4 if situation.param("preprocess") == "host" else 1
    copy_count = 1 if situation.workers.threads else max(1, situation.workers.count or 1)
    needed_bytes = facts.samples * size * size * CHANNELS * floats * copy_count
    if needed_bytes > CACHE_SHARE * memory_bytes:
        return
    text = f"cache the decoded samples in memory ({bytes_text(needed_bytes)})"
    note = "from the second pass over the data on" if copy_count == 1 else EACH_PROCESS
    yield _Candidate("cache", text, predict.with_everything_in_memory, situation.changed(cache="ram"), note=note)


def _join(*texts: str | None) -> str | None:
    return "; ".join(text for text in texts if text) or None
