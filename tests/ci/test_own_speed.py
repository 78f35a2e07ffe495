"""`ci/own-speed` names the command of this project that became slower, by the product's own gate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci import own_speed
from keras_matrix.runner.matrix.reader import expand, load

ROOT = Path(__file__).parents[2]


def compared(name: str, outcome: str, centre: float | None) -> dict[str, Any]:
    """A comparison of a gate's document."""
    ratio = None if centre is None else {"centre": centre, "low": centre - 0.02, "high": centre + 0.02}
    return {
        "settings": {"workload": f"task {name}"},
        "outcome": outcome,
        "ratio": ratio,
        "base_figure": 0.5,
        "new_figure": 0.6,
        "reason": "every process failed",
    }


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """The answers of a pretended gate by the base's commit; the commits are names."""
    answers: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    def gate(base: own_speed.Side, new: own_speed.Side) -> tuple[int, dict[str, Any]]:
        assert new.commit == "newest"
        code, comparisons = answers[base.commit]
        return code, {"comparisons": comparisons}

    def store(writer: own_speed.Side) -> None:
        assert writer.commit == "pinned"

    monkeypatch.setattr(own_speed, "FOLDER", tmp_path / "build")
    monkeypatch.setattr(
        own_speed, "commit_of", lambda name: {"HEAD": "newest", own_speed.PINNED: "pinned"}.get(name, name)
    )
    monkeypatch.setattr(own_speed, "landed", lambda: "last")
    monkeypatch.setattr(own_speed, "git", lambda *words: "")
    monkeypatch.setattr(own_speed, "installed", lambda made: None)
    monkeypatch.setattr(own_speed, "store", store)
    monkeypatch.setattr(own_speed, "gate", gate)
    return answers


@pytest.mark.process
def test_a_slowdown_that_only_the_pinned_commit_shows_fails_and_is_named(
    gates: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    gates["last"] = 0, [compared("help", "no worse", 1.01), compared("plan", "no worse", 1.03)]
    gates["pinned"] = 4, [compared("help", "no worse", 1.0), compared("plan", "regressed", 1.2)]
    assert own_speed.main([]) == 4
    assert capsys.readouterr().out.splitlines() == [
        "newest against the last one, last:",
        "  help            0.500 s   0.600 s  1.01x [0.99 1.03]  no worse",
        "  plan            0.500 s   0.600 s  1.03x [1.01 1.05]  no worse",
        "newest against the pinned commit, pinned:",
        "  help            0.500 s   0.600 s  1.00x [0.98 1.02]  no worse",
        "  plan            0.500 s   0.600 s  1.20x [1.18 1.22]  regressed",
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    ("last", "pinned", "code"),
    [
        ((0, "no worse", 1.0), (0, "no worse", 1.0), 0),
        ((5, "undecided", 1.04), (0, "no worse", 1.0), 0),
        ((5, "undecided", 1.06), (0, "no worse", 1.0), 5),
        ((5, "undecided", None), (0, "no worse", 1.0), 5),
        ((1, "not measured", None), (5, "undecided", 1.06), 1),
        ((1, "not measured", None), (4, "regressed", 1.5), 4),
    ],
)
def test_the_exit_code_is_that_of_a_regression_and_undecided_passes_within_the_threshold(
    gates: dict[str, Any], last: tuple[int, str, float | None], pinned: tuple[int, str, float | None], code: int
) -> None:
    for name, (gate, outcome, centre) in (("last", last), ("pinned", pinned)):
        gates[name] = gate, [compared("plan", outcome, centre)]
    assert own_speed.main([]) == code


@pytest.mark.process
def test_a_command_that_was_not_measured_has_its_reason(
    gates: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    gates["last"] = gates["pinned"] = 1, [compared("plan", "not measured", None)]
    own_speed.main([])
    assert "  plan           not measured: every process failed" in capsys.readouterr().out.splitlines()


@pytest.mark.process
def test_a_commit_is_compared_once_if_the_last_one_is_the_pinned_one(
    gates: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    gates["pinned"] = 0, [compared("plan", "no worse", 1.0)]
    assert own_speed.main(["--base", "pinned", "--only", "plan"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_matrix_has_every_command_in_the_python_of_its_side(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(own_speed.matrix(list(own_speed.COMMANDS))))
    tasks = [cell.task for cell in expand(load(path))]
    assert len(tasks) == len(own_speed.COMMANDS)
    for task, (times, words) in zip(tasks, own_speed.COMMANDS.values(), strict=True):
        assert task is not None
        assert task.command == ["{python}", str(ROOT / "ci" / "cpu_time.py"), str(times), "{python}", *words]
        assert task.primary == "cpu_time"


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        own_speed.main(["--only", "plan,plna"])
    assert "--only: must be some of help, uploader-help, plan, " in capsys.readouterr().err


@pytest.mark.parametrize(("main", "expected"), [("another", "another"), ("newest", "HEAD^"), (None, "HEAD^")])
def test_the_last_landed_commit_is_that_of_main_or_the_parent_of_the_newest(
    monkeypatch: pytest.MonkeyPatch, main: str | None, expected: str
) -> None:
    def git(*words: str) -> str:
        if main is None:
            raise subprocess.CalledProcessError(1, "git")
        return main

    monkeypatch.setattr(own_speed, "git", git)
    monkeypatch.setattr(own_speed, "commit_of", lambda name: "newest")
    assert own_speed.landed() == expected


@pytest.mark.process
def test_a_commit_that_is_not_here_is_refused_with_advice() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ci.own_speed", "--base", "no-such"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert (
        done.stderr == "ci/own-speed: git knows no commit 'no-such' here; fetch it, as in: git fetch origin no-such\n"
    )


@pytest.mark.process
def test_cpu_time_is_the_mean_of_runs_in_fresh_copies_and_a_failure_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("KERAS_BENCHMARK_METRICS", str(tmp_path / "reported"))
    program = "import time\nopen('mark', 'x')\nwhile time.process_time() < 0.2: pass"

    def code(*words: str) -> int:
        command = [sys.executable, str(ROOT / "ci" / "cpu_time.py"), *words]
        return subprocess.run(command, cwd=tmp_path, check=False).returncode

    assert code("2", sys.executable, "-c", program) == 0
    reported = json.loads((tmp_path / "reported").read_text())
    assert (reported["metric"], reported["unit"]) == ("cpu_time", "s")
    assert 0.2 <= reported["value"] < 0.4
    assert code("2", sys.executable, "-c", "raise SystemExit(3)") == 3


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.alone
def test_a_slowdown_planted_in_one_command_is_found_in_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    own_speed.git("worktree", "add", "--detach", str(tree), "HEAD")
    try:
        path = tree / "runner" / "cli" / "look" / "plan.py"
        head, sign, rest = path.read_text().partition('    """Print the plan."""\n')
        assert sign
        path.write_text(f"{head}{sign}    sum(number % 7 for number in range(10_000_000))\n{rest}")
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tree), *author, "commit", "-qam", "Slower"], check=True)
        slower = subprocess.run(
            ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
    finally:
        own_speed.git("worktree", "remove", "--force", str(tree))
    monkeypatch.setattr(own_speed, "FOLDER", tmp_path / "own-speed")
    commits = ["--new", slower.stdout.strip(), "--base", "HEAD", "--pinned", "HEAD"]
    assert own_speed.main([*commits, "--only", "help,plan"]) == 4
    verdicts = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert verdicts["plan"].endswith("regressed")
    assert not verdicts["help"].endswith("regressed")
