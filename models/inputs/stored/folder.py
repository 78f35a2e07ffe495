"""A folder of JPEG files: a sub-folder for each class, or a flat folder with a list of labels (`labelled`).

The names are read once with `os.scandir`, without a call per file, and sorted as bytes, so that the order is the same
on every machine. Sub-folders of a class belong to it. Symbolic links are followed; a folder is read once per class,
which ends loops. Hidden files and folders, such as `.ipynb_checkpoints` and the `._x.jpg` of macOS, are left out and
named: `keras.utils.image_dataset_from_directory` makes no class of a hidden folder, either. Names are kept as one block
of bytes: a million of them take 40 MB and are pickled at once.

A flat folder is that of the validation images of ILSVRC2012, or any one with a list of files and labels, in one of
three documented formats, beside the images or in the folder above:

    imagenet_2012_validation_synset_labels.txt
        a WordNet ID such as n01751748 per line, in the order of the file names (of TensorFlow's models; 50,000 lines)
    ILSVRC2012_validation_ground_truth.txt
        an ILSVRC2012_ID from 1 to 1000 per line, in the order of the file names (of the development kit; 50,000 lines)
    val.txt, labels.txt
        `FILE LABEL` per line, as in Caffe's lists; LABEL is a number from 0, or a name

Classes that are names are sorted, as class folders are: with WordNet IDs the labels are those of Keras's weights. An
ILSVRC2012_ID has another order, which only the development kit's meta.mat translates; a note says so.

A module of its own: folders of files have rules that record files do not have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.models.inputs.stored.sample import InputDataError, Integers, Order, Sample

JPEG_SUFFIXES = (b".jpg", b".jpeg", b".jpe", b".jfif")
OWN_FILES = frozenset({b"manifest.json"})
SPLITS = frozenset({b"train", b"val", b"validation", b"test"})
MOST_NAMED = 5
NOT_JPEG = "left out, as it is not a file named *.jpg or *.jpeg"
HIDDEN = "left out, as it is hidden: its name begins with a dot"
SYNSETS = "imagenet_2012_validation_synset_labels.txt"
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
BY_FILE = ("val.txt", "labels.txt")
Labels = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class FolderScan:
    """What a scan found: folders and names of JPEG files, sorted, and what it left out."""

    files: list[tuple[bytes, bytes]] = field(default_factory=list)
    left_out: list[bytes] = field(default_factory=list)
    hidden: list[bytes] = field(default_factory=list)
    loops: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class FolderSource:
    """The samples of a folder. `places` has for each sample its folder, start and end of its name, and its label."""

    root: bytes
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    folders: tuple[bytes, ...]
    names: bytes
    places: np.ndarray[Any, np.dtype[np.int64]]
    kind: str = "folder"

    def __len__(self) -> int:
        return len(self.places)

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return these samples; each is the reading of one file."""
        return [Sample(_contents(self._path(int(index))), int(self.places[index, 3])) for index in indices]

    def name(self, index: int) -> str:
        """Return the path of a sample relative to the folder."""
        return os.fsdecode(self._relative(index))

    def files(self) -> list[Path]:
        """Return the file of each sample."""
        return [Path(os.fsdecode(self._path(index))) for index in range(len(self))]

    def sizes(self) -> Integers:
        """Return the bytes of each file."""
        try:
            return np.fromiter((path.stat().st_size for path in self.files()), np.int64, len(self))
        except OSError as error:
            raise _unreadable(error) from None

    def order(self, shuffle: str, seed: int, batch_size: int) -> Order:
        """Return the order; a window is global, because every sample is a read of its own."""
        return Order(len(self), batch_size, "global" if shuffle == "window" else shuffle, seed)

    def limited(self, limit: int | None) -> FolderSource:
        """Return the source with only `limit` samples, evenly spaced. Raises `InputDataError` if there are fewer."""
        if limit is None or limit == len(self):
            return self
        if limit > len(self):
            raise InputDataError(
                f"{os.fsdecode(self.root)}: {limit} samples are asked for, but the folder has {len(self)} JPEG files; "
                f"set dataset_size to at most {len(self)}, or add images"
            )
        return replace(self, places=self.places[np.arange(limit, dtype=np.int64) * len(self) // limit])

    def _relative(self, index: int) -> bytes:
        folder, start, end, _ = self.places[index]
        return _joined(self.folders[folder], self.names[start:end])

    def _path(self, index: int) -> bytes:
        return _joined(self.root, self._relative(index))


def open_folder(path: Path, limit: int | None = None) -> FolderSource:
    """Return the source of a folder. Raises `InputDataError` without a data set or `limit` samples in it."""
    root = os.fsencode(path)
    try:
        with os.scandir(root) as entries:
            all_entries = sorted(entries, key=lambda entry: entry.name)
        visible_entries = [entry for entry in all_entries if not _is_hidden(entry.name)]
        hidden_names = [entry.name for entry in all_entries if _is_hidden(entry.name)]
        folders = [entry.name for entry in visible_entries if _is_folder(entry)]
    except OSError as error:
        raise _unreadable(error) from None
    list_path = list_file(path)
    if list_path is not None and any(_is_jpeg(entry.name) for entry in visible_entries):
        return _flat(
            path, [entry for entry in visible_entries if not _is_folder(entry)], (list_path, hidden_names)
        ).limited(limit)
    if SPLITS & set(folders) and set(folders) <= SPLITS:
        names_text = " and ".join(map(os.fsdecode, folders))
        raise InputDataError(
            f"{path}: contains the data sets {names_text}, not classes; give one of them as dataset_path"
        )
    if not folders:
        raise InputDataError(
            f"{path}: has no class folders, no record files and no list of labels; expected one folder per class with "
            f"JPEG files, *.tfrecord or *.array_record files, or JPEG files with one of the lists in docs/inputs.md"
        )
    loose_names = [entry.name for entry in visible_entries if entry.name not in {*folders, *OWN_FILES}]
    return _by_class(path, folders, (loose_names, hidden_names)).limited(limit)


def _by_class(path: Path, folders: list[bytes], others: tuple[list[bytes], list[bytes]]) -> FolderSource:
    """Return the source of class folders; `others` are the files beside them, and the hidden entries."""
    root = os.fsencode(path)
    scans = [_scan(root, folder) for folder in folders]
    counts = [len(scan.files) for scan in scans]
    if not any(counts):
        raise InputDataError(f"{path}: none of its {len(folders)} class folders has a JPEG file (*.jpg, *.jpeg)")
    classes = tuple(map(os.fsdecode, folders))
    files = [place for scan in scans for place in scan.files]
    loose_names, hidden_names = others
    left_out_names = loose_names + [name for scan in scans for name in scan.left_out]
    hidden_names = hidden_names + [name for scan in scans for name in scan.hidden]
    loop_names = [name for scan in scans for name in scan.loops]
    notes = (
        *_note("class without images", [name for name, count in zip(folders, counts, strict=True) if count == 0]),
        *_note("class with one image", [name for name, count in zip(folders, counts, strict=True) if count == 1]),
        *_note(NOT_JPEG, left_out_names),
        *_note(HIDDEN, hidden_names),
        *_note("left out, as this link leads to a folder that contains it or was read before", loop_names),
    )
    return _packed(root, (classes, notes), files, np.repeat(np.arange(len(folders)), counts))


def _flat(path: Path, entries: list[os.DirEntry[bytes]], others: tuple[Path, list[bytes]]) -> FolderSource:
    """Return the source of a flat folder; `others` are its list of labels, and the hidden entries."""
    list_path, hidden_names = others
    names = [entry.name for entry in entries if _is_jpeg(entry.name) and _is_file(entry)]
    classes, labels, notes = labels_of(list_path, names)
    listed_names = {*names, os.fsencode(list_path.name)}
    skipped_names = [entry.name for entry in entries if entry.name not in listed_names]
    notes = (*notes, *_note(NOT_JPEG, skipped_names), *_note(HIDDEN, hidden_names))
    return _packed(os.fsencode(path), (classes, notes), [(b"", name) for name in names], labels)


def _packed(
    root: bytes,
    facts: tuple[tuple[str, ...], tuple[str, ...]],
    files: list[tuple[bytes, bytes]],
    labels: np.ndarray[Any, Any],
) -> FolderSource:
    """Return the source with its names in one block. `facts` are the classes and the notes."""
    folders = {folder: number for number, folder in enumerate(dict.fromkeys(folder for folder, _ in files))}
    ends = np.cumsum(np.fromiter((len(name) for _, name in files), np.int64, len(files)))
    places = np.empty((len(files), 4), np.int64)
    places[:, 0] = [folders[folder] for folder, _ in files]
    places[:, 1] = np.concatenate([[0], ends[:-1]])
    places[:, 2] = ends
    places[:, 3] = labels
    return FolderSource(root, *facts, tuple(folders), b"".join(name for _, name in files), places)


def _scan(root: bytes, folder: bytes) -> FolderScan:
    """Return the JPEG files in a class folder and below it, sorted by folder and name."""
    root_status = Path(os.fsdecode(root)).stat()
    scan, visited, waiting_folders = FolderScan(), {(root_status.st_dev, root_status.st_ino)}, [folder]
    while waiting_folders:
        relative = waiting_folders.pop()
        try:
            status = Path(os.fsdecode(_joined(root, relative))).stat()
            if (status.st_dev, status.st_ino) in visited:
                scan.loops.append(relative)
                continue
            visited.add((status.st_dev, status.st_ino))
            waiting_folders.extend(reversed(list(_read_folder(root, relative, scan))))
        except OSError as error:
            raise _unreadable(error) from None
    scan.files.sort()
    return scan


def _read_folder(root: bytes, relative: bytes, scan: FolderScan) -> Iterator[bytes]:
    """Add the files of one folder to `scan`, and yield its sub-folders in order."""
    with os.scandir(_joined(root, relative)) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        if _is_hidden(entry.name):
            scan.hidden.append(_joined(relative, entry.name))
        elif _is_jpeg(entry.name) and _is_file(entry):
            scan.files.append((relative, entry.name))
        elif _is_folder(entry):
            yield _joined(relative, entry.name)
        else:
            scan.left_out.append(_joined(relative, entry.name))


def _joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _is_hidden(name: bytes) -> bool:
    return name.startswith(b".")


def _is_jpeg(name: bytes) -> bool:
    return name.lower().endswith(JPEG_SUFFIXES)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    """Whether it is a folder or a link to one; a link to itself is neither a folder nor a file."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_file(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _note(problem: str, names: Sequence[bytes]) -> list[str]:
    """Return a sentence with the first names, or nothing without names."""
    if not names:
        return []
    names_text = ", ".join(os.fsencode(name).decode("utf-8", "backslashreplace") for name in names[:MOST_NAMED])
    more_text = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"{problem} ({len(names)}): {names_text}{more_text}"]


def _contents(path: bytes) -> bytes:
    """Return the bytes of a file: open, fstat, one read, close."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(handle).st_size
            data = os.read(handle, size_bytes)
            while len(data) < size_bytes and (chunk := os.read(handle, size_bytes - len(data))):
                data += chunk
            return data
        finally:
            os.close(handle)
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> InputDataError:
    name = os.fsdecode(error.filename) if error.filename is not None else "the data set"
    if isinstance(error, FileNotFoundError):
        return InputDataError(f"{name}: the file has vanished since the folder was read; restore it, or start again")
    return InputDataError(f"{name}: cannot be read: {error.strerror}")


def list_file(folder: Path) -> Path | None:
    """Return the list of labels in a folder, or in the one above it for the lists of ILSVRC2012; None without one."""
    for name in (SYNSETS, GROUND_TRUTH, *BY_FILE):
        if (folder / name).is_file():
            return folder / name
    has_images = any(True for _ in folder.glob("ILSVRC2012_val_*"))
    list_paths = [folder.parent / name for name in (SYNSETS, GROUND_TRUTH, BY_FILE[0])] if has_images else []
    return next((path for path in list_paths if path.is_file()), None)


def labels_of(list_path: Path, names: list[bytes]) -> tuple[tuple[str, ...], Labels, tuple[str, ...]]:
    """Return the classes, the label of each name, and notes. `names` are sorted.

    Raises `InputDataError` if a line is invalid, or if the list and the files do not belong together.
    """
    try:
        lines = list_path.read_bytes().splitlines()
    except OSError as error:
        raise InputDataError(f"{list_path}: cannot be read: {error.strerror}") from None
    if list_path.name in BY_FILE:
        return _classes(list_path, _by_file(list_path, lines, names))
    if len(lines) != len(names):
        raise InputDataError(
            f"{list_path}: has {len(lines)} lines, but the folder has {len(names)} JPEG files; "
            f"there must be one line per file, in the order of the file names"
        )
    texts = [line.strip() for line in lines]
    if list_path.name == GROUND_TRUTH:
        return _identifiers(list_path, texts)
    return _classes(list_path, texts)


def _by_file(list_path: Path, lines: list[bytes], names: list[bytes]) -> list[bytes]:
    """Return the label of each name, as text, from lines `FILE LABEL`."""
    label_by_name: dict[bytes, bytes] = {}
    for number, line in enumerate(lines, start=1):
        file, _, label = line.strip().rpartition(b" ")
        if line.strip() and not file.strip():
            raise InputDataError(f"{list_path}:{number}: must be `FILE LABEL`, got {os.fsdecode(line)!r}")
        if file:
            label_by_name[file.strip().rpartition(b"/")[2]] = label
    if missing_names := [name for name in names if name not in label_by_name]:
        raise InputDataError(
            f"{list_path}: has no label for {len(missing_names)} of {len(names)} files, the first is "
            f"{os.fsdecode(missing_names[0])}"
        )
    return [label_by_name[name] for name in names]


def _classes(list_path: Path, texts: list[bytes]) -> tuple[tuple[str, ...], Labels, tuple[str, ...]]:
    """Number the classes: by their own number if all are numbers, otherwise in sorted order."""
    if empty_lines := [number for number, text in enumerate(texts, start=1) if not text]:
        raise InputDataError(f"{list_path}:{empty_lines[0]}: the label is empty")
    if all(text.isdigit() for text in texts):
        labels = np.array([int(text) for text in texts], np.int64)
        return tuple(map(str, range(int(labels.max(initial=0)) + 1))), labels, ()
    class_names = sorted(set(texts))
    number_by_name = {text: number for number, text in enumerate(class_names)}
    return tuple(map(os.fsdecode, class_names)), np.array([number_by_name[text] for text in texts], np.int64), ()


def _identifiers(list_path: Path, texts: list[bytes]) -> tuple[tuple[str, ...], Labels, tuple[str, ...]]:
    for number, text in enumerate(texts, start=1):
        if not text.isdigit() or not 1 <= int(text) <= 1000:
            raise InputDataError(
                f"{list_path}:{number}: must be an ILSVRC2012_ID from 1 to 1000, got {os.fsdecode(text)!r}"
            )
    labels = np.array([int(text) - 1 for text in texts], np.int64)
    note = (
        "labels are ILSVRC2012_IDs, whose order is not that of Keras's weights: accuracy with base_model imagenet "
        f"means nothing; use {SYNSETS} for that"
    )
    return tuple(str(number) for number in range(1, 1001)), labels, (note,)
