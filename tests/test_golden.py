from pathlib import Path

import pytest

from tests.golden import Golden


def test_equal_text_passes_and_a_changed_text_fails(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text("one line\n")
    golden = Golden(tmp_path, update=False)
    golden.check("page.txt", "one line\n")
    with pytest.raises(AssertionError, match="--update-golden"):
        golden.check("page.txt", "another line\n")


def test_missing_file_fails_with_advice(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page\.txt is missing: run pytest with --update-golden"):
        Golden(tmp_path, update=False).check("page.txt", "one line\n")


def test_update_writes_the_text(tmp_path: Path) -> None:
    Golden(tmp_path / "golden", update=True).check("page.txt", "one line\n")
    assert (tmp_path / "golden" / "page.txt").read_text() == "one line\n"
