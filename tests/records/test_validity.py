"""Records that fit the schema and cannot be shown are set aside, with the value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.store import Problem, Results, Run
from tests.conftest import make_record, make_settings

RUN_ID = "20260101T000000Z-000000"


def stored(tmp_path: Path, change: Callable[[dict[str, Any]], object], **fields: Any) -> Run:
    """Return a run with two records, of which the second was changed in its file."""
    run = Results(tmp_path).create(RUN_ID, {})
    for repeat in range(2):
        record = make_record(0.01, repeat, run_id=RUN_ID, **fields)
        path = run.publish(record)
    data = json.loads(dumps(record))
    change(data)
    path.write_text(json.dumps(data))
    return run


def reason(tmp_path: Path, change: Callable[[dict[str, Any]], object], **fields: Any) -> str:
    """Return why the changed record is set aside; the other one is read."""
    records, problems = stored(tmp_path, change, **fields).load()
    assert len(records) == 1
    [problem] = problems
    return problem.reason


def times(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["times"].update(changes)


SIZES = "must be 0 or between 1e-30 and 1e+30"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (times(epoch_times_s=[1.7e308, 1.7e308]), f"times.epoch_times_s: {SIZES}, got 1.7e+308"),
        (times(epoch_times_s=[-1.0]), f"times.epoch_times_s: {SIZES}, got -1"),
        (times(discarded_epoch_times_s=[5e-324]), f"times.discarded_epoch_times_s: {SIZES}, got 4.94066e-324"),
        (times(step_time_s=5e-324), f"times.step_time_s: {SIZES}, got 4.94066e-324"),
        (times(samples_per_s=1e300), f"times.samples_per_s: {SIZES}, got 1e+300"),
        (times(step_time_s=0.0), "times.step_time_s: must be above 0, got 0"),
        (
            lambda data: data["settings"].update(workload="a\ud800"),
            r"settings.workload: must not contain half of a surrogate pair, got 'a\ud800'",
        ),
        (
            lambda data: data["versions"].update({"\udfff": "1"}),
            r"versions: must not contain half of a surrogate pair, got '\udfff'",
        ),
    ],
)
def test_record_that_cannot_be_shown_is_a_problem(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], expected: str
) -> None:
    assert reason(tmp_path, change) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"mode": "fc_quantum"}, "settings.params.mode: must be one of fc_single_manual, fc_keras, "),
        ({"mode": "fc_data", "tiles": 2}, "settings.params.tiles: must be a parameter of the workload fc, got 2"),
        ({"mode": "fc_data", "workers": "two"}, "settings.params.workers: must be int, got 'two'"),
        ({"mode": "fc_data", "workers": 0}, "settings.params.workers: must be above 0, got 0"),
        ({"mode": "fc_data", "level": 10**9}, "settings.params.level: must be from 0 to 100000, got 1000000000"),
        ({"mode": 3}, "settings.params.mode: must be str, got 3"),
    ],
)
def test_fc_record_of_a_newer_version_is_a_problem(tmp_path: Path, params: dict[str, Any], expected: str) -> None:
    """Mutation: `check` does not look at the workload fc."""
    fields = {"settings": make_settings(workload="fc", params={"mode": "fc_data", "workers": 2})}
    assert reason(tmp_path, lambda data: data["settings"].update(params=params), **fields).startswith(expected)


def test_free_text_with_half_of_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    run = stored(tmp_path, lambda data: data.update(reason="a\ud800", warnings=["\udfff: b"]))
    records, problems = run.load()
    assert ([record.reason for record in records][1], records[1].warnings, problems) == ("a\ufffd", ["\ufffd: b"], [])


@pytest.mark.parametrize(
    "name", ["20260231T000000Z-ffffff", "20260101T250000Z-ffffff", "20260101T000060Z-0a0a0a", "00000101T000000Z-000000"]
)
def test_run_of_no_real_time_is_left_out(tmp_path: Path, name: str) -> None:
    """Mutation: `runs` takes every name of the form of a run."""
    reason = f"its name must begin with a time that exists, such as 20260131T235959Z, got {name[:16]}"
    results = Results(tmp_path)
    results.create(RUN_ID, {})
    (tmp_path / name).mkdir()
    (tmp_path / name / "run.json").write_text("{}")
    assert [run.run_id for run in results.runs()] == [RUN_ID]
    assert results.left_out() == [Problem(tmp_path / name, reason)]


def test_what_is_in_the_place_of_a_run_is_left_out_with_the_reason(tmp_path: Path) -> None:
    names = [f"20260102T00000{number}Z-000000" for number in range(6)]
    folder, link, file, device, without, being_created = (tmp_path / name for name in names)
    for made in (folder, device, without, being_created):
        (made / "records").mkdir(parents=True)
    (folder / "run.json").mkdir()
    link.symlink_to(folder)
    file.write_text("")
    (device / "run.json").symlink_to("/dev/zero")
    (without / "records" / "a.json").write_text("{}")
    assert {problem.path: problem.reason for problem in Results(tmp_path).left_out()} == {
        folder: "run.json is not a regular file",
        link: "a link, which is not followed",
        file: "not a folder",
        device: "run.json is not a regular file",
        without: "run.json is missing",
    }
    assert Results(tmp_path).runs() == []


def test_folder_and_link_in_the_place_of_records_are_problems(tmp_path: Path) -> None:
    run = Results(tmp_path).create(RUN_ID, {})
    paths = [run.folder / "records" / f"{'a' * 16}.{number}.0.json" for number in range(2)]
    paths[0].mkdir()
    paths[1].symlink_to("/etc/hostname")
    assert run.load() == (
        [],
        [Problem(paths[0], "not a regular file"), Problem(paths[1], "a link, which is not followed")],
    )
