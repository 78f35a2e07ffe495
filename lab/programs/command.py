"""Measure the corpus, the programs of tests/programs, by `runner script`. Nothing here is a test.

lab/run programs table       a figure or the reason for each program on each backend on which the plain program runs
lab/run programs ratio       observed against plain epochs, alternating in one process, for each program and backend
lab/run programs processes   `runner script` against the plain program, whole processes, for six programs
lab/run programs build       `runner script` against a `build` of the same model with the same feed
lab/run programs figures     the last three: 25 minutes on a quiet machine with two cores

`--only NAME` and `--backend NAME` choose programs and backends. `ratio`, `processes` and `build` use one CPU and one
thread for each process, and measure on all CPUs at the same time: both sides of a ratio share their CPU. The tables are
printed as Markdown, each row when it is complete.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

from scipy.stats import quantile_test

from keras_matrix.analysis.stats.blocks import CONFIDENCE, Estimate, of_logs, paired_logs
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.records.text import percentage, ratio_text, seconds
from keras_matrix.runner.executors.probe import probe_settings
from keras_matrix.runner.executors.supervise.environment import cell_environment
from tests.programs.corpus import Program, corpus

ROOT = Path(__file__).parents[2]
RUNNER = Path(sys.executable).parent / "runner"
# Whole processes: two programs a backend.
IN_PROCESSES = (
    ("seq2seq", "tensorflow"),
    ("several_outputs", "jax"),
    ("vae", "torch"),
    ("text", "tensorflow"),
    ("subclassed", "jax"),
    ("callbacks", "torch"),
)
PROCESS_EPOCHS = 6
TARGET, BUILD_TARGET = 0.02, 0.01
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A row of a study's table, with the backend and the log ratios of its pairs, if it has a ratio."""

    text: str
    backend: str = ""
    logs: tuple[float, ...] = ()


Job = Callable[[int], StudyRow]


class Unmeasured(Exception):
    """A process without a figure. The message begins its row."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The programs and backends of a call of the study, and how long its parts take."""

    programs: list[Program]
    backends: tuple[str, ...]
    seconds: float
    pairs: int
    assignments: tuple[str, ...] = ()

    def cases(self) -> Iterator[tuple[Program, str]]:
        """Yield each program with each backend for which it is written."""
        for program in self.programs:
            yield from ((program, backend) for backend in self.backends if backend in program.backends)


def table(chosen: Chosen) -> None:
    """Print a row for each program: the seconds of an epoch on each backend, or the reason."""
    print(header(["program", "way to train", "measured call", *chosen.backends]))
    options = [word for assignment in ("epochs=3", *chosen.assignments) for word in ("--set", assignment)]
    with_figure = asked = 0
    for program in chosen.programs:
        backends = [backend for backend in chosen.backends if backend in program.backends]
        with tempfile.TemporaryDirectory(prefix="programs-") as folder:
            ends = {backend: plain_end(program, backend, Path(folder) / backend) for backend in backends}
            running = [backend for backend, end in ends.items() if not end]
            records = script_records(program, program.copied(Path(folder)), running, options)
        texts = {backend: figure(records.get(backend)) for backend in running}
        asked += len(running)
        with_figure += sum(is_measured(records.get(backend)) for backend in running)
        cells = [texts.get(backend) or ends.get(backend) or "not written for it" for backend in chosen.backends]
        print(f"| {program.name} | {', '.join(program.ways)} | {program.call} | {' | '.join(cells)} |", flush=True)
    print(f"\n{with_figure} of {asked} programs that run on a backend have a figure there.")


