"""What a search over days or commits says about its versions."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from keras_matrix.runner.environments.commits import Checkout, Commit
from keras_matrix.runner.environments.dated import DatedLock
from keras_matrix.runner.environments.layered import BaseEnvironment, Layer
from keras_matrix.runner.plan.session import ArmRequest
from keras_matrix.runner.service import bisect_axes
from keras_matrix.runner.service.bisect_axes import Cache, CheckoutAxis, DateAxis

CACHE = Cache(Path("/cache"), print)
LOCKS = (DatedLock(date(2026, 5, 1), "a==1\nb==1\n"), DatedLock(date(2026, 5, 9), "a==1\nb==2\n"))


def test_days_are_named_by_date_and_differ_in_the_packages_of_their_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    axis = DateAxis(LOCKS, "python", CACHE)
    monkeypatch.setattr(bisect_axes.dated, "locked_environment", lambda lock, python, cache, say: cache / lock[-2:-1])
    monkeypatch.setattr(bisect_axes, "arm_of", lambda folder: ArmRequest(str(folder)))
    assert axis.labels == ["2026-05-01", "2026-05-09"]
    assert axis.differences(0, 1) == ["b 1 -> 2"]
    assert axis.identity == {"locks": [one.lock for one in LOCKS], "python": "python"}
    assert [axis.arm(position).python for position in (0, 1)] == ["/cache/1", "/cache/2"]


def test_commit_is_imported_from_its_worktree_and_the_folder_src_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Layer] = []

    def layered(layer: Layer, cache: Path, say: object) -> Path:
        made.append(layer)
        return cache

    (tmp_path / "src").mkdir()
    monkeypatch.setattr(Checkout, "worktree", lambda self, commit, cache: tmp_path)
    monkeypatch.setattr(bisect_axes, "layered", layered)
    monkeypatch.setattr(bisect_axes, "arm_of", lambda folder: ArmRequest(str(folder)))
    axis = CheckoutAxis(
        Checkout(Path("/mine")), [Commit("a" * 40, "Add it")], BaseEnvironment("python", {"keras": "3"}), CACHE
    )
    assert axis.arm(0).worktree == ("/mine", str(tmp_path))
    assert made == [Layer((), [str(tmp_path / "src"), str(tmp_path)], axis.base)]
    assert axis.identity == {"checkout": "/mine", "commits": ["a" * 40], "base": {"keras": "3"}}
