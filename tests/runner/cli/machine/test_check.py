"""The command `runner check`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.surroundings.disturbance import Cause, Disturbed
from keras_matrix.analysis.surroundings.readings import Check, Driver, Gpu, Process, Rating, Readings
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import preflight as cells
from keras_matrix.runner.machine.surroundings import aa_pairs, snapshot
from keras_matrix.runner.machine.surroundings.aa_pairs import PairResult
from tests.analysis.surroundings.test_examination import QUIET, STRETCH
from tests.golden import Golden
from tests.transcripts import Transcript

BUSY = replace(
    QUIET,
    meanwhile=replace(
        QUIET.meanwhile,
        stretch=replace(STRETCH, cpu_busy_s=30.0),
        others=tuple(Process(f"a-process-with-a-name-{n}"[:20], 0.9, 4194300 + n) for n in range(3)),
    ),
)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the machine's readings and pairs by synthetic ones."""

    def put(readings: Readings, pairs: int = 10, disturbed: Disturbed | None = None) -> None:
        made = [PairResult(0.01 * (-1) ** n, ((1.0, 1.0),), disturbed) for n in range(pairs)]
        monkeypatch.setattr(aa_pairs, "measure", lambda seconds, cpus, seed, report: made)

        def seen(tree: object, cpus: object, measure: Any) -> Readings:
            return replace(readings, pair_log_ratios=tuple(measure()))

        monkeypatch.setattr(snapshot, "look", seen)

    return put


def test_the_installed_builds_are_judged_for_every_gpu(
    pretend: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    v100 = Gpu(0, "Tesla V100", 1_380_000_000, 1_530_000_000, 40, 0, True, (), capability=(7, 0))
    pretend(replace(QUIET, gpus=(v100,), driver=Driver("580.65.06", (13, 0))))
    monkeypatch.setattr(cells, "installed", lambda: {"tensorflow": "2.21.0", "torch": "2.13.0", "jax": "0.10.2"})
    assert main(["check", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    builds = {one["observed"][:40]: one["verdict"] for one in found if one["check"] == "gpu_build"}
    assert builds == {
        "tensorflow 2.21.0 has code for GPU 0": "fine",
        "no_gpu_code: torch 2.13.0 has no code for this GPU"[:40]: "bad",
    }


def test_json_contains_findings_pairs_and_readings(pretend: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pretend(BUSY)
    assert main(["check", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["worst"], len(document["pairs"])) == (1, "bad", 10)
    assert [f["check"] for f in document["findings"] if f["verdict"] == "bad"] == ["other_cpu"]
    assert document["resolution"]["detectable"][0]["pairs"] == 10
    assert document["readings"]["load"] == 0.1


@pytest.mark.alone
@pytest.mark.process
def test_the_real_command_examines_this_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keras_matrix.runner.cli.main", "check", "--seconds", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert done.returncode == (document["worst"] == Rating.BAD)
    assert {f["check"] for f in document["findings"]} >= {c.value for c in Check if not c.value.startswith("gpu_")}
    assert document["pairs"]
    for pair in document["pairs"]:
        assert all(0.01 < seconds < 30 for turn in pair["turn_times_s"] for seconds in turn)
    watched = document["readings"]["meanwhile"]
    assert 0 < watched["own"]["cpu_s"] < watched["stretch"]["cpu_total_s"] * 1.05


def test_what_is_printed_of_a_machine(pretend: Any, transcript: Transcript, golden: Golden) -> None:
    pretend(QUIET)
    transcript.run("check")
    transcript.note("four pairs of measurements")
    pretend(QUIET, pairs=4)
    transcript.run("check")
    transcript.note("other programs use the CPUs, and disturbed every pair")
    pretend(BUSY, disturbed=Disturbed(Cause.OTHER_CPU, 0.25, 0.05))
    transcript.run("check")
    assert max(map(len, transcript.text.splitlines())) <= 80
    transcript.run(*(f"check --seconds={text}" for text in ("", "x", "0", "nan", "601")))
    golden.check("check.txt", transcript.text)
