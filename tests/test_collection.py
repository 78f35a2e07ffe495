"""A stage that asks for a mark collects the files that can have tests with it, and only those."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from tests import unit_tier
from tests.conftest import HERE, marks_asked_for, pytest_ignore_collect, words_about


@pytest.mark.parametrize(
    ("expression", "marks"),
    [
        ("browser", {"browser"}),
        ("process and alone", {"process", "alone"}),
        ("process and not alone", {"process"}),
        ("not process and not gpu", set()),
        ("process or gpu", set()),
        ("not (process and alone)", set()),
        ("", set()),
    ],
)
def test_marks_that_every_selected_test_has(expression: str, marks: set[str]) -> None:
    assert marks_asked_for(expression) == marks


def test_marks_of_a_folders_fixtures_count_for_its_files() -> None:
    assert "emulator" in words_about(HERE / "uploader" / "bigquery" / "test_warehouse.py")
    assert "unicorn" not in words_about(HERE / "uploader" / "bigquery" / "test_warehouse.py")


@pytest.mark.parametrize(
    ("name", "left_out"), [("test_for_every_change.py", True), ("dashboards/test_browser.py", None), ("conftest", None)]
)
def test_a_file_without_the_mark_is_left_out_and_one_with_it_is_collected(name: str, left_out: bool | None) -> None:
    config = SimpleNamespace(option=SimpleNamespace(markexpr="browser"))
    assert pytest_ignore_collect(HERE / name, cast("pytest.Config", config)) is left_out


def test_every_file_is_collected_where_no_mark_is_asked_for() -> None:
    config = SimpleNamespace(option=SimpleNamespace(markexpr="not process and not browser"))
    assert pytest_ignore_collect(HERE / "test_for_every_change.py", cast("pytest.Config", config)) is None


@pytest.mark.parametrize("event", sorted(unit_tier.STARTS - {"subprocess.Popen"}))
def test_a_unit_test_that_starts_a_process_fails(event: str) -> None:
    """Mutation: `_refuse` looks at no event. Nothing is started here even then."""
    with pytest.raises(pytest.fail.Exception, match="starts a process"):
        sys.audit(event)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_of_multiprocessing_is_one_too(method: str) -> None:
    """Mutation: only the events of Python itself are looked at."""
    with pytest.raises(pytest.fail.Exception, match=r"is_one_too\[\w+\] starts a process, .*python"):
        multiprocessing.get_context(method).Process(target=print).start()


def test_the_process_that_a_unit_test_would_start_is_named() -> None:
    with pytest.raises(pytest.fail.Exception, match="is_named starts a process, true: mark it"):
        subprocess.run(["true"], check=True)
