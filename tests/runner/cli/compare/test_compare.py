"""`runner compare` and `runner gate` with sides that lack a figure, and with invalid flags."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record, Status, Times
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.environments.layered import BaseEnvironment
from keras_matrix.runner.environments.revisions import Place, Revised
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.progress.time_left import result
from keras_matrix.runner.service.compare import rule_of
from tests.conftest import MACHINE, make_record, make_settings
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.sessions import nights, noisy, processes, run_name, store_session
from tests.transcripts import Transcript


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
    assert run([*flags, "--markdown", str(tmp_path / "page.md")], capsys)[0] == 1
    assert "failed: mnist_mlp" in (tmp_path / "page.md").read_text()
    found = document(flags, capsys)
    by_outcome = {one["outcome"]: one for one in found["comparisons"]}
    failed = by_outcome["not measured"]
    assert failed["failures"] == ["new: crash in 4 of 9 repeats: a reason"]
    assert failed["reason"] == "not measured in new: crash in 4 of 9 repeats"
    assert failed["ratio"]["high"] < 1.05
    assert found["whole"]["workloads"] == [f"jax {by_outcome['no worse']['cell_id']}"]
    assert found["whole"]["estimate"]["count"] == 9


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


def test_document_has_median_and_p95_besides_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = processes(0.01, scatter=0.0, count=5), processes(0.01, scatter=0.0, count=5)
    new[4] = make_record(0.02, 4, versions=new[4].versions)
    flags = pair(tmp_path, base, new)
    (found,) = document(flags, capsys)["comparisons"]
    assert (found["base_median"], found["new_median"]) == pytest.approx((0.01, 0.01))
    assert (found["base_p95"], found["new_p95"]) == pytest.approx((0.01, 0.018))


@pytest.mark.parametrize(
    ("names", "shares"),
    [("", 1), ("recompiles", 1), ("scatter", 2), ("unstable", 2), ("first-epoch, scatter,recompiles,scatter", 3)],
)
def test_false_alarm_rate_is_shared_among_the_tested_kinds(names: str, shares: int) -> None:
    assert rule_of(0.05, names).level == pytest.approx(0.01 / shares)


def test_side_without_a_figure_is_not_listed_as_changed_software(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = pair(tmp_path, processes(0.01, count=5), [])
    assert document(flags, capsys)["changed"] == []


def test_the_document_names_its_runs_and_its_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = pair(tmp_path, processes(0.01, count=5), processes(0.01, count=5))
    found = document([*flags, "--threshold", "0.2"], capsys)
    assert (found["base"], found["new"], found["threshold"]) == (run_name(0), run_name(1), 0.2)
    assert found["notes"] == []


def test_progress_shows_that_a_block_was_disturbed() -> None:
    record = make_record(0.01, 0)
    noisy = replace(record, surroundings=replace(record.surroundings, disturbed="other_cpu: 12 %"))
    assert result(record) == "ok, 10.0 ms a step"
    assert result(noisy) == "ok, 10.0 ms a step, disturbed by others"


def test_external_commands_without_backends_are_measured_in_an_environment_without_keras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "keras_matrix.runner.executors.process.interpreter.of_environment", lambda folder, flag: Bare(str(folder))
    )
    sides = ["--base-env", "bare", "--new-env", "bare", "--repeats", "1"]
    for backends, code in (("", 1), (", backends: [jax]", 2)):
        (tmp_path / "matrix.yaml").write_text(f"version: 1\ntasks: [{{task: hello, command: [train]{backends}}}]\n")
        assert main(["gate", *sides], Seams(executor=FakeExecutor())) == code


def store_pairs(root: Path) -> None:
    """Store two runs in each of some folders, which are named after what a comparison of the runs shows."""
    other = processes(0.01, count=9, **OTHER)
    slow = [*processes(0.02, count=11), make_record(None, 11, Status.CRASH)]
    pair(root / "equal", processes(0.01, count=12), processes(0.01, count=12))
    pair(root / "slower", processes(0.01, count=12), slow)
    pair(root / "failing", [*failing(9), *other], [*failing(5), *other])
    pair(root / "one_repeat", processes(0.01, count=1), processes(0.02, count=1))
    pair(root / "only_in_base", processes(0.01, count=5), [])
    untimed = [replace(r, times=Times()) for r in processes(0.01, count=5)]
    pair(root / "untimed", processes(0.01, count=5), untimed)
    pair(root / "unfinished", processes(0.01, count=5), processes(0.0101, count=5))
    (root / "unfinished" / run_name(1) / "finished.json").unlink()
    damaged = sorted((root / "unfinished" / run_name(1) / "records").iterdir())[0]
    record = json.loads(damaged.read_text())
    record["times"]["step_time_s"] = -0.01
    damaged.write_text(json.dumps(record))
    nights(root / "two_sessions", [0.01, 0.02])
    nights(root / "history", [0.0100, 0.0104, *noisy(0.01, 10)])


@pytest.mark.parametrize("command", ["compare", "gate"])
def test_what_is_printed_of_two_runs(command: str, tmp_path: Path, transcript: Transcript, golden: Golden) -> None:
    store_pairs(tmp_path)
    sides = f"{command} {run_name(0)} {run_name(1)}"
    names = ["equal", "slower", "failing", "one_repeat", "history"]
    if command == "compare":
        names += ["only_in_base", "untimed", "unfinished", "two_sessions"]
    transcript.run(*(f"{sides} --results {name}" for name in names))
    golden.check(f"{command}.txt", transcript.text)


def test_messages_of_comparisons_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    """They begin with the name of the command; nothing is measured."""
    (name,) = nights(tmp_path / "stored", [0.01])
    (tmp_path / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n")
    transcript.run("compare --base-env nowhere", f"compare --plant slower:1 {name} --results stored")
    monkeypatch.setattr(
        "keras_matrix.runner.executors.process.interpreter.of_environment", lambda folder, flag: Bare(str(folder))
    )
    transcript.run(
        "gate --plant slower:0.1 --out nowhere/page.html",
        "gate --plant slower:0.1 --out page.pdf",
        "gate --plant slower:0.1 --markdown .",
        "gate --plant slower:0.1 --threshold 5%",
        "gate --plant slower:0.1 --threshold nan",
        "gate --plant slower:0.1 --repeats many",
        "gate --plant slower:0.1 --threshold -1",
        "gate --plant faster:0.1",
        "gate --plant recompile:0.5",
        "gate --also speed",
        f"gate {name[:-1]} {name} --results stored",
        f"gate {name} stored --results stored",
        f"compare {name} --results stored",
        "compare",
        "compare a b",
        "comprae a b",
        "gate --base-env bare",
        "gate --base-env bare --executor docker",
        "selftest --stored --cost-s -4",
        "selftest --stored --cost-s soon",
        "selftest --stored",
        "selftest --stored --plant slower:0.1",
        "selftest --stored --parallel-devices",
        "selftest --plant slower",
    )
    assert not (tmp_path / "results").exists()
    golden.check("compare_refused.txt", transcript.text)


def store_three_arms(root: Path, null_s: float) -> None:
    """Store a session of two cells whose new side takes 1.3 times as long, and whose second base this time."""
    cells = (make_settings(batch_size=16), make_settings(batch_size=32))
    names = {arm: run_name(number) for number, arm in enumerate(("base", "new", "null"))}
    for arm, time_s, scatter in zip(names, (0.01, 0.013, null_s), (0.002, 0.01, 0.003), strict=True):
        records = [record for settings in cells for record in processes(time_s, scatter, count=12, settings=settings)]
        store_session(root, names[arm], records, session=names["base"], arm=arm, runs=names)
        (root / names[arm] / "finished.json").write_text("{}")


def test_what_is_printed_of_null_arms(tmp_path: Path, transcript: Transcript, golden: Golden) -> None:
    """Mutation: a session whose base differs from itself still has a verdict."""
    store_three_arms(tmp_path / "quiet", 0.01)
    store_three_arms(tmp_path / "shaken", 0.0103)
    sides = f"{run_name(0)} {run_name(1)}"
    transcript.run(*(f"gate {sides} --results {name} --threshold 0.05" for name in ("quiet", "shaken")))
    transcript.run(f"compare {sides} --results quiet --markdown comment.md --out page.html", brief=True)
    transcript.run(f"compare {sides} --results quiet --null")
    golden.check("compare_null.txt", transcript.text + (tmp_path / "comment.md").read_text())
    assert "a change would show from" in (tmp_path / "page.html").read_text()


def test_base_is_measured_by_a_second_arm_that_no_gate_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: the null arm has the planted fault; the gate counts it among its pairs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n")
    flags = ["--plant", "slower:0.5", "--null", "--repeats", "6", "--json"]
    main(["compare", *flags], Seams(executor=FakeExecutor()))
    found = json.loads(capsys.readouterr().out)
    assert (found["null"]["count"], found["null"]["void"]) == (1, False)
    assert found["comparisons"][0]["shown_from"] is not None
    arms = {json.loads(path.read_text())["arm"]: path.parent for path in (tmp_path / "results").glob("*/run.json")}
    assert set(arms) == {"base", "new", "null"}
    faults = {arm: json.loads((folder / "run.json").read_text())["arms"][arm]["fault"] for arm, folder in arms.items()}
    assert faults["null"] == faults["base"] != faults["new"]


def counted_cells(results: Path) -> dict[str, dict[str, Any]]:
    """Return the content of `counts.json` of each arm."""
    runs = {json.loads(path.read_text())["arm"]: path.parent for path in results.glob("*/run.json")}
    return {arm: json.loads((folder / "counts.json").read_text())["cells"] for arm, folder in runs.items()}


def test_what_is_printed_of_counts(tmp_path: Path, transcript: Transcript, golden: Golden) -> None:
    """Mutation: a difference within one side is called certain; the counts of a fault are missing in the Markdown."""
    (tmp_path / "matrix.yaml").write_text(
        "version: 1\nbackends: [jax]\ndefaults: {repeats: 5}\ncells:\n  - workload: mnist_mlp\n"
    )
    main(["compare", "--plant", "slower:0.5", "--counts"], Seams(executor=FakeExecutor()))
    arms = {json.loads(path.read_text())["arm"]: path.parent for path in (tmp_path / "results").glob("*/run.json")}
    for arm, name in (("base", "a"), ("new", "b")):
        arms[arm].rename(tmp_path / name)
    transcript.run("compare a b --markdown comment.md", brief=True)
    transcript.run("compare a b --counts", "compare --plant slower:0.5 --counts --executor ray")
    golden.check("compare_counts.txt", transcript.text + (tmp_path / "comment.md").read_text())


def test_counting_processes_are_not_the_timed_ones_and_leave_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutations: a timed process counts, too; the counting processes of a side share a fork server's block; one side is
    counted after the other.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n")
    executor = FakeExecutor()
    main(["compare", "--plant", "slower:0.5", "--counts", "--repeats", "5", "--json"], Seams(executor=executor))
    found = json.loads(capsys.readouterr().out)["comparisons"][0]
    assert [job.counting for job in executor.jobs] == [False] * 10 + [True] * 6
    assert [job.fault is not None for job in executor.jobs if job.counting] == [False, True] * 3
    assert executor.blocks == 10 + 6
    assert len(list((tmp_path / "results").glob("2*/records/*.json"))) == 10
    assert not list((tmp_path / "results").glob("*/work/counting*"))
    by_count = {(one["step"], one["count"]): (one["ratio"], one["outcome"]) for one in found["counts"]}
    assert by_count[("step", "python_calls")] == (3.0, "more")
    assert by_count[("first step", "c_calls")] == (1.0, "equal")
    assert by_count[("step", "c_calls")][1] == "not deterministic"
    assert by_count[("step", "python_peak_bytes")][1] == "equal within its tolerance"


def test_why_a_cell_has_no_counts_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed counting process changes no verdict on time. Mutation: its reason is lost."""

    def crash_when_counting(job: Job) -> Outcome:
        return Outcome(signal=11) if job.counting else executor.succeed(job)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n")
    executor = FakeExecutor(behaviours={"mnist_mlp": crash_when_counting})
    main(["compare", "--plant", "slower:0.5", "--counts", "--repeats", "8", "--json"], Seams(executor=executor))
    found = json.loads(capsys.readouterr().out)
    assert found["comparisons"][0]["outcome"] == "regressed"
    assert "counts" not in found["comparisons"][0]
    (note,) = (note for note in found["notes"] if note.startswith("no counts of"))
    assert note.startswith("no counts of mnist_mlp on jax: base: crash")
    assert {
        cell["problem"] is None for cells in counted_cells(tmp_path / "results").values() for cell in cells.values()
    } == {False}


