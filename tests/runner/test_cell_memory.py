"""What a cell may still take: the machine's memory, or what its container's limit leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cell import memory


@pytest.mark.parametrize(
    ("limit", "used", "left"), [("1000", "300", 700), ("1000", "1200", 0), ("max", "300", None), (None, None, None)]
)
def test_a_containers_limit_counts_where_it_leaves_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, used: str | None, left: int | None
) -> None:
    for name, text in (("limit", limit), ("used", used)):
        if text is not None:
            (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(memory, "GROUP", ())
    machine = memory.available_bytes()
    assert machine is not None
    monkeypatch.setattr(memory, "GROUP", ((str(tmp_path / "limit"), str(tmp_path / "used")),))
    found = memory.available_bytes()
    assert found is not None
    assert found == left if left is not None else found > machine // 2
