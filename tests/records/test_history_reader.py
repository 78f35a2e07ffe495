"""The history reader reads only what a history needs, and skips damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.history_reader import read
from keras_matrix.records.schema import Status
from keras_matrix.records.store import Problem
from tests.conftest import MACHINE, make_settings
from tests.sessions import nights, processes, run_name, store_session


def record_files(root: Path) -> list[Path]:
    return sorted(root.glob("*/records/*.json"))


def test_every_attempt_is_read_with_what_a_history_needs(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.02])
    past = read([tmp_path])
    assert [run.run_id for run in past.runs] == [run_name(0), run_name(1)]
    attempt = past.runs[1].attempts[1]
    assert (attempt.repeat, attempt.status, attempt.value) == (1, Status.OK, 0.02)
    assert (attempt.host_id, attempt.device) == ("0" * 16, ("cpu", "cpu:0"))
    assert {"keras": "3.15.0", "parameters": "1000"}.items() <= dict(attempt.facts).items()
    assert (past.problems, past.caveats) == ((), ())


@pytest.mark.parametrize(("setting", "expected"), [("auto", None), (50, "50")])
def test_steps_that_a_session_found_for_itself_are_no_fact_of_it(
    tmp_path: Path, setting: int | str, expected: str | None
) -> None:
    nights(tmp_path, [0.01], settings=make_settings(steps_per_epoch=setting))
    facts = dict(read([tmp_path]).runs[0].attempts[0].facts)
    assert facts.get("steps_per_epoch") == expected


def test_records_of_version_3_have_the_same_history_as_current_ones(tmp_path: Path) -> None:
    nights(tmp_path, [0.01])
    expected = read([tmp_path]).runs
    for path in (tmp_path / run_name(0)).glob("records/*.json"):
        data = json.loads(path.read_text()) | {"schema_version": 3}
        data["times"]["seed_total_time_s"] = data["times"].pop("suite_total_time_s")
        path.write_text(json.dumps(data))
    past = read([tmp_path])
    assert (past.runs, past.problems) == (expected, ())


def test_the_machine_type_is_a_fact_where_it_is_known(tmp_path: Path) -> None:
    nights(tmp_path, [0.01])
    nights(tmp_path, [0.01], first=1, machine=replace(MACHINE, machine_type="n1-standard-8"))
    facts = [dict(run.attempts[0].facts).get("machine_type") for run in read([tmp_path]).runs]
    assert facts == [None, "n1-standard-8"]


def test_nothing_is_changed_by_reading(tmp_path: Path) -> None:
    nights(tmp_path, [0.01])
    record_files(tmp_path)[0].write_text("{torn")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    read([tmp_path])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": {"step_time_s": -1.0}}, "must be a positive number, got -1.0"),
        ({"times": {"step_time_s": float("nan")}}, "must be a positive number, got nan"),
        ({"times": {"step_time_s": 10**400}}, "too large"),
        ({"status": "splendid"}, "'splendid' is not a valid Status"),
        ({"schema_version": 99}, "must be an integer up to 4, got 99"),
        ({"repeat": 7}, "contains the record of another attempt"),
        ({"machine": None}, "NoneType"),
        ({"versions": "3.15"}, "str"),
    ],
)
def test_damaged_record_is_skipped_with_a_problem(tmp_path: Path, change: dict[str, object], message: str) -> None:
    nights(tmp_path, [0.01, 0.02])
    path = record_files(tmp_path)[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    past = read([tmp_path])
    assert [problem.path for problem in past.problems] == [path]
    assert message in past.problems[0].reason
    assert [len(run.attempts) for run in past.runs] == [2, 3]


@pytest.mark.parametrize("text", ["", "{torn", "[]", "7", '{"status": "ok"}', "[" * 100_000])
def test_invalid_record_file_is_skipped_with_a_problem(tmp_path: Path, text: str) -> None:
    nights(tmp_path, [0.01])
    path = record_files(tmp_path)[0]
    path.write_text(text)
    past = read([tmp_path])
    assert [problem.path for problem in past.problems] == [path]
    assert len(past.runs[0].attempts) == 2


def test_run_with_a_damaged_description_is_skipped_with_a_problem(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.02])
    (tmp_path / run_name(0) / "run.json").write_text("{torn")
    past = read([tmp_path])
    assert [problem.path for problem in past.problems] == [tmp_path / run_name(0)]
    assert [run.run_id for run in past.runs] == [run_name(1)]


@pytest.mark.parametrize("arm", [[], {}, 1, None, "another"])
def test_an_arm_that_is_no_name_of_its_session_does_not_exclude_a_run(tmp_path: Path, arm: object) -> None:
    """Mutation: `left_out` looks an arm of any type up in the arms."""
    store_session(tmp_path, run_name(0), processes(0.01), arm=arm, arms={"base": {"fault": None}})
    assert [len(run.attempts) for run in read([tmp_path]).runs] == [3]


def test_a_run_whose_name_is_no_date_is_a_problem(tmp_path: Path) -> None:
    """Mutation: `Results.runs` accepts each name of the form of a run."""
    folder = tmp_path / "20260231T000000Z-ffffff"
    (folder / "records").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    past = read([tmp_path])
    reason = "its name must begin with a time that exists, such as 20260131T235959Z, got 20260231T000000Z"
    assert (past.runs, past.problems) == ((), (Problem(folder, reason),))


def test_unexpected_file_name_is_a_problem_but_hidden_and_corrupt_files_are_ignored(tmp_path: Path) -> None:
    nights(tmp_path, [0.01])
    folder = tmp_path / run_name(0) / "records"
    (folder / "corrupt").mkdir()
    (folder / ".half.tmp").write_text("")
    (folder / "notes.txt").write_text("")
    assert [problem.path.name for problem in read([tmp_path]).problems] == ["notes.txt"]


def test_only_selected_cells_are_read_and_the_selection_is_called_once_each(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.02])
    nights(tmp_path, [0.3, 0.3], first=2, settings=make_settings(workload="bert"))
    asked = []

    def wanted(cell_id: str, workload: str, backend: str) -> bool:
        asked.append((workload, backend))
        return workload == "bert"

    past = read([tmp_path], wanted)
    assert sorted(asked) == [("bert", "jax"), ("mnist_mlp", "jax")]
    assert [len(run.attempts) for run in past.runs] == [0, 0, 3, 3]
    assert [settings["workload"] for settings in past.settings.values()] == ["bert"]


def test_run_with_an_injected_fault_and_second_arm_of_a_session_are_excluded(tmp_path: Path) -> None:
    arms = {"slow": {"python": None, "fault": "slow:5"}, "base": {"fault": None}, "new": {"fault": None}}
    for number, arm in enumerate(arms):
        store_session(tmp_path, run_name(number), processes(0.01), arm=arm, arms=arms)
    store_session(tmp_path, run_name(3), processes(0.01), arm="", arms={"": {"fault": None}})
    past = read([tmp_path])
    assert [run.run_id for run in past.runs] == [run_name(1), run_name(3)]
    assert [caveat.partition(": ")[2] for caveat in past.caveats] == [
        "the fault 'slow:5' was injected into it",
        "the arm 'base' represents its session, this is 'new'",
    ]


@pytest.mark.parametrize("new_python", [None, "/new/bin/python"])
def test_a_pinned_base_does_not_stand_for_its_session(tmp_path: Path, new_python: str | None) -> None:
    arms = {"base": {"python": "/pinned/bin/python", "fault": None}, "new": {"python": new_python, "fault": None}}
    names = {arm: run_name(number) for number, arm in enumerate(arms)}
    for arm, name in names.items():
        store_session(tmp_path, name, processes(0.01), arm=arm, arms=arms)
    assert [run.run_id for run in read([tmp_path]).runs] == [names["new"]]


def test_run_in_two_folders_counts_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        nights(tmp_path / name, [0.01])
    past = read([tmp_path / "one", tmp_path / "two"])
    assert len(past.runs) == 1
    assert [f"was already read from {tmp_path / 'one'}" in caveat for caveat in past.caveats] == [True]


def test_latest_run_that_sorts_first_gives_a_caveat_about_the_clock(tmp_path: Path) -> None:
    nights(tmp_path, [0.01], first=5)
    nights(tmp_path, [0.01], first=2)
    assert [caveat for caveat in read([tmp_path]).caveats if "the clock was set back between them" in caveat] != []


def test_two_arms_of_the_same_second_betray_no_clock(tmp_path: Path) -> None:
    second, first = "20260101T020000Z-ffffff", "20260101T020000Z-000000"
    for name in (second, first):
        store_session(tmp_path, name, processes(0.01))
    assert read([tmp_path]).caveats == ()


def test_a_process_that_began_before_its_run_betrays_a_clock_that_went_back(tmp_path: Path) -> None:
    folder = store_session(tmp_path, run_name(3), processes(0.01))
    path = sorted((folder / "records").glob("*.json"))[2]
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "started_at": "2026-01-04T01:59:59+00:00"}))
    assert ["before its run" in caveat for caveat in read([tmp_path]).caveats] == [True]


def test_overlapping_runs_give_a_caveat(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.01])
    path = record_files(tmp_path)[2]
    path.write_text(json.dumps({**json.loads(path.read_text()), "started_at": "2026-01-05T00:00:00+00:00"}))
    assert [caveat.startswith(f"run {run_name(1)} began before") for caveat in read([tmp_path]).caveats] == [True]


def test_an_attempt_that_failed_has_no_time_and_no_device(tmp_path: Path) -> None:
    failed = replace(processes(0.01)[0], status=Status.TIMEOUT, device=None, resolved=None, reason="late")
    failed = replace(failed, times=replace(failed.times, step_time_s=None))
    store_session(tmp_path, run_name(0), [failed])
    attempt = read([tmp_path]).runs[0].attempts[0]
    assert (attempt.status, attempt.value, attempt.device) == (Status.TIMEOUT, None, None)


def test_a_folder_without_a_run_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "file.json").write_text(dumps({}))
    assert read([tmp_path, tmp_path / "absent"]).runs == ()


def test_a_record_with_the_run_id_of_another_run_is_a_problem_and_skipped(tmp_path: Path) -> None:
    nights(tmp_path, [0.01, 0.02])
    (path, *_) = record_files(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": run_name(1)}))
    past = read([tmp_path])
    assert [(one.path, one.reason) for one in past.problems] == [
        (path, f"run_id: must be {run_name(0)}, the run of its folder, got {run_name(1)!r}")
    ]
    assert [len(run.attempts) for run in past.runs] == [2, 3]
