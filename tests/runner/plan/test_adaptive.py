"""Repeats that are added until an interval is narrow enough, a gate has decided, or the budget is spent."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import by_repeat
from keras_matrix.analysis.regression.gate import GATE_LOOKS, Rule
from keras_matrix.analysis.stats.blocks import of_logs, paired_logs
from keras_matrix.analysis.stats.sequential import FIXED, LOOKS, Looks
from keras_matrix.records.schema import Harness, Record, Status
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import Interrupted
from keras_matrix.runner.executors import Outcome, registry
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, load
from keras_matrix.runner.measure.experiment import Experiment, measured
from keras_matrix.runner.measure.request import CellChoice, RunRequest
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.adaptive import Adaptive, ArmsQuestion, SessionGoal, numbers, series, step_times, widest
from keras_matrix.runner.plan.plan import order
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.stored import findings_of
from tests.conftest import MACHINE, make_record
from tests.fakes.executor import FailsAt, FakeExecutor, crash

MATRIX = """\
version: 1
backends: [jax, torch]
defaults: {repeats: auto, precision_target: 0.05, steps_per_epoch: 5}
cells:
  - workload: gru
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def noisy(share: float) -> Callable[[Settings, int], float]:
    """Return step times of 10 ms that scatter by `share`, the same for the same backend and repeat."""
    return lambda settings, repeat: 0.01 * Random(f"{settings.backend}{repeat}").lognormvariate(0, share)


