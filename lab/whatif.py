"""Measure how right `runner replay` and `runner optimize` are: the tables of docs/lab/whatif.md. Quiet machine, root.

    lab/run whatif measure FOLDER [--only WHICH...]    trace, predict and measure, each case in a folder of its own
    lab/run whatif tables FOLDER                       print the tables of the newest measurement of each case
    lab/run whatif speed FILE                          operations a second, of a search, and of 500 MB of this profile

WHICH is a case, its name, a backend or a table. A case is one traced cell, predicted and measured by the commands of
a user, in network namespaces if its links have a rate. In the table "rates" the prediction is for links of another
rate, which one command cannot measure: both rates are measured one after the other, in namespaces of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.analysis.whatif.graph import (
    Collective,
    Graph,
    Header,
    LinkCalibration,
    Node,
    NodeKind,
    checked,
)
from keras_matrix.records.text import percentage
from lab.traces import large_chrome

ROOT = Path(__file__).parents[1]
RUNNER = str(Path(sys.executable).parent / "runner")
LOCAL = "local"
ROUNDS = 4
LARGE_BYTES = 500_000_000
TRACED = {"repeats": 5, "epochs": 3, "steps_per_epoch": 4, "trace": {"steps": 8}}
MEASURED = {"repeats": 1, "epochs": 3, "steps_per_epoch": 4}
# Two workers with 8.4 MB of gradients, and layers that sleep in place of computing.
SLEEPING = {
    "mode": "fc_data",
    "workers": 2,
    "level": 7,
    "weight_size": 512,
    "batch_size": 4,
    "forward_sleep_ms": 4,
    "backward_sleep_ms": 14,
}
COMPUTING = {"mode": "fc_data", "workers": 2, "level": 7, "weight_size": 512, "batch_size": 512}
SMALL = {
    "mode": "fc_data",
    "workers": 2,
    "level": 98,
    "weight_size": 71,
    "batch_size": 4,
    "forward_sleep_ms": 1,
    "backward_sleep_ms": 2,
}
# One thread, and the other core for everything else on the machine; no page faults for what is allocated again.
STEADY = {"threads": 1, "freed_memory": "kept"}
BACKENDS = ("torch", "jax", "tensorflow")
BUCKETS = {
    "torch": ("0.05", "2", "4", "8", "100", "2,3,3", "4,4", "1,1,1,5"),
    "jax": ("each", "2,2,2,2", "4,4", "8,"),
    "tensorflow": ("1000000b", "2200000b", "4300000b", "9000000b"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A cell to trace over links of a rate, and the arguments of the command that predicts and measures."""

    table: str
    name: str
    backend: str
    cell: Mapping[str, Any]
    rate: str = LOCAL
    command: tuple[str, ...] = ()
    hosts: int = 2
    other_rate: str = ""

    @property
    def id(self) -> str:
        """The name of the case's folder."""
        return f"{self.table}-{self.backend}-{self.name}".replace(" ", "-").replace(",", "")


