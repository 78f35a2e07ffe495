"""`runner optimize` from end to end, with a fake executor that is as fast as a true link lets it be."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.replay import replay
from keras_matrix.analysis.whatif.search import FamilyTrajectories
from keras_matrix.analysis.whatif.trajectory import ReplayedTrial, Strategy, Trajectory
from keras_matrix.records.identity import named
from keras_matrix.records.store import Results
from keras_matrix.runner.cli.whatif.optimize import found_lines
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service import whatif
from keras_matrix.runner.whatif import source
from tests.golden import Golden
from tests.runner.cli.whatif.traced_cell import LINK, MATRIX, WRONG_TIMES, executor, runner
from tests.runner.whatif.graphs import data_parallel
from tests.transcripts import Transcript


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert runner("--matrix", "matrix.yaml") == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize("command", ["optimize", "replay"])
def test_unreadable_file_of_a_newer_run_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Mutation: `_of_cell` drops the problems of `load`."""
    assert runner(command, "fc") == 0
    assert "skipped" not in capsys.readouterr().err
    assert runner("--matrix", "matrix.yaml") == 0
    newest = max((folder / "results").glob("2*"))
    (path,) = (newest / "records").glob("*.json")
    path.write_text("{")
    capsys.readouterr()
    assert runner(command, "fc") == 1
    assert f"runner: {newest.name}/records/{path.name}: " in capsys.readouterr().err


def rows_below(lines: list[str], head: str) -> list[list[str]]:
    """The rows of the table whose head begins with this, as cells."""
    first = next(at for at, line in enumerate(lines) if line.startswith(head))
    length = next(at for at, line in enumerate(lines[first:]) if len(line.split("  ")) == 1)
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[first + 1 : first + length]]


