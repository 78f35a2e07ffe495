"""Caveats of the cells of a row.

Caveats of a cell: outliers, drift, slow processes, recompiles and busy neighbours, each with advice.

Guarantee: caveats change no figure. They do not state causes; they name what to examine or to set.

Which workloads must not be compared with the row of Keras's published benchmarks that has their name.

The published table is https://keras.io/getting_started/benchmarks/. Guarantee: pure. Limit: what makes the other rows
differ, such as versions and machines, is in docs/language-models.md alone.

Caveats of cells on several devices: steps that are not Keras's own `fit`, and what they compute differently.

Guarantee: pure; every sentence is from the records. They change no figure and prevent no comparison.

A module of its own: each caveat is a function here, and the table needs to know none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from keras_matrix.analysis.comparison.machines import without_levels
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.memory_growth import WARNING, device_growth, growth_text, host_growth
from keras_matrix.analysis.stats.processes import Drift, EpochSummary, modes, summarise_epochs
from keras_matrix.analysis.surroundings.disturbance import NEIGHBOUR_LIMIT
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.text import percentage, seconds

ANOTHER_MODEL = (
    "not comparable with Keras's published row: another model (docs/workloads.md#not-comparable-with-the-published-row)"
)
PUBLISHED_CAVEATS = {"stable_diffusion_3": ANOTHER_MODEL}


def measurement_caveats(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the caveats of one cell, one line each, from its records, one a repeat."""
    measured_records = [record for record in records if record.status in MEASURED]
    summaries = (summarise_epochs(record.times.epoch_times_s, record.settings.discard) for record in measured_records)
    epoch_summaries = [summary for summary in summaries if summary]
    timed_records = [record for record in measured_records if record.times.step_time_s]
    figures = without_levels(timed_records, [record.times.step_time_s or 0.0 for record in timed_records])
    compiled = (_recompiles(measured_records), _graph_breaks(measured_records))
    growing = (_grows(measured_records, "host", host_growth), _grows(measured_records, "device", device_growth))
    neighbour_caveats = (*growing, _busy_neighbours(measured_records), _busy_while_waiting(measured_records))
    return tuple(
        line
        for line in (
            *_drifts(epoch_summaries),
            _outliers(epoch_summaries),
            _modes(figures),
            *compiled,
            *neighbour_caveats,
        )
        if line
    )


def first_tries(records: Sequence[Record], counted_records: Sequence[Record]) -> tuple[str, ...]:
    """Return as a caveat which repeats count with a disturbed first try, since the second one failed.

    `counted_records` is the attempt of each repeat that counts, of all `records` of one cell.
    """
    failed_retries = {
        (record.repeat, record.reason or str(record.status))
        for record in records
        for chosen in counted_records
        if record.repeat == chosen.repeat and record.attempt > chosen.attempt
    }
    if not failed_retries:
        return ()
    repeats = sorted({repeat for repeat, _ in failed_retries})
    repeats_text = f"{'repeat' if len(repeats) == 1 else 'repeats'} {', '.join(map(str, repeats))}"
    return (
        f"first_try: the figure of {repeats_text} is of a disturbed block; measured again, it failed: "
        f"{min(failed_retries)[1]}",
    )


def _drifts(epoch_summaries: Sequence[EpochSummary]) -> list[str]:
    count_by_drift = Counter(summary.drift for summary in epoch_summaries if summary.drift not in (None, Drift.STEADY))
    advised = max(
        (summary.advised_discard for summary in epoch_summaries if summary.drift is Drift.WARMING), default=None
    )
    advice = {Drift.WARMING: f"set discard: {advised}"}
    return [
        f"{drift} in {count} of {len(epoch_summaries)} processes: "
        f"{advice.get(drift, 'look for other load, or for throttling')}"
        for drift, count in count_by_drift.items()
        if drift is not None
    ]


def _outliers(epoch_summaries: Sequence[EpochSummary]) -> str | None:
    outlying, count = (
        sum(len(summary.outliers) for summary in epoch_summaries),
        sum(summary.count for summary in epoch_summaries),
    )
    return (
        f"outliers: {outlying} of {count} epochs are beyond ten robust deviations; they are included"
        if outlying
        else None
    )


def _modes(figures: Sequence[float]) -> str | None:
    two_modes = modes(figures)
    if two_modes is None:
        return None
    return (
        f"two modes of processes: {two_modes.count - two_modes.slow_count} at {seconds(two_modes.fast)} and "
        f"{two_modes.slow_count} at "
        f"{seconds(two_modes.slow)} a step (p {two_modes.p_value:.2g}); the mean is between them: set repeats: 20 or "
        "more"
    )


