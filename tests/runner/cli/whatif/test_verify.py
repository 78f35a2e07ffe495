"""`runner replay --verify` from end to end, with a fake executor that is as fast as a true link lets it be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.records.fc.network import VARIABLE
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.whatif import measurement
from tests.fakes.executor import FakeExecutor, crash
from tests.runner.cli.whatif.traced_cell import MATRIX, WRONG_TIMES, executor, runner, true_step_s

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


def test_a_cell_is_replayed_from_its_stored_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("replay", "torch:fc") == 0
    printed = capsys.readouterr().out
    assert ": torch on cpu, fc bucket_cap_mb=0.5 level=3 mode=fc_data" in printed
    assert "by layer" in printed


def test_predictions_are_verified_by_interleaved_measurements(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = executor()
    assert runner("replay", "torch:fc", *WHAT_IFS, "--verify", fake=fake) == 0
    printed = capsys.readouterr().out
    assert "verdict: verified (the predictions; error within 10.0 %" in printed
    assert "regret: 0.0 %" in printed
    lines = printed.splitlines()
    title = lines.index("verification: 4 settings measured interleaved, 5 processes each")
    assert lines[title + 1].split("  ")[-1].strip() == "measured against the baseline"
    names = [line.split()[0] for line in lines[title + 2 : title + 6]]
    assert names == ["baseline", "tensor_fusion=4,", "tensor_fusion=2,2", "tensor_fusion=1,3"]
    assert lines[title + 2].endswith("verified")
    assert all(re.search(r"x \[[\d.]+ [\d.]+\]$", line) for line in lines[title + 3 : title + 6])
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
    assert "/whatif.json: whatif.json.rounds: must be list, got 3\n" in capsys.readouterr().out
    assert 'id="predictions"' not in (newest.folder / "report.html").read_text()


def test_json_has_the_verification(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verification"]["verdict"] == "verified"
    assert len(found["verification"]["verification"]["rounds"]) == 1


def test_a_wrong_alpha_ends_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    flags = ("--calibration", "wrong.json", "--verify")
    assert runner("replay", "torch:fc", *WHAT_IFS, *flags) == 0
    printed = capsys.readouterr().out
    assert "verdict: refuted" in printed
    assert "round 2" not in printed
    assert stored(folder)["verdict"] == "refuted"


def test_a_recalibration_shows_both_rounds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    flags = ("--calibration", "wrong.json", "--verify", "--recalibrate")
    fake = executor()
    assert runner("replay", "torch:fc", *WHAT_IFS, *flags, fake=fake) == 0
    printed = capsys.readouterr().out
    assert "round 1, as predicted" in printed
    assert "round 2, after a recalibration of the link" in printed
    assert "(fitted)" in printed
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
    assert runner("replay", "torch:fc", *WHAT_IFS[:2]) == 0
    assert "of each operation on a thread were removed as the profiler's cost" in capsys.readouterr().out


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
    assert runner("replay", "torch:fc", *WHAT_IFS[:2]) == 0
    assert "longer, for the mean of 5 processes of the cell" in capsys.readouterr().out


def test_too_few_processes_are_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify", "--repeats", "3") == 0
    printed = capsys.readouterr().out
    assert "verdict: inconclusive" in printed
    assert "every setting: 3 processes give no interval" in printed


def choice_of(printed: str) -> str:
    return next(line for line in printed.splitlines() if line.startswith("choice: "))


def test_the_choice_is_compared_with_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    faster = ("--what-if", "tensor_fusion=1,1,2")
    assert runner("replay", "torch:fc", *faster, *WHAT_IFS[:2], "--verify") == 0
    line = choice_of(capsys.readouterr().out)
    assert line.startswith("choice: tensor_fusion=1,1,2 against the baseline: 1.0")
    assert line.endswith("]: faster")
    assert runner("replay", "torch:fc", *faster, "--verify", "--repeats", "3") == 0
    assert choice_of(capsys.readouterr().out).endswith("x, without an interval")
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify") == 0
    none = "choice: no measured setting was predicted to be faster than the baseline"
    assert choice_of(capsys.readouterr().out) == none


def test_a_choice_that_is_slower_or_not_separable_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def with_buckets(factor: float) -> Callable[[Settings], float]:
        """All buckets other than those of the traced cell take so many times the time of the traced cell."""
        return lambda settings: 0.03 * (factor if settings.params.get("buckets") else 1)

    for factor, word in ((1.2, "slower"), (1.0, "not separable")):
        flags = ("--what-if", "tensor_fusion=1,1,2", "--verify")
        assert runner("replay", "torch:fc", *flags, fake=executor(with_buckets(factor))) == 0
        assert choice_of(capsys.readouterr().out).endswith(f"]: {word}")


def test_what_was_not_measured_for_one_reason_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*WHAT_IFS[:2], "--what-if", "tensor_fusion=2,2", "--what-if", "recomputation=0")
    assert runner("replay", "torch:fc", *flags, "--what-if", "recomputation=1", "--verify") == 0
    reason = "the parameter recompute forms its own segments; choose all"
    assert f"not measured: recomputation=0, recomputation=1: {reason}" in capsys.readouterr().out.splitlines()


def test_what_cannot_be_measured_is_listed_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    what_ifs = (*WHAT_IFS[:2], "--what-if", "latency=2ms")
    assert runner("replay", "torch:fc", *what_ifs, "--verify") == 0
    printed = capsys.readouterr().out
    assert "not measured: latency=2ms: predicted only: unverified" in printed
    assert "verdict: verified" in printed


def test_nothing_is_measured_if_no_prediction_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    fake = executor()
    assert runner("replay", "torch:fc", "--what-if", "latency=2ms", "--verify", fake=fake) == 2
    assert "--verify: no predicted setting can be measured here: latency=2ms: " in capsys.readouterr().err
    assert fake.jobs == []


def test_a_network_that_does_not_exist_is_refused_with_the_command_that_makes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert runner("replay", "torch:fc", "--what-if", "bandwidth=100mbit", "--verify") == 2
    assert "ci/netns 2 --rate 100mbit -- runner ..." in capsys.readouterr().err


def test_trace_of_another_program_cannot_be_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native = next((folder / "results").glob("*/traces/*/native"))
    assert runner("replay", str(native), "--verify") == 2
    assert "--verify: fake is not the trace of a cell" in capsys.readouterr().err


def test_links_that_the_traced_cell_does_not_use_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify") == 0
    assert "network: local" not in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, "200mbit kbm-net-1-0=10.0.0.1")
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify") == 0
    assert "the traced cell has network: local, so that the links of ci/netns are not used" in capsys.readouterr().err


def test_a_failed_baseline_is_no_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeExecutor(behaviours={"fc": crash()})
    assert runner("replay", "torch:fc", *WHAT_IFS[:2], "--verify", fake=fake) == 1
    printed = capsys.readouterr().out
    assert "nothing was measured: the baseline failed" in printed
    assert stored(folder)["verdict"] is None


def test_a_wrong_order_of_settings_is_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The machine is twice as slow with one bucket, which no replay can know."""

    def true_s(settings: Settings) -> float:
        return true_step_s(settings) * (2 if settings.params.get("buckets") == "2,2" else 1)

    assert runner("replay", "torch:fc", *WHAT_IFS, "--verify", fake=executor(true_s)) == 0
    printed = capsys.readouterr().out
    assert "verdict: refuted" in printed
    assert "tensor_fusion=2,2: the error is between" in printed


def test_damaged_stored_trace_ends_with_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next((folder / "results").glob("*/traces/*/native/rank0.parquet"))
    path.write_bytes(b"PAR1")
    assert runner("replay", "torch:fc") == 3
    assert "record it again with: runner trace" in capsys.readouterr().err
