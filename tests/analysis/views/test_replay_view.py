"""Every output shows the same figures of a replay, its what-ifs and their verification: terminal, JSON and page."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

import pytest

from keras_matrix.analysis.comparison.context import NO_CONTEXT
from keras_matrix.analysis.views.replay_view import ReplayView, largest_shares
from keras_matrix.analysis.whatif.replay import Share, held_out, replay
from keras_matrix.analysis.whatif.verify import Measurement, Prediction, Verification, judge, judge_again
from keras_matrix.dashboards.report.predictions import predictions as section
from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Run
from keras_matrix.records.text import interval_text, number, percentage, ratio_text, seconds
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.cli.whatif.replay_text import document_of, verified_lines
from keras_matrix.runner.service.stored import Findings
from keras_matrix.runner.service.whatif import MeasuredSettings, VerifiedRun
from keras_matrix.runner.whatif import source
from keras_matrix.runner.whatif.measurement import MeasuredSetting
from tests.runner.whatif.graphs import two_workers

WHAT_IFS = ("tensor_fusion=2,", "workers=4")


@pytest.fixture(scope="module")
def view() -> ReplayView:
    graph = two_workers()
    return ReplayView(graph, replay(graph), held_out(graph), replay(graph))


def words(line: str) -> list[str]:
    return [word for word in re.split(r" {2,}", line.strip()) if word]


def test_terminal_and_json_have_the_values_of_a_replay(
    view: ReplayView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: the speed-up of a what-if in JSON is that over the traced step."""
    monkeypatch.chdir(tmp_path)
    source.write(view.graph, tmp_path / "graph")
    flags = [word for text in WHAT_IFS for word in ("--what-if", text)]
    assert main(["replay", "graph", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["replay", "graph", *flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {name: document[name] for name in document_of(view, ()) if name not in ("what_ifs", "source")} == {
        name: value for name, value in document_of(view, ()).items() if name not in ("what_ifs", "source")
    }
    step, found = view.replay.step_time_s, "\n".join(lines)
    single = interval_text(view.replay.low_s, view.replay.high_s, "s")
    assert f"replayed: {seconds(step)} a step, single steps {single} (p10 to p90)" in lines
    exposed = document["exposed_communication_s"]
    assert f"exposed communication: {seconds(exposed)}, {percentage(exposed / step)} of the step" in lines
    assert f"their dependencies: {percentage(document['coverage'])} of the step's time" in found
    errors = [held["error"] for held in document["held_out"]]
    assert errors == [held.error for held in view.held_out]
    assert (
        f"{', '.join(percentage(error, signed=True) for error in errors)}; mean {percentage(view.mean_error)}" in found
    )
    printed = [words(line) for line in lines]
    for by in ("phase", "layer", "kind"):
        for share in document[f"by_{by}"]:
            assert [share["name"], percentage(share["share"]), seconds(share["time_s"])] in printed
    path = sorted(document["critical_path"], key=lambda part: (part["name"], part["phase"] or ""))
    for (name, phase), parts in groupby(path, key=lambda part: (part["name"], part["phase"] or "")):
        times = [part["time_s"] for part in parts]
        row = [name, phase, percentage(sum(times) / step), seconds(sum(times)), str(len(times))]
        assert [word for word in row if word] in printed
    assert len(document["what_ifs"]) == len(WHAT_IFS) + 1
    for one in document["what_ifs"]:
        assert one["speed_up"] == document["baseline_step_time_s"] / one["step_time_s"]
        [row] = [row for row in printed if row[:1] == [one["name"]] and len(row) > 3]
        single = interval_text(one["low_s"], one["high_s"], "s")
        assert row[1:4] == [seconds(one["step_time_s"]), single, ratio_text(one["speed_up"])]


def test_the_largest_parts_are_shown_and_the_others_summed_but_never_a_single_one(view: ReplayView) -> None:
    shares = [Share(name, 0.5**at, 0.25**at) for at, name in enumerate("abcd")]
    assert largest_shares(shares, 3) == shares
    assert largest_shares(shares, 2) == [*shares[:2], Share("2 others", 0.375, 0.078125)]
    every, largest = view.operations(100), view.operations(1)
    assert len(every) > 3
    assert largest[0] == every[0]
    assert (largest[1].name, largest[1].count) == (f"{len(every) - 1} others", sum(one.count for one in every[1:]))
    assert largest[1].time_s == pytest.approx(sum(one.time_s for one in every[1:]))


def verifications() -> list[tuple[Verification, dict[str, Measurement]]]:
    """Return one with a single round, and one that was recalibrated."""
    predicted = {
        name: Prediction(time_s, 0.9 * time_s, 1.1 * time_s)
        for name, time_s in {"baseline": 0.1, "workers=4": 0.2, "amp": 0.08, "tensor_fusion=2": 0.15}.items()
    }
    times = {"baseline": 0.1, "workers=4": 0.4, "amp": 0.07, "tensor_fusion=2": 0.12}
    measured = {
        name: Measurement({block: time_s * (1 + noise) for block, noise in enumerate((0, 0.01, -0.01, 0.02, 0.0))})
        for name, time_s in times.items()
    }
    first = judge(predicted, measured)
    again = {**predicted, "workers=4": Prediction(0.4, 0.39, 0.41)}
    return [(first, measured), (judge_again(first, again, measured, "alpha 2 ms", ["workers=4"]), measured)]


@pytest.mark.parametrize(("verification", "measured"), verifications())
def test_terminal_page_and_json_have_the_values_of_a_verification(
    verification: Verification, measured: dict[str, Measurement]
) -> None:
    """Mutation: the page has the error of the other sign, or the terminal the gain of new over base."""
    settings = {name: MeasuredSetting("", dict(one.step_times_s), [], []) for name, one in measured.items()}
    session = MeasuredSettings(Run(Path("run")), settings, Findings([], [], NO_CONTEXT), 0)
    result = VerifiedRun(session, verification)
    lines, page, document = verified_lines(result), section(verification), to_json(verification)
    printed = [words(line) for line in lines]
    assert len(page.tables) == len(verification.rounds) == len(document["rounds"])
    for number_of, (one, table) in enumerate(zip(verification.rounds, page.tables, strict=True)):
        for row, shown in zip(one.rows, table.rows, strict=True):
            stored = next(each for each in document["rounds"][number_of]["rows"] if each["name"] == row.name)
            assert (stored["error"], stored["predicted"]["step_time_s"]) == (row.error, row.predicted.step_time_s)
            error = percentage(row.error, signed=True)
            predicted, centre = row.predicted.step_time_s, row.measured.centre
            assert [row.name, seconds(predicted)] in [each[:2] for each in printed]
            assert any({row.name, seconds(predicted), seconds(centre), error} <= set(each) for each in printed)
            assert shown.name == row.name
            assert (shown.values[0], shown.values[2]) == (number(predicted, 1e-3), number(centre, 1e-3))
            assert (shown.values[4], shown.values[5]) == (error, "fitted" if row.fitted else str(row.verdict))
    last = verification.rounds[-1]
    assert last.mean_error is not None
    assert last.largest_error is not None
    for text in (f"error: mean {percentage(last.mean_error)}, largest {percentage(last.largest_error)}",):
        assert text in lines
        assert text in page.facts
    assert any(line.startswith(f"regret: {percentage(last.regret)}; {last.chosen} ") for line in lines)
    assert any(fact.startswith(f"regret: {percentage(last.regret)}; {last.chosen} ") for fact in page.facts)
    assert any(line.startswith(f"verdict: {verification.verdict} ") for line in lines)
    assert page.verdict == str(verification.verdict)
    assert result.gains.keys() == settings.keys() - {"baseline"}
    assert result.gains["amp"].centre == pytest.approx(0.1 / 0.07)
    assert any(
        line.startswith(f"choice: amp against the baseline: {ratio_text(result.gains['amp'].centre)} ")
        for line in lines
    )
