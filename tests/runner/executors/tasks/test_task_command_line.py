"""Tasks on the command line, end to end with fake processes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import Behaviour, FakeExecutor
from tests.golden import Golden
from tests.sessions import newest_records
from tests.transcripts import Transcript

MATRIX = """\
version: 1
defaults: {repeats: 5}
backends: [tensorflow, jax]
cells:
  - workload: mnist_mlp
tasks:
  - task: train
    command: [train, "{word}", "--batch={batch_size}"]
    params: {word: [a, aaaaaaaaaaaaaaaaaaaaaaaaaa], batch_size: [8, 32]}
    compare: word
    metrics:
      speed: {pattern: 'speed (.)', unit: samples/s, goal: higher}
      wait: {pattern: 'wait (.)', unit: ms}
"""
CFG = """\
[train]
patterns = ['speed (.)']
metrics = ['speed']
compute_method = ['average']
command_to_execute = train --gpus 8
num_gpus = 8
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def runner(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(list(arguments), Seams(executor=executor or FakeExecutor()))


def tasks(folder: Path) -> list[Record]:
    return [record for record in newest_records(folder) if record.task]


@pytest.mark.parametrize(
    ("only", "head"),
    [
        ((), ["backend", "figure"]),
        (("workload=task train",), ["backend", "metric"]),
        (("workload=mnist_mlp",), ["backend", "time per step"]),
    ],
)
def test_table_names_what_it_compares_by(
    only: tuple[str, ...], head: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner(*(word for one in only for word in ("--filter", one))) == 0
    (heading,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  backend ")]
    assert re.split(" {2,}", heading.strip())[:2] == head


def test_tasks_and_workloads_are_measured_together_and_each_repeat_has_a_record(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner() == 0
    assert len(tasks(folder)) == 4 * 5
    assert {record.status for record in newest_records(folder)} == {Status.OK}
    printed = " ".join(capsys.readouterr().out.split())
    long_word = "word=aaaaaaaaaaaaaaaaaaaaaaaaaa"
    assert re.search(f"{long_word} is best by speed: [^ ]+ costs 1.2", printed)
    assert "tensorflow is fastest" in printed
    assert "geometric mean, league as_shipped" in printed
    assert "league tasks" not in printed


def test_page_contains_every_metric_and_the_command(folder: Path) -> None:
    runner("--filter", "workload=task train")
    page = (folder / "results" / "latest" / "report.html").read_text()
    for words in (
        "samples/s",
        "best by speed",
        '<span class="flag">best</span>',
        "external command · train a",
        "uptime_in_seconds",
        "peak memory",
    ):
        assert words in page
    assert "First epoch against steady" in page
    assert '<th scope="row">time per step' not in page


def test_json_document_contains_every_metric(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--filter", "workload=task train", "--filter", "batch_size=8", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    metrics = row["cells"]["word=a"]["metrics"]
    assert [(one["name"], one["unit"], one["count"]) for one in metrics] == [
        ("speed", "samples/s", 5),
        ("wait", "ms", 5),
        ("uptime_in_seconds", "s", 5),
    ]


def test_unfinished_run_is_continued(folder: Path) -> None:
    chosen = ("--filter", "workload=task train", "--repeats", "2")
    spoiled = FakeExecutor(behaviours={"task train": lambda job: Outcome(infrastructure="server: pretended")})
    assert runner(*chosen, executor=spoiled) == 3
    again = FakeExecutor()
    assert runner(*chosen, executor=again) == 0
    assert len(again.jobs) == 4 * 2
    assert len(list((folder / "results").glob("2*"))) == 1


def test_command_needs_no_backend_and_no_server(folder: Path) -> None:
    assert runner("--filter", "workload=task train", executor=FakeExecutor(absent=frozenset({"word=a"}))) == 0


def below_zero(job: Job) -> Outcome:
    """Its metrics are negative."""
    seen = FakeExecutor().succeed(job)
    assert seen.task is not None
    metrics = [replace(one, value=-0.5) if one.name == "speed" else one for one in seen.task.run.metrics]
    return replace(seen, task=replace(seen.task, run=replace(seen.task.run, metrics=metrics)))


def test_metric_below_zero_is_shown_and_not_compared(folder: Path) -> None:
    chosen = ("--filter", "workload=task train", "--filter", "batch_size=8")
    for _ in range(2):
        assert runner(*chosen, "--new", executor=FakeExecutor(behaviours={"task train": below_zero})) == 0
    page = (folder / "results" / "latest" / "report.html").read_text()
    assert page.count("not compared") == 2
    assert page.count("-0.5") >= 2
    base, new = sorted(path.name for path in (folder / "results").glob("2*"))
    assert main(["compare", base, new]) == 1  # of nothing there is a ratio


def without_first_metric(job: Job) -> Outcome:
    """Return the end of a command in whose output the first metric was not found."""
    seen = FakeExecutor().succeed(job)
    assert seen.task is not None
    missing = replace(seen.task.run.metrics[0], value=None, problem="no_match: no line of the output matches")
    return replace(
        seen, task=replace(seen.task, run=replace(seen.task.run, metrics=[missing, *seen.task.run.metrics[1:]]))
    )


def exits_with_3(job: Job) -> Outcome:
    """Return the end of a command that printed its metrics and failed."""
    return replace(FakeExecutor().succeed(job), exit_code=3)


ONE_CELL = ("--filter", "workload=task train", "--filter", "batch_size=8", "--backend", "word=a")


def test_missing_first_metric_does_not_remove_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor(behaviours={"task train": without_first_metric})
    assert runner(*ONE_CELL, executor=executor) == 1
    assert {record.status for record in tasks(folder)} == {Status.ERROR}
    waits = [metric.value for record in tasks(folder) if record.task for metric in record.task.metrics[1:2]]
    assert len([wait for wait in waits if wait]) == 5
    page = (folder / "results" / "latest" / "report.html").read_text()
    assert '<th scope="row">wait' in page
    capsys.readouterr()
    assert runner(*ONE_CELL, "--json", executor=FakeExecutor(behaviours={"task train": without_first_metric})) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    metrics = {one["name"]: (one["value"] is None, one["count"]) for one in row["cells"]["word=a"]["metrics"]}
    assert metrics == {"speed": (True, 0), "wait": (False, 5), "uptime_in_seconds": (False, 5)}


def test_missing_first_metric_of_a_cfg_file_does_not_remove_the_others(folder: Path) -> None:
    text = CFG.replace("['speed (.)']", "['speed (.)', 'loss (.)']").replace("['speed']", "['speed', 'loss']")
    (folder / "task_config.cfg").write_text(text.replace("['average']", "['average', 'last']"))
    executor = FakeExecutor(behaviours={"task train": without_first_metric})
    assert runner("task", "--num-gpus", "0", executor=executor) == 1
    found = json.loads((folder / "dlbenchmark_result.json").read_text())
    assert set(found) == {"train.loss", "train.uptime_in_seconds", "train.cpu_memory_usage"}


def test_result_file_of_an_earlier_run_is_removed_where_the_new_run_fails(folder: Path) -> None:
    (folder / "dlbenchmark_result.json").write_text("{}")
    (folder / "task_config.cfg").write_text(CFG)
    executor = FakeExecutor(behaviours={"task train": exits_with_3})
    assert runner("task", "--num-gpus", "0", executor=executor) == 1
    assert not (folder / "dlbenchmark_result.json").exists()


@pytest.mark.parametrize(("exit_code", "kept"), [(0, ""), (3, "the last words")])
def test_record_contains_the_output_only_of_a_failed_command(folder: Path, exit_code: int, kept: str) -> None:
    def prints(job: Job) -> Outcome:
        return replace(FakeExecutor().succeed(job), exit_code=exit_code, output_tail="the last words")

    assert runner(*ONE_CELL, executor=FakeExecutor(behaviours={"task train": prints})) == bool(exit_code)
    assert {record.evidence.output_tail for record in tasks(folder)} == {kept}


def test_metrics_of_a_failed_command_are_not_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner(*ONE_CELL, "--json", executor=FakeExecutor(behaviours={"task train": exits_with_3})) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["cells"]["word=a"]["metrics"] == []
    page = (folder / "results" / "latest" / "report.html").read_text()
    assert '<th scope="row">wait' not in page


def test_two_runs_of_a_task_are_compared_by_its_metric(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        runner("--filter", "workload=task train", "--new")
    base, new = sorted(path.name for path in (folder / "results").glob("2*"))
    capsys.readouterr()
    assert main(["compare", base, new, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["comparisons"]
    assert {one["figure"]["name"] for one in found} == {"speed"}
    assert [one["new_figure"] / one["base_figure"] for one in found] == [1.0] * 4
    assert [one["ratio"]["centre"] for one in found] == pytest.approx([1.0] * 4)


def test_result_file_has_the_keys_of_the_driver(folder: Path) -> None:
    (folder / "task_config_template.cfg").write_text(CFG)
    executor = FakeExecutor()
    flags = ("--framework", "keras", "--metrics-suffix", "daily", "--num-gpus", "2")
    assert runner("task", "--task-name", "train", *flags, executor=executor) == 0
    assert executor.timeouts_s == [86_400]
    assert executor.jobs[0].task is not None
    assert (executor.jobs[0].task.command, executor.jobs[0].task.gpus) == (["train --gpus 2"], 2)
    assert json.loads((folder / "dlbenchmark_result.json").read_text()) == {
        "keras.train.speed.daily": 114.0,
        "keras.train.uptime_in_seconds.daily": 1.14,
        "keras.train.cpu_memory_usage.daily": 400 * 1024.0,
    }


def test_gpus_flag_applies_to_a_task_of_the_matrix(folder: Path) -> None:
    executor = FakeExecutor()
    assert runner("task", "--num-gpus", "3", executor=executor) == 0
    assert {job.task.gpus for job in executor.jobs if job.task} == {3}
    assert {job.settings.device for job in executor.jobs} == {"gpu"}


@pytest.mark.parametrize(("variable", "workers"), [(None, 1), ("0", 1), ("4", 4)])
def test_workers_of_a_cfg_file_are_read_from_the_drivers_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, workers: int
) -> None:
    (folder / "task_config.cfg").write_text(CFG)
    monkeypatch.delenv("DEEPLEARNING_WORKERS_COUNT", raising=False)
    if variable is not None:
        monkeypatch.setenv("DEEPLEARNING_WORKERS_COUNT", variable)
    executor = FakeExecutor()
    assert runner("task", "--num-gpus", "0", executor=executor) == 0
    assert executor.jobs[0].task is not None
    assert executor.jobs[0].task.workers == workers


def test_result_file_is_written_although_the_reader_of_the_table_stops(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    (folder / "task_config.cfg").write_text(CFG)
    monkeypatch.setattr("keras_matrix.runner.cli.render.findings.print_table", stopped)
    assert runner("task", "--num-gpus", "0", "--result", "mine.json") == 130
    assert "train.speed" in json.loads((folder / "mine.json").read_text())


def test_template_has_priority_over_the_cfg_file_and_the_matrix(folder: Path) -> None:
    chosen = []
    for name in ("matrix.yaml", "task_config.cfg", "task_config_template.cfg"):
        if name.endswith(".cfg"):
            (folder / name).write_text(CFG.replace("= train", f"= {name}"))
        executor = FakeExecutor()
        assert runner("task", "--task-name", "train", executor=executor) == 0
        chosen.append({job.task.command[0] for job in executor.jobs if job.task})
    assert chosen == [{"train"}, {"task_config.cfg --gpus 8"}, {"task_config_template.cfg --gpus 8"}]


def test_single_task_of_the_matrix_can_be_run_with_named_cells(folder: Path) -> None:
    executor = FakeExecutor()
    assert runner("task", "--task-name", "train", "--repeats", "2", executor=executor) == 0
    assert len(executor.jobs) == 4 * 2
    found = json.loads((folder / "dlbenchmark_result.json").read_text())
    assert len([key for key in found if key.endswith(".speed")]) == 4
    assert {key.split(".")[0] for key in found} == {"train"}


def test_what_is_printed_of_a_task(folder: Path, transcript: Transcript, golden: Golden) -> None:
    def task(behaviour: Behaviour | None = None) -> Seams:
        return Seams(executor=FakeExecutor(behaviours={"task train": behaviour} if behaviour else {}))

    transcript.run("task --repeats 5", seams=task(), brief=True)
    transcript.note("metrics below zero, a metric that is missing, and a command that fails")
    for behaviour in (below_zero, without_first_metric, exits_with_3):
        transcript.run("task --new", seams=task(behaviour), brief=True)
    runs = [path.name for path in sorted((folder / "results").glob("2*"))]
    transcript.run(f"compare {runs[0]} {runs[1]}", "plan --filter workload=task*")
    (folder / "task_config.cfg").write_text(CFG + "repeats = 3\n")
    transcript.note("a task_config.cfg with an unknown key")
    transcript.run("task --num-gpus 2 --epochs 3 --kvstore nccl", seams=task())
    golden.check("task.txt", transcript.text)


def test_messages_of_tasks_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    (folder / "x.cfg").write_text(CFG)
    executor = FakeExecutor()
    flags = ("--task-name trian", "--config none.cfg", "--config a --matrix b", "--epochs 3", "--repeats x")
    flags = (*flags, "--config x.cfg --num-gpus -1", "--config x.cfg --epochs -2", "--config x.cfg --metrics-policy a")
    flags = (*flags, "--config x.cfg --task-name other", "--result .", "--result nowhere/mine.json")
    transcript.run(*(f"task {flag}" for flag in flags), seams=Seams(executor=executor))
    monkeypatch.setenv("DEEPLEARNING_WORKERS_COUNT", "two")
    transcript.note("DEEPLEARNING_WORKERS_COUNT is two")
    transcript.run("task --config x.cfg", seams=Seams(executor=executor))
    assert executor.jobs == []
    golden.check("task_refused.txt", transcript.text)
