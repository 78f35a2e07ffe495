"""The spread between stored sessions, in comparisons across sessions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.appended import Annotation, append
from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.service.histories import across_stored
from tests.conftest import MACHINE
from tests.sessions import nights, noisy, processes, run_name, store_session

BASE, NEW = processes(0.0100), processes(0.0120)
CELL = BASE[0].cell_id


def width(roots: list[Path], base: list[Record], new: list[Record], compared: set[str] | None = None) -> float | None:
    """Return the ratio of an interval's ends; None without an interval."""
    found = across_stored(roots, compared or set(), {CELL})(base, new)
    assert found is not None
    ratio = found.estimate
    assert ratio.centre == pytest.approx(1.2)
    return ratio.high / ratio.low if ratio.low is not None and ratio.high is not None else None


def test_five_stored_sessions_give_the_ratio_an_interval_and_four_do_not(tmp_path: Path) -> None:
    nights(tmp_path, noisy(0.01, 4))
    assert width([tmp_path], BASE, NEW) is None
    nights(tmp_path, noisy(0.01, 1, seed=8), first=4)
    assert width([tmp_path], BASE, NEW) is not None


def test_compared_runs_are_left_out_of_the_spread(tmp_path: Path) -> None:
    nights(tmp_path, [*noisy(0.01, 5), 0.012])
    assert width([tmp_path], BASE, NEW, {run_name(0), run_name(5)}) is None
    alone, run_context = (width([tmp_path], BASE, NEW, compared) for compared in ({run_name(5)}, set()))
    assert alone is not None
    assert run_context is not None
    assert alone < run_context


def test_sessions_of_another_machine_are_not_used(tmp_path: Path) -> None:
    nights(tmp_path, noisy(0.01, 8))
    elsewhere = replace(MACHINE, host_id="1" * 16)
    there = [processes(value, machine=elsewhere) for value in (0.0100, 0.0120)]
    assert width([tmp_path], *there) is None
    assert width([tmp_path], BASE, there[1]) is None


def test_annotated_change_restarts_the_spread(tmp_path: Path) -> None:
    nights(tmp_path, noisy(0.01, 9))
    assert width([tmp_path], BASE, NEW) is not None
    append(tmp_path, [Annotation(run_name(5), [CELL], [MACHINE.host_id], "a new kernel", "mnist_mlp")])
    assert width([tmp_path], BASE, NEW) is None


def test_several_folders_are_one_history(tmp_path: Path) -> None:
    nights(tmp_path / "one", noisy(0.01, 3))
    nights(tmp_path / "two", noisy(0.01, 3, seed=8), first=3)
    assert width([tmp_path / "one"], BASE, NEW) is None
    assert width([tmp_path / "one", tmp_path / "two"], BASE, NEW) is not None


def test_compare_uses_the_spread_of_the_stored_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = nights(tmp_path, [*noisy(0.01, 10), 0.0100, 0.0120])
    main(["compare", names[-2], names[-1], "--results", str(tmp_path), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["ratio"]["centre"] == pytest.approx(1.2)
    assert 1.1 < found["ratio"]["low"] < 1.2 < found["ratio"]["high"] < 1.3


@pytest.mark.parametrize(("new_s", "code"), [(0.0120, 4), (0.0104, 5), (0.0100, 0)])
def test_gate_over_two_stored_sessions_has_an_interval(tmp_path: Path, new_s: float, code: int) -> None:
    names = nights(tmp_path, [*noisy(0.01, 10), 0.0100, new_s])
    assert main(["gate", names[-2], names[-1], "--results", str(tmp_path)]) == code


def test_only_processes_that_ended_ok_are_compared_across_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights(tmp_path, noisy(0.01, 10))
    slow = [replace(r, repeat=r.repeat + 3, status=Status.UNSTABLE) for r in processes(0.02)]
    store_session(tmp_path, run_name(10), [*processes(0.01), *slow])
    nights(tmp_path, [0.01], first=11)
    flags = [run_name(10), run_name(11), "--results", str(tmp_path)]
    assert main(["gate", *flags]) == 0
    capsys.readouterr()
    main(["compare", *flags, "--json"])
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["ratio"]["centre"] == pytest.approx(1.0)


def test_other_arm_of_a_compared_run_is_left_out_of_the_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights(tmp_path, noisy(0.01, 4))
    runs = {"base": run_name(4), "new": run_name(5)}
    arms = {arm: {"python": None, "fault": None} for arm in runs}
    for arm, name in runs.items():
        store_session(tmp_path, name, processes(0.01), arm=arm, arms=arms, runs=runs, session=run_name(4))
    nights(tmp_path, [0.012], first=6)
    main(["compare", runs["new"], run_name(6), "--results", str(tmp_path), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (found["ratio"]["low"], found["ratio"]["centre"]) == (None, pytest.approx(1.2))
