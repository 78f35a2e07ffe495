"""The command `runner history`, through the complete command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.appended import FILE
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.task import Goal, Metric, TaskRun
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import MACHINE, make_record, make_settings
from tests.fakes.executor import FakeExecutor
from tests.sessions import nights, noisy, processes, run_name, store_session

BERT = make_settings(workload="bert", backend="torch")
NEWER = {"keras": "3.16.0", "jax": "0.10.0"}
SEARCH = f"runner bisect {cell_id(make_settings())} --package keras --good 3.15.0 --bad 3.16.0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty nights of one cell, the last ten 10 % slower under a newer Keras, and two of another."""
    monkeypatch.chdir(tmp_path)
    nights(tmp_path / "results", noisy(0.0100, 20))
    nights(tmp_path / "results", noisy(0.0110, 10, seed=5), first=20, versions=NEWER)
    nights(tmp_path / "results", [0.2, 0.2], first=30, settings=BERT)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["history", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code > 1 else captured.out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code = main(["history", *arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (1 if found.get("skipped") else 0)
    return found


def test_without_a_cell_each_cell_and_machine_has_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    assert len(lines) == 3
    assert "bert" in lines[1]
    assert run_name(20) in lines[2]


def test_a_cell_is_listed_by_session_with_its_change_and_what_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "jax:mnist_mlp").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  -- "))
    assert "keras 3.15.0 -> 3.16.0" in lines[at]
    assert lines[at + 1].strip() == f"to find the version: {SEARCH}"
    assert lines[at + 2].strip().startswith(run_name(20))
    assert lines[-1].startswith("spread between sessions: ")
    assert lines[-2].startswith(f"baseline: 10 sessions since {run_name(20)}, ")


@pytest.mark.parametrize("cell", ["jax:mnist_mlp", "mnist*", "jax:*", "9451"])
def test_a_cell_is_named_by_workload_backend_pattern_or_id(
    folder: Path, capsys: pytest.CaptureFixture[str], cell: str
) -> None:
    assert [one["title"] for one in document(capsys, cell)["histories"]] == ["mnist_mlp batch_size=32 on jax"]


def test_json_contains_sessions_changes_levels_and_spread(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = document(capsys, "mnist_mlp")["histories"]
    assert len(one["sessions"]) == 30
    (change,) = one["changes"]
    assert (change["run_id"], change["ratio"]) == (run_name(20), pytest.approx(1.1, rel=0.01))
    assert change["versions"] == [{"name": "keras", "before": "3.15.0", "after": "3.16.0", "sessions_off": 0}]
    assert one["spread"]["sessions"] == 10
    (bert,) = document(capsys, "bert")["histories"]
    assert (bert["spread"], bert["changes"]) == (None, [])


def test_few_sessions_are_listed_with_the_number_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "bert")
    assert "spread between sessions: needs 5 sessions, 2 so far" in text
    assert "changes: need at least 6 sessions" in text


def test_the_newest_sessions_are_listed_and_the_rest_is_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "mnist_mlp", "--last", "3")
    assert "27 earlier sessions" in text
    assert run_name(26) not in text
    assert run_name(27) in text


def test_an_intended_change_is_noted_shown_and_withdrawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = ("annotate", "mnist_mlp", "--run", run_name(20))
    assert printed(capsys, *note, "--note", "keras 3.16") == f"noted for 1 cell from run {run_name(20)} on\n"
    (one,) = document(capsys, "mnist_mlp")["histories"]
    assert [change["note"] for change in one["changes"]] == ["keras 3.16"]
    shown = printed(capsys, "mnist_mlp")
    assert ("intended change of +10" in shown, SEARCH in shown) == (True, False)
    printed(capsys, *note, "--withdraw")
    (one,) = document(capsys, "mnist_mlp")["histories"]
    assert [change["note"] for change in one["changes"]] == [None]
    assert len((folder / "results" / FILE).read_text().splitlines()) == 2


def test_note_is_stored_in_the_folder_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights(folder / "other", [0.01], first=40)
    folders = ("--results", "results", "--results", "other")
    printed(capsys, "annotate", "mnist_mlp", "--run", run_name(40), "--note", "moved", *folders)
    assert (folder / "other" / FILE).exists()
    (one,) = document(capsys, "mnist_mlp", *folders)["histories"]
    assert (len(one["sessions"]), one["changes"][-1]["note"]) == (31, "moved")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "CELL: no stored cell is named 'nonsense'; there are jax:mnist_mlp, torch:bert"),
        (["a", "b"], "CELL: name one cell or pattern, got 2: a b"),
        (["--last", "0"], "--last: must be at least 1, got 0"),
        (["--seed", "-1"], "--seed: must be at least 0, got -1"),
        (["--note", "x"], "--note: belongs to: runner history annotate"),
        (["annotate", "mnist_mlp"], "annotate: needs CELL, --run RUN, and one of --note TEXT and --withdraw"),
        (["annotate", "bert", "--run", "x", "--note", "y", "--withdraw"], "annotate: needs CELL"),
        (["annotate", "bert", "--run", "20200101T000000Z-000000", "--note", "x"], "--run: no run '20200101T000000Z"),
        (["annotate", "bert", "--run", run_name(3), "--note", "x"], "has no cell named 'bert'"),
        (["annotate", "bert", "--run", run_name(30), "--note", "two\nlines"], "--note: must be one line"),
        (["annotate", "bert", "--run", run_name(30), "--withdraw"], "has no note at run"),
        (["--results", "absent"], "--results: absent contains no run; measure one with"),
    ],
)
def test_bad_input_is_one_clear_error(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in printed(capsys, *arguments, code=2)
    assert not (folder / "results" / FILE).exists()


def test_several_machines_have_separate_histories_with_a_remark(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights(folder / "results", [0.5], first=40, machine=replace(MACHINE, host_id="1" * 16))
    text = printed(capsys, "mnist_mlp")
    assert "measured on 2 machines or devices" in text
    assert text.count("baseline: ") == 2


def test_damaged_records_and_notes_are_skipped_with_a_remark(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sorted((folder / "results" / run_name(3) / "records").iterdir())[0]
    path.write_text("{torn")
    (folder / "results" / FILE).write_text("{torn\n")
    found = document(capsys, "mnist_mlp")
    assert [one["path"].rpartition("/")[2] for one in found["skipped"]] == [path.name, FILE]
    assert found["histories"][0]["sessions"][3]["step_time"]["count"] == 2
    assert f"skipped: results/{run_name(3)}/records/{path.name}: not JSON" in printed(capsys, "mnist_mlp", code=1)


def test_folder_with_only_damaged_records_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = run_name(0)
    (path,) = sorted(store_session(folder / "torn", name, processes(0.01, count=1)).glob("records/*.json"))
    path.write_text("{torn")
    assert "torn contains no readable record: " in printed(capsys, "--results", "torn", code=2)


def test_failed_and_unstable_processes_are_counted_next_to_the_value(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = [replace(record, status=Status.UNSTABLE, reason="x") for record in processes(9.0)]
    store_session(folder / "results", run_name(50), spoilt)
    assert "3 unstable" in printed(capsys, "mnist_mlp", "--last", "1")


def command(speed: float | None, repeat: int) -> Record:
    """One process of a command that reports a speed, where higher is better."""
    metric = Metric("speed", speed, "samples/s", goal=Goal.HIGHER, problem=None if speed else "no_match")
    settings = make_settings(workload="task train", backend="batch_size=32", params={"definition": "0" * 16})
    return make_record(None, repeat, settings=settings, task=TaskRun("train", ["./train"], "speed", [metric]))


def test_an_external_command_is_listed_and_drawn_by_its_primary_metric(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = [*noisy(800.0, 12), *noisy(640.0, 8, seed=5)]
    for night, speed in enumerate(speeds, start=40):
        processes_ = [command(speed * (1 + 0.001 * repeat), repeat) for repeat in range(3)]
        store_session(folder / "results", run_name(night), [*processes_, command(None, 3)])
    assert "samples/s" in next(line for line in printed(capsys).splitlines() if "task train" in line)
    text = printed(capsys, "task train", "--out", "history.html")
    head = next(line for line in text.splitlines() if line.strip().startswith("session"))
    assert head.split()[:2] == ["session", "speed"]
    assert "1 ok without a value" in text
    assert f"baseline: 8 sessions since {run_name(52)}, " in text
    [found] = document(capsys, "task train")["histories"]
    assert found["figure"] == {"name": "speed", "unit": "samples/s", "goal": "higher"}
    [change] = found["changes"]
    assert change["ratio"] == pytest.approx(0.8, rel=0.02)
    page = (folder / "history.html").read_text()
    assert "speed, samples/s</p>" in page
    assert 'class="change slower"' in page


def test_command_with_an_invalid_metric_is_skipped_with_a_remark(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = store_session(folder / "results", run_name(40), [command(800.0, 0), command(810.0, 1)])
    path = sorted((run / "records").iterdir())[0]
    fields = json.loads(path.read_text())
    fields["task"]["metrics"][0]["value"] = "fast"
    path.write_text(json.dumps(fields))
    found = document(capsys, "task train")
    assert [one["reason"] for one in found["skipped"]] == ["task.metrics: must be finite numbers, got 'fast'"]
    assert found["histories"][0]["sessions"][0]["step_time"]["count"] == 1


def test_a_page_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "page: history.html" in printed(capsys, "mnist_mlp", "--out", "history.html")
    page = (folder / "history.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "mnist_mlp batch_size=32 on jax" in page


def test_run_length_changes_the_threshold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights(folder / "small", [*noisy(0.01, 15), *noisy(0.01014, 10, seed=5)])
    counts = [
        len(document(capsys, "--results", "small", "--false-alarm-every", every)["histories"][0]["changes"])
        for every in ("300", "3000")
    ]
    assert counts == [1, 0]


def test_rule_is_measured_by_replay_of_models_and_stored_histories(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keras_matrix.runner.service.change_rule.SHIFTS", (0.10,))
    found = document(capsys, "--calibrate", "--replays", "1")
    assert found["stored_sessions"] == 30
    assert "stored, shuffled" in found["false_alarms"]
    assert [one["replays"] for one in found["delays"]["scatter 1%"]] == [1]
    text = printed(capsys, "--calibrate", "--replays", "1", "--results", "absent")
    assert "1000 (threshold 4.2)" in text
    assert "stored history: 0 sessions" in text


def test_many_remarks_of_a_kind_are_counted_and_json_lists_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(8):
        (folder / "results" / run_name(number) / "records" / "notes.txt").write_text("")
    assert "and 3 more of these; --json lists them" in printed(capsys, code=1)
    assert len(document(capsys)["skipped"]) == 8


def test_runs_of_the_runner_itself_are_sessions_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = "version: 1\nbackends: [jax]\ncells:\n  - {workload: mnist_mlp, repeats: 5}\n"
    (tmp_path / "matrix.yaml").write_text(matrix)
    for _ in range(2):
        assert main(["--matrix", "matrix.yaml", "--results", "mine"], Seams(executor=FakeExecutor())) == 0
    capsys.readouterr()
    found = document(capsys, "--results", "mine")
    (one,) = found["histories"]
    assert [session["step_time"]["count"] for session in one["sessions"]] == [5, 5]
    assert (found["caveats"], found["skipped"]) == ([], [])
