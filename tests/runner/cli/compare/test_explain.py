"""`runner explain` through the real command line: pretended processes, synthetic traces, real records."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head
from keras_matrix.records.traces.programs import PROGRAMS_NAME, ProgramSummary
from keras_matrix.records.traces.programs import write as write_programs
from keras_matrix.records.traces.request import TRACE_NAME, Traced
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.matrix.reader import expand, load
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.service import explain as explain_service
from tests.analysis.explain.traced import Operation, steps
from tests.fakes.executor import PRETENDED, FakeExecutor
from tests.golden import Golden
from tests.sessions import processes, run_name, store_session
from tests.transcripts import Transcript

MATRIX = """\
version: 1
defaults: {repeats: 5, epochs: 3, steps_per_epoch: 20}
backends: [jax]
cells:
  - {workload: gru, batch_size: [32, 64]}
  - {workload: mnist_mlp, trace: {steps: 5}}
tasks:
  - {task: train, command: ["true"]}
"""
SLOWER_MS = 3.0
SCATTER = 0.004


def slower_ms(settings: Settings) -> float:
    """How much longer than 4 ms a step is: a larger batch makes the layer `dense` slower."""
    return SLOWER_MS if settings.batch_size == 64 else 0.0


def tracing(slower: Any = slower_ms) -> FakeExecutor:
    """An executor whose traces and step times agree."""

    def time_s(settings: Settings, repeat: int) -> float:
        return (0.004 + slower(settings) / 1e3) * (1 + SCATTER * ((repeat * 7 + settings.batch_size // 32) % 5 - 2) / 2)

    def behave(job: Job) -> Outcome:
        result = FakeExecutor(step_time_s=time_s).result(job)
        if job.trace is not None:
            dense: Operation = ("dot", 2000 + 1000 * slower(job.settings), {"layer": "dense", "phase": "forward"})
            others: list[Operation] = [("sub", 1000, {"phase": "update"})]
            job.traced_path.mkdir()
            spans = steps(job.trace.all_steps, 4000 + 1000 * slower(job.settings), [dense, *others])
            head = Head(job.settings.backend, 1, "cpu", job.trace.all_steps)
            neutral.write(job.traced_path / TRACE_NAME, head, spans)
            copies = 1 + int(slower(job.settings) > 0)
            write_programs(job.traced_path / PROGRAMS_NAME, ProgramSummary("XLA", 1, {"copy": copies, "dot": 3}))
            result = replace(result, trace=Traced(job.trace.all_steps, job.traced_path.name, native_bytes=1))
        write_result(job, result)
        return replace(PRETENDED, exit_code=0, wall_time_s=1.0, start_time_s=0.1, parent_cpu_time_s=0.001)

    return FakeExecutor(behaviours={"gru": behave, "mnist_mlp": behave})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def runner(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main([*arguments], Seams(executor=executor or tracing()))


def ids() -> tuple[str, str]:
    """The ids of the two cells of gru."""
    small, large, *_ = expand(load(Path("matrix.yaml")))
    return small.cell_id, large.cell_id


def measured() -> tuple[str, str]:
    """Measure the two cells of gru without a trace, and return their ids."""
    runner("--matrix", "matrix.yaml", "--filter", "workload=gru", "--repeats", "1")
    return ids()


def newest() -> Run:
    found = Results(Path("results")).latest()
    assert found is not None
    return found


def explained(capsys: pytest.CaptureFixture[str], *arguments: str, executor: FakeExecutor | None = None) -> list[str]:
    capsys.readouterr()
    assert runner("explain", *arguments, executor=executor) == 0
    lines = capsys.readouterr().out.splitlines()
    return lines[next((at for at, line in enumerate(lines) if line.startswith("base: ")), 0) :]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    capsys.readouterr()
    executor = tracing()
    assert runner("explain", *arguments, executor=executor) == code
    assert executor.jobs == []
    return capsys.readouterr().err


def test_two_cells_without_traces_are_measured_as_one_comparison_and_traced(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: `_together` leaves the cells as they are."""
    base, new = ids()
    executor = tracing()
    explained(capsys, base, new, "--steps", "6", executor=executor)
    assert {(job.cell_id, job.repeat) for job in executor.jobs} == {(cell, n) for cell in (base, new) for n in range(5)}
    # Epochs of both alternate, from the first one on.
    assert {job.cell_id for job in executor.turns[:2]} == {base, new}
    assert [(job.repeat, job.trace.all_steps) for job in executor.jobs if job.trace] == [(0, 6), (0, 6)]


