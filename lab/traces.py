"""Measure traces: the figures that docs/lab/traces.md states. Nothing here is a test, but tests use these functions.

lab/run traces kept     on each backend: share of the original's operations in the trace
lab/run traces speed FILE...   seconds and memory to normalise 200 MB of these
lab/run traces readers FILE    CPU time of our reader of xplane files and of generated classes
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from keras_matrix.records.protobuf import encoded_piece, fields
from keras_matrix.records.traces import conversion, neutral
from keras_matrix.records.traces.neutral import WORKING, covered
from keras_matrix.records.traces.request import NATIVE_NAME, TRACE_NAME
from keras_matrix.records.traces.torch import PROFILER_STEP
from keras_matrix.records.traces.xspace import xplane

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
NODE = re.compile(r"^[^:]+:_?[A-Z]\w*$")
END = "end: "
MEBI = 1 << 20
SIZE_BYTES = 200_000_000
CELL = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 5, batch_size: 64}
backends: [tensorflow, jax, torch]
cells:
  - workload: cifar10_cnn
    image_size: 16
    trace: {}
"""
Spans = dict[Any, list[tuple[float, float]]]


# The contents of a trace. The originals are read by independent programs: the standard library's and JAX's reader.


def kept_share(folder: Path) -> float:
    """Return the operations' time in a neutral trace over that in the files it was made of."""
    files = conversion.files_in(folder / NATIVE_NAME)
    original = sum(map(original_time_s, files))
    return neutral_time_s(folder / TRACE_NAME) / original


def neutral_time_s(path: Path) -> float:
    """Return the sum of the working time of all tracks."""
    tracks: Spans = {}
    for span in neutral.spans(path):
        if span.track.kind in WORKING:
            tracks.setdefault(span.track, []).append((span.start_ns / 1e9, span.end_ns / 1e9))
    return sum(map(covered, tracks.values()))


def original_time_s(path: Path) -> float:
    """Return the working time in a profiler's own file, summed over threads or streams."""
    spans = chrome_spans(path) if conversion.backend_of(path) == "torch" else xplane_spans(path)
    return sum(map(covered, spans.values()))


def chrome_spans(path: Path) -> Spans:
    """Return PyTorch's kernels or, if there are no kernels, operators and gloo's collectives."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = [e for e in json.loads(text)["traceEvents"] if e.get("ph") == "X"]
    kernels = [e for e in events if e.get("cat") in ON_DEVICE]
    operators = [e for e in events if e.get("cat") == "cpu_op" or e["name"].startswith("gloo:")]
    spans: Spans = {}
    for event in kernels or operators:
        place = event["pid"], event["tid"]
        spans.setdefault(place, []).append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    return spans


def xplane_spans(path: Path) -> Spans:
    """Return XLA's instructions and TensorFlow's operations, each until its recorded end."""
    with warnings.catch_warnings():
        # jaxlib 0.12 makes a type without a module, of which Python 3.12 warns; as an error it aborts the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _xplane_spans(path)


def _xplane_spans(path: Path) -> Spans:
    from jax.profiler import ProfileData

    ends: dict[int, float] = {}
    by_place: dict[Any, list[tuple[float, float, Any]]] = {}
    for plane in ProfileData.from_file(str(path)).planes:
        for number, line in enumerate(plane.lines):
            for event in line.events:
                stats = dict(event.stats)
                if event.name.startswith(END):
                    ends[stats.get("_c", 0)] = event.end_ns / 1e9
                elif "hlo_op" in stats or NODE.match(event.name):
                    spans = by_place.setdefault((plane.name, number), [])
                    spans.append((event.start_ns / 1e9, event.end_ns / 1e9, stats.get("_p")))
    extended: Spans = {}
    for place, spans in by_place.items():
        for start, end, context in spans:
            recorded_end = ends.get(context, 0.0)
            # Events that end after their thread has continued are not part of it.
            lane = (place, context) if recorded_end > end else place
            extended.setdefault(lane, []).append((start, max(end, recorded_end)))
    return extended


def kept() -> None:
    """Trace a cell on each backend and print the share of operations in each trace."""
    from keras_matrix.records.store import Results
    from keras_matrix.runner.cli.main import main as runner

    with tempfile.TemporaryDirectory(prefix="trace-figures-") as folder:
        matrix, results = Path(folder) / "matrix.yaml", Path(folder) / "results"
        matrix.write_text(CELL, encoding="utf-8")
        runner(["--matrix", str(matrix), "--results", str(results), "--json"])
        run = Results(results).latest()
        for record in run.load()[0] if run else []:
            if record.trace and record.trace.folder and run:
                share = kept_share(run.folder / record.trace.folder)
                print(f"| {record.settings.backend} | {share:.4f} |", flush=True)


# How fast a large profile is normalised, in a separate process.


def large_chrome(source: Path, target: Path, size_bytes: int) -> None:
    """Write PyTorch's file repeatedly, each time with later times and unique numbers, up to that size."""
    document = json.loads(gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes())
    events = document.pop("traceEvents")
    times = [event["ts"] for event in events if "ts" in event]
    long_us = max(times) - min(times) + 1e5
    with target.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
        for copy in range(1 << 30):
            file.writelines(json.dumps(_moved(event, copy, long_us), indent=1) + ",\n" for event in events)
            if file.tell() >= size_bytes:
                break
        file.write('{"ph": "M"}]}')