def test_every_setting_of_the_trajectory_is_among_the_best_by_time_with_the_baseline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The traced cell sums each of its four gradients by itself."""
    assert runner("optimize", "torch:fc", "--search", "tensor_fusion") == 0
    lines = capsys.readouterr().out.splitlines()
    tried, best = rows_below(lines, "trial"), rows_below(lines, "best settings")
    assert tried[0][:2] == ["0", "baseline"]
    assert {row[1] for row in tried} <= {row[0] for row in best}
    times = [float(row[1].removesuffix(" ms")) for row in best]
    assert times == sorted(times)
    (base,) = [row for row in best if row[0] == "baseline"]
    assert base[-2:] == ["1.00x", "as traced"]
    assert f"best: {best[0][0]}" in "\n".join(lines)


def searched(*trials: tuple[str, float], before: tuple[str, ...] = ()) -> Trajectory:
    """The trajectory of settings of tensor_fusion with their screened times, from a start of 10 ms."""
    made = tuple(ReplayedTrial((f"tensor_fusion={name}",), step_s, is_better=True) for name, step_s in trials)
    return Trajectory("tensor_fusion", 9e-3, made, before=before, screened_s=10e-3)


def strategy(name: str, step_s: float, *, possible: bool = True) -> Strategy:
    return Strategy((f"tensor_fusion={name}",), {"buckets": name} if possible else None, step_s, step_s, step_s, "why")


def test_a_later_family_says_what_it_starts_from() -> None:
    found = FamilyTrajectories((searched(("4,", 8e-3), before=("op_fusion=0-1:0.7",)),), (strategy("4,", 8e-3),))
    lines = found_lines(replay(data_parallel(LINK)), found, {})
    title = "tensor_fusion, added to op_fusion=0-1:0.7: 1 setting replayed; these were better than all before:"
    first = lines.index(title)
    assert lines[first + 2].split() == ["0", "op_fusion=0-1:0.7", "10.0", "ms"]
    assert lines[first + 3].split() == ["1", "tensor_fusion=4,", "8.00", "ms", "1.25x"]


@pytest.mark.parametrize(
    ("strategies", "line"),
    [
        ((strategy("4,", 8e-3), strategy("2,2", 8.5e-3)), "best: tensor_fusion=4,"),
        (
            (strategy("4,", 8.01e-3), strategy("2,2", 8e-3)),
            "best: tensor_fusion=4,; times within 1.0 % of the fastest count as equal, and of these it has the fewest "
            "collectives",
        ),
        (
            (strategy("4,", 8e-3, possible=False), strategy("2,2", 8.5e-3)),
            "best: tensor_fusion=2,2; no cell can have the settings that are predicted only",
        ),
        ((strategy("4,", 8e-3, possible=False),), "best: none of these settings can be measured"),
    ],
)
def test_the_best_setting_is_named_with_the_reason_if_another_one_is_above_it(
    strategies: tuple[Strategy, ...], line: str
) -> None:
    assert found_lines(replay(data_parallel(LINK)), FamilyTrajectories((), strategies), {})[-1] == line


def test_more_settings_than_are_shown_are_counted() -> None:
    many = tuple(strategy(f"{number},", number * 1e-3) for number in range(1, 21))
    lines = found_lines(replay(data_parallel(LINK)), FamilyTrajectories((), many), {})
    assert "and 8 slower settings" in lines
    assert len(rows_below(lines, "best settings")) == 13


def test_a_baseline_above_the_memory_budget_says_so() -> None:
    memory = Trajectory(
        "memory", 9e-3, (ReplayedTrial(("recomputation=all",), 12e-3, is_better=True),), (strategy("4,", 12e-3),)
    )
    lines = found_lines(replay(data_parallel(LINK)), FamilyTrajectories((memory,), memory.strategies), {})
    found = "memory: 1 setting that fit --memory-budget replayed, none better than the baseline; the best is"
    assert any(line.startswith(found) for line in lines)
    assert any(line.startswith("baseline") and line.endswith("as traced; above --memory-budget") for line in lines)


def test_a_search_that_finds_nothing_better_says_so() -> None:
    trials = tuple(
        ReplayedTrial((f"tensor_fusion={name}",), step_s, step_s < 3e-3)
        for name, step_s in (("4,", 2e-3), ("2,2", 3e-3))
    )
    found = FamilyTrajectories((Trajectory("tensor_fusion", 1e-3, trials),), ())
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


def test_the_printed_command_compares_the_cells_of_the_strategy_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner("optimize", "torch:fc", "--search", "tensor_fusion", "--to", "strategy.yaml") == 0
    *_, strategy_line, last = capsys.readouterr().out.splitlines()
    measures = "runner --matrix strategy.yaml measures both, each in a row of its own"
    assert strategy_line == f"strategy: strategy.yaml: the baseline and the best setting; {measures}"
    command = last.partition("with a verdict: ")[2]
    assert f"# {command}\n" in (folder / "strategy.yaml").read_text()
    name, *words = shlex.split(command)
    assert (name, words[0], words[-1]) == ("runner", "replay", "--verify")
    matrix, comparison = executor(), executor()
    assert runner("--matrix", "strategy.yaml", fake=matrix) == 0
    capsys.readouterr()
    assert runner(*words, fake=comparison) == 0
    assert {job.cell_id for job in matrix.jobs} == {job.cell_id for job in comparison.jobs}


def test_the_printed_command_repeats_the_flags_that_determine_the_trace(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "results").rename(folder / "elsewhere")
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    flags = ("--results", "elsewhere", "--calibration", "wrong.json", "--level", "operations")
    assert runner("optimize", "torch:fc", "--search", "tensor_fusion", *flags) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert " ".join(flags) in last


def test_a_cell_over_a_network_is_compared_within_its_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MATRIX.replace("level: 3", "level: 3, network: 200mbit")
    (cell,) = expand(parse(Path("matrix.yaml"), text.encode()))
    graph = data_parallel(LINK)
    source.write(graph.with_nodes(graph.nodes, settings=named(cell.settings)), folder / "graph")
    assert runner("optimize", "graph", "--search", "tensor_fusion") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "with a verdict: ci/netns 2 --rate 200mbit -- runner replay graph --what-if tensor_fusion=" in last


def test_the_best_three_are_verified(folder: Path) -> None:
    fake = executor()
    assert runner("optimize", "torch:fc", "--search", "tensor_fusion", "--verify", fake=fake) == 0
    assert 10 <= len(fake.jobs) <= 20
    newest = Results(folder / "results").latest()
    assert newest is not None
    assert json.loads((newest.folder / "whatif.json").read_text())["verdict"] == "verified"


def test_a_wrong_alpha_ends_refuted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.json").write_text(json.dumps(WRONG_TIMES))
    flags = ("--search", "tensor_fusion", "--calibration", "wrong.json", "--verify", "--json")
    assert runner("optimize", "torch:fc", *flags) == 0
    assert json.loads(capsys.readouterr().out)["verification"]["verdict"] == "refuted"


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


def test_a_family_that_is_left_out_is_not_searched(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--search", "all,^memory,^op_fusion,^amp", "--json")
    assert runner("optimize", "torch:fc", *flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["family"] for one in found["trajectories"]] == ["tensor_fusion"]
    assert found["strategies"][0]["settings"]["buckets"]
    assert found["strategies"][0]["step_time_s"] < found["step_time_s"]


def test_what_a_search_prints(folder: Path, transcript: Transcript, golden: Golden) -> None:
    shutil.rmtree(folder / "results")
    assert runner("--matrix", "matrix.yaml") == 0
    optimize = "optimize torch:fc --search"
    transcript.run(
        f"{optimize} tensor_fusion --to strategy.yaml --verify", seams=Seams(executor=executor()), brief=True
    )
    transcript.run(f"{optimize} xla", seams=Seams(executor=executor()), brief=True)
    transcript.run(f"{optimize} op_fusion --no-probe")
    transcript.run(*(f"{optimize} memory --memory-budget {size}" for size in ("1g", "300m", "524200000")))
    golden.check("optimize.txt", transcript.text)


def test_messages_of_searches_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    seams = Seams(executor=executor())
    flags = ("--search tensor_fuson", "--search ^all", "--memory-budget much", "--to nowhere/strategy.yaml")
    transcript.run(*(f"optimize torch:fc {flag}" for flag in (*flags, "--costmodel model.json")), seams=seams)
    transcript.run("optimize torch:gru", "optimize absent.json", seams=seams)
    native = next((folder / "results").glob("*/traces/*/native"))
    native.rename(folder / "graph")
    transcript.note("a trace of another program")
    transcript.run("optimize graph --to strategy.yaml", seams=seams)
    (folder / "graph").rename(native)
    monkeypatch.setattr(whatif, "environment_problem", lambda settings: "network: no namespaces exist")
    transcript.note("the cell cannot be measured here")
    transcript.run("optimize torch:fc --verify", seams=seams)
    golden.check("optimize_refused.txt", transcript.text)
