"""`runner replay --verify` from end to end, with a fake executor that is as fast as a true link lets it be."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.records.fc.network import VARIABLE
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.whatif import measurement
from tests.fakes.executor import FakeExecutor, crash
from tests.golden import Golden
from tests.runner.cli.whatif.traced_cell import MATRIX, WRONG_TIMES, executor, runner, true_step_s
from tests.transcripts import Transcript

WHAT_IFS = ("--what-if", "tensor_fusion=4,", "--what-if", "tensor_fusion=2,2", "--what-if", "tensor_fusion=1,3")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert runner("--matrix", "matrix.yaml") == 0
    capsys.readouterr()
    return tmp_path


def stored(folder: Path) -> dict[str, object]:
    newest = Results(folder / "results").latest()
    assert newest is not None
    found: dict[str, object] = json.loads((newest.folder / "whatif.json").read_text())
    return found


def test_predictions_are_verified_by_interleaved_measurements(folder: Path) -> None:
    fake = executor()
    assert runner("replay", "torch:fc", *WHAT_IFS, "--verify", fake=fake) == 0
    # Baseline and three settings, which are alternatives: five processes each, one of each a block.
    assert len(fake.jobs) == 20
    assert len({job.cell_id for job in fake.jobs[:4]}) == 4
    assert {str(job.settings.params.get("buckets", "")) for job in fake.jobs} == {"", "4", "2,2", "1,3"}
    assert {job.settings.params.get("bucket_cap_mb", 0.0) for job in fake.jobs} == {0.5, 0.0}
    found = stored(folder)
    assert found["verdict"] == "verified"
    rows = found["verification"]["rounds"][0]["rows"]  # type: ignore[index]
    assert [row["name"] for row in rows][:2] == ["baseline", "tensor_fusion=4,"]
    assert all(abs(row["error"]) < 0.01 for row in rows)
    page = (folder / "results" / "latest" / "report.html").read_text()
    assert "<b>Verdict: verified.</b>" in page
    assert '<th scope="row">tensor_fusion=4,</th>' in page


def test_report_names_a_verification_that_cannot_be_read_and_has_no_predictions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner("replay", "torch:fc", *WHAT_IFS, "--verify") == 0
    newest = Results(folder / "results").latest()
    assert newest is not None
    assert measurement.stored(newest) is not None
    (newest.folder / "whatif.json").write_text('{"version": 1, "verification": {"rounds": 3}}')
    assert measurement.stored(newest) is None
    capsys.readouterr()
    assert runner("report", "--run", newest.run_id) == 1
    assert "/whatif.json: " in capsys.readouterr().out
    assert 'id="predictions"' not in (newest.folder / "report.html").read_text()


def test_json_has_the_verification(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verification"]["verdict"] == "verified"
    assert len(found["verification"]["verification"]["rounds"]) == 1


def test_a_wrong_alpha_ends_refuted(folder: Path) -> None:
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    flags = ("--calibration", "wrong.json", "--verify")
    assert runner("replay", "torch:fc", *WHAT_IFS, *flags) == 0
    assert stored(folder)["verdict"] == "refuted"
    assert len(stored(folder)["verification"]["rounds"]) == 1  # type: ignore[index]


def test_a_recalibration_has_both_rounds(folder: Path) -> None:
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    flags = ("--calibration", "wrong.json", "--verify", "--recalibrate")
    fake = executor()
    assert runner("replay", "torch:fc", *WHAT_IFS, *flags, fake=fake) == 0
    assert len(fake.jobs) == 20  # nothing is measured again
    rounds = stored(folder)["verification"]["rounds"]  # type: ignore[index]
    assert len(rounds) == 2
    assert rounds[0]["verdict"] == "refuted"


def test_predictions_start_from_the_step_without_the_profiler(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The traced step is 3 % slower than the untraced one."""

    def true_s(settings: Settings) -> float:
        return true_step_s(settings) * 0.97

    assert runner("--matrix", "matrix.yaml", "--new", fake=executor(true_s)) == 0
    capsys.readouterr()
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline_step_time_s"] == pytest.approx(found["step_time_s"] * 0.97, rel=0.005)