def _what_ifs(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return ("replay", *(part for value in values for part in ("--what-if", f"{name}={value}")), "--verify")


def _cases() -> Iterator[Case]:
    for backend in BACKENDS:
        alone = {**COMPUTING, "mode": "fc_single_manual", "workers": 1}
        held_out = {
            "FC stack": {"workload": "fc", **alone, **STEADY},
            "CNN": {"workload": "cifar10_cnn", "batch_size": 128, **STEADY},
            "FC stack, two workers": {"workload": "fc", **COMPUTING},
            "CNN, two cores": {"workload": "cifar10_cnn", "batch_size": 128},
        }
        for name, cell in held_out.items():
            yield Case("held out", name, backend, cell, command=("replay",))
    sleeping, computing = {"workload": "fc", **SLEEPING}, {"workload": "fc", **COMPUTING}
    for backend, values in BUCKETS.items():
        buckets = _what_ifs("tensor_fusion", values)
        yield Case("buckets", "sleeping layers", backend, sleeping, "200mbit", buckets)
        yield Case("buckets", "computing layers", backend, computing, "200mbit", buckets)
        yield Case("workers", "2 to 4", backend, sleeping, "200mbit", _what_ifs("workers", ("4",)), hosts=4)
        slower = ("replay", "--what-if", "bandwidth=100mbit")
        yield Case("rates", "200 to 100 Mbit per s", backend, sleeping, "200mbit", slower, other_rate="100mbit")
        changes = ("batch_size=1024", "gradient_accumulation=2", "recomputation=all")
        # The sums of TensorFlow's threads are inside one program, and not in its trace.
        changes += () if backend == "tensorflow" else ("no_overlap",)
        words = tuple(part for change in changes for part in ("--what-if", change))
        search = ("optimize", "--search", "tensor_fusion", "--verify")
        yield Case("search", "sleeping layers", backend, sleeping, "200mbit", search)
        yield Case("settings", "computing layers", backend, computing, command=("replay", *words, "--verify"))
    search = ("optimize", "--search", "all", "--verify")
    yield Case("search", "all", "torch", computing, command=search)
    small = {"workload": "fc", **SMALL}
    search = ("optimize", "--search", "tensor_fusion", "--verify")
    yield Case("search", "99 small gradients", "torch", small, "500mbit", search)


CASES = tuple(_cases())


# Measuring.


@dataclass(slots=True)
class Found:
    """What the commands of a case printed; `measured` has step times by rate, `problem` why there is nothing."""

    case: str
    document: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, list[float]] = field(default_factory=dict)
    problem: str = ""


def measure(folder: Path, only: list[str]) -> None:
    """Measure the cases and store each result in its folder."""
    for case in CASES:
        if only and {case.id, case.name, case.backend, case.table}.isdisjoint(only):
            continue
        begun_s = time.perf_counter()
        outcome = _measured(folder / case.id, case)
        found_path(folder, case).write_text(json.dumps([outcome.document, outcome.measured, outcome.problem]))
        print(f"{case.id}: {outcome.problem or 'measured'}, {time.perf_counter() - begun_s:.0f} s", flush=True)


def found_path(folder: Path, case: Case) -> Path:
    """Return the file with the result of a case."""
    return folder / case.id / "found.json"


def _measured(folder: Path, case: Case) -> Found:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = Found(case.id)
    traced = _run(case, case.rate, ["--matrix", _matrix(folder, case, case.rate, TRACED), *_results(folder)])
    if traced.returncode:
        outcome.problem = _last(traced)
        return outcome
    command, *options = case.command
    cell = f"{case.backend}:{case.cell['workload']}"
    predicted = _run(case, case.rate, [command, cell, *options, "--json", *_results(folder)])
    try:
        outcome.document = json.loads(predicted.stdout)
    except ValueError:
        outcome.problem = _last(predicted)
        return outcome
    rates = (case.rate, case.other_rate) if case.other_rate else ()
    for number in range(ROUNDS if rates else 0):
        for rate in rates:
            results = folder / f"{rate}-{number}"
            _run(case, rate, ["--matrix", _matrix(folder, case, rate, MEASURED), *_results(results)])
            outcome.measured.setdefault(rate, []).extend(_step_times_s(results))
    return outcome


def _matrix(folder: Path, case: Case, rate: str, defaults: Mapping[str, Any]) -> str:
    network = {} if rate == LOCAL else {"network": rate}
    cells = [{**case.cell, **network}]
    path = folder / f"matrix-{rate}.yaml"
    path.write_text(json.dumps({"version": 1, "defaults": defaults, "backends": [case.backend], "cells": cells}))
    return str(path)  # JSON is YAML


def _results(folder: Path) -> list[str]:
    return ["--results", str(folder / "results")]


