"""A roofline for the terminal: the machine's peaks, each backend's own products, the cells; and the check of FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from keras_matrix.analysis.hardware.flops import agreements
from keras_matrix.analysis.hardware.roofline import PeakShare, Product, Roofline, Slope
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.instruments.work import FlopCheck
from keras_matrix.records.text import NOTHING, bytes_text, count, number, percentage, percentage_interval, printable
from keras_matrix.runner.cli.render.format import columns


def lines(found: Roofline, peaks: Peaks | None) -> list[str]:
    """Return the peaks, the cells and the notes, as lines."""
    text: list[str] = []
    if peaks:
        text += [
            f"peaks of {peaks.machine.cpu_model}, {peaks.machine.logical_cpus} CPUs, measured {peaks.measured_at}; "
            f"best and median over the calls of {peaks.rounds} processes each, interleaved in random order",
            "",
            *_own_lines(found.own),
            "",
            *_memory_lines(found.slopes),
        ]
    text += ["", *_cell_lines(found.shares)] if found.shares else []
    return text + [""] * bool(found.notes) + [f"note: {printable(note)}" for note in found.notes]


def check_lines(checks: Sequence[FlopCheck], refused: Mapping[str, str]) -> list[str]:
    """Return the comparison of FLOP counts, as lines."""
    rows = [["workload", "backend", "batch", "comparison", "expected", "found", "ratio", "within", "verdict"]]
    for check in checks:
        for one in agreements(check):
            verdict = "no such count" if one.agrees is None else "agrees" if one.agrees else one.why or "DIFFERS"
            figures = [count(one.expected), count(one.found), NOTHING if one.ratio is None else f"{one.ratio:.3f}"]
            names = [check.workload, check.backend, str(check.batch_size), one.what]
            rows.append([*names, *figures, percentage(one.tolerance), verdict])
    moved = [
        f"{c.workload}: XLA counts {count(c.framework_train_bytes)}B accessed by the compiled training step"
        for c in checks
        if c.framework_train_bytes
    ]
    tools = {f"{check.backend}: the tool is {check.tool}" for check in checks}
    return [
        *columns(rows, right=frozenset({2, 4, 5, 6, 7})),
        "",
        *sorted(tools),
        *moved,
        *(f"not counted: {printable(what)}: {printable(why)}" for what, why in sorted(refused.items())),
    ]


def rate(value: float | None, unit: str = "FLOP/s") -> str:
    """Return a rate such as `398 GFLOP/s`."""
    return NOTHING if value is None else count(value) + unit


def _own_lines(own: Iterable[Product]) -> list[str]:
    rows = [["matrix product", "CPUs", "backend", "best", "median", "calls", "of the best"]]
    for one in own:
        rates = [rate(one.best_flop_per_s), rate(one.median_flop_per_s)]
        product = f"{one.place.device} {one.place.precision}"
        rows.append(
            [product, str(one.place.threads), one.backend, *rates, str(one.calls), percentage(one.share_of_best)]
        )
    return columns(rows, right=frozenset({1, 3, 4, 5, 6}))


def _memory_lines(slopes: Iterable[Slope]) -> list[str]:
    rows = [["memory", "CPUs", "timed with", "triad, best", "median", "calls", "copy, best", "arrays"]]
    for one in slopes:
        best, median, copy = (
            rate(value, "B/s") for value in (one.best_byte_per_s, one.median_byte_per_s, one.copy_byte_per_s)
        )
        rows.append(
            [one.device, str(one.threads), one.by, best, median, str(one.calls), copy, bytes_text(one.array_bytes)]
        )
    return columns(rows, right=frozenset({1, 3, 4, 5, 6, 7}))


def _cell_lines(shares: Iterable[PeakShare]) -> list[str]:
    head = ["cell", "backend", "FLOPs/step", "reached", "peak", "share", "95 % interval", "of own product"]
    rows = [[*head, "FLOP/byte <=", "MFU", ""]]
    for one in shares:
        bounds = percentage_interval(one.low, one.high)
        rows.append(
            [
                printable(one.title),
                one.backend,
                count(one.flops_per_step),
                rate(one.achieved_flop_per_s),
                rate(one.peak_flop_per_s) + (f" ({one.peak_of})" if one.peak_of else ""),
                percentage(one.share_of_peak),
                bounds,
                percentage(one.share_of_own_gemm),
                number(one.intensity_flop_per_byte),
                percentage(one.mfu),
                one.note or "",
            ]
        )
    return columns(rows, right=frozenset(range(2, 10)))