def header(columns: Sequence[str]) -> str:
    """Return the first two lines of a table."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def plain_end(program: Program, backend: str, parent: Path) -> str:
    """Run the plain program in a copy; return how it ended, "" if without an error."""
    folder = program.copied(parent)
    done = subprocess.run(
        [sys.executable, program.program, *program.args],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = done.stderr.strip().splitlines() or [""]
    return f"the plain program fails: {lines[-1]}" if done.returncode else ""


def script_records(
    program: Program, folder: Path, backends: Sequence[str], options: Sequence[str], cpu: int | None = None
) -> dict[str, Record]:
    """Measure a program in its folder by `runner script`, and return the record of each backend."""
    if not backends:
        return {}
    chosen = [word for backend in backends for word in ("--backend", backend)]
    results = folder.parent / f"results-{program.name}"
    command = [str(RUNNER), "script", *chosen, *options, "--new", "--json", "--results", str(results)]
    bound = [] if cpu is None else ["taskset", "--cpu-list", str(cpu)]
    subprocess.run(
        [*bound, *command, program.program, *program.args], cwd=folder, stdout=subprocess.DEVNULL, check=False
    )
    return {record.settings.backend: record for record in newest(results)}


def newest(results: Path) -> list[Record]:
    """Return the records of the newest run of a results folder."""
    run = Results(results).latest()
    return latest_attempts(run.load()[0]) if run else []


def is_measured(record: Record | None) -> bool:
    """Return whether a record has a figure."""
    return record is not None and record.status in MEASURED and record.times.epoch_time_mean_s is not None


def figure(record: Record | None) -> str:
    """Return the seconds of an epoch and its steps, else the reason."""
    if record is None or not is_measured(record):
        return "no record" if record is None else f"{record.status}: {record.reason}"
    assert record.resolved is not None
    return f"{seconds(record.times.epoch_time_mean_s)}, {record.resolved.steps_per_epoch} steps"


def ratio(chosen: Chosen) -> list[Job]:
    """Return a job for each program and backend: observed against plain epochs in one process."""
    return [job_of(ratio_row, program, backend, chosen.seconds) for program, backend in chosen.cases()]


def job_of(row: Callable[[int, Program, str, float], StudyRow], program: Program, backend: str, amount: float) -> Job:
    """Return a job that makes a row on the CPU that it is given."""
    return lambda cpu: row(cpu, program, backend, amount)


def ratio_row(cpu: int, program: Program, backend: str, limit_s: float) -> StudyRow:
    """Return the row of one program on one backend."""
    with tempfile.TemporaryDirectory(prefix="programs-") as parent:
        folder = program.copied(Path(parent))
        output = Path(parent) / "pairs.json"
        order = {"backend": backend, "call": program.call, "seconds": limit_s}
        order |= {"program": program.program, "args": list(program.args), "output": str(output)}
        problem = ended("lab.programs.alternating", order, (cpu, backend, folder))
        if problem:
            return StudyRow(f"| {program.name} | {backend} | {problem} | | | |")
        pairs = json.loads(output.read_text(encoding="utf-8"))
    logs = [math.log(a / b) for a, b in zip(pairs["observed_s"], pairs["plain_s"], strict=False)]
    epoch_s = statistics.median(pairs["plain_s"])
    text = f"| {program.name} | {backend} | {seconds(epoch_s)} | {verdict(median(logs), TARGET)} |"
    return StudyRow(text, backend, tuple(logs))


def ended(module: str, order: Mapping[str, object], place: tuple[int, str, Path]) -> str:
    """Run a module on a CPU, with the variables of a cell, in a folder; return the last line of its error, or ""."""
    cpu, backend, folder = place
    path = folder.parent / "order.json"
    path.write_text(json.dumps(order), encoding="utf-8")
    environment = cell_environment(probe_settings(backend, threads=1), "lab") | {
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder.parent),
        "MPLBACKEND": "Agg",
    }
    done = subprocess.run(
        ["taskset", "--cpu-list", str(cpu), sys.executable, "-m", module, str(path)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return (done.stderr.strip().splitlines() or ["no output"])[-1] if done.returncode else ""


def processes(chosen: Chosen) -> list[Job]:
    """Return a job for each of six programs: pairs of a plain process and one of `runner script`."""
    names = {program.name: program for program in chosen.programs}
    return [
        job_of(processes_row, names[name], backend, chosen.pairs)
        for name, backend in IN_PROCESSES
        if name in names and backend in chosen.backends
    ]


def processes_row(cpu: int, program: Program, backend: str, pairs: float) -> StudyRow:
    """Return the row of one program on one backend."""
    logs = []
    plain_s: list[float] = []
    for pair in range(int(pairs)):
        times_s: dict[str, float] = {}
        for side in ("plain", "script") if pair % 2 else ("script", "plain"):
            times_s[side] = (plain_epoch if side == "plain" else script_epoch)(cpu, program, backend)
        logs.append(math.log(times_s["script"] / times_s["plain"]))
        plain_s.append(times_s["plain"])
    text = f"| {program.name} | {backend} | {seconds(statistics.median(plain_s))} | {verdict(of_logs(logs), TARGET)} |"
    return StudyRow(text, backend, tuple(logs))


def plain_epoch(cpu: int, program: Program, backend: str) -> float:
    """Return the mean seconds of an epoch of the plain program in a new process."""
    with tempfile.TemporaryDirectory(prefix="programs-") as parent:
        output = Path(parent) / "epoch.json"
        order = {
            "program": program.program,
            "args": list(program.args),
            "epochs": PROCESS_EPOCHS,
            "output": str(output),
        }
        problem = ended("lab.programs.plain", order, (cpu, backend, program.copied(Path(parent))))
        if problem:
            raise Unmeasured(f"{program.name} | {backend} | {problem}")
        return float(json.loads(output.read_text(encoding="utf-8")))


def script_epoch(cpu: int, program: Program, backend: str) -> float:
    """Return the mean seconds of an epoch by `runner script` in a new process."""
    options = (
        "--set",
        f"epochs={PROCESS_EPOCHS}",
        "--set",
        "threads=1",
        "--set",
        f"cpus={cpu}-{cpu}",
        "--start",
        "fresh",
    )
    with tempfile.TemporaryDirectory(prefix="programs-") as parent:
        records = script_records(program, program.copied(Path(parent)), [backend], options, cpu)
    record = records.get(backend)
    if record is None or not is_measured(record):
        raise Unmeasured(f"{program.name} | {backend} | {figure(record)}")
    assert record.times.epoch_time_mean_s is not None
    return record.times.epoch_time_mean_s


def build(chosen: Chosen) -> list[Job]:
    """Return a job for each backend: processes of a program and of a `build`, their epochs interleaved."""
    return [lambda cpu, backend=backend: build_row(cpu, backend, chosen.pairs) for backend in chosen.backends]  # type: ignore[misc]


def build_row(cpu: int, backend: str, pairs: int) -> StudyRow:
    """Return the row of one backend."""
    matrix = {
        "version": 1,
        "defaults": {"repeats": pairs, "epochs": 9, "threads": 1, "cpus": f"{cpu}-{cpu}"},
        "backends": [backend],
        "cells": [{"workload": {"script": "train.py"}}, {"workload": "workload:build"}],
    }
    with tempfile.TemporaryDirectory(prefix="programs-") as parent:
        folder = Path(copytree(ROOT / "tests" / "workloads" / "same", Path(parent) / "same"))
        (folder / "matrix.yaml").write_text(json.dumps(matrix, indent=1), encoding="utf-8")
        command = [str(RUNNER), "--matrix", "matrix.yaml", "--results", "../results", "--json"]
        subprocess.run(
            ["taskset", "--cpu-list", str(cpu), *command], cwd=folder, stdout=subprocess.DEVNULL, check=False
        )
        records = newest(Path(parent) / "results")
    reasons = {record.reason for record in records if not is_measured(record)}
    if reasons or not records:
        return StudyRow(f"| {backend} | {reasons or 'no record'} | | | |")
    sides = [times_of(records, is_script) for is_script in (True, False)]
    logs = list(paired_logs(*sides).values())
    epoch_s = statistics.median(sides[1].values())
    return StudyRow(f"| {backend} | {seconds(epoch_s)} | {verdict(of_logs(logs), BUILD_TARGET)} |", backend)


def times_of(records: Iterable[Record], is_script: bool) -> dict[int, float]:
    """Return the mean seconds of an epoch by repeat, of the program or of the `build`."""
    return {
        record.repeat: record.times.epoch_time_mean_s
        for record in records
        if bool(record.settings.script) == is_script and record.times.epoch_time_mean_s
    }


def median(logs: Sequence[float]) -> Estimate:
    """Return the ratio whose logarithm is the median of these, with the interval of the sign test.

    Calls of a fraction of a second run at one of two speeds where another system has the sibling of the core: most
    pairs are of one speed, and a few have a ratio of two, which make a mean and its variance useless.
    """
    interval = quantile_test(logs).confidence_interval(CONFIDENCE)
    low, high = math.exp(interval.low), math.exp(interval.high)
    return Estimate(math.exp(statistics.median(logs)), low, high, len(logs))


def verdict(estimate: Estimate | None, target: float) -> str:
    """Return the columns of a ratio: with its interval, the pairs, and whether the interval is within the target."""
    if estimate is None or estimate.bounds is None:
        return "no interval | | "
    low, high = estimate.bounds
    if 1 - target <= low and high <= 1 + target:
        text = "yes"
    else:
        text = "no" if high < 1 - target or low > 1 + target else "open"
    return f"{ratio_text(estimate.centre, low, high)} | {estimate.count} | {text}"


STUDIES = {
    "ratio": (ratio, ("program", "backend", "plain epoch"), TARGET),
    "processes": (processes, ("program", "backend", "plain epoch"), TARGET),
    "build": (build, ("backend", "epoch of the build"), BUILD_TARGET),
}


def rows(jobs: Sequence[Job]) -> Iterator[StudyRow]:
    """Run the jobs, one at a time on each CPU, and yield their rows as they complete."""
    cpus: queue.Queue[int] = queue.Queue()
    for cpu in sorted(os.sched_getaffinity(0)):
        cpus.put(cpu)

    def on_a_cpu(job: Job) -> StudyRow:
        cpu = cpus.get()
        try:
            return job(cpu)
        except (Unmeasured, subprocess.TimeoutExpired) as problem:
            return StudyRow(f"| {problem} | | | |")
        finally:
            cpus.put(cpu)

    with ThreadPoolExecutor(cpus.qsize()) as pool:
        for done in as_completed([pool.submit(on_a_cpu, job) for job in jobs]):
            yield done.result()


def print_study(name: str, chosen: Chosen) -> None:
    """Print the table of one study."""
    jobs_of, columns, target = STUDIES[name]
    begun_s = time.monotonic()
    print("\n" + header([*columns, "ratio", "pairs", f"within {percentage(target)}"]), flush=True)
    logs_by_backend: dict[str, list[list[float]]] = {}
    for row in rows(jobs_of(chosen)):
        print(row.text, flush=True)
        if row.logs:
            logs_by_backend.setdefault(row.backend, []).append(list(row.logs))
    for backend, programs_logs in logs_by_backend.items():
        pooled = median([log for logs in programs_logs for log in logs])
        print(f"\n{backend}, all pairs of {len(programs_logs)} rows: {verdict(pooled, target)}")
    print(f"\n{name}: {(time.monotonic() - begun_s) / 60:.1f} minutes", flush=True)


def main() -> None:
    """Run the study that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("table", *STUDIES, "figures"))
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this program")
    parser.add_argument("--backend", action="append", default=[], choices=TRAINING_BACKENDS, help="only this backend")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="`table`: of `runner script`")
    parser.add_argument("--seconds", type=float, default=12.0, help="of alternation, for each program and backend")
    parser.add_argument("--pairs", type=int, default=12, help="of whole processes")
    args = parser.parse_args()
    programs = [program for program in corpus() if not args.only or program.name in args.only]
    backends = tuple(backend for backend in TRAINING_BACKENDS if not args.backend or backend in args.backend)
    chosen = Chosen(programs, backends, args.seconds, args.pairs, tuple(args.set))
    if args.study == "table":
        table(chosen)
        return
    for name in STUDIES if args.study == "figures" else (args.study,):
        print_study(name, chosen)


if __name__ == "__main__":
    main()
