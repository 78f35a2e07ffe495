"""The command `runner history`, through the complete command line."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.history import replay
from keras_matrix.records.appended import FILE
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.task import Goal, Metric, TaskRun
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import MACHINE, make_record, make_settings
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.sessions import nights, noisy, processes, run_name, store_session
from tests.transcripts import Transcript

BERT = make_settings(workload="bert", backend="torch")
NEWER = {"keras": "3.16.0", "jax": "0.10.0"}


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


def test_an_intended_change_is_noted_and_withdrawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = ("annotate", "mnist_mlp", "--run", run_name(20))
    printed(capsys, *note, "--note", "keras 3.16")
    (one,) = document(capsys, "mnist_mlp")["histories"]
    assert [change["note"] for change in one["changes"]] == ["keras 3.16"]
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


def test_damaged_records_and_notes_are_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sorted((folder / "results" / run_name(3) / "records").iterdir())[0]
    path.write_text("{torn")
    (folder / "results" / FILE).write_text("{torn\n")
    found = document(capsys, "mnist_mlp")
    assert [one["path"].rpartition("/")[2] for one in found["skipped"]] == [path.name, FILE]
    assert found["histories"][0]["sessions"][3]["step_time"]["count"] == 2


def command(speed: float | None, repeat: int) -> Record:
    """One process of a command that reports a speed, where higher is better."""
    metric = Metric("speed", speed, "samples/s", goal=Goal.HIGHER, problem=None if speed else "no_match")
    settings = make_settings(workload="task train", backend="batch_size=32", params={"definition": "0" * 16})
    return make_record(None, repeat, settings=settings, task=TaskRun("train", ["./train"], "speed", [metric]))


def test_an_external_command_has_the_history_of_its_primary_metric(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = [*noisy(800.0, 12), *noisy(640.0, 8, seed=5)]
    for night, speed in enumerate(speeds, start=40):
        processes_ = [command(speed * (1 + 0.001 * repeat), repeat) for repeat in range(3)]
        store_session(folder / "results", run_name(night), [*processes_, command(None, 3)])
    printed(capsys, "task train", "--out", "history.html")
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
    printed(capsys, "mnist_mlp", "--out", "history.html")
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
    monkeypatch.setattr(replay, "SHIFTS", (0.10,))
    monkeypatch.setattr("keras_matrix.runner.cli.history.history.Replays", partial(replay.Replays, sessions=60))
    found = document(capsys, "--calibrate", "--replays", "1")
    assert found["stored_sessions"] == 30
    assert "stored, shuffled" in found["false_alarms"]
    assert [one["replays"] for one in found["delays"]["scatter 1%"]] == [1]
    text = printed(capsys, "--calibrate", "--replays", "1", "--results", "absent")
    assert "1000 (threshold 4.2)" in text
    assert "stored history: 0 sessions" in text


def test_json_lists_all_remarks_of_a_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        (folder / "results" / run_name(number) / "records" / "notes.txt").write_text("")
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


def test_what_is_printed_of_histories(folder: Path, transcript: Transcript, golden: Golden) -> None:
    note = f"history annotate mnist_mlp --run {run_name(20)}"
    transcript.run("history", "history jax:mnist_mlp --last 12", "history bert")
    transcript.run(f"{note} --note 'keras 3.16'", "history mnist_mlp --last 11", f"{note} --withdraw")
    transcript.run("history mnist_mlp --last 1 --out history.html")
    nights(folder / "results", [0.5], first=40, machine=replace(MACHINE, host_id="1" * 16))
    store_session(folder / "results", run_name(41), [replace(r, status=Status.UNSTABLE) for r in processes(9.0)])
    transcript.note("a session of another machine, and one of which all processes are unstable")
    transcript.run("history mnist_mlp --last 1")
    for night, speed in enumerate([*[800.0] * 7, None, *[640.0] * 8]):
        store_session(folder / "commands", run_name(45 + night), [command(speed, repeat) for repeat in range(3)])
    transcript.note("an external command")
    transcript.run("history 'task train' --last 9 --results commands")
    damaged = sorted((folder / "results" / run_name(3) / "records").iterdir())[0]
    damaged.write_text("{torn")
    (folder / "results" / FILE).write_text("{torn\n")
    for number in range(8):
        (folder / "results" / run_name(number) / "records" / "notes.txt").write_text("")
    transcript.note("damaged files, and files of others")
    transcript.run("history mnist_mlp --last 1")
    golden.check("history.txt", transcript.text)


def test_what_is_sent_of_a_change(
    folder: Path, transcript: Transcript, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a token nothing is asked of GitHub; the address of a webhook is a secret."""
    for name in ("GITHUB_TOKEN", "GITHUB_API_URL"):
        monkeypatch.delenv(name, raising=False)
    site = "--owner @alice --site https://bench.example/site/"
    transcript.run(f"history --notify github:octo/bench {site} --dry-run")
    transcript.run(
        "history --notify webhook:https://hooks.example/services/SECRET --owner 'jax:*=@octo/speed' --dry-run"
    )
    golden.check("history_notify.txt", transcript.text)


def test_messages_of_histories_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    store_session(folder / "torn", run_name(0), [])
    (folder / "torn" / run_name(0) / "records" / f"{'0' * 16}.0.0.json").write_text("{torn")
    at = f"--run {run_name(30)}"
    transcript.run(
        "history nonsense",
        "history a b",
        "history --last 0",
        "history --seed -1",
        "history --note x",
        "history --results absent",
        "history --results torn",
        "history annotate mnist_mlp",
        "history annotate bert --run x --note y --withdraw",
        "history annotate bert --run 20200101T000000Z-000000 --note x",
        f"history annotate bert --run {run_name(3)} --note x",
        f"history annotate bert {at} --note 'two\nlines'",
        f"history annotate bert {at} --withdraw",
        "history ack mnist_mlp",
        f"history ack mnist_mlp --run {run_name(20)} --reason ' '",
        f"history ack mnist_mlp --run {run_name(20)} --note x",
        f"history ack mnist_mlp --run {run_name(20)} --withdraw",
        f"history ack mnist_mlp --run {run_name(10)} --reason x",
        f"history ack mnist_mlp --run {run_name(20)} --reason x --notify github:a/b",
    )
    monkeypatch.setenv("GITHUB_TOKEN", "token")
    (folder / "empty").touch()
    (folder / "two").write_text("one two")
    places = ("mail:me", "github:keras", "github:a/b/c", "github:../b", "webhook:example.org/x")
    transcript.run(*(f"history --notify {place}" for place in (*places, "webhook:http://example.org/SECRET")))
    flags = ("--owner alice", "--owner =@alice", "--site bench", "--json", "--calibrate", "--out page.html")
    flags = (*flags, *(f"--token-file {name}" for name in ("absent", "empty", "two")))
    transcript.run(*(f"history --notify github:a/b {flag}" for flag in flags))
    transcript.run("history --notify webhook:https://a.org/ --token-file two", "history nonsense --notify github:a/b")
    transcript.run("history --dry-run", "history --owner @alice")
    monkeypatch.delenv("GITHUB_TOKEN")
    transcript.run("history --notify github:a/b")
    assert "SECRET" not in transcript.text.replace("example.org/SECRET\n!", "")
    assert not (folder / "results" / FILE).exists()
    golden.check("history_refused.txt", transcript.text)
