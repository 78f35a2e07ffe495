"""Measure how well `runner stalls` finds known input stalls: the tables of docs/lab/inputs.md. Quiet machine, root.

    lab/run input_stalls make FOLDER                    the images of the scenarios, in FOLDER (about 900 MB)
    lab/run input_stalls measure FOLDER [--compute timed_wait|real] [--only WHICH...] [--rounds N] [--verify]
    lab/run input_stalls tables FOLDER                  print the tables of what was measured

WHICH is a name, a backend, "held out" or others. There are 24 scenarios, eight per backend; those marked as held out
took no part in tuning the analysis. The device is a stand-in whose step waits a known time without using a CPU, so
that a stall has a truth: in a bare `fit`, without the runner, the stand-in writes down when each step reaches it; the
truth is by how much these steps follow each other later than with batches in memory. It is measured before, between
and after N analyses of one process per cell, and both are averaged: a shared machine drifts within minutes. A bare
loop without Keras, which takes batches from the same pipeline and sleeps as long as a step takes, is the second
reference; it lacks fit's own Python code, which also waits for interpreter and cores. With `--compute real` a real
model computes on the same CPUs, and there is no truth, only both opinions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.records.text import percentage

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
STEP_MS = 40.0
STEPS, EPOCHS, LEAD_IN = 20, 3, 3
WITHIN = 0.02
LEAST_STALL = 0.03  # below it `runner stalls` names no bottleneck
SMALL, LARGE, RECORDS = "small", "large", "large-tfrecord"
IMAGES = 4000
FEW = 1920  # for warm scenarios: more than an epoch reads with what is prepared ahead, and a short pass to fill a cache


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pipeline with a known limit; `bottleneck` is the expected name, `limits` are arguments of ci/throttle."""

    name: str
    backend: str
    bottleneck: str
    params: Mapping[str, Any]
    images: str = SMALL
    batch: int = 32
    limits: tuple[str, ...] = ()
    held_out: bool = False

    @property
    def cold(self) -> bool:
        """Whether the limit is one of storage, which only a cold page cache shows."""
        return bool(self.limits)


def _iops(count: int) -> tuple[str, ...]:
    return ("--iops", str(count))


def _bandwidth(rate: str) -> tuple[str, ...]:
    return ("--bandwidth", rate)


LATENCY, CPU, GIL, BANDWIDTH, IOPS, NONE = (
    "fetch latency",
    "preparation CPU",
    "GIL",
    "storage bandwidth",
    "storage IOPS",
    "none (compute-bound)",
)
THREADS = {"pipeline": "grain"}
SCENARIOS = (
    Scenario("delay 2 ms, 1 worker", "jax", LATENCY, {"fetch_delay_ms": 2.0, "input_workers": 1}),
    Scenario("PIL, 1 thread", "jax", CPU, {"decoder": "pil", "input_workers": 1}, LARGE),
    Scenario("Python spins 2 ms, 2 threads", "jax", GIL, {"prepare_spin_ms": 2.0, "input_workers": 2}),
    Scenario("50 MB/s, 2 threads", "jax", BANDWIDTH, {"input_workers": 2}, LARGE, limits=_bandwidth("50MB")),
    Scenario("delay 4 ms, 2 threads", "jax", LATENCY, {"fetch_delay_ms": 4.0, "input_workers": 2}, held_out=True),
    Scenario("400 requests/s, 2 threads", "jax", IOPS, {"input_workers": 2}, limits=_iops(400), held_out=True),
    Scenario("fast, 2 threads", "jax", NONE, {"input_workers": 2}, held_out=True),
    Scenario("cv2, no worker", "jax", CPU, {"decoder": "cv2", "input_workers": 0}, LARGE, held_out=True),
    Scenario("delay 4 ms, 2 threads", "tensorflow", LATENCY, {"fetch_delay_ms": 4.0, "input_workers": 2}),
    Scenario("300 requests/s, 2 threads", "tensorflow", IOPS, {"input_workers": 2}, limits=_iops(300)),
    Scenario("simplejpeg, batch 64, 1 thread", "tensorflow", CPU, {"input_workers": 1}, LARGE, batch=64),
    Scenario("delay 1 ms, 2 threads", "tensorflow", NONE, {"fetch_delay_ms": 1.0, "input_workers": 2}),
    Scenario(
        "delay 8 ms, 4 threads", "tensorflow", LATENCY, {"fetch_delay_ms": 8.0, "input_workers": 4}, held_out=True
    ),
    Scenario(
        "40 MB/s, TFRecord, 2 threads",
        "tensorflow",
        BANDWIDTH,
        {"input_workers": 2},
        RECORDS,
        limits=_bandwidth("40MB"),
        held_out=True,
    ),
    Scenario(
        "Python spins 3 ms, 4 threads",
        "tensorflow",
        GIL,
        {"prepare_spin_ms": 3.0, "input_workers": 4, **THREADS},
        held_out=True,
    ),
    Scenario("PIL, 1 thread", "tensorflow", CPU, {"decoder": "pil", "input_workers": 1}, LARGE, held_out=True),
    Scenario("delay 4 ms, 2 processes", "torch", LATENCY, {"fetch_delay_ms": 4.0, "input_workers": 2}),
    Scenario("30 MB/s, 2 processes", "torch", BANDWIDTH, {"input_workers": 2}, LARGE, limits=_bandwidth("30MB")),
    Scenario("Python spins 2 ms, 2 threads", "torch", GIL, {"prepare_spin_ms": 2.0, "input_workers": 2, **THREADS}),
    Scenario("PIL, batch 64, 2 processes", "torch", CPU, {"decoder": "pil", "input_workers": 2}, LARGE, batch=64),
    Scenario("200 requests/s, 4 processes", "torch", IOPS, {"input_workers": 4}, limits=_iops(200), held_out=True),
    Scenario("delay 2 ms, no worker", "torch", LATENCY, {"fetch_delay_ms": 2.0, "input_workers": 0}, held_out=True),
    Scenario(
        "60 MB/s, 1 process", "torch", BANDWIDTH, {"input_workers": 1}, LARGE, limits=_bandwidth("60MB"), held_out=True
    ),
    Scenario("fast, 2 processes", "torch", NONE, {"input_workers": 2}, held_out=True),
)


