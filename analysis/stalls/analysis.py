"""From the records of a stall analysis to its report.

`reports` finds every analysis that a run contains, `analyse` makes the report of one. Promise: pure, and never raises
for records of failed cells: the report then states the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from keras_matrix.analysis.stalls import advice as advised
from keras_matrix.analysis.stalls import predict, split
from keras_matrix.analysis.stalls.advice import Situation
from keras_matrix.analysis.stalls.arms import Arms, Block, analyses, blocks, mean, observed, too_few
from keras_matrix.analysis.stalls.bottleneck import (
    NamedBottleneck,
    PreparingWorkers,
    bottleneck,
    concurrency,
    mean_stages,
    process_cpus,
)
from keras_matrix.analysis.stalls.predict import PredictionInputs
from keras_matrix.analysis.stalls.report import ArmResult, BottleneckKind, Rates, StallReport, WorkerPrediction
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, geometric, of_logs, paired_logs
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_probe import InputProbe
from keras_matrix.records.instruments.input_use import InputUse
from keras_matrix.records.instruments.stall_arms import ArmName, base_of
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.text import bytes_text, percentage

SHOWN_WORKERS = 8
MOST_HITS = 0.1  # of a cold arm, whose files were evicted
MOST_RESIDENT = 0.05  # of the files of a cold arm, when its epochs begin


def reports(records: Iterable[Record], probes: Mapping[str, InputProbe] | None = None) -> list[StallReport]:
    """Return the report of every analysis in these records, by workload and backend; `probes` are by its cell_id."""
    found = [analyse(arms, (probes or {}).get(name)) for name, arms in analyses(records).items()]
    return sorted(found, key=lambda one: (one.settings.workload, one.settings.backend, one.cell_id))


def analyse(arms: Arms, probe: InputProbe | None = None) -> StallReport:
    """Return the report of one analysis; `arms` are those of `arms.analyses`."""
    name = observed(arms)
    assert name is not None
    base = base_of(arms[name][0].settings)
    empty = StallReport(cell_id(base), base, name, [_arm_result(arm, own) for arm, own in arms.items() if own], 0)
    found = blocks(arms)
    if not found:
        return _without_blocks(empty, arms, name)
    return _of_blocks(empty, arms, found, probe)


def _of_blocks(empty: StallReport, arms: Arms, found: Sequence[Block], probe: InputProbe | None) -> StallReport:
    own = [record for record in arms[empty.observed] if record.status in MEASURED]
    timed = [record for record in arms.get(ArmName.TIMED, ()) if record.status in MEASURED]
    use, timed_use = own[0].input, timed[0].input if timed else None
    facts = (use or timed_use or InputUse()).facts
    shares = split.split(found)
    workers = _workers(own[0], use or timed_use)
    stored_as = facts.stored_as if facts else None
    named = bottleneck(found, shares, workers, probe, stored_as)
    limits = PredictionInputs(workers, named, probe, shares.host_resolved, stored_as)
    pairs = [(block, demand) for block in found if (demand := predict.demand(block, limits)) is not None]
    situation = Situation(empty.settings, facts, _memory_bytes(own[0], probe), workers, named, pairs, probe)
    step_s = {block.repeat: block.step_s for block in found}
    synthetic_s = {block.repeat: block.synthetic_s for block in found}
    return StallReport(
        cell_id=empty.cell_id,
        settings=empty.settings,
        observed=empty.observed,
        arms=empty.arms,
        blocks=len(found),
        parts=list(shares.parts),
        stall=shares.stall,
        input_bound=shares.input_bound,
        interference=shares.interference,
        bottleneck=named.name if shares.stall.bounds else BottleneckKind.UNDECIDED,
        why=named.why if shares.stall.bounds else too_few(len(found)),
        ceiling=of_logs(list(paired_logs(step_s, synthetic_s).values())),
        advice=advised.advice(situation),
        by_workers=_by_workers(situation),
        facts=facts,
        rates=_rates(found, workers),
        queue_sizes=_queue_sizes(own) or _queue_sizes(timed),
        queue_capacity=(use or timed_use or InputUse()).queue_capacity,
        caveats=[
            *([too_few(len(found))] if len(found) < MIN_BLOCKS else []),
            *split.caveats(shares),
            *_not_timed(arms),
            *_not_probed(probe),
            *_not_predicted(situation),
            *_caveats(empty.observed, own, found, named),
        ],
    )


def _arm_result(arm: ArmName, records: Sequence[Record]) -> ArmResult:
    measured = [r.times.step_time_s for r in records if r.status in MEASURED and r.times.step_time_s]
    failed = Counter(f"{r.status}: {r.reason}" for r in records if r.status not in MEASURED)
    return ArmResult(arm, records[0].cell_id, geometric(measured), len(measured), sorted(failed))


def _without_blocks(empty: StallReport, arms: Arms, name: ArmName) -> StallReport:
    """Return the report of an analysis that lacks a measured arm, with the reason."""
    for arm in (name, ArmName.SYNTHETIC):
        result = _arm_result(arm, arms[arm])
        if not result.processes:
            why = "; ".join(result.failures) or "no process has ended"
            return StallReport(empty.cell_id, empty.settings, name, empty.arms, 0, reason=f"{arm} arm: {why}")
    why = "the synthetic and the observed arm have no repeat in common"
    return StallReport(empty.cell_id, empty.settings, name, empty.arms, 0, reason=why)


def _workers(record: Record, use: InputUse | None) -> PreparingWorkers:
    facts = use.facts if use else None
    cores = (record.resolved.cpus if record.resolved else None) or record.machine.logical_cpus
    return PreparingWorkers(
        facts.workers if facts else None, facts is None or facts.worker_kind != "process", max(1, cores)
    )


def _memory_bytes(record: Record, probe: InputProbe | None) -> int | None:
    """Return the memory that a cell may use: the machine's, or a lower limit of its container or control group."""
    container = record.container.memory_limit_bytes if record.container else None
    sizes = (record.machine.memory_bytes, container, probe.memory_bytes if probe else None)
    return min((size for size in sizes if size), default=None)


