"""`runner tune` from end to end, with a fake executor: who is raced, who is dropped, the answer, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keras_matrix.records.schema import Memory
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.matrix.reader import expand, load
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.race import RaceBlocks
from tests.fakes.executor import PRETENDED, FakeExecutor, crash
from tests.golden import Golden
from tests.transcripts import Transcript

OVER = "backend=tensorflow|jax|torch, batch_size=32|128, jit"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noisy(settings: Settings, repeat: int) -> float:
    """A step: JAX takes 1.5 times and PyTorch twice the time of TensorFlow; jit a fifth less; larger batches less."""
    base_s = {"tensorflow": 0.010, "jax": 0.015, "torch": 0.020}[settings.backend]
    base_s *= 0.8 if settings.jit is True else 1.0
    base_s *= settings.batch_size / 32 * (0.7 if settings.batch_size > 32 else 1.0)
    return base_s * (1 + Random(f"{settings} {repeat}").uniform(-0.005, 0.005))


@dataclass(slots=True)
class Racing(FakeExecutor):
    """Whose steps are those of `noisy`, and where candidates that `fails` returns an outcome for fail."""

    step_time_s: Callable[[Settings, int], float] = noisy
    fails: Callable[[Job], Outcome | None] = field(default=lambda job: None)

    def end(self, job: Job) -> Outcome:
        """Fail, or do as any."""
        self.jobs.append(job)
        outcome = self.fails(job)
        return self.succeed(job) if outcome is None else outcome


def tune(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(["tune", *arguments], Seams(executor=executor or Racing()))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, executor: FakeExecutor | None = None) -> dict[str, Any]:
    capsys.readouterr()
    tune(*arguments, "--json", executor=executor)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def newest_run() -> Run:
    run = Results(Path("results")).latest()
    assert run is not None
    return run


def test_what_is_printed(transcript: Transcript, golden: Golden) -> None:
    executor = Racing()
    transcript.run(f"tune mnist_mlp --over '{OVER}'", seams=Seams(executor=executor), brief=True)
    transcript.note("nothing to try")
    transcript.run("tune mnist_mlp", "tune mnist_mlp --over backend=jax", "tune mnist_mpl --over jit")
    transcript.note("bad axes")
    for axes in ("batch_size", "batch_size=32|", "epochs=3|4", "jit=maybe|true", "jit, jit=true", "widht=1|2"):
        transcript.run(f"tune mnist_mlp --over '{axes}'")
    transcript.note("bad values")
    bad_flags = ("--repeats 3", "--within 90%", "--for job", "--for speed", "--budget 1s", "--most-memory much")
    for flags in (*bad_flags, "--set jit=true"):
        transcript.run(f"tune mnist_mlp --over jit,backend=jax|torch {flags}")
    golden.check("tune.txt", transcript.text)


def test_fastest_is_named_in_both_leagues(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "mnist_mlp", "--over", OVER)
    assert (found["outcome"], found["exit_code"]) == ("decided", 0)
    equal, others = found["answers"]
    assert equal["name"] == "tensorflow batch_size=32 jit=True"
    assert others["name"] == "tensorflow batch_size=128 jit=True"
    assert (equal["other_numbers"], others["other_numbers"]) == ([], ["batch_size=128"])
    # 0.8 of the default's time; with the larger batch 0.7 of that
    assert equal["gain"]["centre"] == pytest.approx(0.8, rel=0.01)
    assert others["gain"]["centre"] == pytest.approx(0.56, rel=0.01)
    assert equal["gain"]["low"] < equal["gain"]["centre"] < equal["gain"]["high"]


def test_gain_is_from_blocks_that_no_race_has_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: the gain is over all blocks."""
    blocks = answer(capsys, "mnist_mlp", "--over", OVER)["blocks"]

    def lucky(settings: Settings, repeat: int) -> float:
        return noisy(settings, repeat) * (0.5 if settings.jit is True and repeat < blocks else 1.0)

    found = answer(capsys, "mnist_mlp", "--over", OVER, "--new", executor=Racing(step_time_s=lucky))
    assert found["blocks"] <= blocks
    assert found["answers"][0]["name"] == "tensorflow batch_size=32 jit=True"
    fresh = [record.repeat for record in newest_run().load()[0] if record.repeat >= found["blocks"]]
    assert found["answers"][0]["gain"]["count"] == len(set(fresh))