# Making the data.


def make(folder: Path) -> None:
    """Write the images: small ones of one storage request each, large ones, and these as TFRecord."""
    runner = str(BIN / "runner")
    for name, size in ((SMALL, "160x120"), (LARGE, "500x375")):
        count = ["--count", str(IMAGES), "--size", size]
        subprocess.run([runner, "make-images", *count, "--output-path", str(folder / name)], check=True)
    records = ["--dataset-path", str(folder / LARGE), "--output-path", str(folder / RECORDS)]
    subprocess.run([runner, "convert", "--size-per-record", "20MiB", *records], check=True)


# Measuring.


@dataclass(slots=True)
class Found:
    """What one scenario gave; shares are of the time of a step."""

    scenario: str
    backend: str
    held_out: bool
    expected: str
    compute: str
    truth: float | None = None
    truths: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    bottlenecks: list[str] = field(default_factory=list)
    loop: float | None = None
    stall: float | None = None
    in_band: float | None = None
    interference: float | None = None
    bottleneck: str | None = None
    synthetic_step_s: float | None = None
    advice: list[dict[str, Any]] = field(default_factory=list)
    verified: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None


def measure(folder: Path, compute: str, only: list[str], rounds: int, verify: bool) -> None:
    """Measure the scenarios and add a line to `folder/found.jsonl` for each."""
    for scenario in SCENARIOS:
        if only and {scenario.name, scenario.backend, "held out" if scenario.held_out else "others"}.isdisjoint(only):
            continue
        begun_s = time.perf_counter()
        outcome = _measured(folder, scenario, compute, rounds, verify)
        with (folder / "found.jsonl").open("a") as out:
            out.write(json.dumps(asdict(outcome)) + "\n")
        print(_line(outcome), f"{time.perf_counter() - begun_s:.0f} s", flush=True)


