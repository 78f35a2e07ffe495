"""Folders of JPEG files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from keras_matrix.models.inputs.stored.source import InputDataError, Sample, open_source
from tests.models.inputs.stored.data_sets import class_folder, contents


def test_classes_are_the_sub_folders_and_files_are_sorted(tmp_path: Path) -> None:
    source = open_source(class_folder(tmp_path))
    assert (source.kind, source.classes, len(source), source.notes) == ("folder", ("apple", "pear", "plum"), 9, ())
    assert [source.name(index) for index in (0, 3, 8)] == ["apple/0.jpg", "pear/0.jpg", "plum/3.jpg"]
    assert source.read([8, 0, 4]) == [Sample(contents(8), 2), Sample(contents(0), 0), Sample(contents(4), 1)]
    assert source.files() == sorted(tmp_path.rglob("*.jpg"))
    assert source.sizes().tolist() == [300 + number for number in range(9)]


def test_source_can_be_sent_to_another_process(tmp_path: Path) -> None:
    source = open_source(class_folder(tmp_path))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(range(9)) == source.read(range(9))


def test_window_of_a_folder_is_a_global_shuffle(tmp_path: Path) -> None:
    source = open_source(class_folder(tmp_path))
    assert source.order("window", 1, 4).shuffle == "global"
    assert source.order("none", 1, 4).shuffle == "none"


def test_limit_takes_evenly_spaced_samples_of_all_classes(tmp_path: Path) -> None:
    source = open_source(class_folder(tmp_path, (6, 6, 6)), 6)
    assert [sample.label for sample in source.read(range(len(source)))] == [0, 0, 1, 1, 2, 2]


def test_class_without_images_and_class_with_one_image_are_noted(tmp_path: Path) -> None:
    source = open_source(class_folder(tmp_path, (2, 0, 1)))
    assert source.notes == ("class without images (1): pear", "class with one image (1): plum")
    assert source.classes == ("apple", "pear", "plum")
    assert [sample.label for sample in source.read(range(3))] == [0, 0, 2]


def test_other_files_are_noted_and_left_out(tmp_path: Path) -> None:
    root = class_folder(tmp_path)
    (root / "apple" / "Thumbs.db").touch()
    (root / "README").touch()
    os.mkfifo(root / "pear" / "pipe.jpg")
    source = open_source(root)
    assert len(source) == 9
    assert source.notes == (
        "left out, as it is not a file named *.jpg or *.jpeg (3): README, apple/Thumbs.db, pear/pipe.jpg",
    )


def test_hidden_files_and_folders_are_noted_and_no_class_or_image(tmp_path: Path) -> None:
    """Jupyter's checkpoints and the second file of macOS would shift the numbers of the classes."""
    root = class_folder(tmp_path)
    for folder in (".ipynb_checkpoints", "apple/.ipynb_checkpoints", ".Trash-0/apple"):
        (root / folder).mkdir(parents=True)
        (root / folder / "x.jpg").write_bytes(b"x")
    (root / "pear" / "._0.jpg").write_bytes(b"x")
    (root / ".DS_Store").touch()
    source = open_source(root)
    assert (source.classes, len(source)) == (("apple", "pear", "plum"), 9)
    assert [sample.label for sample in source.read([0, 3, 8])] == [0, 1, 2]
    assert source.notes == (
        "left out, as it is hidden: its name begins with a dot (5): .DS_Store, .Trash-0, .ipynb_checkpoints, "
        "apple/.ipynb_checkpoints, pear/._0.jpg",
    )


def test_suffix_may_be_upper_case_and_classes_may_have_sub_folders(tmp_path: Path) -> None:
    inner = tmp_path / "n01440764" / "images"
    inner.mkdir(parents=True)
    for name in ("a.JPEG", "b.Jpg"):
        (inner / name).write_bytes(b"x")
    source = open_source(tmp_path)
    assert [source.name(index) for index in range(len(source))] == ["n01440764/images/a.JPEG", "n01440764/images/b.Jpg"]


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "data")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far.jpg").write_bytes(b"far")
    (root / "apple" / "here").symlink_to(elsewhere)
    (root / "apple" / "loop").symlink_to(root / "apple")
    (root / "pear" / "self").symlink_to("self")
    (root / "pear" / "gone.jpg").symlink_to("nowhere")
    (root / "plum" / "up").symlink_to(root)
    source = open_source(root)
    names = [source.name(index) for index in range(len(source))]
    assert "apple/here/far.jpg" in names
    assert len(names) == len(set(names)) == 9 + 1
    assert source.notes == (
        "left out, as it is not a file named *.jpg or *.jpeg (2): pear/gone.jpg, pear/self",
        "left out, as this link leads to a folder that contains it or was read before (2): apple/loop, plum/up",
    )


def test_names_may_be_in_any_script_or_no_text_at_all(tmp_path: Path) -> None:
    names = [
        ("수달".encode(), b"\xe5\x9c\x96 1.jpg"),
        (b"\xff\xfe", b"\xe9t\xe9\n.jpg"),
        ("κλάση 'x'".encode(), b"a\\b.jpg"),
    ]
    for folder, file in names:
        place = tmp_path / os.fsdecode(folder)
        place.mkdir()
        (place / os.fsdecode(file)).write_bytes(file)
    source = open_source(tmp_path)
    assert list(source.classes) == [os.fsdecode(folder) for folder, _ in sorted(names)]
    assert [sample.data for sample in source.read(range(3))] == [file for _, file in sorted(names)]
    assert all(path.exists() for path in source.files())
    source.files()[2].unlink()
    with pytest.raises(InputDataError) as caught:
        source.read([2])
    assert str(caught.value).encode()  # can be printed
    assert "has vanished since the folder was read" in str(caught.value)


def test_split_is_a_data_set(tmp_path: Path) -> None:
    class_folder(tmp_path / "train")
    (tmp_path / "val").mkdir()
    assert len(open_source(tmp_path / "train")) == 9


def test_index_outside_of_the_data_set_is_an_index_error(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        open_source(class_folder(tmp_path)).read([9])


def test_folder_that_two_links_lead_to_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.jpg").write_bytes(b"x")
    (tmp_path / "data" / "cats").mkdir(parents=True)
    for name in ("first", "second"):
        (tmp_path / "data" / "cats" / name).symlink_to(tmp_path / "elsewhere")
    source = open_source(tmp_path / "data")
    assert [source.name(index) for index in range(len(source))] == ["cats/first/1.jpg"]
    expected = "left out, as this link leads to a folder that contains it or was read before (1): cats/second"
    assert expected in source.notes
