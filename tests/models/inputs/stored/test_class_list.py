"""Flat folders with a list of labels: ILSVRC2012's validation images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keras_matrix.models.inputs.stored.folder import GROUND_TRUTH, SYNSETS
from keras_matrix.models.inputs.stored.source import open_source


def flat(folder: Path, count: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        (folder / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(b"%d" % number)
    return folder


def labels(folder: Path) -> list[int]:
    source = open_source(folder)
    return [sample.label for sample in source.read(range(len(source)))]


def test_wordnet_ids_are_sorted_as_class_folders_are(tmp_path: Path) -> None:
    flat(tmp_path)
    (tmp_path / SYNSETS).write_text("n02\nn01\nn03\nn01\n")
    assert open_source(tmp_path).classes == ("n01", "n02", "n03")
    assert labels(tmp_path) == [1, 0, 2, 0]


def test_list_of_50000_lines_beside_the_folder_of_validation_images_is_found(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    for number in range(1, 50_001):
        os.mknod(tmp_path / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")  # a third of the time of opening it
    (tmp_path / SYNSETS).write_text("".join(f"n{number % 1000:08d}\n" for number in range(50_000)))
    source = open_source(tmp_path / "val")
    assert (len(source), len(source.classes), source.notes) == (50_000, 1000, ())
    assert [sample.label for sample in source.read([0, 999, 1000, 49_999])] == [0, 999, 0, 999]


def test_development_kit_ids_count_from_one_and_a_note_says_that_their_order_differs(tmp_path: Path) -> None:
    flat(tmp_path)
    (tmp_path / GROUND_TRUTH).write_text("490\n1\n1000\n1\n")
    source = open_source(tmp_path)
    assert labels(tmp_path) == [489, 0, 999, 0]
    assert (len(source.classes), source.classes[489]) == (1000, "490")
    assert "whose order is not that of Keras's weights" in source.notes[0]


@pytest.mark.parametrize("name", ["val.txt", "labels.txt"])
def test_list_of_files_may_be_in_any_order_with_numbers_or_names(tmp_path: Path, name: str) -> None:
    flat(tmp_path, 3)
    files = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (3, 1, 2)]
    (tmp_path / name).write_text(f"{files[0]} 2\nval/{files[1]} 0\n\n{files[2]} 1\n")
    assert labels(tmp_path) == [0, 1, 2]
    (tmp_path / name).write_text(f"{files[0]} dog\n{files[1]} cat\n{files[2]} dog\n")
    assert (labels(tmp_path), open_source(tmp_path).classes) == ([0, 1, 1], ("cat", "dog"))


def test_list_of_class_names_beside_class_folders_is_no_list_of_files(tmp_path: Path) -> None:
    flat(tmp_path / "n01")
    (tmp_path / "labels.txt").write_text("n01\n")
    assert labels(tmp_path) == [0] * 4


def test_hidden_files_of_a_flat_folder_need_no_label(tmp_path: Path) -> None:
    for name in ("a.jpg", "._a.jpg"):
        (tmp_path / name).write_bytes(b"a")
    (tmp_path / "labels.txt").write_text("a.jpg 0\n")
    source = open_source(tmp_path)
    assert [source.name(index) for index in range(len(source))] == ["a.jpg"]
    assert source.notes == ("left out, as it is hidden: its name begins with a dot (1): ._a.jpg",)


def test_only_regular_files_of_a_flat_folder_are_images(tmp_path: Path) -> None:
    """Reading a named pipe would not end."""
    (tmp_path / "a.jpg").write_bytes(b"a")
    os.mkfifo(tmp_path / "b.jpg")
    (tmp_path / "c.jpg").symlink_to("nowhere")
    (tmp_path / "labels.txt").write_text("a.jpg 0\nb.jpg 1\nc.jpg 1\n")
    source = open_source(tmp_path)
    assert [source.name(index) for index in range(len(source))] == ["a.jpg"]
    assert source.notes == ("left out, as it is not a file named *.jpg or *.jpeg (2): b.jpg, c.jpg",)
