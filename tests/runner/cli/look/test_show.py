"""`runner show`, `list`, `tensorboard` and `dashboard`: what they print of stored results and of the catalog."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.dashboards.live.app import serve
from keras_matrix.records.schema import DeviceProof, Evidence, Record, Resolved, Status
from keras_matrix.records.task import Goal, Metric, TaskRun
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.catalog import PackageWorkload
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.sessions import processes, run_name, store_session
from tests.transcripts import Transcript

RESOLVED = Resolved(50, 32, "fork", "float32", parameters=3_225_610, forward_flops=103_088_128, learning_rate=1e-3)
TORCH = make_settings(backend="torch")


def command(repeat: int) -> Record:
    """A process of an external command, in whose output the second metric was not found."""
    metrics = [Metric("speed", 800.0, "samples/s", goal=Goal.HIGHER), Metric("wait", None, "ms", problem="no_match")]
    settings = make_settings(workload="task train", backend="batch_size=32", params={"definition": "0" * 16})
    return make_record(None, repeat, settings=settings, task=TaskRun("train", ["./train", "-b=32"], "speed", metrics))


def test_what_is_printed_of_a_cell(tmp_path: Path, transcript: Transcript, golden: Golden) -> None:
    measured = [
        replace(r, times=replace(r.times, epoch_time_median_s=1.0, epoch_time_p95_s=3.0, trace_time_s=0.5))
        for r in processes(0.03, scatter=0.1, resolved=RESOLVED, device=DeviceProof("cpu", "cpu:0", 1))
    ]
    measured[1] = replace(measured[1], warnings=["steal: the hypervisor took 3 % of the CPU time"])
    died = make_record(None, 3, Status.CRASH, evidence=Evidence(signal=11, output_tail="last words\n"))
    died = replace(died, reason="ended by signal 11")
    store_session(tmp_path / "results", run_name(0), [*measured, died])
    transcript.run("show jax:mnist_mlp")
    commands = [command(0), command(1)]
    store_session(tmp_path / "results", run_name(1), commands)
    transcript.note("an external command, in the newest run")
    transcript.run("show train")
    newest = store_session(tmp_path / "results", run_name(2), processes(0.01, settings=TORCH))
    transcript.note("a cell that is not in the newest run, named by the beginning of its id")
    transcript.run(f"show {commands[0].cell_id[:6]}")
    (newest / "records" / f"{commands[0].cell_id}.0.0.json").write_text("{")
    transcript.note("its record in the newest run cannot be read")
    transcript.run("show 'task train'")
    golden.check("show.txt", transcript.text)


def test_messages_of_cells_that_are_not_shown(tmp_path: Path, transcript: Transcript, golden: Golden) -> None:
    transcript.run("show gru")
    both = [*processes(0.03), *processes(0.01, settings=TORCH)]
    run = store_session(tmp_path / "results", run_name(0), both)
    transcript.run("show gru", "show jax:mnist_mpl", "show mnist_mlp", f"show gru --run {run_name(0)}")
    transcript.run(f"show mnist_mlp --run {run_name(1)}", "show mnist_mlp --run latest")
    for path in (run / "records").glob(f"{both[0].cell_id}.*"):
        path.write_text("{")
    transcript.note("no record of the cell can be read")
    transcript.run("show jax:mnist_mlp")
    shutil.rmtree(run)
    run.mkdir()
    (run / "run.json").mkdir()
    transcript.note("the only run is damaged")
    transcript.run("show jax:mnist_mlp")
    golden.check("show_refused.txt", transcript.text)


def test_what_is_printed_of_workloads(monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden) -> None:
    brought = [
        PackageWorkload("theirs", "their_package.models:build", "their-package 1.0"),
        PackageWorkload("lstm", "a:b", "other 2", "lstm of other 2 is also a built-in workload; use a:b"),
    ]
    monkeypatch.setattr(catalog, "of_packages", lambda built_in: brought)
    transcript.note("packages with workloads of their own are installed")
    transcript.run("list", "list lstm", "list theirs", "list mnist_mpl", "list thiers")
    golden.check("list.txt", transcript.text)


def test_what_tensorboard_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    """It replaces this process; without an argument, by that of the newest run with a log folder."""
    replaced: list[list[str]] = []

    def execv(program: str, words: list[str]) -> None:
        replaced.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    packages = {"tensorboard", "tensorboard_plugin_profile"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in packages else None)
    transcript.run("tensorboard", "tensorboard --log-dir nowhere")
    run = store_session(tmp_path / "results", run_name(0), processes(0.03))
    transcript.run("tensorboard")
    (run / "log_dir.json").write_text(json.dumps({"log_dir": str(tmp_path / "logs")}))
    (tmp_path / "logs").mkdir()
    transcript.run("tensorboard --listen here", "tensorboard")
    for missing in ("tensorboard_plugin_profile", "tensorboard"):
        packages.discard(missing)
        transcript.note(f"without the package {missing}")
        transcript.run("tensorboard --listen 127.0.0.1:7000")
    golden.check("tensorboard.txt", transcript.text)
    main = [sys.executable, "-P", "-m", "tensorboard.main", "--logdir", str(tmp_path / "logs"), "--host", "127.0.0.1"]
    assert replaced == [[*main, "--port", "6006"], [*main, "--port", "7000"]]


def test_what_the_dashboard_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    monkeypatch.setattr(serve, "serve", lambda source, place: print(f"serves at {place.host}:{place.port}"))
    store_session(tmp_path / "results", run_name(0), processes(0.03))
    transcript.run(
        "dashboard",
        "dashboard --listen here",
        "dashboard --listen 0.0.0.0:8080",
        "dashboard --from x",
        "dashboard --since yesterday",
        "dashboard --refresh 0",
        "dashboard --refresh nan",
        "dashboard --public http://x",
        "dashboard --maximum-bytes-billed 0",
    )
    shutil.rmtree(tmp_path / "results" / "warehouse")
    (tmp_path / "results" / "warehouse").write_text("in the way")
    transcript.note("a file in the place of the warehouse")
    transcript.run("dashboard")
    golden.check("dashboard.txt", transcript.text)
