"""Measure how fast stored data sets are read and converted: the figures in docs/lab/inputs.md.

    lab/run input_readers read              records/s and GB/s of one sequential TFRecord reader, checksums verified
    lab/run input_readers scan              a folder of 50,000 images: time until its source is ready
    lab/run input_readers convert FOLDER    the converter against a copy of the same files into one file: time, memory

Times are CPU times where they can be, because wall times depend on what else the machine does. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from keras_matrix.models.inputs.stored import record_file
from keras_matrix.models.inputs.stored.source import open_source
from keras_matrix.records.text import percentage

RECORDS = {1_000: 200_000, 100_000: 3_000}
SCANNED, SCANNED_CLASSES = 50_000, 1_000
SIZE_PER_RECORD_BYTES = 50 << 20
SAMPLING_INTERVAL_S = 0.02


def read(runs: int = 9) -> None:
    """Print the speed of one reader of records of 1 KB and 100 KB, in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for size, count in RECORDS.items():
            path = Path(folder) / f"{size}.tfrecord"
            record = b"".join(record_file.framed(os.urandom(size)))
            with path.open("wb") as file:
                file.writelines(record for _ in range(count))
            cpu_s, wall_s = [], []
            for _ in range(runs):
                begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
                assert sum(1 for _ in record_file.records(path)) == count
                cpu_s.append(time.process_time() - begun_cpu_s)
                wall_s.append(time.perf_counter() - begun_s)
            for name, times_s in (("CPU", cpu_s), ("wall", wall_s)):
                middle = statistics.median(times_s)
                print(
                    f"{size:7,} B  {name:4}  {count / middle:12,.0f} records/s  {count * size / middle / 1e9:5.2f} GB/s"
                    f"  slowest {count * size / max(times_s) / 1e9:5.2f} GB/s  n={runs}"
                )
            path.unlink()


def scan(runs: int = 9) -> None:
    """Print the time from nothing to a source of 50,000 images in 1,000 classes, warm, and for the first time."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SCANNED):
            place = Path(folder) / f"n{number % SCANNED_CLASSES:08d}"
            place.mkdir(exist_ok=True)
            (place / f"{place.name}_{number}.JPEG").touch()
        times_s = []
        for _ in range(runs):
            begun_s = time.perf_counter()
            assert len(open_source(Path(folder))) == SCANNED
            times_s.append(time.perf_counter() - begun_s)
    print(f"{SCANNED} images: median {statistics.median(times_s):.3f} s, slowest {max(times_s):.3f} s, n={runs}")


def convert(folder: Path, runs: int = 5) -> None:
    """Print time and memory of the converter and of a copy, alternating; both end with the data on the device.

    Other work can only add to a time: the fastest of each is compared.
    """
    source = open_source(folder)
    total = int(source.sizes().sum())
    times: dict[str, list[tuple[float, float]]] = {"copy": [], "tfrecord": [], "array_record": []}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        source.read(range(len(source)))
        for number in range(runs):
            for kind, runs_s in times.items():
                target = Path(place) / f"{kind}-{number}"
                wall_s, cpu_s, peak_bytes = _run(_command(kind, folder, target))
                runs_s.append((wall_s, cpu_s))
                memory[kind] = max(memory.get(kind, 0.0), peak_bytes)
                subprocess.run(["rm", "-rf", str(target)], check=True)
    base = min(times["copy"])[0]
    for kind, runs_s in times.items():
        fastest_s, middle_s = min(runs_s)[0], statistics.median(wall_s for wall_s, _ in runs_s)
        cpu_s = statistics.median(cpu_s for _, cpu_s in runs_s)
        print(
            f"{kind:12} fastest {total / fastest_s / 1e6:4.0f} MB/s ({percentage(base / fastest_s)} of the copy), "
            f"median {total / middle_s / 1e6:4.0f} MB/s, {total / cpu_s / 1e6:4.0f} MB per CPU-second; at most "
            f"{memory[kind] / 1e6:.0f} MB of memory in all processes; n={runs}"
        )


def copy(folder: Path, target: Path) -> None:
    """Copy the files of a data set into one file."""
    with target.open("wb", buffering=0) as file:
        for path in open_source(folder).files():
            file.write(path.read_bytes())
        os.fsync(file.fileno())


def _command(kind: str, folder: Path, target: Path) -> list[str]:
    if kind == "copy":
        return [sys.executable, "-m", "lab.input_readers", "copy", str(folder), str(target)]
    request = {"dataset_path": str(folder), "output_path": str(target), "to": kind, "seed": 0}
    request |= {"size_per_record_bytes": SIZE_PER_RECORD_BYTES, "workers": None}
    return [sys.executable, "-m", "keras_matrix.models.inputs.stored.convert", json.dumps(request)]


def _run(command: list[str]) -> tuple[float, float, float]:
    """Return wall and CPU seconds of a command and its processes, and the most memory of them all (PSS)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun_s, peak_bytes = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            peak_bytes = max(peak_bytes, _memory_bytes(psutil.Process(child.pid)))
            time.sleep(SAMPLING_INTERVAL_S)
    assert child.returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun_s, cpu_s, peak_bytes


def _memory_bytes(process: psutil.Process) -> float:
    total = 0.0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_full_info().pss
    except psutil.Error:
        pass
    return total


def main() -> None:
    """Run the part that the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("read", "scan", "convert", "copy"))
    parser.add_argument("paths", nargs="*", type=Path)
    args = parser.parse_args()
    {"read": read, "scan": scan, "convert": convert, "copy": copy}[args.part](*args.paths)


if __name__ == "__main__":
    main()
