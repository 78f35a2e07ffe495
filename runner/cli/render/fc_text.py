"""The figures of one cell of the FC modes for the terminal, printed below the original's summary."""

from __future__ import annotations

from keras_matrix.analysis.fc.parallel import FcFigure
from keras_matrix.records.text import bytes_text, count, percentage

METHODS = {"timed": "each collective timed by itself", "profiled": "by the backend's profiler"}


def figure_lines(figure: FcFigure) -> list[str]:
    """Return the rate, communication, efficiency and memory of a cell, as lines."""
    return [f"  {_rate(figure)}", f"  {_communication(figure)}; {_efficiency(figure)}; {_memory(figure)}"]


def _rate(figure: FcFigure) -> str:
    rate = f"{count(figure.flop_per_s)}FLOP/s"
    if figure.share_of_best is None:
        return f"{rate}; share of the best product not measured: runner roofline --measure"
    own = (
        "" if figure.share_of_own is None else f", {percentage(figure.share_of_own)} of {figure.settings.backend}'s own"
    )
    return f"{rate}: {percentage(figure.share_of_best)} of the machine's best product{own}"


def _communication(figure: FcFigure) -> str:
    if figure.communication_share is None:
        return "time in communication not measured"
    if figure.spent is None:
        return "no time in communication"
    return f"{percentage(figure.communication_share)} of the time in communication ({METHODS[figure.spent.method]})"


def _efficiency(figure: FcFigure) -> str:
    if figure.task.workers == 1:
        return "one worker"
    if figure.efficiency is None:
        return "efficiency not measured: this run has no such cell with one worker (--num-workers 1 2)"
    found = figure.efficiency
    return f"efficiency {percentage(found.centre, found.low, found.high)} against one worker"


def _memory(figure: FcFigure) -> str:
    if figure.worker_memory_bytes is None:
        return "memory not measured"
    memory = bytes_text(figure.worker_memory_bytes)
    if figure.processes < figure.task.workers:
        return f"peak memory {memory}, all {figure.task.workers} workers in one process"
    return f"peak memory {memory}" + (" of the largest worker" if figure.task.workers > 1 else "")