def _moved(event: dict[str, Any], copy: int, long_us: float) -> dict[str, Any]:
    moved = event | ({"ts": event["ts"] + copy * long_us} if "ts" in event else {})
    if "id" in event:
        moved["id"] = event["id"] + copy * 10_000_000
    values = event.get("args", {})
    if event.get("name", "").startswith(PROFILER_STEP):
        moved["name"] = f"{PROFILER_STEP}{int(event['name'].removeprefix(PROFILER_STEP)) + copy * 1000}"
    numbers = {key: values[key] + copy * 10_000_000 for key in ("correlation", "Sequence number") if key in values}
    return moved | ({"args": values | numbers} if numbers else {})


def large_xplane(source: Path, target: Path, size_bytes: int) -> None:
    """Write a file with its programs once, and its other planes repeatedly up to that size."""
    members = fields(memoryview(source.read_bytes()))
    planes = [bytes(value) for key, value in members if key == 1 and isinstance(value, memoryview)]
    once = [plane for plane in planes if xplane.METADATA_PLANE.encode() in plane[:64]]
    again = [plane for plane in planes if plane not in once]
    with target.open("wb") as file:
        while file.tell() < size_bytes:
            for plane in [*once, *again]:
                file.write(encoded_piece(1, plane))
            once = []


def speed(source: Path, size_bytes: int) -> None:
    """Print the seconds and memory to normalise a profile of that size."""
    with tempfile.TemporaryDirectory(prefix="trace-figures-") as folder:
        is_chrome = conversion.backend_of(source) == "torch"
        large = Path(folder) / ("large.json" if is_chrome else "large.xplane.pb")
        (large_chrome if is_chrome else large_xplane)(source, large, size_bytes)
        script = [sys.executable, "-m", "lab.traces", "normalise", str(large), str(Path(folder) / TRACE_NAME)]
        print(f"{source.name}, {large.stat().st_size / 1e6:.0f} MB:", flush=True)
        subprocess.run(script, check=True)
        print(f"  a trace of {(Path(folder) / TRACE_NAME).stat().st_size / 1e6:.1f} MB")


def normalise(source: Path, target: Path) -> None:
    """Normalise one file, and print the seconds and the memory of this process."""
    begun_s = time.perf_counter()
    conversion.make([source], target, conversion.backend_of(source))
    taken_s = time.perf_counter() - begun_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEBI
    print(f"  {taken_s:.1f} s, at most {peak_mib:.0f} MiB", flush=True)


# Our reader against the classes that protoc generates, which TensorFlow ships.


def readers(source: Path, size_bytes: int) -> None:
    """Print the CPU seconds of both readers, interleaved; both must find the same."""
    with tempfile.TemporaryDirectory(prefix="trace-figures-") as folder:
        large = Path(folder) / "large.xplane.pb"
        large_xplane(source, large, size_bytes)
        data = large.read_bytes()
    by_generated_classes(b"")  # TensorFlow's import does not count
    for _ in range(4):
        our_counts, own_s = _timed(by_columns, data)
        their_counts, generated_s = _timed(by_generated_classes, data)
        assert our_counts == their_counts, (our_counts, their_counts)
        print(
            f"{our_counts[0]} events: {own_s:.2f} s, generated classes {generated_s:.2f} s: {generated_s / own_s:.1f} "
            "times"
        )


def _timed(read: Any, data: bytes) -> tuple[tuple[int, int], float]:
    begun_s = time.process_time()
    return read(data), time.process_time() - begun_s


def by_columns(data: bytes) -> tuple[int, int]:
    """Return how many events there are and their nanoseconds, having read two statistics of each."""
    count = total_ns = 0
    for plane in xplane.planes(data):
        for events in (line.events() for line in plane.lines):
            count, total_ns = count + len(events), total_ns + int((events.end_ns - events.start_ns).sum())
            events.numbers("_c")
            events.words("hlo_op")
    return count, total_ns


def by_generated_classes(data: bytes) -> tuple[int, int]:
    """Return the same."""
    import numpy as np
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    count = total_ns = 0
    for plane in xplane_pb2.XSpace.FromString(data).planes:
        names = {key: value.name for key, value in plane.stat_metadata.items()}
        stat_ids = {key for key, name in names.items() if name in ("_c", "hlo_op")}
        for line in plane.lines:
            offsets_ps, durations_ps, values = [], [], []
            for event in line.events:
                offsets_ps.append(event.offset_ps)
                durations_ps.append(event.duration_ps)
                values.append([s.int64_value or s.ref_value for s in event.stats if s.metadata_id in stat_ids])
            begins, lasts = np.array(offsets_ps, np.int64), np.array(durations_ps, np.int64)
            count += len(begins)
            total_ns += int((np.rint((begins + lasts) / 1000) - np.rint(begins / 1000)).sum())
    return count, total_ns


def main() -> None:
    """Run the requested measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kept", "speed", "readers", "normalise"))
    parser.add_argument("files", nargs="*", type=Path, help="speed: profiles to make large ones of")
    parser.add_argument("--size", type=int, default=SIZE_BYTES, metavar="BYTES", help="speed: how large")
    args = parser.parse_args()
    if args.what == "kept":
        kept()
    elif args.what == "readers":
        readers(args.files[0], args.size)
    elif args.what == "normalise":
        normalise(*args.files)
    else:
        for source in args.files:
            speed(source, args.size)


if __name__ == "__main__":
    main()