def test_both_sides_say_what_their_revisions_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: the revision of one side is that of the other; the lines are not stored with the run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text("version: 1\ntasks: [{task: hello, command: [train]}]\n")
    of_environment = "keras_matrix.runner.executors.process.interpreter.of_environment"
    monkeypatch.setattr(of_environment, lambda folder, flag: Bare(str(folder)))

    def made(text: str, place: Place) -> Revised:
        return Revised(tmp_path / text, (f"{text} for {place.flag} on {Path(place.base.python).name}",))

    monkeypatch.setattr("keras_matrix.runner.service.compare.revised", made)
    monkeypatch.setattr("keras_matrix.runner.service.compare.base_of", lambda python: BaseEnvironment(python, {}))
    sides = ["--base", "keras@master", "--new", "keras@pull/7", "--new-env", "theirs", "--repeats", "1"]
    main(["compare", *sides, "--json"], Seams(executor=FakeExecutor()))
    notes = json.loads(capsys.readouterr().out)["notes"]
    own = Path(sys.executable).name
    lines = [f"keras@master for --base on {own}", "keras@pull/7 for --new on theirs"]
    assert notes[:2] == [f"base: {lines[0]}", f"new: {lines[1]}"]
    runs = [json.loads(path.read_text()) for path in sorted((tmp_path / "results").glob("*/run.json"))]
    assert {run["arm"]: run["revisions"] for run in runs} == {"base": lines[:1], "new": lines[1:]}
    assert {run["arm"]: run["arms"][run["arm"]]["python"] for run in runs} == {
        "base": str(tmp_path / "keras@master"),
        "new": str(tmp_path / "keras@pull/7"),
    }
