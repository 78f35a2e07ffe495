"""`runner trace` and traced runs from end to end, with a fake executor."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import CellResult, Status
from keras_matrix.records.store import Results
from keras_matrix.records.text import seconds
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.request import BEGUN, TABLE_NAME, TRACE_NAME, Trace, Traced
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.preflight import Preflight
from keras_matrix.runner.machine.preflight import GpuFacts
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.measure.traces import with_trace_stored
from tests.fakes.executor import Behaviour, FakeExecutor
from tests.golden import Golden
from tests.records.traces.synthetic import chrome, damaged, step_of_torch
from tests.sessions import newest_records
from tests.transcripts import Transcript

MATRIX = """\
version: 1
defaults: {repeats: 2}
backends: [jax, torch]
cells:
  - workload: mnist_mlp
    trace: {epochs: [1, 3], steps: 2}
  - workload: gru
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def runner(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main([*arguments], Seams(executor=executor or FakeExecutor()))


def ending(change: Callable[[Job, CellResult], CellResult | None], outcome: Outcome) -> Behaviour:
    """A cell that changes its result and exits in a given way."""

    def behave(job: Job) -> Outcome:
        if (changed := change(job, FakeExecutor().result(job))) is not None:
            write_result(job, changed)
        return outcome

    return behave


def test_a_traced_cell_has_its_trace_of_the_first_process_in_the_runs_folder(folder: Path) -> None:
    executor = FakeExecutor()
    assert runner("--matrix", "matrix.yaml", executor=executor) == 0
    traced = [r for r in newest_records(folder) if r.trace]
    assert {(r.settings.workload, r.repeat, r.trace.steps) for r in traced} == {("mnist_mlp", 0, 4)}
    for record in traced:
        place = folder / "results" / "latest" / record.trace.folder
        assert record.trace.folder == f"traces/{record.cell_id}.0.0"
        assert neutral.head_of(place / TRACE_NAME).steps == 4
        assert json.loads((place / TABLE_NAME).read_text())["by_phase"][0]["name"] == "forward"
    assert [job.trace is not None for job in executor.jobs].count(True) == 2


def test_trace_left_without_a_record_is_replaced(folder: Path) -> None:
    runner("trace", "jax:gru")
    (record,) = newest_records(folder)
    run = Results(folder / "results").runs()[-1]
    scratch = str(run.scratch("again"))
    job = Job("nonce", record.cell_id, 0, 0, record.settings, 1, scratch, [], None, None, trace=Trace([2], 7))
    FakeExecutor().succeed(job)
    kept = with_trace_stored(run, job, replace(record, trace=Traced(7, "traced")))
    assert neutral.head_of(run.folder / str(kept.trace and kept.trace.folder) / TRACE_NAME).steps == 7
    assert {path.name for path in (run.folder / "traces").glob("*/*")} == {TRACE_NAME, TABLE_NAME}


def test_trace_that_is_a_link_is_refused_and_removed(folder: Path) -> None:
    runner("trace", "jax:gru", "--to", "elsewhere.json.gz")
    (record,) = newest_records(folder)
    run = Results(folder / "results").runs()[-1]
    scratch = str(run.scratch("again"))
    job = Job("nonce", record.cell_id, 0, 1, record.settings, 1, scratch, [], None, None, trace=Trace([2], 7))
    FakeExecutor().succeed(job)
    (job.traced_path / TRACE_NAME).unlink()
    (job.traced_path / TRACE_NAME).symlink_to(folder / "elsewhere.json.gz")
    kept = with_trace_stored(run, job, replace(record, trace=Traced(7, "traced")))
    assert kept.trace == Traced(7, None, f"TraceError: {TRACE_NAME}: the process did not write it")
    assert [path.name for path in (run.folder / "traces").iterdir()] == [f"{record.cell_id}.0.0"]


@pytest.mark.fault("F35", mutation="`_stored` moves what the process left without `_remove_special_files`")
@pytest.mark.parametrize("name", [TABLE_NAME, "native", "."])
def test_link_that_a_process_leaves_with_its_trace_is_not_followed(folder: Path, name: str) -> None:
    """The runner would write its table through it, into any file of its user."""
    runner("trace", "jax:gru")
    (record,) = newest_records(folder)
    run = Results(folder / "results").runs()[-1]
    scratch = str(run.scratch("again"))
    job = Job("nonce", record.cell_id, 0, 1, record.settings, 1, scratch, [], None, None, trace=Trace([2], 7))
    FakeExecutor().succeed(job)
    outside = folder / "outside"
    outside.mkdir()
    (outside / "file").write_text("of the user")
    if name == ".":
        for path in job.traced_path.iterdir():
            path.rename(outside / path.name)
        job.traced_path.rmdir()
        job.traced_path.symlink_to(outside)
    else:
        (job.traced_path / name).symlink_to(outside / ("file" if name == TABLE_NAME else "."))
        os.mkfifo(job.traced_path / "pipe")
    before = sorted(path.name for path in outside.iterdir())
    kept = with_trace_stored(run, job, replace(record, trace=Traced(7, "traced"))).trace
    assert ((outside / "file").read_text(), sorted(path.name for path in outside.iterdir())) == ("of the user", before)
    stored = [path for path in (run.folder / "traces").rglob("*") if not path.is_dir()]
    assert [path for path in stored if path.is_symlink() or not path.is_file()] == []
    assert (kept.folder is None) == (name == ".")


def test_a_run_without_traces_has_no_folder_of_traces(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(MATRIX.replace("    trace: {epochs: [1, 3], steps: 2}\n", ""))
    assert runner("--matrix", "matrix.yaml") == 0
    assert not (folder / "results" / "latest" / "traces").exists()
    assert "Traces" not in (folder / "results" / "latest" / "report.html").read_text()


def test_the_page_of_a_traced_run_links_to_each_trace_and_shows_its_tables(folder: Path) -> None:
    runner("--matrix", "matrix.yaml")
    page = (folder / "results" / "latest" / "report.html").read_text()
    for record in newest_records(folder):
        if record.trace:
            assert f'href="{record.trace.folder}/trace.json.gz"' in page
    assert "By operation" in page
    assert "4 steps, 4.00\u00a0ms each with the profiler on; an operation ran 75.0\u00a0% of the time" in page


def test_the_command_shows_the_newest_stored_trace(folder: Path) -> None:
    runner("--matrix", "matrix.yaml")
    executor = FakeExecutor()
    assert runner("trace", "jax:mnist_mlp", "--top", "1", executor=executor) == 0
    assert executor.jobs == []


@pytest.mark.parametrize(("phase", "steps_a_call"), [("fit", 4), ("predict", 1)])
def test_traced_step_of_several_steps_is_shown_with_the_measured_time_of_a_call(
    folder: Path, capsys: pytest.CaptureFixture[str], phase: str, steps_a_call: int
) -> None:
    cell = f"{{workload: gru, phase: {phase}, steps_per_execution: 4}}"
    (folder / "matrix.yaml").write_text(f"version: 1\nbackends: [jax]\ncells:\n  - {cell}\n")
    assert runner("trace", "gru") == 0
    (record,) = newest_records(folder)
    measured = seconds(record.times.step_time_s * steps_a_call)
    assert f"4.00 ms each with the profiler on; {measured} as measured, without it" in capsys.readouterr().out


def test_the_command_records_a_cell_of_the_matrix_once(folder: Path) -> None:
    executor = FakeExecutor()
    assert runner("trace", "torch:gru", "--steps", "3", executor=executor) == 0
    (record,) = newest_records(folder)
    assert (record.settings.workload, record.trace.steps) == ("gru", 3)
    assert [job.trace for job in executor.jobs] == [Trace([2], 3)]


def test_command_records_a_cell_of_a_stored_run_if_no_matrix_has_it(folder: Path) -> None:
    runner("--matrix", "matrix.yaml", "--filter", "workload=gru")
    measured = {record.cell_id for record in newest_records(folder)}
    (folder / "matrix.yaml").unlink()
    assert runner("trace", "torch:gru") == 0
    (record,) = newest_records(folder)
    assert record.cell_id in measured
    # The next cell is found although the newest run is that of the trace.
    assert runner("trace", "jax:gru") == 0


def test_new_records_again_although_there_is_a_trace(folder: Path) -> None:
    runner("trace", "jax:gru")
    executor = FakeExecutor()
    assert runner("trace", "jax:gru", "--new", executor=executor) == 0
    assert len(executor.jobs) == 1


def test_of_several_runs_with_a_trace_of_the_cell_the_newest_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in ("3", "7"):
        assert runner("trace", "jax:gru", "--steps", steps) == 0
    first, _ = sorted(path.name for path in (folder / "results").glob("2*"))
    capsys.readouterr()
    assert runner("trace", "jax:gru") == 0
    assert "7 steps: " in capsys.readouterr().out
    assert runner("trace", "jax:gru", "--run", first) == 0
    assert "3 steps: " in capsys.readouterr().out


def test_unreadable_file_of_a_newer_run_is_named_with_the_trace_of_an_older_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `_stored` drops the problems of `load`."""
    for steps in ("3", "7"):
        assert runner("trace", "jax:gru", "--steps", steps) == 0
    older, newer = sorted((folder / "results").glob("2*"))
    (path,) = (newer / "records").iterdir()
    path.write_text("{")
    capsys.readouterr()
    assert runner("trace", "jax:gru") == 1
    printed = capsys.readouterr()
    assert "3 steps: " in printed.out
    assert f"runner: {newer.name}/records/{path.name}: " in printed.err
    assert runner("trace", "jax:gru", "--run", older.name) == 0
    assert capsys.readouterr().err == ""


def test_json_prints_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("trace", "jax:gru", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["table"]["steps"], found["table"]["by_layer"][0]["name"]) == (5, "dense")


def test_trace_is_written_to_the_requested_file_packed_or_plain(folder: Path) -> None:
    assert runner("trace", "jax:gru", "--to", "mine.json") == 0
    assert runner("trace", "jax:gru", "--to", "mine.json.gz") == 0
    plain = (folder / "mine.json").read_bytes()
    assert json.loads(plain)["otherData"]["backend"] == "jax"
    assert gzip.decompress((folder / "mine.json.gz").read_bytes()) == plain


def test_page_of_a_trace_is_written_of_a_cell_and_of_a_file(folder: Path) -> None:
    assert runner("trace", "jax:gru", "--to", "mine.json", "--html", "cell.html") == 0
    assert runner("trace", "mine.json", "--html", "file.html") == 0
    for name, title in (("cell.html", "jax gru"), ("file.html", "mine.json")):
        page = (folder / name).read_text(encoding="utf-8")
        assert f"<h1>{title}" in page
        assert '<svg class="roofline timeline' in page


def test_profiler_file_is_converted_without_measuring(folder: Path) -> None:
    chrome(folder / "mine.json", step_of_torch())
    assert runner("trace", "mine.json", "--to", "neutral.json.gz") == 0
    assert neutral.head_of(folder / "neutral.json.gz").backend == "torch"


def test_neutral_trace_is_shown_as_when_it_was_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner("trace", "jax:gru", "--to", "full_trace.ctf")
    runner("trace", "jax:gru", "--to", "mine.json.gz", "--json")
    capsys.readouterr()
    runner("trace", "jax:gru", "--json")
    recorded = json.loads(capsys.readouterr().out)["table"]
    for name in ("full_trace.ctf", "mine.json.gz"):
        assert runner("trace", name, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"version": 1, "file": name, "table": recorded}


@pytest.mark.parametrize(
    ("before", "after"),
    [('"epochs":1', '"epochs":0'), ('"workers":1', '"workers":999999999'), ('"step":1', '"step":""')],
)
def test_invalid_neutral_trace_is_refused_with_its_path(
    folder: Path, capsys: pytest.CaptureFixture[str], before: str, after: str
) -> None:
    runner("trace", "jax:gru", "--to", "mine.json")
    (folder / "mine.json").write_text((folder / "mine.json").read_text().replace(before, after, 1))
    assert runner("trace", "mine.json") == 2
    assert "mine.json: is " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "outcome", "problem"),
    [
        (
            lambda job, result: replace(result, trace=Traced(5, problem="RuntimeError: No space left")),
            Outcome(exit_code=0),
            "RuntimeError: No space left",
        ),
        (
            lambda job, result: replace(result, trace=Traced(5, problem=BEGUN)),
            Outcome(signal=11),
            f"{BEGUN}: ended by signal 11",
        ),
        (
            lambda job, result: replace(result, trace=Traced(5, problem=BEGUN)),
            Outcome(signal=9, deadline_exceeded=True),
            f"{BEGUN}: the time limit passed (timeout_s)",
        ),
        (
            lambda job, result: replace(result, trace=Traced(5, problem=BEGUN)),
            Outcome(exit_code=1),
            f"{BEGUN}: exit code 1; usually because the disk was full",
        ),
        (
            lambda job, result: replace(result, trace=Traced(5, folder="traced")),
            Outcome(exit_code=0),
            "No such file or directory",
        ),
    ],
)
def test_failed_trace_does_not_change_figures_and_status(
    folder: Path, change: Any, outcome: Outcome, problem: str
) -> None:
    executor = FakeExecutor(behaviours={"gru": ending(change, outcome)})
    assert runner("trace", "jax:gru", executor=executor) == 1
    (record,) = newest_records(folder)
    assert (record.status, record.times.step_time_s is not None) == (Status.OK, True)
    assert record.trace.folder is None
    assert problem in record.trace.problem
    assert record.warnings[-1] == f"no_trace: {record.trace.problem}; the figures were measured before"


def test_missing_trace_is_one_json_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = ending(lambda job, result: replace(result, trace=Traced(5, problem="no profiler")), Outcome(exit_code=0))
    assert runner("trace", "jax:gru", "--json", executor=FakeExecutor(behaviours={"gru": change})) == 1
    (record,) = newest_records(folder)
    about = {"run": record.run_id, "cell_id": record.cell_id, "trace": None, "problem": "no profiler"}
    assert json.loads(capsys.readouterr().out) == {"version": 1, **about}


def test_cell_without_a_requested_trace_is_judged_by_its_exit(folder: Path) -> None:
    change = ending(lambda job, result: replace(result, trace=Traced(5, problem=BEGUN)), Outcome(signal=11))
    runner("--matrix", "matrix.yaml", "--filter", "workload=gru", executor=FakeExecutor(behaviours={"gru": change}))
    assert {record.status for record in newest_records(folder)} == {Status.CRASH}


def test_fc_mode_without_a_trace_on_one_backend_exits_with_1_and_writes_the_others(folder: Path) -> None:
    def only_on_jax(job: Job) -> Outcome:
        return without(job) if job.settings.backend != "jax" else FakeExecutor().succeed(job)

    without = ending(lambda job, result: replace(result, trace=Traced(5, problem="no profiler")), Outcome(exit_code=0))
    small = ("--mode", "fc_single_manual", "--level", "2", "--weight-size", "32", "--batch-size", "8")
    assert runner("fc", *small, "--full-trace", executor=FakeExecutor(behaviours={"fc": only_on_jax})) == 1
    assert [path.name for path in folder.glob("*.ctf")] == ["full_trace.jax.1.ctf"]


def test_fc_modes_write_the_originals_file_to_the_working_folder(folder: Path) -> None:
    small = ("--mode", "fc_single_manual", "--level", "2", "--weight-size", "32", "--batch-size", "8")
    assert runner("fc", *small, "--backend", "jax", "--full-trace=1") == 0
    assert json.loads((folder / "full_trace.ctf").read_text())["otherData"]["steps"] == 5
    assert runner("fc", *small, "--full-trace") == 0
    assert {path.name for path in folder.glob("full_trace.*.ctf")} == {
        "full_trace.jax.1.ctf",
        "full_trace.tensorflow.1.ctf",
        "full_trace.torch.1.ctf",
    }


def test_what_is_printed_of_a_trace(folder: Path, transcript: Transcript, golden: Golden) -> None:
    seams = Seams(executor=FakeExecutor())
    transcript.run("trace torch:gru --steps 3 --top 1 --to mine.json.gz --html page.html", seams=seams)
    transcript.run("trace torch:gru --top 1", "trace mine.json.gz", seams=seams)
    chrome(folder / "torch.json", step_of_torch())
    transcript.note("a file of PyTorch's profiler")
    transcript.run("trace torch.json --to neutral.json.gz")
    problem = ending(lambda job, result: replace(result, trace=Traced(5, problem="no profiler")), Outcome(exit_code=0))
    transcript.note("the profiler fails")
    transcript.run("trace jax:gru", seams=Seams(executor=FakeExecutor(behaviours={"gru": problem})))
    runner("trace", "torch:gru", "--steps", "7", "--new")
    (record,) = (folder / "results" / "latest" / "records").iterdir()
    record.write_text("{")
    transcript.note("the record of the newest trace cannot be read")
    transcript.run("trace torch:gru --top 1", seams=seams)
    golden.check("trace.txt", transcript.text)


def test_messages_of_what_cannot_be_traced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    transcript.run(
        "trace gro",
        "trace mnist_mlp",
        "trace jax:gru --steps 0",
        "trace jax:gru --epochs 0",
        "trace jax:gru --epochs 2 2",
        "trace jax:gru --top 0",
        "trace absent.json",
        "trace jax:gru --to .",
        "trace jax:gru --to nowhere/mine.json",
        "trace jax:gru --html nowhere/page.html",
        "trace jax:gru --matrix absent.yaml",
        "trace jax:gru --run 20200101T000000Z-000000",
    )
    matrix = (folder / "matrix.yaml").read_text()
    (folder / "matrix.yaml").write_text(
        "version: 1\nbackends: [jax]\ncells:\n  - {workload: mnist_mlp, implementation: native}\n"
        "  - {workload: gru, device: gpu}\ntasks:\n  - {task: mine, command: [train]}\n"
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    transcript.note("native code, an external command, and a cell on a GPU of a machine without a driver")
    seams = Seams(executor=FakeExecutor(), preflight=Preflight(gpus=GpuFacts(driver=None)))
    transcript.run("trace jax:mnist_mlp", "trace mine", "trace jax:gru", seams=seams)
    (folder / "matrix.yaml").write_text(matrix)
    runner("--matrix", "matrix.yaml")
    run = (folder / "results" / "latest").resolve().name
    runner("trace", "torch:gru", "--to", "mine.json", "--html", "page.html")
    transcript.note("a run without a trace of the cell")
    transcript.run(f"trace jax:gru --run {run}")
    (folder / "broken.json").write_text("{")
    (folder / "broken.xplane.pb").write_bytes(b"\x0a\x7f")
    (folder / "other.json").write_text('{"name": "no trace"}')
    (folder / "invalid.json").write_text((folder / "mine.json").read_text().replace('"epochs":1', '"epochs":0', 1))
    transcript.run(*(f"trace {name}" for name in ("broken.json", "broken.xplane.pb", "other.json", "invalid.json")))
    (path,) = (folder / "results" / "latest" / "traces").glob(f"*/{TRACE_NAME}")
    path.write_bytes(damaged(b"{}"))
    transcript.note("a damaged stored trace")
    transcript.run("trace torch:gru --to again.json")
    (folder / "matrix.yaml").unlink()
    transcript.note("no matrix")
    transcript.run("trace gro")
    golden.check("trace_refused.txt", transcript.text)
