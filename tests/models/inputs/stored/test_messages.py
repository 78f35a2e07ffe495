"""What data sets of files are refused for, each with its complete message."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from keras_matrix.models.inputs.stored import shards
from keras_matrix.models.inputs.stored.folder import GROUND_TRUTH, SYNSETS
from keras_matrix.models.inputs.stored.record_file import FRAME_BYTES, framed, offsets, records
from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.models.inputs.stored.source import Features, open_source
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.models.inputs.stored.data_sets import class_folder, record_files
from tests.models.inputs.stored.test_class_list import flat
from tests.models.inputs.stored.test_record_sources import KINDS, SAMPLES, described

Case = Callable[[Path], object]


def check(golden: Golden, name: str, folder: Path, cases: Mapping[str, Case]) -> None:
    """Compare the message of each case, which has a folder of its own, with a golden file."""

    def messages_of(number: int, case: Case) -> list[str]:
        own = folder / str(number)
        own.mkdir()
        return [line.replace(str(own), "FOLDER") for line in refusal(InputDataError, lambda: case(own))]

    messages = {title: messages_of(number, case) for number, (title, case) in enumerate(cases.items())}
    check_messages(golden, name, messages)


# Record files.


def without_bytes(folder: Path, kind: str) -> object:
    record_files(folder, kind)
    (folder / f"part-1.{kind}").write_bytes(b"")
    return open_source(folder)


def random_bytes(folder: Path, kind: str) -> object:
    (folder / f"a.{kind}").write_bytes(np.random.default_rng(0).bytes(200_000))
    return open_source(folder)


def vanished(folder: Path, kind: str) -> object:
    source = open_source(record_files(folder, kind))
    (folder / f"part-2.{kind}").unlink()
    assert source.read([0]) == SAMPLES[:1]
    return source.read([0, 6])


def unfinished(folder: Path, kind: str) -> object:
    shards.write(folder, replace(described(record_files(folder, kind), kind), finished=False))
    return open_source(folder)


def grown(folder: Path, kind: str) -> object:
    described(record_files(folder, kind), kind)
    with (folder / f"part-1.{kind}").open("ab") as file:
        file.write(b"more")
    return open_source(folder)


def missing(folder: Path, kind: str) -> object:
    described(record_files(folder, kind), kind)
    (folder / f"part-1.{kind}").unlink()
    return open_source(folder)


def described_without(folder: Path, kind: str) -> object:
    described(record_files(folder, kind), kind)
    return open_source(folder, features=Features(label="y"))


OF_RECORDS: Mapping[str, Callable[[Path, str], object]] = {
    "more samples than the files have": lambda folder, kind: open_source(record_files(folder, kind), 50_000),
    "an image under another name": lambda folder, kind: open_source(
        record_files(folder, kind), features=Features(image="image")
    ),
    "a label under another name than that of the manifest": described_without,
    "an empty file": without_bytes,
    "a file of random bytes": random_bytes,
    "an unfinished data set": unfinished,
    "a file that is larger than its manifest says": grown,
    "a file that the manifest lists and is missing": missing,
}


def both_kinds(folder: Path) -> object:
    for kind in KINDS:
        record_files(folder, kind)
    return open_source(folder)


def damaged_manifest(folder: Path) -> object:
    class_folder(folder)
    (folder / "manifest.json").write_text('{"written_by": "keras-matrix 1", "parts": 5}')
    return open_source(folder)


def file_of_another_kind(folder: Path) -> object:
    (folder / "a.jpg").touch()
    return open_source(folder / "a.jpg")


def test_every_wrong_data_set_of_records_has_its_message(golden: Golden, tmp_path: Path) -> None:
    cases: dict[str, Case] = {
        f"{title}, {kind}": lambda folder, case=case, kind=kind: case(folder, kind)  # type: ignore[misc]
        for title, case in OF_RECORDS.items()
        for kind in KINDS
    }
    cases |= {
        "a file that vanishes": lambda folder: vanished(folder, "tfrecord"),
        "files of both kinds": both_kinds,
        "a manifest that is damaged": damaged_manifest,
        "a file of another kind": file_of_another_kind,
    }
    check(golden, "record_sets.txt", tmp_path, cases)


# The framing of TFRecord files.

TWO = b"".join(piece for payload in (b"whole", b"damaged") for piece in framed(payload))
SECOND = 5 + FRAME_BYTES


def changed(at: int) -> bytes:
    return bytes(byte ^ 1 if index == at else byte for index, byte in enumerate(TWO))


FILES: Mapping[str, bytes] = {
    "an empty file": b"",
    **{f"{size} bytes of a second record": TWO[: SECOND + size] for size in (1, 11, 12, 15, 20)},
    "a length with another checksum": changed(SECOND),
    "a payload with another checksum": changed(SECOND + 12),
    "a text": b"This is a text, and no TFRecord file.",
    "a file that gzip compressed": gzip.compress(b"x" * 100, mtime=0),
}


def test_every_damaged_tfrecord_file_has_its_message(golden: Golden, tmp_path: Path) -> None:
    def reading(content: bytes, read: Callable[[Path], object]) -> Case:
        def case(folder: Path) -> object:
            (folder / "a.tfrecord").write_bytes(content)
            return read(folder / "a.tfrecord")

        return case

    def all_records(path: Path) -> object:
        return list(records(path))

    cases: dict[str, Case] = {title: reading(content, all_records) for title, content in FILES.items()}
    cases |= {
        f"{title}, of which only the lengths are read": reading(content, offsets)
        for title, content in FILES.items()
        if "payload" not in title
    }
    cases["a missing file"] = lambda folder: all_records(folder / "gone.tfrecord")
    check(golden, "tfrecord.txt", tmp_path, cases)


# Folders of classes.


def file_gone(folder: Path) -> object:
    source = open_source(class_folder(folder))
    (folder / "pear" / "1.jpg").unlink()
    return source.read(range(9))


def size_gone(folder: Path) -> object:
    source = open_source(class_folder(folder))
    (folder / "pear" / "1.jpg").unlink()
    return source.sizes()


def splits(folder: Path) -> object:
    class_folder(folder / "train")
    (folder / "val").mkdir()
    return open_source(folder)


FOLDERS: Mapping[str, Case] = {
    "a missing folder": lambda folder: open_source(folder / "nowhere"),
    "an empty folder": open_source,
    "classes without an image": lambda folder: open_source(class_folder(folder, (0, 0, 0))),
    "more samples than files": lambda folder: open_source(class_folder(folder), 50_000),
    "no sample": lambda folder: open_source(class_folder(folder), 0),
    "a folder of splits": splits,
    "a file that vanishes": file_gone,
    "a file that vanishes before its size is read": size_gone,
}


def labelled(name: str, text: str) -> Case:
    def case(folder: Path) -> object:
        (flat(folder) / name).write_text(text)
        return open_source(folder)

    return case


LISTS: Mapping[str, Case] = {
    "a list of fewer labels than files": labelled(SYNSETS, "n01\n"),
    "a list with an empty label": labelled(SYNSETS, "n01\n\nn02\nn03\n"),
    "an identifier above the last one": labelled(GROUND_TRUTH, "1\n2\n1001\n3\n"),
    "an identifier that is no number": labelled(GROUND_TRUTH, "1\nn2\n3\n3\n"),
    "a list without labels of some files": labelled("val.txt", "ILSVRC2012_val_00000001.JPEG 1\n"),
    "a line without a label": labelled("val.txt", "alone\n"),
}


def test_every_wrong_folder_of_classes_has_its_message(golden: Golden, tmp_path: Path) -> None:
    check(golden, "class_folders.txt", tmp_path, {**FOLDERS, **LISTS})