def _run(case: Case, rate: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    inside = [] if rate == LOCAL else [str(ROOT / "ci" / "netns"), str(case.hosts), "--rate", rate, "--"]
    return subprocess.run([*inside, RUNNER, *arguments], capture_output=True, text=True, check=False)


def _last(completed: subprocess.CompletedProcess[str]) -> str:
    return (completed.stderr or completed.stdout).strip()[-500:]


def _step_times_s(folder: Path) -> list[float]:
    """Return the step times of the ok cells of a results folder."""
    from keras_matrix.records.store import Results, latest_attempts

    run = Results(folder / "results").latest()
    return [
        record.times.step_time_s
        for record in latest_attempts(run.load()[0] if run else ())
        if record.times is not None and record.times.step_time_s is not None
    ]


# Printing.


def tables(folder: Path) -> None:
    """Print the tables of the measured cases."""
    case_results = [
        (case, json.loads(path.read_text())) for case in CASES if (path := found_path(folder, case)).exists()
    ]
    for case, (_, _, problem) in case_results:
        if problem:
            print(f"{case.id}: {problem}")
    good = [(case, result) for case, result in case_results if not result[2]]
    print("\n| backend | model | step | explained | predicted from the step before: error | repeating it | level |")
    print("|---|---|---:|---:|---|---:|---|")
    for case, (document, _, _) in good:
        if case.table == "held out":
            print(_held_out_row(case, document))
    print("\n| table | backend | case | setting | predicted | measured | error |\n|---|---|---|---|---:|---:|---:|")
    for case, (document, measured, _) in good:
        rows = _rate_rows(case, document, measured) if case.other_rate else _verified_rows(document)
        for name, predicted_s, shown, error in rows:
            shown_case = f"{case.table} | {case.backend} | {case.name}"
            print(
                f"| {shown_case} | {name} | {predicted_s * 1e3:.0f} ms | {shown} | {percentage(error, signed=True)} |"
            )
        if last := _last_round(document):
            order = last["correlation"]
            print(
                f"  mean {percentage(last['mean_error'])}, largest {percentage(last['largest_error'])}, rank "
                f"correlation {'not known' if order is None else f'{order:.2f}'}, regret {percentage(last['regret'])}: "
                f"{last['verdict']}"
            )


def _held_out_row(case: Case, document: Mapping[str, Any]) -> str:
    errors = [prediction["error"] for prediction in document["held_out"]]
    repeated = statistics.fmean(abs(prediction["repeated_error"]) for prediction in document["held_out"])
    listed = (
        f"{', '.join(f'{percentage(error, signed=True)}' for error in errors)}; mean "
        f"{percentage(statistics.fmean(map(abs, errors)))}"
    )
    step_ms = document["measured_step_time_s"] * 1e3
    explained = percentage(document["coverage"])
    level = document["level"]
    return (
        f"| {case.backend} | {case.name} | {step_ms:.1f} ms | {explained} | {listed} | "
        f"{percentage(repeated)} | {level} |"
    )


def _last_round(document: Mapping[str, Any]) -> dict[str, Any] | None:
    verification = (document.get("verification") or {}).get("verification")
    last: dict[str, Any] | None = verification["rounds"][-1] if verification else None
    return last


def _verified_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, float, str, float]]:
    last = _last_round(document)
    for row in last["rows"] if last else ():
        yield row["name"], row["predicted"]["step_time_s"], _shown(row["measured"]), row["error"]


def _shown(estimate: Mapping[str, Any]) -> str:
    centre = f"{estimate['centre'] * 1e3:.0f} ms"
    if estimate["low"] is None:
        return centre
    return f"{centre}, {estimate['low'] * 1e3:.0f} to {estimate['high'] * 1e3:.0f}"