def test_predictions_start_from_the_mean_of_the_processes_of_the_cell(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other processes are 6 % slower than the traced one, the first."""

    def behave(job: Job) -> Outcome:
        nonlocal calls
        calls += 1
        slower = executor(lambda settings: true_step_s(settings) * (1.0 if calls == 1 else 1.06))
        return slower.behaviours["fc"](job)

    calls = 0
    (folder / "matrix.yaml").write_text(MATRIX.replace("repeats: 1", "repeats: 5"))
    assert runner("--matrix", "matrix.yaml", "--new", fake=FakeExecutor(behaviours={"fc": behave})) == 0
    assert calls == 5
    capsys.readouterr()
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline_step_time_s"] == pytest.approx(found["step_time_s"] * (1 + 4 * 1.06) / 5, rel=0.004)


def test_trace_of_another_program_cannot_be_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native = next((folder / "results").glob("*/traces/*/native"))
    assert runner("replay", str(native), "--verify") == 2
    assert "--verify: fake is not the trace of a cell" in capsys.readouterr().err


def test_a_failed_baseline_is_no_verdict(folder: Path) -> None:
    fake = FakeExecutor(behaviours={"fc": crash()})
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify", fake=fake) == 1
    assert stored(folder)["verdict"] is None


def test_a_wrong_order_of_settings_is_refuted(folder: Path) -> None:
    """The machine is twice as slow with one bucket, which no replay can know."""

    def true_s(settings: Settings) -> float:
        return true_step_s(settings) * (2 if settings.params.get("buckets") == "2,2" else 1)

    assert runner("replay", "torch:fc", *WHAT_IFS, "--verify", fake=executor(true_s)) == 0
    assert stored(folder)["verdict"] == "refuted"


def test_damaged_stored_trace_ends_with_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next((folder / "results").glob("*/traces/*/native/rank0.parquet"))
    path.write_bytes(b"PAR1")
    assert runner("replay", "torch:fc") == 3
    assert "record it again with: runner trace" in capsys.readouterr().err


def test_what_a_verification_prints(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    def with_buckets(factor: float) -> Callable[[Settings], float]:
        """All buckets other than those of the traced cell take so many times the time of the traced cell."""
        return lambda settings: 0.03 * (factor if settings.params.get("buckets") else 1)

    shutil.rmtree(folder / "results")
    assert runner("--matrix", "matrix.yaml") == 0
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    faster = "replay torch:fc --what-if tensor_fusion=1,1,2"
    several = f"{faster} --what-if tensor_fusion=4, --what-if tensor_fusion=2,2"
    others = f"{several} --what-if latency=2ms --what-if recomputation=0 --what-if recomputation=1"
    for text, command, fake in (
        ("as predicted", f"{others} --verify", executor()),
        ("a wrong link", f"{several} --calibration wrong.json --recalibrate --verify", executor()),
        ("three processes", f"{faster} --verify --repeats 3", executor()),
        ("no setting is faster", f"{faster} --verify", executor(with_buckets(1.2))),
        ("all settings are equal", f"{faster} --verify", executor(with_buckets(1.0))),
        ("the processes fail", f"{faster} --verify", FakeExecutor(behaviours={"fc": crash()})),
    ):
        transcript.note(text)
        transcript.run(f"{command} --new", seams=Seams(executor=fake), brief=True)
    monkeypatch.setenv(VARIABLE, "200mbit kbm-net-1-0=10.0.0.1")
    transcript.note("in a network of ci/netns")
    transcript.run(f"{faster} --verify --new", seams=Seams(executor=executor()), brief=True)
    monkeypatch.delenv(VARIABLE)
    for what_if in ("latency=2ms", "bandwidth=100mbit"):
        transcript.run(f"replay torch:fc --what-if {what_if} --verify", seams=Seams(executor=executor()))
    # What is before the table of what-ifs is in replay.txt.
    text = re.sub(r"(--verify --new\n)(?:.*\n)*?(?=what-if )", r"\1...\n", transcript.text)
    golden.check("replay_verify.txt", text)