def _rates(found: Sequence[Block], workers: PreparingWorkers) -> Rates:
    stages = mean_stages(found)
    reads = mean(found, lambda b: b.reads / b.step_s if b.reads is not None else None)
    served = mean(found, lambda b: b.storage_bytes / b.step_s if b.storage_bytes is not None else None)
    return Rates(
        samples_per_s=mean(found, lambda b: b.batch / b.step_s),
        fetch_wall_s=stages.fetch_s if stages else None,
        fetch_cpu_s=stages.fetch_cpu_s if stages else None,
        prepare_wall_s=stages.prepare_s if stages else None,
        prepare_cpu_s=stages.prepare_cpu_s if stages else None,
        sample_bytes=stages.sample_bytes if stages else None,
        storage_bytes_per_s=served,
        storage_reads_per_s=reads,
        request_bytes=served / reads if served and reads else None,
        cache_hit_share=mean(found, _cache_hits),
        prepared_per_cpu_s=1 / stages.prepare_cpu_s if stages and stages.prepare_cpu_s else None,
        concurrency=concurrency(found),
        process_cpus=process_cpus(found),
        cores=workers.cores,
        timers_cpu_share=mean(found, lambda b: b.timers_cpu_share),
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
    batch, most = situation.settings.batch_size, max(SHOWN_WORKERS, situation.workers.count or 0)
    found = []
    for count in range(most + 1):
        change = predict.with_workers(count)
        step_s = sum(change(own).step_s() for _, own in situation.pairs) / len(situation.pairs)
        found.append(WorkerPrediction(count, batch / step_s))
    return found


def _caveats(name: ArmName, own: Sequence[Record], found: Sequence[Block], named: NamedBottleneck) -> list[str]:
    lines = [named.caveat] if named.caveat else []
    if name is ArmName.COLD:
        lines += [*_cold(own), *_second_pass(found)]
        lines += [] if named.name is BottleneckKind.NONE else _fits_in_memory(own[0])
    return lines + _bad_samples(own)


def _cold(own: Sequence[Record]) -> list[str]:
    """Return what "cold" means in the cold arm: a stall that was not found may be one that the page cache hid."""
    uses = [record.input for record in own if record.input]
    lines = sorted({f"cold means: {use.cold_meaning}" for use in uses if use.cold_meaning})
    if left := [use.resident_share for use in uses if use.resident_share and use.resident_share > MOST_RESIDENT]:
        lines.append(
            f"up to {percentage(max(left))} of the files stayed in the page cache: the cold arm was not entirely cold"
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


def _bad_samples(own: Sequence[Record]) -> list[str]:
    uses = [record.input for record in own if record.input and record.input.bad_samples]
    if not uses:
        return []
    names = ", ".join(uses[0].bad_names[:3])
    return [f"{uses[0].bad_samples} samples could not be decoded and were replaced: {names}"]


def _second_pass(found: Sequence[Block]) -> list[str]:
    hits = mean(found, _cache_hits)
    if hits is None or hits <= MOST_HITS:
        return []
    return [
        f"the page cache served {percentage(hits)} of the bytes although it was emptied before each epoch: an epoch "
        "with its lead-in reads more than one pass; set a smaller steps_per_epoch, or use more samples"
    ]


def _fits_in_memory(record: Record) -> list[str]:
    facts, memory_bytes = record.input.facts if record.input else None, record.machine.memory_bytes
    stored_bytes = facts.stored_bytes if facts else None
    if not stored_bytes or not memory_bytes or stored_bytes > memory_bytes / 2:
        return []
    size = bytes_text(stored_bytes)
    return [f"the data set ({size}) fits into memory: only the first pass after a start reads from storage, as here"]