def _recompiles(measured_records: Sequence[Record]) -> str | None:
    counts = [r.resolved.recompiles_timed or 0 for r in measured_records if r.resolved]
    if not any(counts):
        return None
    return (
        f"recompiles in the timed region: {sum(counts)} in {sum(count > 0 for count in counts)} of {len(counts)} "
        "processes; the step time includes them: look for shapes, arguments or functions that change from step to step"
    )


def _graph_breaks(measured_records: Sequence[Record]) -> str | None:
    resolved_parts = [record.resolved for record in measured_records if record.resolved]
    most = max((resolved.graph_breaks or 0 for resolved in resolved_parts), default=0)
    timed_breaks = max((resolved.graph_breaks_timed or 0 for resolved in resolved_parts), default=0)
    if not most:
        return None
    timed_text = f", {timed_breaks} of them during the measured epochs" if timed_breaks else ""
    return (
        f"graph breaks: torch.compile cut the step's program in {most} places{timed_text}; "
        "TORCH_LOGS=graph_breaks names them"
    )


def _grows(
    measured_records: Sequence[Record], noun: str, growth_of: Callable[[Sequence[Record]], Estimate | None]
) -> str | None:
    """Return the caveat that processes keep memory with each step, with its interval over all of them.

    None if the interval contains zero: a program that keeps memory does so in each process, and the warnings of the
    processes that did remain.
    """
    text = f"{WARNING}: {noun} memory grows"
    count = sum(any(warning.startswith(text) for warning in record.warnings) for record in measured_records)
    estimate = growth_of(measured_records)
    if not count or estimate is None or (estimate.low is not None and estimate.low <= 0):
        return None
    return (
        f"{text} by {growth_text(estimate)}, in {count} of {len(measured_records)} processes: longer training runs "
        "out of it"
    )


def _busy_neighbours(measured_records: Sequence[Record]) -> str | None:
    """Return the caveat that other cells slowed this one down; an entry reads `NAME (SHARE of the CPUs)`."""
    busy_names = [
        record.surroundings.busy_neighbours for record in measured_records if record.surroundings.busy_neighbours
    ]
    if not busy_names:
        return None
    names_text = ", ".join(sorted({entry.partition(" (")[0] for entries in busy_names for entry in entries}))
    return (
        f"busy neighbour: {names_text} computed while waiting for its turn, in {len(busy_names)} of "
        f"{len(measured_records)} "
        "processes: this cell's times are too long; end what that workload leaves running between its epochs"
    )


def _busy_while_waiting(measured_records: Sequence[Record]) -> str | None:
    shares = [r.surroundings.waiting_cpu_share or 0.0 for r in measured_records]
    busy_shares = [share for share in shares if share > NEIGHBOUR_LIMIT]
    if not busy_shares:
        return None
    return (
        f"computes while it waits: up to {percentage(max(busy_shares))} of the CPUs, in {len(busy_shares)} of "
        f"{len(shares)} "
        "processes: it slows down the cells compared with it; end what its workload leaves running between its epochs"
    )


def published_caveats(cells: Mapping[str, Sequence[Record]]) -> tuple[str, ...]:
    """Return the caveat of a row about its published one, given the records of its cells; empty without one."""
    workloads = dict.fromkeys(record.settings.workload for records in cells.values() for record in records)
    return tuple(PUBLISHED_CAVEATS[name] for name in workloads if name in PUBLISHED_CAVEATS)


def replica_caveats(cells: Mapping[str, Sequence[Record]]) -> tuple[str, ...]:
    """Return the caveats of these cells' measured records, given by backend; equal ones of several backends once."""
    backends_by_sentence: dict[tuple[str, str], list[str]] = {}
    for backend, records in cells.items():
        for sentence_parts in dict.fromkeys(sentence for record in records for sentence in _sentences(record)):
            backends_by_sentence.setdefault(sentence_parts, []).append(backend)
    return tuple(
        f"{text_before}{', '.join(backends)}{text_after}"
        for (text_before, text_after), backends in backends_by_sentence.items()
    )


def _sentences(record: Record) -> list[tuple[str, str]]:
    """Return the caveats of a record, each as what is before and after the names of its backends."""
    replicas = record.replicas
    if replicas is None:
        return []
    meaning = [("", f" on {len(replicas.replicas)} devices: {sentence}") for sentence in replicas.semantics]
    if replicas.is_fit:
        return meaning
    keras_text, method_name = f"Keras {record.versions.get('keras', '')}".strip(), replicas.method.rpartition(".")[2]
    why = f"since {keras_text} has no distribution on this backend"
    return [("not fit: ", f": the step is this project's, around {method_name}, {why}"), *meaning]