def runner(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(list(arguments), Seams(executor=executor or FakeExecutor()))


def newest(folder: Path) -> tuple[Counter[str], dict[str, Any]]:
    run = Results(folder / "results").runs()[-1]
    finished = run.load_object("finished.json")
    assert finished is not None
    counted = latest_attempts(run.load()[0])  # a busy machine has blocks measured again
    return Counter(record.settings.backend for record in counted), finished["stopped"]


def test_precise_comparison_stops_at_the_first_look(folder: Path) -> None:
    assert runner(executor=FakeExecutor(step_time_s=noisy(0.005))) == 0
    counts, why = newest(folder)
    assert counts == {"jax": 5, "torch": 5}
    assert set(why.values()) == {"precise enough"}


def test_noisy_comparison_gets_more_blocks_and_stops_at_a_look(folder: Path) -> None:
    assert runner(executor=FakeExecutor(step_time_s=noisy(0.05))) == 0
    counts, why = newest(folder)
    assert counts["jax"] == counts["torch"]
    assert counts["jax"] in (8, 12, 18, 27, 40)
    assert set(why.values()) == {"precise enough"}


def test_very_noisy_comparison_stops_at_the_last_look(folder: Path) -> None:
    runner(executor=FakeExecutor(step_time_s=noisy(2.0)))
    counts, why = newest(folder)
    assert counts == {"jax": 40, "torch": 40}
    assert set(why.values()) == {"no look left"}


def test_added_blocks_have_the_order_of_fixed_ones(folder: Path) -> None:
    """Comparisons are in random order, and so are the cells of each; every second block reverses the cells."""
    (folder / "matrix.yaml").write_text(MATRIX + "  - workload: lstm\n  - workload: mnist_mlp\n")
    executor = FakeExecutor(step_time_s=noisy(2.0))
    runner("--order-seed", "7", executor=executor)
    cells = [replace(cell, repeats=40) for cell in expand(load(Path("matrix.yaml")))]
    expected = [(planned.cell.cell_id, planned.repeat) for planned in order(cells, 7)]
    assert expected == [(job.cell_id, job.repeat) for job in executor.jobs]


@pytest.mark.parametrize(("budget", "blocks"), [("15", 5), ("17", 8), ("23", 8), ("25", 12)])
def test_spent_budget_stops_a_comparison_and_is_reported(folder: Path, budget: str, blocks: int) -> None:
    """A fake process takes a second, a block of two takes two: 8 blocks need 16 seconds, 12 need 24."""
    runner("--budget", budget, executor=FakeExecutor(step_time_s=noisy(2.0)))
    counts, why = newest(folder)
    assert counts == {"jax": blocks, "torch": blocks}
    assert set(why.values()) == {"budget spent"}


class Torchless(FakeExecutor):
    """PyTorch ends by a signal every time."""

    def end(self, job: Job) -> Outcome:
        return crash()(job) if job.settings.backend == "torch" else super().end(job)


def test_failing_cell_does_not_delay_other_comparisons(folder: Path) -> None:
    given = ("gate", "--plant", "slower:0.2")
    assert runner(*given, executor=Torchless(step_time_s=noisy(0.005))) == 4
    counts, why = newest(folder)
    assert counts == {"jax": 8, "torch": 8}
    assert set(why.values()) == {"regressed"}


def test_failed_repeats_count_as_repeats(folder: Path) -> None:
    class Once(FakeExecutor):
        def end(self, job: Job) -> Outcome:
            return crash()(job) if job.repeat else super().end(job)

    runner("compare", "--plant", "slower:0.2", executor=Once())
    counts, why = newest(folder)
    assert counts == {"jax": 40, "torch": 40}
    assert set(why.values()) == {"no look left"}


def test_without_measurements_no_repeats_are_added_and_the_reason_is_reported(folder: Path) -> None:
    assert runner(executor=FakeExecutor(behaviours={"gru": crash()})) == 1
    counts, why = newest(folder)
    assert counts == {"jax": 5, "torch": 5}
    assert set(why.values()) == {"nothing measured"}


def two_cells() -> tuple[Cell, Cell]:
    jax, torch = expand(load(Path("matrix.yaml")))
    return jax, torch


def test_ratio_is_new_over_base_whichever_was_measured_first(folder: Path) -> None:
    jax, torch = two_cells()
    times = {("new", jax.cell_id): {0: 0.02, 1: 0.02}, ("base", jax.cell_id): {1: 0.01}}
    assert series([jax, torch], times, ["base", "new"]) == [(pytest.approx(math.log(2)),)]


def test_latest_measured_attempt_of_a_repeat_counts() -> None:
    first = [make_record(0.01, repeat) for repeat in range(3)]
    again, failed = replace(make_record(0.02, 1), attempt=1), replace(make_record(None, 2, Status.CRASH), attempt=1)
    found = step_times([("new", again), ("new", failed), *(("new", record) for record in first), ("base", first[2])])
    assert found == {("new", again.cell_id): {0: 0.01, 1: 0.02, 2: 0.01}, ("base", again.cell_id): {2: 0.01}}


@pytest.mark.parametrize(("rule", "workload"), [(Rule(), "gru"), (None, "lstm")])
def test_end_of_the_budget_is_spent_on_the_undecided_comparison(folder: Path, rule: Rule | None, workload: str) -> None:
    """The noisier ratio may be 1.05, as a gate tests; it cannot be 1, as a comparison tests."""
    (folder / "matrix.yaml").write_text(MATRIX.replace("jax, torch", "jax") + "  - workload: lstm\n")
    cells = expand(load(Path("matrix.yaml")))
    ratios = {"gru": (1.10, 0.07), "lstm": (1.02, 0.06)}  # the centre and the scatter over eight blocks
    made: dict[str, list[Record]] = {"base": [], "new": []}
    for cell in cells:
        centre, scatter = ratios[cell.settings.workload]
        for repeat in range(8):
            for arm, factor in (("base", 1.0), ("new", centre * math.exp(scatter * (-1) ** repeat))):
                changes = {"settings": cell.settings, "harness": Harness(wall_time_s=1.0)}
                made[arm].append(make_record(0.01 * factor, repeat, **changes))
    session = SimpleNamespace(runs=made, seed=0, records=made.__getitem__)
    pays_for_one = SessionGoal(4 * 8 + 2 * (12 - 8) + 1.0, rule)
    adaptive = Adaptive(session, cells, pays_for_one, lambda: 0.0)  # type: ignore[arg-type]
    assert {planned.cell.settings.workload for planned in adaptive.more()} == {workload}


def test_one_arm_compares_each_backend_with_the_lowest_and_a_single_one_with_none(folder: Path) -> None:
    jax, torch = two_cells()
    times = {("", jax.cell_id): {0: 0.02, 1: 0.03}, ("", torch.cell_id): {0: 0.01, 1: 0.01}}
    assert series([jax, torch], times, [""]) == [(pytest.approx(math.log(2)), pytest.approx(math.log(3)))]
    alone = {("", jax.cell_id): {0: 0.02}}
    assert series([jax, torch], alone, [""]) == [(pytest.approx(math.log(0.02)),)]


def test_comparison_continues_until_its_widest_pair_is_precise(folder: Path) -> None:
    assert widest([(0.0, 0.1), (0.0, 0.3), (0.0, 0.2)]) == (0.0, 0.3)
    (folder / "matrix.yaml").write_text(MATRIX.replace("[jax, torch]", "[tensorflow, jax, torch]"))

    def unequal(settings: Settings, repeat: int) -> float:
        base_s, share = (0.02, 0.1) if settings.backend == "torch" else (0.01, 0.001)
        return base_s * Random(f"{settings.backend}{repeat}").lognormvariate(0, share)

    runner(executor=FakeExecutor(step_time_s=unequal))
    counts, _ = newest(folder)
    assert 5 < counts["tensorflow"] == counts["jax"] == counts["torch"]


@pytest.mark.parametrize(
    ("at", "blocks", "goes_on"),
    [("ab", 8, False), ("aa", 8, True), ("ab", 5, True), ("ab torch elsewhere", 8, True)],
    ids=["several", "one", "few", "moved"],
)
def test_comparison_at_several_machines_is_precise_within_each(
    folder: Path, at: str, blocks: int, goes_on: bool
) -> None:
    """The ratio differs by 30 % between the machines, and by 0.2 % at each of them."""
    jax, torch = two_cells()
    made = []
    for repeat in range(blocks):
        own, moved = repeat % 2, "elsewhere" in at and repeat < 5
        for cell, ratio in ((jax, 1.0), (torch, (1.5 + 0.5 * own) * (1 + 0.002 * (repeat % 4 < 2)))):
            host = "c" if moved and cell is torch else at[own]
            changes = {"machine": replace(MACHINE, host_id=host * 16), "harness": Harness(wall_time_s=1.0)}
            made.append(make_record(0.01 * ratio, repeat, settings=cell.settings, **changes))
    session = SimpleNamespace(runs={"": made}, seed=0, records=lambda arm: made)
    adaptive = Adaptive(session, [jax, torch], SessionGoal(), lambda: 0.0)  # type: ignore[arg-type]
    assert bool(adaptive.more()) == goes_on
    assert (set(adaptive.why().values()) == {"precise enough"}) != goes_on


@pytest.mark.parametrize(("later_s", "goes_on"), [(0.0, True), (100.0, False)])
def test_budget_includes_elapsed_time_besides_processes(folder: Path, later_s: float, goes_on: bool) -> None:
    cells = expand(load(Path("matrix.yaml")))
    drawn, times_s = Random(1), iter([0.0, later_s])
    made = [
        make_record(drawn.lognormvariate(0, 1), repeat, settings=cell.settings, harness=Harness(wall_time_s=1.0))
        for cell in cells
        for repeat in range(5)
    ]
    session = SimpleNamespace(runs={"": None}, seed=0, records=lambda arm: made)
    adaptive = Adaptive(session, cells, SessionGoal(budget_s=50.0), lambda: next(times_s))  # type: ignore[arg-type]
    assert bool(adaptive.more()) is goes_on


def test_gate_does_not_continue_a_session_with_other_stopping(folder: Path) -> None:
    class Stopping(FakeExecutor):
        def end(self, job: Any) -> Any:
            if len(self.jobs) == 8:
                raise Interrupted("stopped")
            return super().end(job)

    given = ("--plant", "slower:0.2", "--repeats", "auto")
    assert runner("compare", *given, executor=Stopping()) == 130
    assert runner("gate", *given) == 4
    assert len(Results(folder / "results").runs()) == 4


@pytest.mark.parametrize(("arguments", "looks"), [((), LOOKS), (("--repeats", "8"), FIXED)], ids=["auto", "fixed"])
def test_intervals_of_a_table_depend_on_the_stopping(folder: Path, arguments: tuple[str, ...], looks: Looks) -> None:
    runner(*arguments, executor=FakeExecutor(step_time_s=noisy(0.05)))
    (row,) = findings_of(Results(folder / "results").runs()[-1]).rows
    (ratio,) = row.ratios
    (lowest,) = set(row.cells) - {ratio.backend}
    logs = list(paired_logs(by_repeat(row.cells[ratio.backend]), by_repeat(row.cells[lowest])).values())
    assert ratio.estimate == of_logs(logs, looks.confidence(len(logs)))


@pytest.mark.parametrize(
    ("arguments", "looks"),
    [(("gate",), GATE_LOOKS), (("gate", "--repeats", "8"), FIXED), (("compare", "--repeats", "auto"), LOOKS)],
)
def test_intervals_of_a_comparison_depend_on_the_stopping(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], looks: Looks
) -> None:
    """A gate that may look until it has decided has wider intervals than a number of repeats fixed beforehand."""
    noise = Random(3)
    executor = FakeExecutor(step_time_s=lambda settings, repeat: 0.01 * noise.lognormvariate(0, 0.05))
    runner(*arguments, "--plant", "slower:0.2", "--json", executor=executor)
    for one in json.loads(capsys.readouterr().out)["comparisons"]:
        expected = of_logs(one["log_ratios"], looks.confidence(len(one["log_ratios"])))
        assert expected is not None
        assert (one["ratio"]["low"], one["ratio"]["high"]) == pytest.approx((expected.low, expected.high))