def _measured(folder: Path, scenario: Scenario, compute: str, rounds: int, verify: bool) -> Found:
    """Measure a scenario: the truth before, between and after its analyses, of which the last one is verified."""
    outcome = Found(scenario.name, scenario.backend, scenario.held_out, scenario.bottleneck, compute)
    has_truth = compute == "timed_wait"
    periods_s = [_observed(folder, scenario, "device", 0.0)] if has_truth else []
    reports = []
    for number in range(rounds):
        report = _analysed(folder, scenario, compute, verify and number == rounds - 1)
        if isinstance(report, str):
            outcome.problem = report
            return outcome
        reports.append(report)
        if has_truth:
            periods_s.append(_observed(folder, scenario, "device", 0.0))
    outcome.problem = reports[-1]["reason"]
    outcome.stalls = [share for report in reports if (share := _centre(report["stall"])) is not None]
    outcome.bottlenecks = [report["bottleneck"] for report in reports]
    outcome.stall = _mean(outcome.stalls)
    outcome.in_band = _mean([_centre(report["input_bound"]) for report in reports])
    outcome.interference = _mean([_centre(report["interference"]) for report in reports])
    outcome.bottleneck = next(
        (name for name in outcome.bottlenecks if name != scenario.bottleneck), scenario.bottleneck
    )
    outcome.synthetic_step_s = _mean(
        [_centre(arm["step_time"]) for report in reports for arm in report["arms"] if arm["arm"] == "synthetic"]
    )
    outcome.advice = [{"change": a["change"], "speed_up": _centre(a["speed_up"])} for a in reports[-1]["advice"]]
    outcome.verified = [
        {"change": v["change"], "predicted": _centre(v["predicted"]), "measured": _centre(v["measured"])}
        for v in reports[-1]["verified"]
    ]
    if has_truth and outcome.synthetic_step_s:
        outcome.truths = [1 - outcome.synthetic_step_s / period_s for period_s in periods_s if period_s]
        # Each analysis lies between two periods: those at the ends count half.
        period_s = _mean([_mean(pair) for pair in itertools.pairwise(periods_s)])
        outcome.truth = None if period_s is None else 1 - outcome.synthetic_step_s / period_s
        outcome.loop = _observed(folder, scenario, "loop", outcome.synthetic_step_s)
    return outcome


def _analysed(folder: Path, scenario: Scenario, compute: str, verify: bool) -> dict[str, Any] | str:
    """Return the report of `runner stalls` on a scenario, or its error message."""
    matrix = folder / "matrix.yaml"
    matrix.write_text(_matrix(folder, scenario, compute))
    options = ["--json", "--repeats", "1", *(["--verify"] if verify else []), *([] if scenario.cold else ["--no-cold"])]
    command = [str(BIN / "runner"), "stalls", f"{scenario.backend}:finetune", "--matrix", str(matrix), *options]
    completed = _limited(folder, scenario, [*command, "--results", str(folder / "results"), "--new"])
    try:
        report: dict[str, Any] = json.loads(completed.stdout)["reports"][0]
    except (ValueError, LookupError):
        return (completed.stderr or completed.stdout).strip()[-400:]
    return report


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what was measured; None if nothing was."""
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None


def _matrix(folder: Path, scenario: Scenario, compute: str) -> str:
    base = (
        {"base": "timed_wait", "step_time_ms": STEP_MS}
        if compute == "timed_wait"
        else {"base": "mobilenet_v3_small", "image_size": 96}
    )
    document = {
        "version": 1,
        "defaults": {"repeats": 1, "epochs": 1 + EPOCHS, "discard": 1, "steps_per_epoch": STEPS, "timeout_s": 300},
        "backends": [scenario.backend],
        "cells": [
            {"workload": "finetune", "batch_size": scenario.batch, **_data(folder, scenario), **base, **scenario.params}
        ],
    }
    return json.dumps(document)  # JSON is YAML


def _data(folder: Path, scenario: Scenario) -> dict[str, Any]:
    size = 224 if scenario.images != SMALL else 96
    samples = IMAGES if scenario.cold else FEW
    return {"dataset_path": str(folder / scenario.images), "dataset_size": samples, "image_size": size}


def _limited(folder: Path, scenario: Scenario, command: list[str]) -> subprocess.CompletedProcess[str]:
    prefix = [str(ROOT / "ci" / "throttle"), *scenario.limits, "--folder", str(folder), "--"] if scenario.limits else []
    return subprocess.run([*prefix, *command], capture_output=True, text=True, check=False)


def _observed(folder: Path, scenario: Scenario, command: str, step_s: float) -> float | None:
    """Return the figure that a command of this file prints about the pipeline of a scenario; None if it fails."""
    request = {
        "backend": scenario.backend,
        "batch": scenario.batch,
        "cold": scenario.cold,
        "step_s": step_s,
        "params": {
            **_data(folder, scenario),
            "base": "timed_wait",
            "step_time_ms": STEP_MS,
            **scenario.params,
        },
    }
    completed = _limited(folder, scenario, [sys.executable, "-m", "lab.input_stalls", command, json.dumps(request)])
    return float(completed.stdout.split()[-1]) if completed.returncode == 0 else None


def loop(request: Mapping[str, Any]) -> None:
    """Print the mean idle share of the device of a loop that takes batches and sleeps."""
    _, pipeline = _built(request)
    from keras.src.trainers.data_adapters import get_data_adapter

    from keras_matrix.models.inputs.stored.page_cache import evict

    source = pipeline.source(timed=False)
    has_spec = hasattr(source, "element_spec")  # tf.data, whose batches TensorFlow's fit draws without a copy
    batches = iter(source) if has_spec else iter(get_data_adapter(source).get_numpy_iterator())
    shares = []
    for _ in range(1 + EPOCHS):
        if request["cold"]:
            evict(pipeline.files())
        for _ in range(pipeline.depth):
            next(batches)
        _idle_s(batches, LEAD_IN, request)
        begun_s = time.perf_counter()
        idle_s = _idle_s(batches, STEPS, request)
        shares.append(idle_s / (time.perf_counter() - begun_s))
    print(statistics.fmean(shares[1:]), flush=True)  # without the first epoch, as in a cell
    os._exit(0)  # workers need not be asked


def device(request: Mapping[str, Any]) -> None:
    """Print the time between two steps of `fit` that reach the stand-in device, by the device's clock."""
    model, pipeline = _built(request)
    from importlib import import_module
    from types import SimpleNamespace

    from keras_matrix.models.inputs.stored.page_cache import evict

    begun_s: list[float] = []

    def wait(seconds: float) -> None:
        begun_s.append(time.perf_counter())
        time.sleep(seconds)

    stand_in: Any = import_module(f"keras_matrix.models.inputs.pipelines.{request['backend']}")
    stand_in.time = SimpleNamespace(sleep=wait)
    source, periods_s = pipeline.source(timed=False), []
    before = pipeline.depth + LEAD_IN  # steps of batches that were prepared while `fit` started
    for _ in range(1 + EPOCHS):
        begun_s.clear()
        if request["cold"]:
            evict(pipeline.files())
        model.fit(source, steps_per_epoch=before + STEPS + 1, verbose=0, shuffle=False)
        periods_s.append((begun_s[before + STEPS] - begun_s[before]) / STEPS)
    print(statistics.fmean(periods_s[1:]), flush=True)  # without the first epoch, as in a cell
    os._exit(0)  # workers need not be asked


