"""What the figures of a language model mean: weights read a second, arithmetic in a step, the label overhead-bound.

A decoding step reads every weight once for one token of each prompt, so that memory bandwidth limits a model whose
weights do not stay in the caches. A row is labelled `overhead-bound` unless its weights exceed four times the
last-level caches and at least 80 % of a step is arithmetic: otherwise its speed is that of dispatch and of caches, and
says nothing about a model of real size. Steps of `fit` and `predict` are labelled in the same way: their share of
arithmetic is not measured, so that they keep the label, with the size of the weights as a reason if that is small.

The share of arithmetic is by difference: one minus the time of the same step at the smallest widths, which runs the
same operations on almost no data (`generation.overhead_time_s`), over the time of the step. Both are medians of our own
loop. So is the share of dequantisation: one minus the same step without quantisation (`generation.unquantised_time_s`)
over the step.

Guarantee: pure; None if a part was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from keras_matrix.analysis.stats.blocks import median_of_known
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.schema import Record
from keras_matrix.records.text import bytes_text, percentage

LABEL = "overhead-bound"
CACHES = 4
ARITHMETIC_SHARE = 0.8


def median_of(records: Iterable[Record], value: Callable[[Generation], float | None]) -> float | None:
    """Return the median of a value over the processes of a cell, given by their records."""
    return median_of_known(value(record.generation) for record in records if record.generation)


def read_rate(generation: Generation) -> float | None:
    """Return the bytes of weights that our decoding step reads a second."""
    read_bytes, time_s = generation.read_weight_bytes, generation.own_token_time_mean_s
    return read_bytes / time_s if read_bytes is not None and time_s else None


def arithmetic_share(records: Iterable[Record]) -> float | None:
    """Return the share of a decoding step that is not the cost of its operations without data; at least 0."""
    records = list(records)
    step = median_of(records, lambda generation: generation.own_token_time_p50_s)
    overhead = median_of(records, lambda generation: generation.overhead_time_s)
    return max(0.0, 1 - overhead / step) if step and overhead is not None else None


def dequantisation_share(records: Iterable[Record]) -> float | None:
    """Return the share of a decoding step that quantisation adds, in one process; below 0 if it saves time."""
    records = list(records)
    step = median_of(
        records,
        lambda generation: generation.own_token_time_p50_s if generation.unquantised_time_s is not None else None,
    )
    unquantised_s = median_of(records, lambda generation: generation.unquantised_time_s)
    return 1 - unquantised_s / step if step and unquantised_s is not None else None


def overhead_reasons(records: Sequence[Record]) -> list[str]:
    """Return why a cell is overhead-bound; empty if it is not, or if its workload is no language model."""
    generation = next((record.generation for record in records if record.generation), None)
    if generation is None:
        return []
    reasons, cache_bytes, share = [], generation.last_level_cache_bytes, arithmetic_share(records)
    if cache_bytes is not None and generation.weight_bytes <= CACHES * cache_bytes:
        reasons.append(
            f"the weights ({bytes_text(generation.weight_bytes)}) are not above {CACHES} times the last-level caches "
            f"({bytes_text(cache_bytes)})"
        )
    if share is None:
        reasons.append("the share of arithmetic is not known")
    elif share < ARITHMETIC_SHARE:
        reasons.append(f"arithmetic is {percentage(share)} of a decoding step, below {percentage(ARITHMETIC_SHARE)}")
    return reasons


def overhead_caveats(cells: Mapping[str, Sequence[Record]]) -> tuple[str, ...]:
    """Return the label of a row with the reasons of each of its cells, given by backend; empty without one."""
    reasons_by_backend = {name: reasons for name, records in cells.items() if (reasons := overhead_reasons(records))}
    return tuple(f"{LABEL}: {name}: {'; '.join(reasons)}" for name, reasons in reasons_by_backend.items())
