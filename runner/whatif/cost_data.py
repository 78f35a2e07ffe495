"""Collects what a cost model is learned from, and applies the model of a file to the device of a trace.

It is learned from trace graphs and the measured peaks of the devices that they ran on.

Times are those of operations that have the cores which they need to themselves, as in what-ifs. A trace that is named
itself must be readable; one of a run that cannot be read is left out with a warning, since a single damaged trace must
not make all others useless.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.analysis.whatif.cost_model import (
    CostModel,
    CostModelError,
    TrainingData,
    known_device,
    parse,
    predictor,
)
from keras_matrix.analysis.whatif.cost_operations import (
    MEASURED,
    DevicePeaks,
    OperationSample,
    cores_of,
    device_peaks,
    observed_peaks,
    product_of,
    samples_of,
)
from keras_matrix.analysis.whatif.graph import Graph, GraphError, Header, Node
from keras_matrix.analysis.whatif.replay import exclusive
from keras_matrix.records.codec import CodecError
from keras_matrix.records.files import UnfitFile, read_plain
from keras_matrix.records.instruments.peaks import Peaks, in_file
from keras_matrix.records.store import RECORD_NAME, Results, Run, latest_attempts
from keras_matrix.records.traces.request import TraceError
from keras_matrix.runner.checks.roofline import peaks_of
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.whatif.source import TraceFiles, files_of, graph_of

# A trace: its name, its operations and those without known work, the time of both in a step, in seconds.
_Count = tuple[str, int, int, float, float]
RUN_FILE = "run.json"
ADVICE = "PyTorch: record with record_shapes=True; JAX, TensorFlow: with the compiled program in the profile"
LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Collected:
    """The samples, the devices by number, and what was found besides."""

    samples: list[OperationSample]
    devices: list[DevicePeaks]
    data: TrainingData
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Source:
    """A trace, its name, and the peaks of the machine of its run; `named` if the user has named the trace itself."""

    name: str
    trace: TraceFiles
    peaks: Peaks | None
    named: bool


def collected(paths: Sequence[Path], peaks: Peaks | None, report: Callable[[str], None]) -> Collected:
    """Return the samples of all traces at these paths: results folders, runs, records, files or folders of traces.

    `peaks` are those of the machine of traces that have none in their results folder. Raises `UsageError`.
    """
    samples: list[OperationSample] = []
    devices: list[DevicePeaks] = []
    trace_counts: list[_Count] = []
    warnings: list[str] = []
    for source in [found_source for path in paths for found_source in _sources(path, peaks)]:
        report(source.name)
        try:
            graph = exclusive(graph_of(source.trace))
        except (GraphError, TraceError, OSError) as error:
            if source.named:
                raise UsageError(str(error)) from error
            warnings.append(f"left out: {error}")
            continue
        graph_samples = samples_of(graph, 0)
        if graph_samples.samples:
            device = _number_of(_device(graph, graph_samples.samples, source.peaks), devices)
            samples += [replace(sample, device=device) for sample in graph_samples.samples]
        trace_counts.append(
            (
                source.name,
                graph_samples.operations,
                graph_samples.without_work,
                graph_samples.time_s,
                graph_samples.time_without_work_s,
            )
        )
    if not samples:
        raise UsageError(_nothing(paths, trace_counts, warnings))
    names, *sums = zip(*trace_counts, strict=True)
    counts, times = [int(sum(column)) for column in sums[:2]], [float(sum(column)) for column in sums[2:]]
    return Collected(samples, devices, TrainingData(list(names), *counts, *times), warnings)


def peaks_from(path: Path) -> Peaks:
    """Return the peaks in a file of `runner roofline`. Raises `UsageError`."""
    try:
        return in_file(path)
    except OSError as error:
        raise UsageError(f"--peaks: {path}: cannot be read: {error.strerror or error}") from error
    except CodecError as error:
        advice = "name a file of results/peaks, which runner roofline writes"
        raise UsageError(f"--peaks: {path}: is not a file of peaks: {error}; {advice}") from error


def peaks_of_graph(header: Header, peaks: Peaks) -> DevicePeaks | None:
    """Return the measured peaks for the device of a graph."""
    device = "cpu" if header.device.partition(":")[0] == "cpu" else "gpu"
    own_peaks = device_peaks(peaks, header.backend, device, cores_of(header))
    # The graph's own name of the product identifies the device, so that all traces of it are of one.
    return replace(own_peaks, product=product_of(header), cores=cores_of(header)) if own_peaks else None


def _device(graph: Graph, samples: Sequence[OperationSample], peaks: Peaks | None) -> DevicePeaks:
    measured_peaks = peaks_of_graph(graph.header, peaks) if peaks else None
    return measured_peaks or observed_peaks(graph.header, samples)


def _number_of(device: DevicePeaks, devices: list[DevicePeaks]) -> int:
    """Return the number of a device, which is added if it is new. Measured peaks go before observed rates."""
    for number, other in enumerate(devices):
        if other.identity == device.identity:
            if other.source == device.source:
                devices[number] = _best_of(other, device)
            elif device.source == MEASURED:
                devices[number] = device
            return number
    devices.append(device)
    return len(devices) - 1


def _best_of(device: DevicePeaks, other: DevicePeaks) -> DevicePeaks:
    names = device.flop_per_s.keys() | other.flop_per_s.keys()
    rates = {name: max(device.flop_per_s.get(name, 0.0), other.flop_per_s.get(name, 0.0)) for name in sorted(names)}
    byte_per_s = max((rate for rate in (device.byte_per_s, other.byte_per_s) if rate), default=None)
    return replace(device, flop_per_s=rates, byte_per_s=byte_per_s)


def _sources(path: Path, peaks: Peaks | None) -> Iterator[_Source]:
    """Yield the traces at a path. Raises `UsageError`."""
    if RECORD_NAME.fullmatch(path.name) and (path.parent.parent / RUN_FILE).is_file():
        yield from _of_run(Run(path.parent.parent), peaks, path.name)
    elif (path / RUN_FILE).is_file():
        yield from _of_run(Run(path), peaks)
    elif path.is_dir() and (runs := Results(path).runs()):
        for run in runs:
            yield from _of_run(run, peaks)
    else:
        try:
            yield _Source(str(path), TraceFiles(tuple(files_of([path]))), peaks, named=True)
        except GraphError as error:
            raise UsageError(str(error)) from error


def _of_run(run: Run, peaks: Peaks | None, only: str | None = None) -> Iterator[_Source]:
    run_peaks = peaks_of(run.folder.parent, run.about()) or peaks
    for record in latest_attempts(run.load()[0]):  # an earlier attempt was disturbed, or failed
        name = f"{record.cell_id}.{record.repeat}.{record.attempt}"
        folder = record.trace.folder if record.trace else None
        if folder is None or (only is not None and only != f"{name}.json"):
            continue
        if run.inside(folder) is None:
            continue
        try:
            files = tuple(files_of([run.folder / folder]))
        except (GraphError, OSError):
            files = (run.folder / folder,)  # reading it reports the reason
        yield _Source(f"{run.run_id} {name}", TraceFiles(files, record), run_peaks, named=False)


def _nothing(paths: Sequence[Path], counts: Sequence[_Count], warnings: Sequence[str]) -> str:
    """Return why there is nothing to learn from."""
    paths_text = ", ".join(map(str, paths))
    if counts:
        count = sum(path_count[1] for path_count in counts)
        return f"{paths_text}: no usable operation: none of {count} has FLOPs or bytes; {ADVICE}"
    if warnings:
        return f"{paths_text}: no trace can be read; first: {warnings[0]}"
    return f"{paths_text}: contains no trace; record one with: runner trace CELL"


@dataclass(frozen=True, slots=True)
class Applied:
    """A model for one device: its predictions in seconds, as what-ifs take them, and what they are based on."""

    predict: Callable[[Node], float | None]
    basis: str


def read(path: Path) -> CostModel:
    """Return the model of a file. Raises `UsageError`, which names the file and what is wrong with it."""
    try:
        return parse(read_plain(os.path.realpath(path), LIMIT_BYTES), str(path))
    except UnfitFile as error:
        raise UsageError(f"{path}: cannot be read: {error}; name the file of a cost model") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except CostModelError as error:
        raise UsageError(str(error)) from error


def applied(path: Path, header: Header, peaks: Peaks | None) -> Applied:
    """Return a model for the device of a graph. `peaks` are those of its machine, None if they were not measured.

    Raises `UsageError` if the file cannot be used, or if the device is new and has no peaks.
    """
    model = read(path)
    if device := known_device(model, header):
        return Applied(predictor(model, device), f"{path}: learned on {device}")
    if peaks and (device := peaks_of_graph(header, peaks)):
        return Applied(predictor(model, device), f"{path}: {device} is new to the model, predicted from its peaks")
    devices_text = "; ".join(map(str, model.devices))
    raise UsageError(
        f"{path}: was not learned on {header.backend} on {product_of(header)} (but on {devices_text}), and the peaks "
        "of that machine were not measured; measure them there with runner roofline --measure"
    )