def _built(request: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the model and the pipeline of a scenario's workload, with its files in the page cache if it is warm."""
    os.environ["KERAS_BACKEND"] = request["backend"]
    from keras_matrix.models.inputs.stored.page_cache import warm
    from keras_matrix.models.registry import load
    from keras_matrix.models.workload import Request

    built = load("finetune")(
        Request(params=dict(request["params"]), data="synthetic", dataset_dir=None, batch_size=request["batch"], seed=0)
    )
    assert built.pipeline is not None
    if not request["cold"]:
        warm(built.pipeline.files())
    return built.model, built.pipeline


def _idle_s(batches: Iterator[Any], steps: int, request: Mapping[str, Any]) -> float:
    """Return how long the device was idle, which sleeps for the time of a step.

    A backend that dispatches asynchronously draws the next batch while the device works.
    """
    step_s, idle_s = float(request["step_s"]), 0.0
    with ThreadPoolExecutor(1) as device:
        running: Future[float] | None = None
        ended_s = time.perf_counter()
        for _ in range(steps):
            next(batches)
            if running is not None:
                ended_s = running.result()
            begun_s = time.perf_counter()
            idle_s += begun_s - ended_s
            running = device.submit(_step, begun_s + step_s)
            if request["backend"] != "jax":
                ended_s, running = running.result(), None
        if running is not None:
            running.result()
    return idle_s


def _step(until_s: float) -> float:
    time.sleep(max(0.0, until_s - time.perf_counter()))
    return time.perf_counter()


# Tables.


def tables(folder: Path) -> None:
    """Print the tables of docs/lab/inputs.md, from the newest line of each scenario, and a summary of each half."""
    lines = [json.loads(line) for line in (folder / "found.jsonl").read_text().splitlines()]
    newest = {(line["scenario"], line["backend"], line["compute"]): Found(**line) for line in lines}
    order = {(scenario.name, scenario.backend): position for position, scenario in enumerate(SCENARIOS)}
    for compute in ("timed_wait", "real"):
        outcomes = [outcome for key, outcome in newest.items() if key[2] == compute]
        outcomes.sort(key=lambda outcome: order[outcome.scenario, outcome.backend])
        if outcomes:
            print(f"\n{compute}:\n\n" + "\n".join(_shares(outcomes, compute) + _predictions(outcomes)) + "\n")
        for held_out in (False, True):
            _summary(
                [outcome for outcome in outcomes if outcome.held_out == held_out], "held out" if held_out else "tuning"
            )


def _shares(outcomes: list[Found], compute: str) -> list[str]:
    truths = ["truth", "bare loop"] if compute == "timed_wait" else []
    columns = [*truths, "differential", "in-band", "interference"]
    rows = [f"| backend | pipeline | {' | '.join(columns)} | bottleneck |", f"|---|---|{'---:|' * len(columns)}---|"]
    for outcome in outcomes:
        shares = [outcome.truth, outcome.loop] if truths else []
        texts = [
            "" if share is None else percentage(share)
            for share in (*shares, outcome.stall, outcome.in_band, outcome.interference)
        ]
        rows.append(f"| {outcome.backend} | {_title(outcome)} | {' | '.join(texts)} | {_named(outcome)} |")
    return rows


def _predictions(outcomes: list[Found]) -> list[str]:
    rows = ["", "| backend | pipeline | change | predicted | measured |", "|---|---|---|---:|---:|"]
    for outcome in outcomes:
        for v in outcome.verified:
            measured = "" if v["measured"] is None else f"{v['measured']:.2f}x"
            rows.append(
                f"| {outcome.backend} | {_title(outcome)} | {v['change']} | {v['predicted']:.2f}x | {measured} |"
            )
    return rows if len(rows) > 3 else []


def _title(outcome: Found) -> str:
    return outcome.scenario + (", held out" if outcome.held_out else "")


def _named(outcome: Found) -> str:
    return "right" if _is_right(outcome) else f"{outcome.bottleneck}, expected {outcome.expected}"


def _is_right(outcome: Found) -> bool:
    """Return whether the bottleneck is the expected one; what is meant to be fast may be slow on a slow machine."""
    meant_fast = outcome.expected == NONE and outcome.truth is not None
    expected_none = meant_fast and outcome.truth < LEAST_STALL  # type: ignore[operator]
    return (outcome.bottleneck == NONE) == expected_none if meant_fast else outcome.bottleneck == outcome.expected


def _summary(outcomes: list[Found], name: str) -> None:
    with_truth = [outcome for outcome in outcomes if outcome.truth is not None and outcome.stall is not None]
    if with_truth:
        right = sum(abs(outcome.stall - outcome.truth) <= WITHIN for outcome in with_truth)  # type: ignore[operator]
        named = sum(map(_is_right, with_truth))
        print(
            f"{name}: {right} of {len(with_truth)} within {percentage(WITHIN)}; bottleneck right in {named} of "
            f"{len(with_truth)}"
        )
    errors = sorted(
        abs(v["measured"] / v["predicted"] - 1)
        for outcome in outcomes
        for v in outcome.verified
        if v["measured"] and v["predicted"]
    )
    if errors:
        p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        print(
            f"{name}: {len(errors)} predicted speed-ups: median error "
            f"{percentage(statistics.median(errors))}, p90 {percentage(p90)}"
        )
    chosen = [[v["measured"] for v in outcome.verified if v["measured"]] for outcome in outcomes]
    lost = [1 - gains[0] / max(gains) for gains in chosen if len(gains) > 1]  # the best advice is verified first
    if lost:
        print(
            f"{name}: regret of the best advice: mean {percentage(statistics.fmean(lost))}, largest "
            f"{percentage(max(lost))}"
        )


def _line(outcome: Found) -> str:
    shares = [outcome.truth, outcome.loop, outcome.stall, outcome.in_band, outcome.interference]
    texts = ["   -  " if share is None else f"{percentage(share):>7}" for share in shares]
    advice = ", ".join(f"{a['change']} {a['speed_up']:.2f}x" for a in outcome.advice) or "none"
    checked = ", ".join(f"{v['change']} {v['predicted']:.2f}x -> {v['measured']}" for v in outcome.verified)
    kind = "held out" if outcome.held_out else "tuning"
    summary = f"{_named(outcome)}; {advice}; {checked} {outcome.problem or ''}"
    return f"{outcome.backend:10} {outcome.scenario:32} {kind:8} {' '.join(texts)} {summary}"


def _centre(estimate: Mapping[str, Any] | None) -> float | None:
    return None if estimate is None else float(estimate["centre"])


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("make", "measure", "tables", "loop", "device"))
    parser.add_argument("place")
    parser.add_argument("--compute", choices=("timed_wait", "real"), default="timed_wait")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--verify", action="store_true")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds: must be at least 1, got {args.rounds}")
    if args.command in ("loop", "device"):
        (loop if args.command == "loop" else device)(json.loads(args.place))
    elif args.command == "make":
        make(Path(args.place))
    elif args.command == "tables":
        tables(Path(args.place))
    else:
        measure(Path(args.place).resolve(), args.compute, args.only, args.rounds, args.verify)


if __name__ == "__main__":
    main()