def test_budget_in_the_matrix_equals_the_flag(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(MATRIX + "budget: 1\n")
    runner(executor=FakeExecutor(step_time_s=noisy(2.0)))
    assert newest(folder)[1].keys()
    assert newest(folder)[0]["jax"] <= 6


def test_interrupted_auto_run_is_continued(folder: Path) -> None:
    class Stopping(FakeExecutor):
        def end(self, job: Any) -> Any:
            if len(self.jobs) == 13:
                raise Interrupted("stopped")
            return super().end(job)

    assert runner(executor=Stopping(step_time_s=noisy(2.0))) == 130
    runner(executor=FakeExecutor(step_time_s=noisy(2.0)))
    assert len(Results(folder / "results").runs()) == 1
    assert newest(folder)[0] == {"jax": 40, "torch": 40}


@pytest.mark.parametrize(
    ("arguments", "code", "outcome"),
    [
        ((), 0, "no worse"),
        (("--plant", "slower:0.2"), 4, "regressed"),
        (("--plant", "slower:0.2", "--repeats", "5"), 5, "undecided"),
        (("--plant", "slower:0.02"), 0, "no worse"),
    ],
)
def test_gate_adds_blocks_until_it_has_decided(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, outcome: str
) -> None:
    import sys

    environment = str(Path(sys.executable).parents[1])
    given = ("gate", "--base-env", environment, "--json", *arguments)
    assert runner(*given, executor=FakeExecutor(step_time_s=noisy(0.005))) == code
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == outcome
    assert document["paired"] is True


@pytest.mark.parametrize(
    ("fault", "kinds", "message"),
    [
        ("slower:0.5", ["slower steps"], "with +50.0 % FLOPs"),
        ("copy:10", ["slower steps"], "with the same FLOPs: extra memory traffic or overhead"),
        ("recompile:5", ["recompiles in the timed region", "slower steps"], "24 against 0; slower steps"),
        ("first-epoch:1", ["slower first epoch"], "slower first epoch only: +"),
        ("variance:0.3", ["more scatter"], "more scatter only: "),
    ],
)
def test_each_injected_fault_is_reported_by_its_regression_kind(
    folder: Path, capsys: pytest.CaptureFixture[str], fault: str, kinds: list[str], message: str
) -> None:
    given = ("--plant", fault, "--repeats", "8", "--set", "discard=1")
    assert runner("compare", *given, executor=FakeExecutor(step_time_s=noisy(0.01))) == 0
    assert capsys.readouterr().out.count(message) == 2
    arms = {run.about()["arm"]: run.run_id for run in Results(folder / "results").runs()}
    assert runner("compare", arms["base"], arms["new"], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["kinds"] for one in found["comparisons"]] == [kinds, kinds]
    assert runner("selftest", *given, "--json", executor=FakeExecutor(step_time_s=noisy(0.01))) == 0
    named = json.loads(capsys.readouterr().out)["named"]
    assert {kind for kind, rate in named["jax"].items() if rate["count"]} == set(kinds)


@pytest.mark.parametrize(("also", "code"), [((), 0), (("--also", "first-epoch"), 4), (("--also", "scatter"), 0)])
def test_gate_fails_on_a_slower_first_epoch_only_if_requested(
    folder: Path, capsys: pytest.CaptureFixture[str], also: tuple[str, ...], code: int
) -> None:
    given = ("gate", "--plant", "first-epoch:1", "--repeats", "10", *also)
    assert runner(*given, executor=FakeExecutor(step_time_s=noisy(0.005))) == code
    assert "slower first epoch only: +" in capsys.readouterr().out


def test_selftest_reports_every_stored_session_with_the_same_fault(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert runner("selftest", "--repeats", "10", "--new", executor=FakeExecutor(step_time_s=noisy(0.01))) == 0
    capsys.readouterr()
    pages = [page.parent.name for page in (folder / "results").glob("2*/report.html")]
    assert len(pages) == 4, "a report of each arm of each session"
    assert runner("selftest", "--stored", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["sessions"], document["planted"]) == (2, None)
    assert [one["outside"]["of"] for one in document["findings"]] == [4, 4, 8]


def test_selftest_over_two_machines_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert runner("selftest", "--repeats", "5", "--new", executor=FakeExecutor(step_time_s=noisy(0.01))) == 0
    assert "machines differ" not in capsys.readouterr().out
    for path in sorted((folder / "results").glob("2*"))[0].glob("records/*.json"):
        record = json.loads(path.read_text())
        record["machine"]["host_id"] = "1" * 16
        path.write_text(json.dumps(record))
    assert runner("selftest", "--stored") == 0
    assert "machines differ among these sessions (2): the rates are over all" in capsys.readouterr().out


def test_added_repeats_are_not_reported_as_repeated_measurements(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner("--repeats", "auto", executor=FakeExecutor(step_time_s=noisy(0.2))) == 0
    printed = capsys.readouterr().out
    assert " #12: ok" in printed, "repeats were added"
    assert "measured again" not in printed


class Noting(FakeExecutor):
    """Records the calls of a block of every arm."""

    calls: list[str]

    def begin_block(self, settings: Sequence[Settings]) -> None:
        super().begin_block(settings)
        self.calls.append("begun")

    def await_block(self) -> None:
        super().await_block()
        self.calls.append("waited for")


def test_servers_of_both_arms_start_concurrently(folder: Path) -> None:
    executor = Noting(step_time_s=noisy(0.01))
    executor.calls = []
    assert runner("selftest", "--repeats", "5", executor=executor) == 0
    assert executor.calls == ["begun", "begun", "waited for", "waited for"] * 5


def test_sessions_with_an_injected_slowdown_are_separate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner("selftest", "--repeats", "5", executor=FakeExecutor(step_time_s=noisy(0.01)))
    capsys.readouterr()
    assert runner("selftest", "--repeats", "5", "--plant", "slower:0.2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["sessions"], document["planted"]) == (1, "slower:0.2")
    assert [one["slower"]["share"] for one in document["findings"]] == [1.0, 1.0, 1.0]


def test_contrast_of_several_arms_has_the_blocks_that_all_arms_have() -> None:
    times = {("a", "x"): {0: 1.0, 1: math.e}, ("b", "x"): {1: 1.0, 2: 1.0}, ("c", "x"): {1: math.e**4}}
    assert numbers({("a", "x"): 1.0, ("b", "x"): -0.5, ("c", "x"): -0.5}, times) == (pytest.approx(-1.0),)
    assert numbers({("a", "x"): 1.0, ("d", "x"): -1.0}, times) == ()


def asked(
    folder: Path, contrasts: Sequence[dict[str, float]], answer_at: int, executor: FakeExecutor
) -> tuple[dict[str, int], list[set[int]]]:
    """Measure three arms until a question is answered; return the repeats of each, and the lengths at each look."""
    looks, seen = Looks((4, 6, 9), (0.95,) * 3), list[set[int]]()

    def answered(logs: Sequence[Sequence[float]]) -> str | None:
        seen.append({len(one) for one in logs})
        return "yes" if len(logs[0]) >= answer_at else None

    cell = replace(two_cells()[0], repeats=1)
    request = RunRequest(
        ("test",),
        CellChoice(Path("matrix.yaml"), Overrides()),
        folder / "results",
        registry.chosen(registry.DEFAULT, None, {}),
    )
    request = replace(request, seams=Seams(executor=executor))
    arms = {name: ArmRequest(name, None, {"arm": name}) for name in "abc"}
    question = ArmsQuestion(tuple(contrasts), answered, looks)
    experiment = Experiment([cell], {"matrix_path": "", "matrix_text": ""}, arms, question=question)
    session = measured(request, experiment, TerminalDisplay(quiet=True))
    return {arm: len(latest_attempts(session.records(arm))) for arm in arms}, seen


@pytest.mark.parametrize(("answer_at", "blocks"), [(6, 6), (7, 9)])
def test_session_of_three_arms_continues_from_look_to_look_until_its_question_is_answered(
    folder: Path, answer_at: int, blocks: int
) -> None:
    """Mutation: Adaptive asks between two looks, too."""
    contrasts = ({"c": 1.0, "a": -0.5, "b": -0.5}, {"c": 1.0, "a": -1.0})
    counts, seen = asked(folder, contrasts, answer_at, FakeExecutor(step_time_s=noisy(0.01)))
    assert counts == dict.fromkeys("abc", blocks)
    assert seen
    assert all(lengths <= {4, 6, 9} for lengths in seen)


def test_process_that_fails_costs_a_question_one_block(folder: Path) -> None:
    """Mutation: `weights_of` leaves out the arms that a contrast has not, so that no two contrasts are at a look."""
    contrasts = ({"c": 1.0, "a": -0.5, "b": -0.5}, {"c": 1.0, "a": -1.0})
    counts, seen = asked(folder, contrasts, 4, FailsAt(numbers=[4], step_time_s=noisy(0.01)))
    assert counts == dict.fromkeys("abc", 5)
    assert seen[-1] == {4}


def test_process_that_fails_costs_a_gate_few_blocks(folder: Path) -> None:
    """Mutation: `_decided` waits until all series of a comparison have as many blocks as a look."""
    (folder / "matrix.yaml").write_text(MATRIX.replace("[jax, torch]", "[jax, torch, tensorflow]"))
    assert runner("gate", "--plant", "slower:0.5", executor=FailsAt(numbers=[4], step_time_s=noisy(0.005))) == 4
    counts, _ = newest(folder)
    assert max(counts.values()) < 20
