"""Measure reading, decoding, resizing and batching: the workload's pipelines against the libraries used directly.

    runner make-images --count 1000 --output-path images && runner convert --dataset-path images --output-path tfrecords
    lab/run input_pipelines images --workers 1 2
    lab/run input_pipelines images --records tfrecords --rounds 5

Every pipeline runs in a process of its own. Passes of one after the other are interleaved in random order, so that a
disturbance meets all of them. Images per CPU-second count the CPU time of the process and its workers; on a busy
machine only they can be compared. The first pass of each is discarded.

`bare ...` is what the library's own documentation recommends: a task per image, with the fastest decoder that the
library can use, and the library's batching. Nothing here is a test: figures belong to a machine and a day.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BATCH, SIZE = 32, 224
BACKENDS = {"tf.data": "tensorflow", "tf_data": "tensorflow", "DataLoader": "torch", "data_loader": "torch"}
BARE = ("bare tf.data", "bare grain", "bare DataLoader")
OURS = ("tf_data", "grain", "data_loader", "py_dataset")
DECODERS = ("simplejpeg", "cv2", "pil")


# In the process of one pipeline.


def decoded(path: str) -> tuple[Any, int]:
    """Read, decode and resize one image with the fastest decoder."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(Path(path).read_bytes())
    return cv2.resize(pixels, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR), 0


class Images:
    """A map-style dataset of images."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return decoded(self.paths[index])


def bare_grain(paths: list[str], workers: int) -> Iterator[Any]:
    """Grain: a source of images, a random order, a batch; threads."""
    import cv2
    import grain

    cv2.setNumThreads(1)
    images = grain.MapDataset.source(Images(paths)).shuffle(seed=0).repeat().batch(BATCH)
    return iter(images.to_iter_dataset(grain.ReadOptions(workers, workers + 2)))


def bare_torch(paths: list[str], workers: int) -> Iterator[Any]:
    """DataLoader: a dataset of images, its sampler and its collation; processes."""
    import torch

    options = {"num_workers": workers, "shuffle": True, "drop_last": True, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(Images(paths), BATCH, multiprocessing_context="spawn", **options)
    while True:
        yield from loader


def bare_tensorflow(paths: list[str], workers: int) -> Iterator[Any]:
    """tf.data: files, a map of TensorFlow's operations, a batch; threads."""
    import tensorflow as tf

    def load(path: Any) -> Any:
        pixels = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, dct_method="INTEGER_FAST")
        return tf.cast(tf.image.resize(pixels, (SIZE, SIZE)), tf.uint8), 0

    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=0).repeat()
    return iter(files.map(load, num_parallel_calls=workers).batch(BATCH).prefetch(2))


def ours(name: str, folder: Path, workers: int, decoder: str) -> Iterator[Any]:
    """Return the batches of a pipeline of the workload."""
    from keras.src.trainers.data_adapters import get_data_adapter

    from keras_matrix.models.inputs.pipelines.pipeline import opened, pipeline_of
    from keras_matrix.models.registry import workloads
    from keras_matrix.models.workload import Request

    defaults = {param.name: param.default for param in workloads()["finetune"].params}
    options = {"dataset_path": str(folder), "pipeline": name, "input_workers": workers, "decoder": decoder}
    request = Request(defaults | options, "synthetic", None, batch_size=BATCH)
    source = pipeline_of(request, opened(request), None).source(timed=False)
    if name != "py_dataset":
        return iter(source)
    adapter = get_data_adapter(source, shuffle=False)
    adapter.on_epoch_begin()
    return iter(adapter.get_numpy_iterator())


def cpu_s() -> float:
    """Return the CPU time of this process and its workers."""
    import psutil

    this_process = psutil.Process()
    times = [process.cpu_times() for process in [this_process, *this_process.children(recursive=True)]]
    return sum(cpu_times.user + cpu_times.system for cpu_times in times)