def _rate_rows(
    case: Case, document: Mapping[str, Any], measured: Mapping[str, list[float]]
) -> Iterator[tuple[str, float, str, float]]:
    predicted_s = {
        case.rate: document["baseline_step_time_s"],
        case.other_rate: document["what_ifs"][0]["step_time_s"],
    }
    for rate, times_s in measured.items():
        mean_s = math.exp(statistics.fmean(map(math.log, times_s)))
        shown = f"{mean_s * 1e3:.0f} ms, {min(times_s) * 1e3:.0f} to {max(times_s) * 1e3:.0f}, n={len(times_s)}"
        yield rate, predicted_s[rate], shown, predicted_s[rate] / mean_s - 1


# Speed.


def speed(source: Path) -> None:
    """Print how fast a replay, a search over 100 gradients, and a replay of 500 MB of PyTorch's profile are."""
    from keras_matrix.analysis.whatif.engine import STEPS, simulate
    from keras_matrix.analysis.whatif.search import search_fusion
    from keras_matrix.runner.whatif.source import graph_of_files

    graph = graph_of_files([source])
    taken_s = _fastest_s(lambda: simulate(graph))
    count = len(graph.nodes) * STEPS
    print(f"{source.name}: {count} operations in {taken_s * 1e3:.1f} ms, {count / taken_s:,.0f} operations a second")
    wide = _many_gradients(100)
    taken_s, fusion = _fastest_s(lambda: search_fusion(wide)), search_fusion(wide)
    print(f"search over 100 gradients: {len(fusion.trials)} settings in {taken_s:.2f} s")
    with tempfile.TemporaryDirectory(prefix="whatif-speed-") as folder:
        large = Path(folder) / "large.json"
        large_chrome(source, large, LARGE_BYTES)
        begun_s = time.perf_counter()
        command = [RUNNER, "replay", str(large), "--resamples", "10"]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        taken_s = time.perf_counter() - begun_s
        peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        size_mb = large.stat().st_size / 1e6
    print(
        f"{size_mb:.0f} MB: {taken_s:.1f} s, at most {peak_mib:.0f} MiB, exit code "
        f"{completed.returncode}\n{completed.stdout}"
    )
    print(completed.stderr)


def _fastest_s(call: Callable[[], object]) -> float:
    times_s = []
    for _ in range(ROUNDS):
        begun_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)


def _many_gradients(count: int) -> Graph:
    """Return a step of two workers: forward and backward pass of `count` layers, a sum of each gradient, an update."""
    nodes: list[Node] = []

    def add(rank: int, duration_us: int, **fields: Any) -> int:
        node_fields = {"lane": "main", "kind": NodeKind.COMPUTE, "cores": 1.0, "name": "layer", **fields}
        steps = {"durations_ns": (duration_us * 1000,) * 3, "gaps_ns": (0,) * 3, "starts_ns": ()}
        nodes.append(Node(number=len(nodes), rank=rank, **steps, **node_fields))
        return len(nodes) - 1

    for rank in (0, 1):
        for _ in range(count):
            add(rank, 1000, phase="forward")
        ready = [add(rank, 2000, phase="backward", gradient_of=f"layer_{index}") for index in range(count)]
        sums = []
        for index, number in enumerate(ready):
            collective = Collective("0,1", index, "all_reduce", (0, 1), 100_000, (100_000,), (f"layer_{index}",))
            link = {"lane": "link", "kind": NodeKind.COMMUNICATION, "cores": 0.0, "collective": collective}
            sums.append(add(rank, 5000, phase="communication", depends=(number,), **link))
        add(rank, 1000, phase="update", depends=tuple(sums))
    link = LinkCalibration(1e-3, 4e-8, 2, "made")
    return checked(Graph(Header("made", "torch", "cpu", 2, (1.0,) * 3, 1.0, cores=2, link=link), tuple(nodes)))


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "tables", "speed"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    if args.command == "tables":
        tables(args.folder)
    elif args.command == "speed":
        speed(args.folder)
    else:
        measure(args.folder.resolve(), args.only)


if __name__ == "__main__":
    main()
