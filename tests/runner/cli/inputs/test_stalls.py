"""`runner stalls` and `stalls: true` from end to end, with a fake executor and pretended pipelines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records import findings
from keras_matrix.records.instruments.input_use import DecoderCost, InputProbe, StorageLimits
from keras_matrix.records.instruments.stall_arms import arm_of
from keras_matrix.records.schema import Harness
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.machine.mounts import DataFolders
from keras_matrix.runner.measure.input_tools import ChildProcesses
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service.cells import stored_limit_s
from tests.analysis.stalls.pretended import Pretended
from tests.conftest import make_record, make_settings
from tests.fakes.executor import PRETENDED, FakeExecutor, crash
from tests.golden import Golden
from tests.sessions import newest_records
from tests.transcripts import Transcript

ROOT = Path(__file__).parents[4]
MATRIX = """\
version: 1
defaults: {repeats: 5, steps_per_epoch: 20}
backends: [jax, torch]
cells:
  - workload: finetune
    dataset_path: images
    decoder: pil
    input_workers: 1
  - workload: gru
"""
DECODING = Pretended(prepare_s=0.0052, prepare_cpu_s=0.0052, workers=1)
PROBE = InputProbe(
    64,
    {"pil": DecoderCost(0.005, 0.003), "simplejpeg": DecoderCost(0.002, 0.0019)},
    0.0003,
    0.05,
    StorageLimits(600e6, 25_000.0, 0.0001),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    (tmp_path / "images").mkdir()
    return tmp_path


@dataclass(slots=True)
class FakeTools:
    """Tools that return a given probe and write nothing."""

    result: InputProbe = PROBE
    problem: str | None = None
    probed: list[str] = field(default_factory=list)
    converted: list[tuple[Path, Path, str]] = field(default_factory=list)

    def probe(self, settings: Settings, folders: DataFolders) -> InputProbe:
        self.probed.append(str(settings.params["dataset_path"]))
        return self.result

    def convert(self, source: Path, target: Path, to: str) -> str | None:
        self.converted.append((source, target, to))
        return self.problem


def machine(pipeline_of: Callable[[Settings], Pretended]) -> FakeExecutor:
    """An executor whose cells have the costs of pretended pipelines, by their settings."""

    def step_time_s(settings: Settings, repeat: int) -> float:
        noise = 1 + 0.002 * ((repeat * 7 + len(arm_of(settings))) % 5 - 2)
        return pipeline_of(settings).step_s(arm_of(settings)) * noise

    def finetune(job: Job) -> Outcome:
        step_s = step_time_s(job.settings, job.repeat)
        result = FakeExecutor(step_time_s=step_time_s).result(job)
        write_result(job, replace(result, input=pipeline_of(job.settings).use(arm_of(job.settings), step_s)))
        return replace(PRETENDED, exit_code=0, wall_time_s=1.0, start_time_s=0.1, parent_cpu_time_s=0.001)

    return FakeExecutor(step_time_s=step_time_s, behaviours=dict.fromkeys(("finetune", "mine:build"), finetune))


def decoding(settings: Settings) -> Pretended:
    """One worker that decodes with Pillow; a change of decoder or workers has its true effect."""
    cost_s = {"pil": 0.0052, "simplejpeg": 0.0022}[str(settings.params["decoder"])]
    return replace(DECODING, prepare_s=cost_s, prepare_cpu_s=cost_s, workers=int(settings.params["input_workers"]))


def runner(*arguments: str, executor: FakeExecutor, tools: FakeTools | None = None) -> int:
    return main([*arguments], Seams(executor=executor, input_tools=tools or FakeTools()))


def test_arms_are_measured_interleaved(folder: Path) -> None:
    executor, tools = machine(decoding), FakeTools()
    assert runner("stalls", "jax:finetune", executor=executor, tools=tools) == 0
    arms = [(arm_of(job.settings), job.repeat) for job in executor.jobs]
    assert len(arms) == 25
    assert {repeat for _, repeat in arms[:5]} == {0}
    assert {arm for arm, _ in arms[:5]} == {"synthetic", "host", "warm", "cold", "timed"}
    # In one comparison: the epochs of the five processes alternate.
    assert len({job.cell_id for job in executor.turns[:5]}) == 5
    assert tools.probed == ["images"]


def test_a_workload_is_analysed_on_each_backend(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = FakeTools()
    assert runner("stalls", "finetune", "--no-cold", "--json", executor=machine(decoding), tools=tools) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["settings"]["backend"] for one in document["reports"]] == ["jax", "torch"]
    assert [one["observed"] for one in document["reports"]] == ["warm", "warm"]
    assert [len(one["arms"]) for one in document["reports"]] == [4, 4]
    assert tools.probed == ["images"]  # once for both


def test_analysis_is_stored_with_the_run_and_shown_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner("stalls", "jax:finetune", executor=machine(decoding))
    first = capsys.readouterr().out
    run = Results(folder / "results").latest()
    stored = json.loads((run.folder / "stalls.json").read_text())
    assert stored["reports"][0]["bottleneck"] == "preparation CPU"
    executor = machine(decoding)
    assert runner("stalls", "jax:finetune", "--run", run.run_id, executor=executor) == 0
    again = capsys.readouterr().out
    assert executor.jobs == []
    assert again.split("bottleneck:")[1] == first.split("bottleneck:")[1]
    cold = stored["reports"][0]["arms"][-1]["cell_id"]
    assert runner("stalls", cold[:10], "--run", run.run_id, executor=executor) == 0


def test_shares_and_bottleneck_become_findings_of_the_observed_cell(folder: Path) -> None:
    runner("stalls", "jax:finetune", executor=machine(decoding))
    run = Results(folder / "results").latest()
    found = [one for one in findings.load(run).found if one.kind is findings.FindingKind.INPUT]
    by_metric = {one.metric: one for one in found}
    cold = next(one.cell_id for one in newest_records(folder) if arm_of(one.settings) == "cold")
    assert {one.cell_id for one in found} == {cold}
    stall = by_metric["input.stall_share"]
    assert stall.estimate == pytest.approx(1 - 0.040 / DECODING.step_s("warm"), abs=0.01)
    assert stall.low < stall.estimate < stall.high
    assert by_metric["input.ceiling_speed_up"].verdict == "preparation CPU"
    assert "input.input_bound_share" in by_metric


def test_verified_advice_is_measured_against_the_unchanged_cell(folder: Path) -> None:
    executor = machine(decoding)
    arguments = ("stalls", "jax:finetune", "--verify", "--top", "3")
    assert runner(*arguments, executor=executor) == 0
    changed = [job.settings.params for job in executor.jobs[25:]]
    # Five blocks: unchanged and two changes, and for the cache, which needs a pass, both with its own steps.
    assert len(changed) == 25
    assert {str(one["decoder"]) for one in changed} == {"pil", "simplejpeg"}
    runs = Results(folder / "results").runs()
    stored = json.loads((runs[0].folder / "stalls.json").read_text())["reports"][0]["verified"]
    assert "as predicted" in [one["verdict"] for one in stored]
    # A cache has no effect here: the prediction was wrong, and the verdict says so.
    assert {one["change"]: one["verdict"] for one in stored}["cache"] == "less than predicted"


def throttled(settings: Settings) -> Pretended:
    """Storage that serves 400 requests per second; record files need few."""
    if str(settings.params["dataset_path"]).endswith("-tfrecord"):
        return Pretended(storage_bytes=3_200_000, reads=7)
    return Pretended(cold_fetch_s=0.004, prepare_s=0.001, prepare_cpu_s=0.001, storage_bytes=3_200_000, reads=32)


def test_format_is_converted_next_to_the_data_set_and_measured(folder: Path) -> None:
    tools = FakeTools(replace(PROBE, storage=StorageLimits(45e6, 420.0, 0.002)))
    arguments = ("stalls", "jax:finetune", "--verify", "--set", "cache=ram", "--set", "input_workers=2")
    assert runner(*arguments, executor=machine(throttled), tools=tools) == 0
    assert tools.converted == [(folder / "images", folder / "images-tfrecord", "tfrecord")]
    (report,) = stored_reports(Results(folder / "results").runs()[0])
    assert "as predicted" in {one["verdict"] for one in report["verified"] if one["change"] == "format"}


def test_key_of_the_matrix_expands_an_entry_into_its_arms(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(
        MATRIX.replace("input_workers: 1\n", "input_workers: [1, 2]\n    stalls: true\n")
    )
    executor = machine(decoding)
    assert runner("--matrix", "matrix.yaml", "--filter", "workload=finetune", executor=executor) == 0
    assert len(newest_records(folder)) == 2 * 2 * 5 * 5
    run = Results(folder / "results").latest()
    stored = json.loads((run.folder / "stalls.json").read_text())["reports"]
    assert [(one["settings"]["backend"], one["settings"]["params"]["input_workers"]) for one in stored]
    assert len(stored) == 4
    # The arms of an analysis on both backends are one comparison: ten processes alternate.
    assert len({job.cell_id for job in executor.turns[:10]}) == 10
    assert len({job.settings.params["input_workers"] for job in executor.turns[:10]}) == 1


def stored_reports(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run.folder / "stalls.json").read_text())["reports"]
    return found


def test_report_of_a_run_shows_the_measured_speed_ups(folder: Path) -> None:
    runner("stalls", "jax:finetune", "--verify", executor=machine(decoding))
    page = (Results(folder / "results").runs()[0].folder / "report.html").read_text()
    assert "as predicted" in page
    assert "not applied" in page  # the advice beyond the best two


def test_cache_whose_pass_is_the_epoch_shares_the_unchanged_cell(folder: Path) -> None:
    """5,000 samples are 157 steps."""
    executor = machine(decoding)
    arguments = ("stalls", "jax:finetune", "--verify", "--top", "3", "--set", "steps_per_epoch=157")
    assert runner(*arguments, executor=executor) == 0
    verifying = executor.jobs[25:]
    assert len(verifying) == 4 * 5  # unchanged and three changes
    # One comparison: the epochs of all four alternate.
    assert len({job.cell_id for job in executor.turns[-4:]}) == 4
    (report,) = stored_reports(Results(folder / "results").runs()[0])
    assert all(one["measured"] is not None for one in report["verified"])


def test_json_says_why_advice_was_not_applied(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = FakeTools(replace(PROBE, storage=StorageLimits(45e6, 420.0, 0.002)), problem="disk full")
    arguments = ("stalls", "jax:finetune", "--verify", "--json", "--set", "input_workers=2", "--set", "cache=ram")
    runner(*arguments, executor=machine(throttled), tools=tools)
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    (found,) = [one for one in report["verified"] if one["change"] == "format"]
    assert (found["verdict"], found["reason"]) == ("undecided", "not applied: disk full")
    assert found["measured"] is None


def test_stored_analysis_is_probed_and_verified_without_measuring_its_arms_again(folder: Path) -> None:
    runner("stalls", "jax:finetune", executor=machine(decoding))
    run = Results(folder / "results").latest()
    (run.folder / "input_probes.json").unlink()
    (run.folder / "stalls.json").unlink()
    executor, tools = machine(decoding), FakeTools()
    assert runner("stalls", "jax:finetune", "--run", run.run_id, "--verify", executor=executor, tools=tools) == 0
    assert tools.probed == ["images"]
    assert all(arm_of(job.settings) == "cold" for job in executor.jobs)
    (report,) = stored_reports(run)
    assert "decoder" in {one["change"] for one in report["advice"]}  # by the probe
    assert report["verified"]
    assert "as predicted" in (run.folder / "report.html").read_text()
    again = FakeTools()
    runner("stalls", "jax:finetune", "--run", run.run_id, "--verify", executor=machine(decoding), tools=again)
    assert again.probed == []


def test_children_are_told_with_which_process_they_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(json.loads(command[-1]))
        return subprocess.CompletedProcess(command, 1, "", "refused")

    monkeypatch.setattr(subprocess, "run", run)
    tools = ChildProcesses()
    tools.probe(make_settings(batch_size=1), DataFolders(None, ()))
    tools.convert(folder / "images", folder / "records", "tfrecord")
    assert [one["parent"] for one in asked] == [os.getpid()] * 2


def test_documented_command_names_one_cell_of_the_shipped_matrix(folder: Path) -> None:
    documents = (ROOT / "docs" / "stalls.md").read_text()
    (words,) = re.findall(r"^runner (stalls .* --matrix matrices/inputs.yaml .*)$", documents, re.MULTILINE)
    (folder / "matrices").mkdir()
    shutil.copy(ROOT / "matrices" / "inputs.yaml", folder / "matrices")
    executor = machine(lambda settings: replace(DECODING, workers=int(settings.params["input_workers"])))
    assert runner(*words.split(), executor=executor) == 0
    assert {job.settings.params["dataset_path"] for job in executor.jobs} == {"images"}


def stored_cell(folder: Path) -> None:
    """Measure the cell, and remove the matrix."""
    runner("--matrix", "matrix.yaml", "--filter", "workload=finetune", "--repeats", "1", executor=machine(decoding))
    (folder / "matrix.yaml").unlink()


@pytest.mark.parametrize(("flags", "repeats"), [([], 5), (["--repeats", "6"], 6), (["--repeats", "auto"], 5)])
def test_stored_cell_has_the_repeats_that_are_asked_for_or_enough_for_an_interval(
    folder: Path, flags: list[str], repeats: int
) -> None:
    stored_cell(folder)
    executor = machine(decoding)
    assert runner("stalls", "jax:finetune", *flags, executor=executor) == 0
    assert len(executor.jobs) == 5 * repeats


@pytest.mark.parametrize(("taken_s", "expected"), [(None, 300), (10.0, 300), (400.0, 1200), (80_000.0, 86_400)])
def test_time_limit_of_a_stored_cell_is_far_above_what_it_took(taken_s: float | None, expected: float) -> None:
    assert stored_limit_s([make_record(harness=Harness(taken_s)), make_record(harness=Harness(1.0))]) == expected


def test_pipeline_of_a_users_workload_is_analysed_without_a_probe(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(MATRIX.partition("cells:")[0] + "cells:\n  - workload: mine:build\n")
    executor, tools = machine(lambda _: DECODING), FakeTools()
    assert runner("stalls", "jax:mine:build", "--verify", executor=executor, tools=tools) == 0
    assert len(executor.jobs) == 6 * 5  # timed with a cold and a warm page cache, and nothing to verify
    assert tools.probed == []


SLOW_STORAGE = replace(PROBE, storage=StorageLimits(45e6, 420.0, 0.002))


def test_what_is_printed_of_stalls(folder: Path, transcript: Transcript, golden: Golden) -> None:
    def with_tools(pipeline_of: Callable[[Settings], Pretended], tools: FakeTools | None = None) -> Seams:
        return Seams(executor=machine(pipeline_of), input_tools=tools or FakeTools())

    transcript.note("one worker that decodes with Pillow")
    transcript.run("stalls jax:finetune --verify --top 3", seams=with_tools(decoding), brief=True)
    transcript.note("slow storage")
    verify = "stalls jax:finetune --verify --top 1 --set input_workers=2"
    transcript.run(verify, seams=with_tools(throttled, FakeTools(SLOW_STORAGE)), brief=True)
    transcript.note("slow storage, and a conversion that fails")
    failing = FakeTools(SLOW_STORAGE, problem="disk full")
    transcript.run(f"{verify} --new", seams=with_tools(throttled, failing), brief=True)
    transcript.note("a pipeline that is fast enough")
    transcript.run("stalls jax:finetune --no-cold --new", seams=with_tools(lambda _: Pretended()), brief=True)
    transcript.note("processes that fail")
    crashing = Seams(executor=FakeExecutor(behaviours={"finetune": crash()}), input_tools=FakeTools())
    transcript.run("stalls jax:finetune --new", seams=crashing, brief=True)
    (folder / "mine.yaml").write_text(MATRIX.partition("cells:")[0] + "cells:\n  - workload: mine:build\n")
    transcript.note("a workload of the user")
    transcript.run(
        "stalls jax:mine:build --matrix mine.yaml --verify", seams=with_tools(lambda _: DECODING), brief=True
    )
    golden.check("stalls.txt", transcript.text)


def test_messages_of_what_has_no_stalls(folder: Path, transcript: Transcript, golden: Golden) -> None:
    seams = Seams(executor=FakeExecutor(), input_tools=FakeTools())
    transcript.run(
        "stalls jax:gru",
        "stalls jax:gruu",
        "stalls jax:finetune --top 3",
        "stalls jax:finetune --verify --top 0",
        "stalls jax:finetune --run latest --no-cold",
        "stalls jax:finetune --run latest --cold",
        "stalls jax:finetune --run latest",
        seams=seams,
    )
    assert runner("--filter", "workload=gru", executor=FakeExecutor()) == 0
    run = newest_run(folder)
    transcript.note("a run without an analysis")
    transcript.run(f"stalls gru --run {run}", seams=seams)
    stored_cell(folder)
    transcript.note("a cell of a stored run")
    for flag in ("--set=input_workers=2", "--filter=workload=fine*", "--backend=jax"):
        transcript.run(f"stalls jax:finetune {flag}", seams=seams)
    for change, text in (
        ("input_workers: [1, 2]", "two cells"),
        ("phase: predict\n    feed: device_resident", "phase predict"),
        ("stalls: yes", "stalls: yes"),
        ("stalls: true\n    page_cache: cold", "stalls with a page cache"),
        ("stalls: true\n    phase: predict", "stalls with phase predict"),
    ):
        old = "input_workers: 1" if change.startswith("input") else "decoder: pil"
        (folder / "matrix.yaml").write_text(MATRIX.replace(old, change))
        transcript.note(f"a matrix with {text}")
        transcript.run("stalls jax:finetune", seams=seams)
    golden.check("stalls_refused.txt", transcript.text)


def newest_run(folder: Path) -> str:
    found = Results(folder / "results").latest()
    assert found is not None
    return found.run_id
