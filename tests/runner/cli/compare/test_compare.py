"""`runner compare` and `runner gate` with sides that lack a figure, and with invalid flags."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.progress.time_left import result
from keras_matrix.runner.service.compare import rule_of
from tests.conftest import MACHINE, make_record, make_settings
from tests.fakes.executor import FakeExecutor
from tests.sessions import nights, processes, run_name, store_session


class Bare(Interpreter):
    """A Python environment without any package."""

    def absent(self, packages: Iterable[str]) -> list[str]:
        """All of them."""
        return list(packages)

    def versions(self) -> dict[str, str]:
        """That of Python alone."""
        return {"python": "3.11.0"}


def pair(root: Path, base: Sequence[Record], new: Sequence[Record]) -> list[str]:
    """Store both sides as one session and return the flags that name them."""
    names = [run_name(0), run_name(1)]
    for name, arm, records in zip(names, ("base", "new"), (base, new), strict=True):
        store_session(root, name, records, session=names[0], arm=arm)
        (root / name / "finished.json").write_text("{}")
    return [*names, "--results", str(root)]


def run(flags: Sequence[str], capsys: pytest.CaptureFixture[str], command: str = "gate") -> tuple[int, str]:
    code = main([command, *flags])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def document(flags: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["compare", *flags, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_one_repeat_gives_no_interval_and_says_how_many_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = pair(tmp_path, processes(0.01, count=1), processes(0.02, count=1))
    assert run(flags, capsys)[0] == 1
    (one,) = document(flags, capsys)["comparisons"]
    assert one["reason"] == "no interval from 1 block in common: needs 5; use --repeats 5"
    assert (one["ratio"]["low"], one["ratio"]["high"]) == (None, None)


def test_side_without_a_time_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = pair(tmp_path, processes(0.01, count=5), processes(0.01, count=5))
    for path in (tmp_path / run_name(1) / "records").iterdir():
        record = json.loads(path.read_text())
        record["times"] |= {"step_time_s": None, "epoch_times_s": []}
        path.write_text(json.dumps(record))
    code, printed = run(flags, capsys)
    assert code == 1
    assert "no measured epoch in new: nothing was timed" in printed


@pytest.mark.parametrize("step_time_s", [-0.01, 0.0])
def test_impossible_time_is_skipped_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step_time_s: float
) -> None:
    flags = pair(tmp_path, processes(0.01, count=6), processes(0.01, count=6))
    path = sorted((tmp_path / run_name(1) / "records").iterdir())[0]
    record = json.loads(path.read_text())
    record["times"]["step_time_s"] = step_time_s
    path.write_text(json.dumps(record))
    found = document(flags, capsys)
    assert len(found["comparisons"][0]["log_ratios"]) == 5
    (note,) = found["notes"]
    assert note.startswith(f"new: 1 file of {run_name(1)} skipped, first {path.name}: times.step_time_s: must be")


def failing(well: int, count: int = 9, status: Status = Status.CRASH) -> list[Record]:
    """Records of a cell that fails after so many repeats."""
    return [*processes(0.01, count=well), *(make_record(None, repeat, status) for repeat in range(well, count))]


@pytest.mark.parametrize(
    ("base", "new", "code"),
    [
        (failing(9), failing(5), 1),
        (failing(9), failing(8), 1),
        (failing(8), failing(7), 1),
        (failing(7, status=Status.TIMEOUT), failing(7), 1),  # as often, but in another way
        (failing(7), failing(7), 0),
        (failing(5), failing(9), 0),
        (failing(9), failing(7, status=Status.INFRA), 0),  # no fault of the cell
        (failing(7, count=9), failing(7, count=8), 0),  # a run that is not finished
    ],
)
def test_cell_that_fails_more_often_than_before_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: list[Record], new: list[Record], code: int
) -> None:
    assert run(pair(tmp_path, base, new), capsys)[0] == code


def test_partly_failed_cell_is_listed_with_its_ratio_but_in_no_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = processes(0.01, count=9, **OTHER)
    flags = pair(tmp_path, [*failing(9), *whole], [*failing(5), *whole])
    code, printed = run([*flags, "--markdown", str(tmp_path / "page.md")], capsys)
    assert code == 1
    assert "failed: mnist_mlp batch_size=32 on jax: new: crash in 4 of 9 repeats: a reason" in printed
    assert "failed: mnist_mlp" in (tmp_path / "page.md").read_text()
    found = document(flags, capsys)
    by_outcome = {one["outcome"]: one for one in found["comparisons"]}
    failed = by_outcome["not measured"]
    assert failed["failures"] == ["new: crash in 4 of 9 repeats: a reason"]
    assert failed["reason"] == "not measured in new: crash in 4 of 9 repeats"
    assert failed["ratio"]["high"] < 1.05
    assert found["whole"]["workloads"] == [f"jax {by_outcome['no worse']['cell_id']}"]
    assert found["whole"]["estimate"]["count"] == 9


def test_slowdown_of_the_remaining_repeats_is_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = [*processes(0.02, count=11), make_record(None, 11, Status.CRASH)]
    code, printed = run(pair(tmp_path, processes(0.01, count=12), slow), capsys)
    assert (code, "new: crash in 1 of 12 repeats" in printed) == (4, True)


OTHER = {"settings": make_settings(batch_size=64)}


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (processes(0.01, count=6, **OTHER), 0),
        ([], 1),
        (processes(0.01, count=4, **OTHER), 1),
        ([*processes(0.01, count=3, **OTHER), *processes(0.01, count=6, versions={"keras": "2"}, **OTHER)[3:]], 1),
        (processes(0.01, count=6, machine=replace(MACHINE, host_id="1" * 16), **OTHER), 1),
    ],
    ids=["whole", "gone", "too few", "mixed", "elsewhere"],
)
def test_cell_without_a_figure_fails_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: list[Record], code: int
) -> None:
    good = processes(0.01, count=6)
    flags = pair(tmp_path, [*good, *processes(0.01, count=6, **OTHER)], [*good, *other])
    assert run(flags, capsys)[0] == code


def test_a_comparison_ends_with_1_where_no_cell_has_a_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = pair(tmp_path / "both", processes(0.01, count=1), processes(0.02, count=1))
    one = pair(tmp_path / "one", processes(0.01, count=5), [])
    assert [run(flags, capsys, "compare")[0] for flags in (both, one)] == [0, 1]


def test_document_has_separate_figures_for_base_and_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = pair(tmp_path, processes(0.01, count=5), processes(0.02, count=5))
    (one,) = document(flags, capsys)["comparisons"]
    assert (one["base_step_time_s"], one["new_step_time_s"]) == pytest.approx((0.01, 0.02), rel=1e-4)
    assert one["ratio"]["centre"] == pytest.approx(2.0)
    assert one["log_ratios"] == pytest.approx([math.log(2)] * 5)


def test_median_and_p95_are_printed_next_to_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = processes(0.01, scatter=0.0, count=5), processes(0.01, scatter=0.0, count=5)
    new[4] = make_record(0.02, 4, versions=new[4].versions)
    flags = pair(tmp_path, base, new)
    (found,) = document(flags, capsys)["comparisons"]
    assert (found["base_median"], found["new_median"]) == pytest.approx((0.01, 0.01))
    assert (found["base_p95"], found["new_p95"]) == pytest.approx((0.01, 0.018))
    (line,) = (line for line in run(flags, capsys)[1].splitlines() if " : " in line)
    assert line.split()[:7] == ["mnist_mlp", "jax", "+0.0", "%", "+80.0", "%", "-"]


def test_show_prints_median_and_p95_of_each_process_and_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        replace(r, times=replace(r.times, epoch_time_median_s=1.0, epoch_time_p95_s=3.0))
        for r in processes(0.03, scatter=0.1)
    ]
    store_session(tmp_path, run_name(0), records)
    assert main(["show", "jax:mnist_mlp", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"ms +20\.0 ms +60\.0 ms", printed)) == 3
    for label, value in {
        "median of processes": "30.0",
        "p95 of processes": "32.7",
        "median of epochs": "20.0",
        "p95 of epochs": "60.0",
    }.items():
        assert re.search(rf"{label} +{re.escape(value)} ms", printed)


@pytest.mark.parametrize(
    ("names", "shares"),
    [("", 1), ("recompiles", 1), ("scatter", 2), ("unstable", 2), ("first-epoch, scatter,recompiles,scatter", 3)],
)
def test_false_alarm_rate_is_shared_among_the_tested_kinds(names: str, shares: int) -> None:
    assert rule_of(0.05, names).level == pytest.approx(0.01 / shares)


def test_unfinished_run_has_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = pair(tmp_path, processes(0.01, count=5), processes(0.01, count=5))
    (tmp_path / run_name(1) / "finished.json").unlink()
    assert f"new: {run_name(1)} is not finished, 5 processes so far" in run(flags, capsys)[1]


def test_two_sessions_without_a_known_spread_have_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*nights(tmp_path, [0.01, 0.02]), "--results", str(tmp_path)]
    code, printed = run(flags, capsys)
    assert code == 5
    assert "undecided: no interval across these sessions" in printed
    assert "measure both interleaved: --base-env" in printed


def test_side_without_a_figure_is_not_listed_as_changed_software(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = pair(tmp_path, processes(0.01, count=5), [])
    assert "only in base" in run(flags, capsys)[1]
    assert document(flags, capsys)["changed"] == []


def test_the_document_names_its_runs_and_its_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = pair(tmp_path, processes(0.01, count=5), processes(0.01, count=5))
    found = document([*flags, "--threshold", "0.2"], capsys)
    assert (found["base"], found["new"], found["threshold"]) == (run_name(0), run_name(1), 0.2)
    assert found["notes"] == []


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--out", "nowhere/page.html"], "--out: must be a file in an existing folder, got nowhere/page.html"),
        (["--out", "page.pdf"], "--out: must end in .html, got 'page.pdf'"),
        (["--markdown", "."], "--markdown: must be a file in an existing folder"),
        (["--threshold", "5%"], "--threshold: must be a number from 0 to 10, got '5%'; write 0.05 for 5 %"),
        (["--threshold", "nan"], "--threshold: must be a number from 0 to 10, got 'nan'"),
        (["--repeats", "many"], "--repeats: must be auto or a whole number from 1 to 1000, got 'many'"),
    ],
)
def test_invalid_flag_is_one_line_before_anything_is_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed = run(["--plant", "slower:0.1", *flags], capsys)
    assert code == 2
    assert printed.startswith(f"runner: {complaint}")
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_unknown_run_is_refused_with_the_known_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = nights(tmp_path, [0.01])
    code, printed = run([name[:-1], name, "--results", str(tmp_path)], capsys, "gate")
    assert code == 2
    assert printed.startswith(f"runner: gate: '{name[:-1]}' is neither a run's folder")
    assert f"did you mean {name}?" in printed


def test_a_run_is_not_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = nights(tmp_path, [0.01])
    code, printed = run([name, str(tmp_path), "--results", str(tmp_path)], capsys, "gate")
    assert (code, "BASE and NEW are the same run" in printed) == (2, True)


@pytest.mark.parametrize("seconds", ["-4", "nan", "soon"])
def test_invalid_cost_time_is_refused(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert run(["--stored", "--cost-s", seconds], capsys, "selftest")[0] == 2


def test_a_misspelt_command_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(["a", "b"], capsys, "comprae")
    assert code == 2
    assert printed.endswith("got 'comprae'; did you mean compare?\n")


def test_progress_shows_that_a_block_was_disturbed() -> None:
    record = make_record(0.01, 0)
    noisy = replace(record, surroundings=replace(record.surroundings, disturbed="other_cpu: 12 %"))
    assert result(record) == "ok, 10.0 ms a step"
    assert result(noisy) == "ok, 10.0 ms a step, disturbed by others"


def test_an_environment_without_keras_is_refused_before_the_other_side_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n")
    monkeypatch.setattr(
        "keras_matrix.runner.executors.process.interpreter.of_environment", lambda folder, flag: Bare(str(folder))
    )
    code, printed = run(["--base-env", "bare"], capsys)
    assert (code, printed.startswith("runner: --base-env: bare has no keras, numpy, jax; install")) == (2, True)
    assert not (tmp_path / "results").exists()


def test_external_commands_without_backends_are_measured_in_an_environment_without_keras(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "keras_matrix.runner.executors.process.interpreter.of_environment", lambda folder, flag: Bare(str(folder))
    )
    sides = ["--base-env", "bare", "--new-env", "bare", "--repeats", "1"]
    for backends, code in (("", 1), (", backends: [jax]", 2)):
        (tmp_path / "matrix.yaml").write_text(f"version: 1\ntasks: [{{task: hello, command: [train]{backends}}}]\n")
        assert main(["gate", *sides], Seams(executor=FakeExecutor())) == code
        assert ("bare has no keras, numpy, jax" in capsys.readouterr().err) is (code == 2)


def test_another_environment_is_refused_where_cells_run_in_containers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "keras_matrix.runner.executors.process.interpreter.of_environment", lambda folder, flag: Bare(str(folder))
    )
    code, printed = run(["--base-env", "bare", "--executor", "docker"], capsys)
    assert (code, printed.startswith("runner: --executor docker: its cells bring their own environment")) == (2, True)
