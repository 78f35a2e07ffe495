import re
from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import COMMANDS
from tests.golden import Golden

HERE = Path(__file__).parent
MOST_LINES = 300  # more is not read when a change is reviewed
# These print a document that other tests compare or read: matrix.schema.json, and the script of a shell.
OTHERS = {"schema", "completion"}


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


def test_every_command_has_a_transcript_short_enough_to_be_read() -> None:
    """A transcript that refuses what several commands refuse alike, such as two runs to compare, is one file."""
    files = {path.name: path.read_text(encoding="utf-8") for path in (HERE / "runner").glob("**/golden/*.txt")}
    transcripts = {name: text for name, text in files.items() if "\nexit code " in text}
    assert len(transcripts) > 40
    named = {name.partition(".")[0].partition("_")[0] for name in transcripts}
    assert named == set(COMMANDS) - OTHERS
    for name in named:
        first_word = "" if name == "run" else f" {name}"
        assert re.search(rf"^\$ runner{first_word}\b", transcripts[f"{name}.txt"], re.MULTILINE), name
    assert {name: len(text.splitlines()) for name, text in transcripts.items() if text.count("\n") > MOST_LINES} == {}