def test_slow_candidates_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    executor = Racing()
    found = answer(capsys, "mnist_mlp", "--over", OVER, executor=executor)
    counts = {row["name"]: len(row["ratios"]) for row in found["ranking"]}
    assert counts["torch batch_size=32 jit=False"] < found["blocks"]
    assert max(counts.values()) == found["blocks"]
    assert [row["name"] for row in found["ranking"]][-1].startswith("torch batch_size=32")


def test_candidates_of_equal_speed_are_tied(capsys: pytest.CaptureFixture[str]) -> None:
    def two_are_equal(settings: Settings, repeat: int) -> float:
        base_s = 0.020 if settings.backend == "torch" else 0.010
        return base_s * (1 + Random(f"{settings} {repeat}").uniform(-0.002, 0.002))

    executor = Racing(step_time_s=two_are_equal)
    found = answer(capsys, "mnist_mlp", "--over", "backend=tensorflow|jax|torch", executor=executor)
    (only,) = found["answers"]
    assert found["outcome"] == "decided"
    assert {only["name"], *only["tied"]} == {"tensorflow", "jax"}


def test_candidate_that_fails_is_dropped_with_its_reason_and_the_race_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(job: Job) -> Outcome | None:
        is_failing = job.settings.backend == "tensorflow" and job.settings.jit is True and job.repeat == 2
        return crash()(job) if is_failing else None

    found = answer(capsys, "mnist_mlp", "--over", "backend=tensorflow|jax, jit", executor=Racing(fails=fails))
    assert list(found["failed"]) == ["tensorflow jit=True"]
    assert found["failed"]["tensorflow jit=True"].startswith("block 3: crash: ")
    assert (found["outcome"], found["answers"][0]["name"]) == ("decided", "tensorflow jit=False")


def test_all_candidates_that_fail_are_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    executor = Racing(fails=crash())
    assert tune("mnist_mlp", "--over", "jit, backend=jax", executor=executor) == 1
    printed = capsys.readouterr().out
    assert "mnist_mlp: all candidates failed" in printed
    assert len(executor.jobs) == 3, "the default and two candidates, once each"


def test_candidate_above_the_memory_limit_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    class Large(Racing):
        def succeed(self, job: Job) -> Outcome:
            is_large = job.settings.batch_size > 32
            result = replace(self.result(job), memory=Memory(peak_host_memory_bytes=(800 if is_large else 400) << 20))
            write_result(job, result)
            return replace(PRETENDED, exit_code=0, wall_time_s=1.0)

    found = answer(
        capsys,
        "mnist_mlp",
        "--over",
        "batch_size=32|128",
        "--most-memory",
        "500m",
        "--backend",
        "jax",
        executor=Large(),
    )
    assert list(found["failed"]) == ["jax batch_size=128"]
    assert "at most 500 MiB" in found["failed"]["jax batch_size=128"]


def test_other_work_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    class Other(Racing):
        def succeed(self, job: Job) -> Outcome:
            result = self.result(job)
            assert result.resolved is not None
            parameters = 999 if job.settings.backend == "torch" else 1000
            write_result(job, replace(result, resolved=replace(result.resolved, parameters=parameters)))
            return replace(PRETENDED, exit_code=0, wall_time_s=1.0)

    found = answer(capsys, "mnist_mlp", "--over", "backend=tensorflow|jax|torch", executor=Other())
    assert found["failed"] == {"torch": "block 1: other work: parameters differ: tensorflow 1,000, torch 999"}


class Clock:
    """Each process takes ten seconds."""

    def __init__(self, executor: FakeExecutor) -> None:
        self._executor = executor

    def __call__(self) -> float:
        return 10.0 * len(self._executor.jobs)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Racing:
    """An executor whose processes take ten seconds by the clock of a race."""
    executor = Racing()
    plain = RaceBlocks.__init__

    def begun(self: RaceBlocks, *arguments: Any) -> None:
        plain(self, *arguments, clock=Clock(executor))

    monkeypatch.setattr(RaceBlocks, "__init__", begun)
    return executor


