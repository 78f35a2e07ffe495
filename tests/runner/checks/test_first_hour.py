"""`runner first-hour`: its judgements of sound and of broken figures, its report, and one run on the CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_matrix.analysis.roofline import datasheet
from keras_matrix.records.codec import to_json
from keras_matrix.records.instruments.first_hour import ProbeAnswer
from keras_matrix.records.instruments.peaks import Gemm, Stream, Timed
from keras_matrix.records.schema import DeviceProof, Times
from keras_matrix.records.traces.neutral import Span, Track, TrackKind, copy_of
from keras_matrix.runner.checks import first_hour
from keras_matrix.runner.checks.first_hour import MeasuredRun, copies_to_device, share_in_steps
from keras_matrix.runner.checks.first_hour_steps import CheckStep, Done, Report, StepOutcome, StepResult, read
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service.first_hour import run_all as run_checks
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.transcripts import Transcript

OK, FAILED, NOT_RUN = StepOutcome.OK, StepOutcome.FAILED, StepOutcome.NOT_RUN
ANSWER = ProbeAnswer(
    DeviceProof("gpu", "gpu:0", 1), {}, called_s=0.01, waited_s=0.5, read_s=0.001,
    errors={"matmul": 3e-4, "convolution": 3e-4, "rnn": 4e-7},
)  # fmt: skip
RECORDED = {"matmul": True, "convolution": True, "rnn": False}
TERA = 1e12
MIB = 1 << 20


def gemm(precision: str, rate: float) -> Gemm:
    return Gemm("jax", "gpu", precision, 1, 8192, Timed([rate], 1))


def stream(rate: float) -> Stream:
    return Stream("jax", "gpu", "triad", 1, 1 << 30, Timed([rate], 1))


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (lambda: first_hour.doubled(0.5, 1.0), OK),
        (lambda: first_hour.doubled(0.5, 0.6), FAILED),  # the second epoch's work was not waited for
        (lambda: first_hour.synchronised(ANSWER, "gpu"), OK),
        (lambda: first_hour.synchronised(replace(ANSWER, waited_s=0.011, read_s=0.49), "gpu"), FAILED),
        (lambda: first_hour.synchronised(replace(ANSWER, called_s=0.49), "gpu"), FAILED),
        (lambda: first_hour.synchronised(replace(ANSWER, called_s=0.49), "cpu"), NOT_RUN),
        (lambda: first_hour.traced(0.0095, 0.01, "gpu"), OK),
        (lambda: first_hour.traced(0.0005, 0.01, "gpu"), FAILED),  # kernels missing from the trace
        (lambda: first_hour.traced(0.02, 0.01, "gpu"), FAILED),  # launches counted as work, too
        (lambda: first_hour.resident([("MemcpyH2D", 4)], 32 * MIB), OK),
        (lambda: first_hour.resident([], 32 * MIB), OK),
        (lambda: first_hour.resident([("MemcpyH2D", 32 * MIB)] * 5, 32 * MIB), FAILED),
        (lambda: first_hour.resident([("MemcpyH2D", None)], 32 * MIB), FAILED),
        (lambda: first_hour.precise(ANSWER.errors, RECORDED, "gpu"), OK),
        (lambda: first_hour.precise(ANSWER.errors, RECORDED | {"rnn": True}, "gpu"), FAILED),
        (lambda: first_hour.precise(ANSWER.errors, RECORDED | {"matmul": False}, "gpu"), FAILED),
        (lambda: first_hour.precise(ANSWER.errors, {}, "gpu"), FAILED),
        (lambda: first_hour.precise(dict.fromkeys(ANSWER.errors, 4e-7), {}, "cpu"), OK),
        (lambda: first_hour.allocated(512 * MIB, 520 * MIB, {"device": 40_000 * MIB, "process": None}), OK),
        (lambda: first_hour.allocated(512 * MIB, 100 * MIB, {}), FAILED),
        (lambda: first_hour.allocated(512 * MIB, 2000 * MIB, {}), FAILED),
        (lambda: first_hour.allocated(512 * MIB, None, {"device": 40_000 * MIB}), FAILED),
        (lambda: first_hour.allocated(512 * MIB, 512 * MIB, {"device": 100 * MIB}), FAILED),
        (lambda: first_hour.clocks_constant([1410 * 10**6] * 4), OK),
        (lambda: first_hour.clocks_constant([1410 * 10**6, 1980 * 10**6]), FAILED),
        (lambda: first_hour.clocks_constant([None, None]), FAILED),
        (lambda: first_hour.energy_agrees([300.0, 310.0], [1.0, 1.0], 300.0), OK),
        (lambda: first_hour.energy_agrees([300.0, 310.0], [1.0, 1.0], 90.0), FAILED),
        (lambda: first_hour.energy_agrees([None], [1.0], 90.0), FAILED),
        (lambda: first_hour.energy_agrees([300.0], [1.0], None), FAILED),
        (lambda: first_hour.ended_with("oom_device", "oom_device", "out of memory"), OK),
        (lambda: first_hour.ended_with("crash", "oom_device", "killed"), FAILED),
    ],
)
def test_correct_figures_are_accepted_and_wrong_ones_fail(
    judged: Callable[[], StepResult], expected: StepOutcome
) -> None:
    assert judged().outcome is expected, judged().summary


@pytest.mark.parametrize(
    ("gemms", "streams", "expected"),
    [
        ([gemm("float32", 15 * TERA), gemm("bfloat16", 280 * TERA)], [stream(1.4 * TERA)], OK),
        ([gemm("float32", 150 * TERA)], [stream(1.4 * TERA)], FAILED),  # TF32 timed as float32
        ([gemm("float32", 15 * TERA)], [stream(9 * TERA)], FAILED),  # arrays that fit a cache
        ([gemm("float32", 2 * TERA)], [], FAILED),
        ([], [], FAILED),
    ],
)
def test_peaks_are_judged_against_the_data_sheet(
    gemms: list[Gemm], streams: list[Stream], expected: StepOutcome
) -> None:
    sheet = datasheet("NVIDIA A100-SXM4-40GB")
    assert sheet is not None
    assert first_hour.against_datasheet(gemms, streams, sheet).outcome is expected


def test_device_without_a_data_sheet_is_not_judged_but_its_peaks_are_reported() -> None:
    found = first_hour.against_datasheet([gemm("float32", 2.5 * TERA)], [stream(0.5 * TERA)], None)
    assert found.outcome is NOT_RUN
    assert "float32 2.5 TFLOP/s, memory 0.5 TB/s" in found.summary


def test_error_limit_is_between_float32_and_tf32() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 256, 256)).astype("float32")
    exact = a.astype("float64") @ b.astype("float64")

    def error(found: np.ndarray) -> float:
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    def tf32(values: np.ndarray) -> np.ndarray:
        """Round to the 10 bits of mantissa in TF32, of the 23 in float32."""
        bits = values.view("uint32") + np.uint32(1 << 12)
        return (bits & np.uint32(0xFFFFE000)).view("float32")

    assert error(a @ b) < first_hour.TF32_ERROR / 10
    assert error(tf32(a) @ tf32(b)) > first_hour.TF32_ERROR * 5


def test_copies_of_batches_to_the_device_within_steps_count() -> None:
    track = Track(0, TrackKind.COPY)
    spans = [
        Span(track, "MemcpyH2D", copy_of("MemcpyH2D") or "", 0, 9, step=1, size_bytes=4096),
        Span(track, "Memcpy HtoD (Pinned -> Device)", copy_of("Memcpy HtoD (Pinned -> Device)") or "", 9, 9, step=2),
        Span(track, "MemcpyH2D", copy_of("MemcpyH2D") or "", 0, 9, size_bytes=1 << 30),  # before the first step
        Span(track, "MemcpyD2H", copy_of("MemcpyD2H") or "", 0, 9, step=1, size_bytes=4),
        Span(Track(0, TrackKind.COMPUTE), "gemm", "MatMul", 0, 9, step=1),
    ]
    found = list(copies_to_device(spans))
    assert found == [("MemcpyH2D", 4096), ("Memcpy HtoD (Pinned -> Device)", None)]


class FakeTarget:
    """Matrix products whose epochs of few and of twice the steps take the given seconds, one pair a measurement."""

    backend, device = "torch", "cpu"

    def __init__(self, *pairs_s: tuple[float, float]) -> None:
        self.pairs_s = list(pairs_s)
        self.measured = 0

    def measure(self, cell: dict[str, Any], *options: str, **changes: str) -> MeasuredRun:
        times_s = self.pairs_s[self.measured]
        self.measured += 1
        records = [
            make_record(
                settings=make_settings(steps_per_epoch=steps),
                times=Times(step_time_s=time_s, epoch_times_s=[time_s, 2 * time_s]),
            )
            for steps, time_s in zip(cell["steps_per_epoch"], times_s, strict=True)
        ]
        return MeasuredRun(SimpleNamespace(), records)  # type: ignore[arg-type]


def twice_the_steps(*pairs_s: tuple[float, float]) -> tuple[StepResult, int]:
    """Run the check; return its result, and how often it measured."""
    target: Any = FakeTarget(*pairs_s)
    found = {one.name: one for one in first_hour.steps(first_hour.Hour(target, SimpleNamespace()))}  # type: ignore[arg-type]
    return found["torch: twice the steps"].run(), target.measured


def test_single_disturbed_pair_of_epochs_does_not_fail_the_check() -> None:
    """0.7 s for the short one are a disturbance: the next pair has its real time."""
    found, measured = twice_the_steps((0.7, 1.001), (0.5, 1.2))
    assert (found.outcome, measured) == (OK, 2)
    assert found.summary == "0.500 s and 1.001 s: 2.00 times as long (measured 2 times)"


def test_good_pair_is_measured_once() -> None:
    found, measured = twice_the_steps((0.5, 1.0))
    assert (found.outcome, measured) == (OK, 1)
    assert found.summary == "0.500 s and 1.000 s: 2.00 times as long"


def test_epoch_that_is_never_twice_as_long_fails_after_four_measurements() -> None:
    found, measured = twice_the_steps(*[(0.7, 1.0)] * 4)
    assert (found.outcome, measured) == (FAILED, 4)
    assert found.summary == "0.700 s and 1.000 s: 1.43 times as long (measured 4 times)"


def test_checks_that_compare_times_are_repeated_and_others_are_not() -> None:
    repeated = {name for check, (name, _) in first_hour.CHECKS.items() if check in first_hour.OF_TIMES}
    assert repeated == {"twice the steps", "the barrier", "a trace", "energy", "pinned autotuning"}


def test_repeated_barrier_asks_the_probe_anew() -> None:
    answers = [replace(ANSWER, waited_s=0.011, read_s=0.49), ANSWER]

    class Answering:
        def ask(self, *order: object) -> Any:
            return to_json(answers.pop(0))

    target: Any = FakeTarget()
    probe: Any = Answering()
    found = {one.name: one for one in first_hour.steps(first_hour.Hour(target, probe))}["torch: the barrier"].run()
    assert (found.outcome, answers) == (OK, [])
    assert found.summary.endswith("(measured 2 times)")


SHOW = partial(print, end="")


def step(outcome: StepOutcome, *, essential: bool = False) -> CheckStep:
    return CheckStep(str(outcome), "something", lambda: StepResult(outcome, "found"), essential)


def run_all(*steps: CheckStep) -> list[Done]:
    done: list[Done] = []
    run_checks(iter(steps), done, SHOW)
    return done


def test_interruption_retains_the_completed_steps() -> None:
    def interrupted() -> StepResult:
        raise Interrupted("stopped by SIGINT")

    done: list[Done] = []
    with pytest.raises(Interrupted):
        run_checks(iter([step(OK), CheckStep("two", "something", interrupted), step(OK)]), done, SHOW)
    assert [one.found.outcome for one in done] == [OK]


def test_trace_without_steps_does_not_judge_copies() -> None:
    track = Track(0, TrackKind.COMPUTE)
    assert share_in_steps([]) == 0
    assert share_in_steps([Span(track, "gemm", "MatMul", 0, 9), Span(track, "gemm", "MatMul", 9, 9, step=1)]) == 0.5


def test_no_step_follows_an_essential_one_that_failed() -> None:
    assert len(run_all(step(OK, essential=True), step(FAILED), step(OK))) == 3
    assert len(run_all(step(FAILED, essential=True), step(OK))) == 1


def test_step_that_raises_fails_and_the_next_one_runs() -> None:
    def broken() -> StepResult:
        raise ZeroDivisionError("x")

    done = run_all(CheckStep("one", "something", broken), step(OK))
    assert [one.found.outcome for one in done] == [FAILED, OK]
    assert done[0].found.summary == "ZeroDivisionError: x"


def made(name: str, outcome: StepOutcome, **about: str) -> Report:
    return Report("a GPU", about, [Done(name, "something", StepResult(outcome, "a | b", ("more",), {"x": 1}), 1.5)])


def test_reports_of_several_backends_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, outcome in (("jax", OK), ("torch", FAILED), ("tensorflow", NOT_RUN)):
        found = made(name, outcome, driver="580", versions=f"{name} 1")
        (tmp_path / f"{name}.json").write_text(found.json())
    files = [str(tmp_path / f"{name}.json") for name in ("jax", "torch", "tensorflow")]
    code = main(["first-hour", "--merge", *files, "--report", str(tmp_path / "all.md")])
    text = (tmp_path / "all.md").read_text()
    assert code == 1  # one of them failed
    assert text.startswith("# A first hour on a GPU: 1 of 2 steps as expected, 1 could not run\n")
    assert "| driver | 580 |" in text
    assert "| versions | jax 1 |" in text
    assert "| versions (torch) | torch 1 |" in text
    assert "| jax | ok | 1.5 s | something | a \\| b |" in text
    assert "- jax: more" in text
    assert read(json.loads((tmp_path / "all.json").read_text())).title == text.splitlines()[0].removeprefix("# ")


class NoBackends:
    """A probe on a machine without a backend."""

    def missing(self, backend: str) -> str | None:
        return f"backend_not_installed: {backend}"


class JaxAlone(NoBackends):
    """A probe on a machine with JAX."""

    def missing(self, backend: str) -> str | None:
        return None if backend == "jax" else super().missing(backend)


@pytest.mark.nightly(why="ci/gpu --device cpu runs the same checks")
@pytest.mark.process
def test_checks_that_apply_to_a_cpu_pass_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = [f"--only={name}" for name in ("small", "barrier", "precision", "allocation", "peaks", "missing")]
    path = tmp_path / "hour.md"
    code = main(["first-hour", "--backend=jax", "--device=cpu", f"--report={path}", *only])
    assert code == 0, capsys.readouterr().out
    found = read(json.loads(path.with_suffix(".json").read_text()))
    outcomes = {one.name: one.found for one in found.done}
    assert outcomes["jax: a small cell"].summary.partition(" on ")[2].startswith("cpu:0")
    assert outcomes["jax: a known allocation"].outcome is OK
    assert max(outcomes["jax: precision"].figures["errors"].values()) < first_hour.TF32_ERROR
    assert outcomes["jax: peaks"].outcome is NOT_RUN
    assert outcomes["jax: a missing device"].figures["status"] == "device_mismatch"
    barrier = outcomes["jax: the barrier"].figures
    assert all(math.isfinite(barrier[name]) for name in ("called_s", "waited_s", "read_s"))


def test_what_the_first_hour_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    for name, outcome in (("jax", OK), ("torch", FAILED), ("tensorflow", NOT_RUN)):
        (tmp_path / f"{name}.json").write_text(made(name, outcome, driver="580", versions=f"{name} 1").json())
    transcript.run("first-hour --merge jax.json torch.json tensorflow.json --report all.md")
    transcript.run("first-hour --merge jax.json --report one.md")

    def fails() -> StepResult:
        raise RuntimeError("no such kernel")

    broken = CheckStep("broken", "something", fails)
    checks = [step(OK, essential=True), step(NOT_RUN), broken, step(FAILED)]
    monkeypatch.setattr("keras_matrix.runner.service.first_hour.steps", lambda hour: iter(checks))
    monkeypatch.setattr("keras_matrix.runner.service.first_hour.time", SimpleNamespace(monotonic=lambda: 0.0))
    cpu = "first-hour --device cpu --backend jax"
    transcript.run(cpu, f"{cpu} --only ok", f"{cpu} --only nothing", seams=Seams(probe=JaxAlone()))  # type: ignore[arg-type]
    golden.check("first-hour.txt", transcript.text)


def test_messages_of_first_hours_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    Path("other.json").write_text('{"version": 1}')
    Path("list.json").write_text("[]")
    flags = ("--backend mxnet", "--backend jax", "", "--report x.json", "--report nowhere/x.md")
    merged = ("missing.json", "other.json --only x", "other.json", "list.json")
    flags = (*flags, *(f"--merge {names}" for names in merged))
    seams = Seams(probe=NoBackends())  # type: ignore[arg-type]
    transcript.run(*(f"first-hour {flag}".strip() for flag in flags), seams=seams)
    monkeypatch.setattr("keras_matrix.runner.machine.gpus.readings.DRIVER_FILES", ())
    probe: Any = SimpleNamespace(missing=lambda backend: None)
    for visible in ("", "0,0", "0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        transcript.note(f"CUDA_VISIBLE_DEVICES is '{visible}', and there is no driver")
        transcript.run("first-hour --device gpu", seams=Seams(probe=probe))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    transcript.run("first-hour --device tpu", seams=Seams(probe=JaxAlone()))  # type: ignore[arg-type]
    golden.check("first-hour_refused.txt", transcript.text)
