"""A cost model for the terminal: the held-out errors by kind of operation, the devices, and what was not used."""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.analysis.whatif.cost.errors import HeldOutError, KindErrors, Predictor
from keras_matrix.analysis.whatif.cost.model import CostModel
from keras_matrix.analysis.whatif.cost.roofline import DevicePeaks
from keras_matrix.records.text import NOTHING, number, percentage, plural
from keras_matrix.runner.cli.render.format import columns

HEADING = ["", "different", "time", "regression", "roofline", "new device", "predicted with"]


def model_lines(model: CostModel) -> list[str]:
    """Return the tables of a model."""
    total_s = sum(one.time_s for one in model.errors)
    rows = [_row(one, total_s) for one in model.errors]
    data = model.data
    return [
        f"{plural(len(data.sources), 'trace')}, {plural(data.operations, 'operation')} a step",
        *_unused(model),
        _predicted(model, total_s),
        "",
        "held-out error by kind of operation: median / 90th percentile / of time",
        *columns([HEADING, *rows], frozenset(range(1, 6))),
        "",
        *(f"{one.backend} {one.kind}: {one.reason}" for one in model.errors),
        "",
        *(line for device in model.devices for line in _device_lines(device)),
    ]


def _unused(model: CostModel) -> Iterator[str]:
    data = model.data
    if data.without_work:
        share = data.time_without_work_s / data.time_s
        yield (
            f"not used: {plural(data.without_work, 'operation')} with {percentage(share)} of the time, whose "
            "FLOPs and bytes are unknown"
        )


def _predicted(model: CostModel, total_s: float) -> str:
    """Return how much of the learned operations' time the model predicts."""
    known = [one for one in model.errors if one.used is not Predictor.NOTHING]
    if not known:
        return "predicts nothing: the held-out error of every kind is too large, or unknown; train it on more traces"
    share = sum(one.time_s for one in known) / total_s
    return (
        f"predicts {len(known)} of {plural(len(model.errors), 'kind')} of operation, with "
        f"{percentage(share)} of their time"
    )


def _row(errors: KindErrors, total_s: float) -> list[str]:
    return [
        f"{errors.backend} {errors.kind}",
        str(errors.operations),
        percentage(errors.time_s / total_s),
        _error(errors.regression),
        _error(errors.roofline),
        _error(errors.new_device),
        str(errors.used),
    ]


def _error(error: HeldOutError | None) -> str:
    return (
        NOTHING
        if error is None
        else f"{percentage(error.median)} / {percentage(error.p90)} / {percentage(error.of_time)}"
    )


def _device_lines(device: DevicePeaks) -> Iterator[str]:
    rates = [f"{name} {number(rate / 1e9)} GFLOP/s" for name, rate in sorted(device.flop_per_s.items())]
    if device.byte_per_s:
        rates.append(f"memory {number(device.byte_per_s / 1e9)} GB/s")
    yield f"{device}: {', '.join(rates)} ({device.source})"