def test_budget_that_ends_before_the_decision_leaves_it_undecided(
    slow: Racing, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: the confirmation is not reserved, and the race takes longer than its budget."""
    found = answer(capsys, "mnist_mlp", "--over", "backend=tensorflow|jax|torch", "--budget", "200", executor=slow)
    assert (found["outcome"], found["exit_code"]) == ("undecided", 5)
    (only,) = found["answers"]
    assert {only["name"], *only["tied"]} == {"tensorflow", "jax", "torch"}
    assert 10 * len(slow.jobs) <= 200
    assert any("--budget" in line for line in found["advice"])


def test_budget_below_one_block_is_refused_with_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    executor = Racing()
    assert tune("mnist_mlp", "--over", OVER, "--budget", "3", executor=executor) == 2
    message = capsys.readouterr().err
    assert "do not suffice for one process of each of the 13 candidates" in message
    assert not executor.jobs


def test_interrupted_race_ends_as_one_that_was_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("mnist_mlp", "--over", OVER, "--order-seed", "7")
    expected = answer(capsys, *arguments, "--results", "whole")

    def interrupts(job: Job) -> Outcome | None:
        if job.repeat == 3 and job.settings.backend == "jax":
            raise Interrupted(2)
        return None

    assert tune(*arguments, executor=Racing(fails=interrupts)) == 130
    continued = answer(capsys, *arguments)
    assert len(Results(folder / "results").runs()) == 1
    assert continued["ranking"] == expected["ranking"]
    assert continued["answers"] == expected["answers"]


def test_winners_are_written_as_a_matrix_that_measures_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("mnist_mlp", "--over", OVER, "--apply", "tuned.yaml") == 0
    cells = expand(load(folder / "tuned.yaml"))
    assert [(cell.settings.batch_size, cell.settings.jit) for cell in cells] == [(128, True), (32, True), (32, "auto")]
    assert main(["--matrix", "tuned.yaml"], Seams(executor=Racing())) == 0
    written = (folder / "tuned.yaml").read_text()
    capsys.readouterr()
    executor = Racing()
    assert tune("mnist_mlp", "--over", OVER, "--apply", "tuned.yaml", executor=executor) == 2
    assert "already exists and is never replaced" in capsys.readouterr().err
    assert (written, executor.jobs) == ((folder / "tuned.yaml").read_text(), [])


def test_every_cell_of_a_matrix_is_a_candidate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "matrix.yaml").write_text(
        "version: 1\nbackends: [jax, torch]\ncells: [{workload: mnist_mlp, batch_size: [32, 64]}, {workload: gru}]\n"
    )
    assert tune("--matrix", "matrix.yaml") == 2
    assert "workload: must be equal for all candidates, got mnist_mlp, gru" in capsys.readouterr().err
    found = answer(
        capsys, "--matrix", "matrix.yaml", "--filter", "workload=mnist_mlp", "--default", "backend=torch", "--new"
    )
    assert len(found["ranking"]) == 4
    assert [row["name"] for row in found["ranking"] if row["is_default"]] == ["torch batch_size=32"]


def test_large_space_is_limited_to_the_most_promising(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--workload", "mnist_mlp", "--backend", "jax", "--set", "batch_size=128"], Seams(executor=Racing()))
    executor = Racing()
    found = answer(
        capsys, "mnist_mlp", "--over", "batch_size=32|64|128|256", "--backend", "jax", "--most", "2", executor=executor
    )
    assert {job.settings.batch_size for job in executor.jobs} == {32, 128}
    assert sorted(found["untried"]) == ["jax batch_size=256", "jax batch_size=64"]


def test_job_counts_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: the cost of a job is its steps alone."""

    class SlowToCompile(Racing):
        def succeed(self, job: Job) -> Outcome:
            result = self.result(job)
            first_s = 5.0 if job.settings.jit is True else 0.5
            write_result(job, replace(result, times=replace(result.times, first_step_time_s=first_s)))
            return replace(PRETENDED, exit_code=0, wall_time_s=1.0)

    arguments = ("mnist_mlp", "--over", "jit", "--backend", "tensorflow", "--new")
    short = answer(capsys, *arguments, "--for", "job:100", executor=SlowToCompile())
    long = answer(capsys, *arguments, "--for", "job:100000", executor=SlowToCompile())
    assert short["answers"][0]["name"] != "tensorflow jit=True"
    assert long["answers"][0]["name"] == "tensorflow jit=True"
    starts = {row["name"]: row["start"] for row in long["ranking"]}
    assert starts["tensorflow jit=True"]["break_even_step"] == pytest.approx(4.5 / 0.002, rel=0.1)


def test_page_and_markdown_have_the_answer(folder: Path) -> None:
    assert tune("mnist_mlp", "--over", OVER, "--out", "tune.html", "--markdown", "tune.md") == 0
    page, text = (folder / "tune.html").read_text(), (folder / "tune.md").read_text()
    for name in ("tensorflow batch_size=32 jit=True", "tensorflow batch_size=128 jit=True"):
        assert name in page
        assert name in text
    assert "dropped after block" in page
    assert page.count('class="plot"') >= 13