def test_stored_traces_are_explained_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    base, new = ids()
    first = explained(capsys, base, new, "--repeats", "1")
    executor = tracing()
    assert explained(capsys, base, new, "--stored", executor=executor) == first
    assert explained(capsys, base, new, executor=executor) == first
    assert executor.jobs == []
    explained(capsys, base, new, "--new-run", "--repeats", "2", executor=executor)
    assert len(executor.jobs) == 4


def test_unreadable_file_of_a_newer_run_is_named_with_the_explanation_of_an_older_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Mutation: `_in_a_run` drops the problems of `load`."""
    base, new = ids()
    first = explained(capsys, base, new, "--repeats", "1")
    explained(capsys, base, new, "--new-run", "--repeats", "2")
    newest = max(Path("results").glob("2*"))
    for path in (newest / "records").iterdir():
        path.write_text("{")
    assert main(["explain", base, new, "--stored"], Seams(executor=tracing())) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == first
    assert f"runner: {newest.name}/records/" in printed.err


def test_document_has_shares_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(explained(capsys, *ids(), "--json")))
    shares = [one["share"] for one in found["differences"]] + [found["others_share"], found["unexplained_share"]]
    assert sum(shares) == pytest.approx(1)
    assert found["differences"][0]["kind"] == "layer"
    assert found["change_s"] == pytest.approx(0.003, rel=0.01)


def test_difference_within_the_noise_is_not_explained(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(explained(capsys, *ids(), "--json", executor=tracing(lambda settings: 0.0))))
    assert found["differences"] == []


def two_runs(*, traced: bool = True) -> tuple[str, str]:
    """Measure the cell mnist_mlp twice, the second time slower, and return both runs."""
    found = []
    for slower in (0.0, 2.0):
        executor = tracing(lambda settings, slower=slower: slower)
        runner("--matrix", "matrix.yaml", "--filter", "workload=mnist_mlp", executor=executor)
        found.append(newest().run_id)
        if not traced:
            shutil.rmtree(newest().folder / "traces")
    return found[0], found[1]


def test_cell_of_two_runs_is_explained_from_their_traces(capsys: pytest.CaptureFixture[str]) -> None:
    base, new = two_runs()
    executor = tracing()
    lines = explained(capsys, base, f"results/{new}", "--cell", "mnist_mlp", executor=executor)
    assert explained(capsys, base, new, executor=executor) == lines  # they have only one cell
    assert executor.jobs == []


def test_two_runs_that_differ_in_the_patch_of_python_cannot_be_made_different(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `_rebuilt` compares the versions as they are stored."""
    for number, python in enumerate(("3.11.7", "3.11.9")):
        records = processes(0.01, versions={"python": python, "keras": "3.14.0"})
        store_session(folder / "results", run_name(number), records)
    assert "measured again they would be equal" in refused(capsys, run_name(0), run_name(1))


