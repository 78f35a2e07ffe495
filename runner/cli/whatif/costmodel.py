"""Learn how long operations take from stored traces, by kind of operation, and show how wrong that is.

`train` reads every trace of the named results folders, runs, records, and files or folders of profilers, and writes a
model file. Its errors are those of operations that were held out. A kind that a regression predicts worse than the
roofline of the device's peaks is predicted with the roofline. `show` prints a model file.
docs/optimize.md#cost-models"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from keras_matrix.analysis.whatif.cost_model import CostModel, HeldOutError, KindErrors, train
from keras_matrix.analysis.whatif.cost_operations import DevicePeaks
from keras_matrix.records import files
from keras_matrix.records.codec import dumps, to_json
from keras_matrix.records.text import NOTHING, number, percentage, plural, printable
from keras_matrix.runner.cli.options import check_output
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.whatif import cost_data, cost_regressor

HEADING = ["", "different", "time", "regression", "roofline", "new device", "predicted with"]

DEFAULT = Path("costmodel.json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's actions and flags."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    training = actions.add_parser("train", help="learn a model from traces and write it")
    help_text = "a results folder, a run's folder, a record, a profiler's file, or a folder of one trace"
    training.add_argument("paths", nargs="+", type=Path, metavar="RECORDS_OR_TRACES", help=help_text)
    training.add_argument(
        "--to", type=Path, default=DEFAULT, metavar="FILE", help=f"the model file; default: {DEFAULT}"
    )
    peaks_help = (
        "results/peaks/*.json of the machine of traces whose results folder has none; default: their best rates"
    )
    training.add_argument("--peaks", type=Path, metavar="FILE", help=peaks_help)
    showing = actions.add_parser("show", help="print a model's errors and devices")
    showing.add_argument("file", type=Path, metavar="FILE", help="a model file")
    for action in (training, showing):
        action.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Train and write a model, or show one."""
    if args.action == "show":
        _show(cost_data.read(args.file), args.file, as_json=args.json)
        return 0
    check_output("--to", args.to)
    _show(_trained(args.paths, args.to, args.peaks), args.to, as_json=args.json)
    return 0


def _trained(paths: list[Path], target: Path, peaks: Path | None) -> CostModel:
    regressor = cost_regressor.regressor()
    own_peaks = cost_data.peaks_from(peaks) if peaks else None
    collected = cost_data.collected(paths, own_peaks, lambda name: print(f"costmodel: {name}", file=sys.stderr))
    for warning in collected.warnings:
        print(printable(f"runner: warning: {warning}"), file=sys.stderr)
    model = train(collected.samples, collected.devices, collected.data, regressor)
    try:
        files.replace(target, dumps(model))
    except OSError as error:
        raise InfrastructureError(f"--to: {target}: cannot be written: {error.strerror or error}") from error
    return model


def _show(model: CostModel, path: Path, *, as_json: bool) -> None:
    if as_json:
        fields = {name: value for name, value in to_json(model).items() if name != "regressions"}
        print(document({"file": str(path), **fields}))
    else:
        print("\n".join([*map(printable, model_lines(model)), f"model: {path}"]))


def model_lines(model: CostModel) -> list[str]:
    """Return the tables of a model."""
    rows = [_row(kind_errors, model.share([kind_errors])) for kind_errors in model.errors]
    data = model.data
    return [
        f"{plural(len(data.sources), 'trace')}, {plural(data.operations, 'operation')} a step",
        *_unused(model),
        _predicted(model),
        "",
        "held-out error by kind of operation: median / 90th percentile / of time",
        *columns([HEADING, *rows], frozenset(range(1, 6))),
        "",
        *(f"{kind_errors.backend} {kind_errors.kind}: {kind_errors.reason}" for kind_errors in model.errors),
        "",
        *(line for device in model.devices for line in _device_lines(device)),
    ]


def _unused(model: CostModel) -> Iterator[str]:
    data = model.data
    if data.without_work:
        share = percentage(data.share_without_work)
        yield (
            f"not used: {plural(data.without_work, 'operation')} with {share} of the time, whose FLOPs and bytes are "
            "unknown"
        )


def _predicted(model: CostModel) -> str:
    """Return how much of the learned operations' time the model predicts."""
    if not model.predicted:
        return "predicts nothing: the held-out error of every kind is too large, or unknown; train it on more traces"
    return (
        f"predicts {len(model.predicted)} of {plural(len(model.errors), 'kind')} of operation, with "
        f"{percentage(model.share(model.predicted))} of their time"
    )


def _row(errors: KindErrors, share: float) -> list[str]:
    return [
        f"{errors.backend} {errors.kind}",
        str(errors.operations),
        percentage(share),
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
    rate_texts = [f"{name} {number(rate / 1e9)} GFLOP/s" for name, rate in sorted(device.flop_per_s.items())]
    if device.byte_per_s:
        rate_texts.append(f"memory {number(device.byte_per_s / 1e9)} GB/s")
    yield f"{device}: {', '.join(rate_texts)} ({device.source})"
