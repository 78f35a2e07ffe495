"""Measure how well `runner stalls` finds known input stalls: the tables of docs/inputs.md. Quiet machine, root.

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
    for one in SCENARIOS:
        if only and {one.name, one.backend, "held out" if one.held_out else "others"}.isdisjoint(only):
            continue
        begun_s = time.perf_counter()
        found = _measured(folder, one, compute, rounds, verify)
        with (folder / "found.jsonl").open("a") as out:
            out.write(json.dumps(asdict(found)) + "\n")
        print(_line(found), f"{time.perf_counter() - begun_s:.0f} s", flush=True)


def _measured(folder: Path, one: Scenario, compute: str, rounds: int, verify: bool) -> Found:
    """Measure a scenario: the truth before, between and after its analyses, of which the last one is verified."""
    found = Found(one.name, one.backend, one.held_out, one.bottleneck, compute)
    has_truth = compute == "timed_wait"
    periods_s = [_observed(folder, one, "device", 0.0)] if has_truth else []
    reports = []
    for number in range(rounds):
        report = _analysed(folder, one, compute, verify and number == rounds - 1)
        if isinstance(report, str):
            found.problem = report
            return found
        reports.append(report)
        if has_truth:
            periods_s.append(_observed(folder, one, "device", 0.0))
    found.problem = reports[-1]["reason"]
    found.stalls = [share for report in reports if (share := _centre(report["stall"])) is not None]
    found.bottlenecks = [report["bottleneck"] for report in reports]
    found.stall = _mean(found.stalls)
    found.in_band = _mean([_centre(report["input_bound"]) for report in reports])
    found.interference = _mean([_centre(report["interference"]) for report in reports])
    found.bottleneck = next((name for name in found.bottlenecks if name != one.bottleneck), one.bottleneck)
    found.synthetic_step_s = _mean(
        [_centre(arm["step_time"]) for report in reports for arm in report["arms"] if arm["arm"] == "synthetic"]
    )
    found.advice = [{"change": a["change"], "speed_up": _centre(a["speed_up"])} for a in reports[-1]["advice"]]
    found.verified = [
        {"change": v["change"], "predicted": _centre(v["predicted"]), "measured": _centre(v["measured"])}
        for v in reports[-1]["verified"]
    ]
    if has_truth and found.synthetic_step_s:
        found.truths = [1 - found.synthetic_step_s / period_s for period_s in periods_s if period_s]
        # Each analysis lies between two periods: those at the ends count half.
        period_s = _mean([_mean(pair) for pair in itertools.pairwise(periods_s)])
        found.truth = None if period_s is None else 1 - found.synthetic_step_s / period_s
        found.loop = _observed(folder, one, "loop", found.synthetic_step_s)
    return found


def _analysed(folder: Path, one: Scenario, compute: str, verify: bool) -> dict[str, Any] | str:
    """Return the report of `runner stalls` on a scenario, or its error message."""
    matrix = folder / "matrix.yaml"
    matrix.write_text(_matrix(folder, one, compute))
    options = ["--json", "--repeats", "1", *(["--verify"] if verify else []), *([] if one.cold else ["--no-cold"])]
    command = [str(BIN / "runner"), "stalls", f"{one.backend}:finetune", "--matrix", str(matrix), *options]
    done = _limited(folder, one, [*command, "--results", str(folder / "results"), "--new"])
    try:
        report: dict[str, Any] = json.loads(done.stdout)["reports"][0]
    except (ValueError, LookupError):
        return (done.stderr or done.stdout).strip()[-400:]
    return report


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _matrix(folder: Path, one: Scenario, compute: str) -> str:
    base = (
        {"base": "timed_wait", "step_time_ms": STEP_MS}
        if compute == "timed_wait"
        else {"base": "mobilenet_v3_small", "image_size": 96}
    )
    document = {
        "version": 1,
        "defaults": {"repeats": 1, "epochs": 1 + EPOCHS, "discard": 1, "steps_per_epoch": STEPS, "timeout_s": 300},
        "backends": [one.backend],
        "cells": [{"workload": "finetune", "batch_size": one.batch, **_data(folder, one), **base, **one.params}],
    }
    return json.dumps(document)  # JSON is YAML


def _data(folder: Path, one: Scenario) -> dict[str, Any]:
    size = 224 if one.images != SMALL else 96
    samples = IMAGES if one.cold else FEW
    return {"dataset_path": str(folder / one.images), "dataset_size": samples, "image_size": size}


def _limited(folder: Path, one: Scenario, command: list[str]) -> subprocess.CompletedProcess[str]:
    prefix = [str(ROOT / "ci" / "throttle"), *one.limits, "--folder", str(folder), "--"] if one.limits else []
    return subprocess.run([*prefix, *command], capture_output=True, text=True, check=False)


def _observed(folder: Path, one: Scenario, command: str, step_s: float) -> float | None:
    """Return the figure that a command of this file prints about the pipeline of a scenario; None if it fails."""
    request = {
        "backend": one.backend,
        "batch": one.batch,
        "cold": one.cold,
        "step_s": step_s,
        "params": {
            **_data(folder, one),
            "base": "timed_wait",
            "step_time_ms": STEP_MS,
            **one.params,
        },
    }
    done = _limited(folder, one, [sys.executable, "-m", "lab.input_stalls", command, json.dumps(request)])
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def loop(request: Mapping[str, Any]) -> None:
    """Print the mean idle share of the device of a loop that takes batches and sleeps."""
    _, pipeline = _built(request)
    from keras.src.trainers.data_adapters import get_data_adapter

    from keras_matrix.models.inputs.stored.page_cache import evict

    source = pipeline.source(timed=False)
    own = hasattr(source, "element_spec")  # tf.data, whose batches TensorFlow's fit draws without a copy
    batches = iter(source) if own else iter(get_data_adapter(source).get_numpy_iterator())
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
    """Print the tables of docs/inputs.md, from the newest line of each scenario, and a summary of each half."""
    lines = [json.loads(line) for line in (folder / "found.jsonl").read_text().splitlines()]
    newest = {(one["scenario"], one["backend"], one["compute"]): Found(**one) for one in lines}
    order = {(one.name, one.backend): at for at, one in enumerate(SCENARIOS)}
    for compute in ("timed_wait", "real"):
        found = [one for key, one in newest.items() if key[2] == compute]
        found.sort(key=lambda one: order[one.scenario, one.backend])
        if found:
            print(f"\n{compute}:\n\n" + "\n".join(_shares(found, compute) + _predictions(found)) + "\n")
        for held_out in (False, True):
            _summary([one for one in found if one.held_out == held_out], "held out" if held_out else "tuning")


def _shares(found: list[Found], compute: str) -> list[str]:
    truths = ["truth", "bare loop"] if compute == "timed_wait" else []
    columns = [*truths, "differential", "in-band", "interference"]
    rows = [f"| backend | pipeline | {' | '.join(columns)} | bottleneck |", f"|---|---|{'---:|' * len(columns)}---|"]
    for one in found:
        shares = [one.truth, one.loop] if truths else []
        texts = [
            "" if share is None else percentage(share) for share in (*shares, one.stall, one.in_band, one.interference)
        ]
        rows.append(f"| {one.backend} | {_title(one)} | {' | '.join(texts)} | {_named(one)} |")
    return rows


def _predictions(found: list[Found]) -> list[str]:
    rows = ["", "| backend | pipeline | change | predicted | measured |", "|---|---|---|---:|---:|"]
    for one in found:
        for v in one.verified:
            measured = "" if v["measured"] is None else f"{v['measured']:.2f}x"
            rows.append(f"| {one.backend} | {_title(one)} | {v['change']} | {v['predicted']:.2f}x | {measured} |")
    return rows if len(rows) > 3 else []


def _title(one: Found) -> str:
    return one.scenario + (", held out" if one.held_out else "")


def _named(one: Found) -> str:
    return "right" if _is_right(one) else f"{one.bottleneck}, expected {one.expected}"


def _is_right(one: Found) -> bool:
    """Return whether the bottleneck is the expected one; what is meant to be fast may be slow on a slow machine."""
    meant_fast = one.expected == NONE and one.truth is not None
    expected_none = meant_fast and one.truth < LEAST_STALL  # type: ignore[operator]
    return (one.bottleneck == NONE) == expected_none if meant_fast else one.bottleneck == one.expected


def _summary(found: list[Found], name: str) -> None:
    known = [one for one in found if one.truth is not None and one.stall is not None]
    if known:
        right = sum(abs(one.stall - one.truth) <= WITHIN for one in known)  # type: ignore[operator]
        named = sum(map(_is_right, known))
        print(
            f"{name}: {right} of {len(known)} within {percentage(WITHIN)}; bottleneck right in {named} of {len(known)}"
        )
    errors = sorted(
        abs(v["measured"] / v["predicted"] - 1)
        for one in found
        for v in one.verified
        if v["measured"] and v["predicted"]
    )
    if errors:
        p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        print(
            f"{name}: {len(errors)} predicted speed-ups: median error "
            f"{percentage(statistics.median(errors))}, p90 {percentage(p90)}"
        )
    chosen = [[v["measured"] for v in one.verified if v["measured"]] for one in found]
    lost = [1 - gains[0] / max(gains) for gains in chosen if len(gains) > 1]  # the best advice is verified first
    if lost:
        print(
            f"{name}: regret of the best advice: mean {percentage(statistics.fmean(lost))}, largest "
            f"{percentage(max(lost))}"
        )


def _line(one: Found) -> str:
    shares = [one.truth, one.loop, one.stall, one.in_band, one.interference]
    texts = ["   -  " if share is None else f"{percentage(share):>7}" for share in shares]
    advice = ", ".join(f"{a['change']} {a['speed_up']:.2f}x" for a in one.advice) or "none"
    checked = ", ".join(f"{v['change']} {v['predicted']:.2f}x -> {v['measured']}" for v in one.verified)
    kind = "held out" if one.held_out else "tuning"
    summary = f"{_named(one)}; {advice}; {checked} {one.problem or ''}"
    return f"{one.backend:10} {one.scenario:32} {kind:8} {' '.join(texts)} {summary}"


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
