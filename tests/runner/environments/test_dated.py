"""Locks by date: the different ones between two days, found with few resolutions, and what differs between them."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from keras_matrix.runner.environments import dated
from keras_matrix.runner.environments.dated import DatedLock, changed, day, lock_on, locked_environment, locks_between
from keras_matrix.runner.environments.rebuilt import CannotRebuild
from keras_matrix.runner.errors import UsageError

MAY = date(2026, 5, 1)
TODAY = date(2026, 11, 1)
RELEASES = {MAY + timedelta(days=n): f"keras==3.{n}\nnumpy==2\n" for n in (0, 10, 11, 80)}


def lock(on: date) -> str:
    return RELEASES[max(release for release in RELEASES if release <= on)]


def test_each_different_lock_is_found_with_its_first_day_and_few_resolutions() -> None:
    asked: list[date] = []

    def counted(on: date) -> str:
        asked.append(on)
        return lock(on)

    found = locks_between(MAY, MAY + timedelta(days=150), counted)
    assert found == [DatedLock(release, text) for release, text in RELEASES.items()]
    assert len(asked) < 30


def test_a_past_day_is_read() -> None:
    assert day("--good", "2026-05-01", TODAY) == MAY


def test_changed_packages_are_listed_with_both_versions() -> None:
    assert changed("a==1\nb==2\n", "a==1\nb==3\nc==4\n") == ["b 2 -> 3", "c none -> 4"]


def test_lock_of_a_day_contains_what_was_uploaded_by_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], str]] = []
    overrides: list[str] = []

    def run_tool(command: list[str], problem: str, text: str = "") -> str:
        seen.append((command, text))
        overrides.append(Path(command[command.index("--override") + 1]).read_text())
        return "keras==3\n"

    monkeypatch.setattr(dated, "run_tool", run_tool)
    monkeypatch.setattr(dated, "uv", lambda: ["uv"])
    assert lock_on(["keras", "jax"], "there/python")(MAY) == "keras==3\n"
    [(command, text)] = seen
    assert command[-2:] == ["--exclude-newer", "2026-05-02T00:00:00Z"]
    assert (command[:4], text) == (["uv", "pip", "compile", "-"], "keras\njax\n")
    lock_on(["keras-hub", "tensorflow-text<3"], "there/python")(MAY)
    assert overrides == ["tensorflow-text; sys_platform == 'never'\n", ""]


def test_environment_of_a_lock_is_made_once_with_exactly_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def run_tool(command: list[str], problem: str, text: str = "") -> str:
        seen.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir()
        return ""

    monkeypatch.setattr(dated, "run_tool", run_tool)
    monkeypatch.setattr(dated, "uv", lambda: ["uv"])
    folders = {locked_environment(lock(MAY), "python", tmp_path, print) for _ in range(2)}
    assert (len(folders), len(seen)) == (1, 2)
    assert "--no-deps" in seen[1]


def test_missing_uv_is_named_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dated.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dated.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"--dates: needs uv; install it with: pip install 'keras-matrix\[bisect\]'"):
        dated.uv()
    monkeypatch.setattr(dated.shutil, "which", lambda name: "/there/uv")
    assert dated.uv() == ["/there/uv"]


@pytest.mark.process
def test_reason_of_uv_is_the_message_and_a_lost_connection_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "uv"
    tool.write_text("#!/bin/sh\necho 'error: dns error: no such host' >&2\nexit 2\n")
    tool.chmod(0o755)
    monkeypatch.setattr(dated, "uv", lambda: [str(tool)])
    with pytest.raises(
        CannotRebuild, match="uv finds no lock for 2026-05-01: error: dns error: no such host"
    ) as raised:
        lock_on(["keras"], "python")(MAY)
    assert type(raised.value).__name__ == "NoNetwork"
