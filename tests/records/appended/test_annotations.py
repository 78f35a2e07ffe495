"""Notes about intended changes are appended atomically and never changed; damaged ones are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.appended import FILE, NOTE_LIMIT, Annotation, NoteKind, append, checked_note, in_force, load
from keras_matrix.records.store_failure import StoreFailure

KERAS = Annotation("20260101T000000Z-abcdef", ["a" * 16, "b" * 16], ["0" * 16], "keras 3.16", "jax:*")


def withdrawn(cells: list[str]) -> Annotation:
    return Annotation(KERAS.run_id, cells, KERAS.hosts, None, "jax:mnist_mlp")


def test_appended_notes_are_read_in_order(tmp_path: Path) -> None:
    append(tmp_path, [KERAS])
    append(tmp_path, [withdrawn(["a" * 16])])
    assert load(tmp_path) == ([KERAS, withdrawn(["a" * 16])], [])


def test_folder_without_a_file_has_no_notes(tmp_path: Path) -> None:
    assert load(tmp_path) == ([], [])


def test_existing_line_is_never_changed(tmp_path: Path) -> None:
    append(tmp_path, [KERAS])
    before = (tmp_path / FILE).read_bytes()
    append(tmp_path, [KERAS])
    assert (tmp_path / FILE).read_bytes() == before * 2


def test_line_after_a_truncated_one_is_read(tmp_path: Path) -> None:
    append(tmp_path, [KERAS])
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + whole[:40])
    append(tmp_path, [withdrawn(["a" * 16])])
    found, problems = load(tmp_path)
    assert found == [KERAS, withdrawn(["a" * 16])]
    assert [problem.reason.partition(":")[0] for problem in problems] == ["line 2"]


@pytest.mark.parametrize("line", ['{"run_id": 7}', "[]", '{"version": 3, "cells": []}', "\xff"])
def test_damaged_note_is_skipped_with_a_problem(tmp_path: Path, line: str) -> None:
    (tmp_path / FILE).write_bytes(line.encode("latin-1") + b"\n")
    append(tmp_path, [KERAS])
    found, problems = load(tmp_path)
    assert (found, len(problems)) == ([KERAS], 1)


def test_the_last_line_about_a_cell_counts_and_may_take_the_note_back() -> None:
    later = Annotation(KERAS.run_id, ["b" * 16], KERAS.hosts, "keras 3.16 and jax", "b")
    notes = in_force([KERAS, later, withdrawn(["a" * 16])], NoteKind.INTENDED)
    assert notes == {("b" * 16, "0" * 16, KERAS.run_id): "keras 3.16 and jax"}


def test_note_that_cannot_be_stored_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(StoreFailure, match=r"history\.jsonl: cannot store the note"):
        append(tmp_path, [KERAS])


@pytest.mark.parametrize("text", ["", "  ", "two\nlines", "bell\a", "x" * (NOTE_LIMIT + 1), "\ud800"])
def test_a_note_that_is_not_one_printable_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be one line"):
        checked_note(text)


def test_note_is_stored_without_surrounding_blanks() -> None:
    assert checked_note(" neuer Kernel 6.12, größer ") == "neuer Kernel 6.12, größer"