def test_two_runs_without_traces_are_measured_again_with_their_versions(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(processes(0.01)[0].settings, workload="gru")
    for number, keras in enumerate(("3.14.0", "3.15.0")):
        records = [replace(one, settings=settings) for one in processes(0.01, versions={"python": "3", "keras": keras})]
        store_session(folder / "results", run_name(number), records)
    built: list[str] = []

    def rebuilt(then: dict[str, str], *_: Any) -> ArmRequest:
        built.append(then["keras"])
        return ArmRequest(None, None, then)

    monkeypatch.setattr(explain_service, "rebuilt_arm", rebuilt)
    executor = tracing()
    assert "caveat" not in " ".join(explained(capsys, run_name(0), run_name(1), executor=executor))
    assert built == ["3.14.0", "3.15.0"]
    assert [job.repeat for job in executor.jobs if job.trace] == [0, 0]


def test_two_environments_are_measured_and_traced(capsys: pytest.CaptureFixture[str]) -> None:
    executor = tracing()
    explained(capsys, "--cell", "mnist_mlp", "--plant", "copy:8", executor=executor)
    assert [job.fault for job in executor.jobs if job.trace] in ([None, "copy:8"], ["copy:8", None])


def test_cell_that_failed_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    base, new = ids()
    capsys.readouterr()
    failing = FakeExecutor(behaviours={"gru": lambda job: Outcome(exit_code=1)})
    assert runner("explain", base, new, "--json", executor=failing) == 1
    assert "base was not measured: error" in json.loads(capsys.readouterr().out)["problem"]


def test_external_commands_are_compared_by_their_metric_only(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        runner("--matrix", "matrix.yaml", "--filter", "workload=task*", executor=FakeExecutor())
    runs = [run.run_id for run in Results(Path("results")).runs()][-2:]
    found = json.loads("\n".join(explained(capsys, *runs, "--json", executor=FakeExecutor())))
    assert found["ratio"]["centre"] == pytest.approx(1)


def test_what_is_printed_of_an_explanation(folder: Path, transcript: Transcript, golden: Golden) -> None:
    base, new = ids()
    transcript.note("two cells, measured and traced")
    transcript.run(f"explain {base} {new} --steps 6", seams=Seams(executor=tracing()), brief=True)
    for path in newest().folder.glob(f"records/{new}*"):
        record = json.loads(path.read_text())
        record["resolved"]["parameters"] = 2000
        path.write_text(json.dumps(record))
    transcript.note("their stored traces; they do not do the same work")
    transcript.run(f"explain {base} {new} --stored")
    transcript.note("equal times")
    equal = tracing(lambda settings: 0.0)
    transcript.run(f"explain {base} {new} --new-run", seams=Seams(executor=equal), brief=True)
    runs = two_runs()
    transcript.note("a cell in two runs")
    transcript.run(f"explain {' '.join(runs)}")
    transcript.note("two environments, of which one has an injected fault that traces do not show")
    planted = "explain --cell mnist_mlp --plant copy:8 --new-run"
    transcript.run(planted, seams=Seams(executor=tracing()), brief=True)
    for _ in range(2):
        runner("--matrix", "matrix.yaml", "--filter", "workload=task*", executor=FakeExecutor())
    runs = [run.run_id for run in Results(Path("results")).runs()][-2:]
    transcript.note("an external command in two runs")
    transcript.run(f"explain {' '.join(runs)}")
    golden.check("explain.txt", transcript.text)


def without_a_trace(job: Job) -> Outcome:
    result = FakeExecutor().result(job)
    write_result(job, replace(result, trace=job.trace and Traced(1, problem="the profiler refused")))
    return replace(PRETENDED, exit_code=0)


def test_messages_of_what_cannot_be_explained(folder: Path, transcript: Transcript, golden: Golden) -> None:
    base, new = measured()
    run = newest().run_id
    transcript.run(f"explain {base} {new} --stored", f"explain {run} {run}", f"explain {base} {base}")
    transcript.run(f"explain {run} {base}", f"explain {base} nothing", "explain", "explain --plant copy:8")
    transcript.run(f"explain {base} {new} --cell gru", f"explain {base} {new} --steps 1", f"explain {base} train")
    transcript.run("explain --cell mnist_mlp --plant copy:8 --stored", f"explain {base} {new} --repeats 0")
    transcript.note("two runs of equal versions, without traces")
    runs = " ".join(two_runs(traced=False))
    transcript.run(f"explain {runs}", f"explain {runs} --stored")
    for text, behaviour in (
        ("the profiler refuses", without_a_trace),
        ("the processes fail", lambda job: Outcome(exit_code=1)),
    ):
        transcript.note(text)
        executor = FakeExecutor(behaviours={"gru": behaviour})
        transcript.run(f"explain {base} {new} --new-run --repeats 1", seams=Seams(executor=executor))
    runner("explain", base, new, "--new-run", "--repeats", "1")
    (path,) = newest().folder.glob(f"traces/{new}*/{TRACE_NAME}")
    path.write_bytes(b"\x1f\x8bnothing")
    transcript.note("a damaged trace")
    transcript.run(f"explain {base} {new}")
    neutral.write(path, Head("jax", 1, "cpu", version=0), [])
    transcript.note("a trace of another version")
    transcript.run(f"explain {base} {new}")
    for path in (newest().folder / "records").iterdir():
        path.write_text("{")
    transcript.note("no record of the newest run can be read, and older ones have no traces")
    transcript.run(f"explain {base} {new} --stored")
    cells = "{workload: mnist_mlp, implementation: [keras, native]}"
    Path("matrix.yaml").write_text(f"version: 1\nbackends: [jax]\ncells:\n  - {cells}\n")
    transcript.note("native code")
    transcript.run("explain {} {}".format(*ids()))
    golden.check("explain_refused.txt", transcript.text)
