"""The figures of one cell of the FC modes for the terminal, beside the original's summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_matrix.runner.cli.render.format import count, size

if TYPE_CHECKING:
    from keras_matrix.analysis.fc.parallel import FcFigure
    from keras_matrix.analysis.stats.blocks import Estimate

HOW = {
    "timed": "each collective timed by itself",
    "profiled": "by the backend's profiler",
}


def figure_lines(figure: FcFigure) -> list[str]:
    """Return what a cell shows besides its times and bytes, as lines."""
    return [
        f"  {_rate(figure)}",
        f"  {_communication(figure)}; {_efficiency(figure)}; {_memory(figure)}",
    ]


def _rate(figure: FcFigure) -> str:
    rate = f"{count(figure.flop_per_s)}FLOP/s"
    if figure.share_of_best is None:
        return f"{rate}; share of the best product not measured: runner roofline --measure"
    told = f"{rate}: {figure.share_of_best:.0%} of the machine's best product"
    if figure.share_of_own is not None:
        told += f", {figure.share_of_own:.0%} of {figure.settings.backend}'s own"
    return told


def _communication(figure: FcFigure) -> str:
    if figure.communication_share is None:
        return "time in communication not measured"
    if figure.spent is None:
        return "no time in communication"
    return f"{figure.communication_share:.0%} of the time in communication ({HOW[figure.spent.method]})"


def _efficiency(figure: FcFigure) -> str:
    if figure.task.workers == 1:
        return "one worker"
    if figure.efficiency is None:
        return "efficiency not measured: this run has no such cell of one worker (--num-workers 1 2)"
    return f"efficiency {figure.efficiency.centre:.2f}{_interval(figure.efficiency)} against one worker"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{estimate.low:.2f}-{estimate.high:.2f}]"


def _memory(figure: FcFigure) -> str:
    if figure.worker_memory_bytes is None:
        return "memory not measured"
    told = size(figure.worker_memory_bytes)
    if figure.processes < figure.task.workers:
        return f"peak memory {told}, all {figure.task.workers} workers in one process"
    return f"peak memory {told}" + (" of the largest worker" if figure.task.workers > 1 else "")
