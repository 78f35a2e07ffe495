"""`runner optimize` from end to end, with a fake executor that is as fast as a true link lets it be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.replay import replay
from keras_matrix.analysis.whatif.search.families import Found
from keras_matrix.analysis.whatif.search.trajectory import Trajectory, Trial
from keras_matrix.records.store import Results
from keras_matrix.runner.cli.whatif import verification
from keras_matrix.runner.cli.whatif.optimize_text import found_lines
from tests.runner.cli.whatif.traced_cell import LINK, MATRIX, WRONG_TIMES, executor, runner
from tests.runner.whatif.graphs import data_parallel


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert runner("--matrix", "matrix.yaml") == 0
    capsys.readouterr()
    return tmp_path


def test_a_search_prints_its_trajectory_and_the_best_settings(capsys: pytest.CaptureFixture[str]) -> None:
    fake = executor()
    assert runner("optimize", "torch:fc", "--search", "tensor_fusion", fake=fake) == 0
    printed = capsys.readouterr().out
    assert "critical path: " in printed
    assert "tensor_fusion: " in printed
    assert "settings replayed; these were better than all before:" in printed
    assert "best settings" in printed
    assert "buckets: " in printed
    assert fake.jobs == []


def test_a_search_that_finds_nothing_better_says_so() -> None:
    trials = tuple(
        Trial((f"tensor_fusion={name}",), step_s, step_s < 3e-3) for name, step_s in (("4,", 2e-3), ("2,2", 3e-3))
    )
    found = Found((Trajectory("tensor_fusion", 1e-3, trials),), ())
    lines = found_lines(replay(data_parallel(LINK)), found, {})
    best = "none better than the baseline; the best is tensor_fusion=4,, 2.00 ms"
    assert f"tensor_fusion: 2 settings replayed, {best}" in lines
    assert lines[-1] == "no setting is predicted to be faster"


def test_a_strategy_file_is_measured_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("optimize", "torch:fc", "--search", "tensor_fusion", "--to", "strategy.yaml") == 0
    text = (folder / "strategy.yaml").read_text()
    assert text.startswith("# Written by: runner optimize torch:fc --search tensor_fusion --to strategy.yaml\n")
    assert "  # baseline: predicted " in text
    assert "  # best: tensor_fusion=" in text
    capsys.readouterr()
    fake = executor()
    assert runner("--matrix", "strategy.yaml", fake=fake) == 0
    first = Results(folder / "results").runs()[0].load()[0][0]
    assert {job.cell_id for job in fake.jobs} > {first.cell_id}
    assert len({job.cell_id for job in fake.jobs}) == 2
    assert len(fake.jobs) == 10


def test_the_best_three_are_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = executor()
    assert runner("optimize", "torch:fc", "--search", "tensor_fusion", "--verify", fake=fake) == 0
    printed = capsys.readouterr().out
    assert "verdict: verified" in printed
    assert 10 <= len(fake.jobs) <= 20
    newest = Results(folder / "results").latest()
    assert newest is not None
    assert json.loads((newest.folder / "whatif.json").read_text())["verdict"] == "verified"


def test_a_wrong_alpha_ends_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    flags = ("--search", "tensor_fusion", "--calibration", "wrong.json", "--verify")
    assert runner("optimize", "torch:fc", *flags) == 0
    assert "verdict: refuted" in capsys.readouterr().out


def test_gains_of_blocks_are_probed_on_one_worker_and_then_searched(capsys: pytest.CaptureFixture[str]) -> None:
    fake = executor()
    assert runner("optimize", "torch:fc", "--search", "xla", fake=fake) == 0
    printed = capsys.readouterr().out
    # Two blocks of two layers, and the unchanged cell, five processes each.
    assert len(fake.jobs) == 15
    assert {str(job.settings.params.get("fuse", "")) for job in fake.jobs} == {"", "0-1", "2-3"}
    assert {job.settings.params["workers"] for job in fake.jobs} == {1}
    assert {job.settings.batch_size for job in fake.jobs} == {64}
    (line,) = [one for one in printed.splitlines() if "fuse: 0-1,2-3" in one]
    assert line.startswith("op_fusion=")
    # The machine takes 0.7 of the time of a fused layer.
    assert "0-1:0.7" in line


def test_without_probes_nothing_is_fused(capsys: pytest.CaptureFixture[str]) -> None:
    fake = executor()
    assert runner("optimize", "torch:fc", "--search", "op_fusion", "--no-probe", fake=fake) == 0
    printed = capsys.readouterr().out
    assert "op_fusion: skipped: no gain has been probed" in printed
    assert "no setting is predicted to be faster" in printed
    assert fake.jobs == []


def test_a_family_that_is_left_out_is_not_searched(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--search", "all,^memory,^op_fusion,^amp", "--json")
    assert runner("optimize", "torch:fc", *flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["family"] for one in found["trajectories"]] == ["tensor_fusion"]
    assert found["strategies"][0]["settings"]["buckets"]
    assert found["strategies"][0]["step_time_s"] < found["step_time_s"]


def test_memory_settings_are_searched_above_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    """The pretended peak is 500 MiB, of which inputs of layers are 0.8 MiB."""
    assert runner("optimize", "torch:fc", "--search", "memory", "--memory-budget", "1g") == 0
    assert "memory: skipped: the peak of" in capsys.readouterr().out
    assert runner("optimize", "torch:fc", "--search", "memory", "--memory-budget", "300m") == 0
    assert "memory: skipped: no setting fits" in capsys.readouterr().out
    assert runner("optimize", "torch:fc", "--search", "memory", "--memory-budget", "524200000") == 0
    assert "recompute: true" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--search", "tensor_fuson"), "--search: 'tensor_fuson' is not known; did you mean tensor_fusion?"),
        (("--search", "^all"), "--search: must leave a family"),
        (("--memory-budget", "much"), "--memory-budget: must be a size such as 512m or 8g, got 'much'"),
        (("--to", "nowhere/strategy.yaml"), "--to: must be a file in an existing folder"),
        (("--costmodel", "model.json"), "model.json: cannot be read"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    fake = executor()
    assert runner("optimize", "torch:fc", *arguments, fake=fake) == 2
    assert message in capsys.readouterr().err
    assert fake.jobs == []


def test_a_cell_that_cannot_be_measured_here_is_refused_before_the_probes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verification, "environment_problem", lambda settings: "network: no namespaces exist")
    fake = executor()
    assert runner("optimize", "torch:fc", "--verify", fake=fake) == 2
    assert "--verify: network: no namespaces exist" in capsys.readouterr().err
    assert fake.jobs == []


def test_a_strategy_of_another_program_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native = next((folder / "results").glob("*/traces/*/native"))
    assert runner("optimize", str(native), "--to", "strategy.yaml") == 2
    assert "--to: fake is not the trace of a cell" in capsys.readouterr().err