def serve(request: dict[str, Any]) -> None:
    """Read a pass for each line of standard input, and print its wall and CPU seconds."""
    folder, workers = Path(request["folder"]), request["workers"]
    bare: dict[str, Callable[[list[str], int], Iterator[Any]]] = {
        "bare tf.data": bare_tensorflow,
        "bare grain": bare_grain,
        "bare DataLoader": bare_torch,
    }
    if request["name"] in bare:
        stream = bare[request["name"]](sorted(map(str, folder.rglob("*.jpg"))), workers)
    else:
        stream = ours(request["name"], folder, workers, request["decoder"])
    for line in sys.stdin:
        begun_s, begun_cpu_s = time.perf_counter(), cpu_s()
        for _ in range(int(line)):
            next(stream)
        print(json.dumps([time.perf_counter() - begun_s, cpu_s() - begun_cpu_s]), flush=True)
    os._exit(0)


# The parent.


@dataclass
class Pipeline:
    """A pipeline's process, and the images per second and per CPU-second of its passes."""

    name: str
    folder: Path
    workers: int
    decoder: str = "simplejpeg"
    process: subprocess.Popen[str] | None = None
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start the process."""
        backend = BACKENDS.get(self.name.split()[-1], "jax")
        environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command(), env=environment, stdin=pipe, stdout=pipe, stderr=nowhere, text=True
        )

    def command(self) -> list[str]:
        """Return the command line of the process."""
        request = {"name": self.name, "folder": str(self.folder), "workers": self.workers, "decoder": self.decoder}
        return [sys.executable, "-m", "lab.input_pipelines", "serve", json.dumps(request)]

    def passed(self, batches: int, *, counts: bool) -> None:
        """Read a pass."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{batches}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: its process has ended; run it alone: {self.command()}")
        wall_s, cpu_time_s = json.loads(line)
        if counts:
            self.wall.append(batches * BATCH / wall_s)
            self.cpu.append(batches * BATCH / cpu_time_s)

    def stop(self) -> None:
        """End the process."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(pipelines: list[Pipeline], batches: int, rounds: int) -> None:
    """Measure interleaved passes of all pipelines, and print a table."""
    for pipeline in pipelines:
        pipeline.start()
        pipeline.passed(max(4, batches // 4), counts=False)
    order = random.Random(0)
    for _ in range(rounds):
        for pipeline in order.sample(pipelines, len(pipelines)):
            pipeline.passed(batches, counts=True)
    for pipeline in pipelines:
        pipeline.stop()
    best = max(statistics.median(pipeline.cpu) for pipeline in pipelines if pipeline.name in BARE)
    print(
        "| pipeline | format | decoder | workers | images/s | images per CPU-second (range) | against the best bare |"
    )
    print("|---|---|---|---:|---:|---:|---:|")
    for pipeline in sorted(pipelines, key=lambda pipeline: -statistics.median(pipeline.cpu)):
        cpu, wall = statistics.median(pipeline.cpu), statistics.median(pipeline.wall)
        decoder = "tf.io" if pipeline.name == "bare tf.data" else pipeline.decoder
        spread = f"{cpu:,.0f} ({min(pipeline.cpu):,.0f}-{max(pipeline.cpu):,.0f})"
        cells = (
            pipeline.name,
            pipeline.folder.name,
            decoder,
            str(pipeline.workers),
            f"{wall:,.0f}",
            spread,
            f"{cpu / best:.2f}",
        )
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Run the comparison that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of JPEG files; made by: runner make-images")
    parser.add_argument("--records", type=Path, action="append", default=[], help="also these record files")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pipelines", nargs="+", default=[*BARE, *OURS], choices=[*BARE, *OURS])
    parser.add_argument("--decoders", nargs="+", default=["simplejpeg"], choices=DECODERS)
    parser.add_argument("--batches", type=int, default=16, help="of 32 images in a pass")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    pipelines = []
    for name in args.pipelines:
        for folder in [args.folder] if name in BARE else [args.folder, *args.records]:
            decoders = args.decoders[:1] if name in BARE else args.decoders
            pipelines += [Pipeline(name, folder, workers, decoder) for workers in args.workers for decoder in decoders]
    compare(pipelines, args.batches, args.rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(json.loads(sys.argv[2]))
    else:
        main()
