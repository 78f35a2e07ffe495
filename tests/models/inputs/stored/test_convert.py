"""Converting data sets, in processes of their own."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.models.inputs.stored import shards
from keras_matrix.models.inputs.stored.source import open_source
from tests.models.inputs.stored.data_sets import class_folder, contents, record_files

pytestmark = pytest.mark.process
KINDS = ("tfrecord", "array_record")
WAIT_S = 60.0


def command(source: Path, output: Path, **changes: Any) -> list[str]:
    request = {"size_per_record_bytes": 3000, "to": "tfrecord", "seed": 0, "workers": 2, **changes}
    request |= {"dataset_path": str(source), "output_path": str(output)}
    return [sys.executable, "-P", "-m", "keras_matrix.models.inputs.stored.convert", json.dumps(request)]


def convert(source: Path, output: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(source, output, **changes), capture_output=True, text=True, check=False)


def samples(folder: Path) -> dict[bytes, int]:
    source = open_source(folder)
    return {sample.data: sample.label for sample in source.read(range(len(source)))}


@pytest.mark.parametrize("kind", KINDS)
def test_converted_data_set_has_the_same_images_in_files_of_the_size(tmp_path: Path, kind: str) -> None:
    root = class_folder(tmp_path / "images", (20, 20, 20))
    size = 8000 if kind == "tfrecord" else 300_000
    done = convert(root, tmp_path / "deep" / "out", to=kind, size_per_record_bytes=size)
    assert (done.returncode, done.stderr) == (0, "")
    assert "60 images in " in done.stdout
    source = open_source(tmp_path / "deep" / "out")
    assert (source.kind, source.classes) == (kind, ("apple", "pear", "plum"))
    assert samples(tmp_path / "deep" / "out") == samples(root)
    assert all(path.stat().st_size <= size for path in source.files())
    labels = [sample.label for sample in source.read(range(20))]
    assert len(set(labels)) == 3


def test_manifest_states_source_classes_files_and_seed(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "images")
    convert(root, tmp_path / "out", seed=5)
    found = shards.read(tmp_path / "out")
    assert found is not None
    assert (found.finished, found.count, found.classes) == (True, 9, ("apple", "pear", "plum"))
    assert (found.settings["source"], found.settings["seed"]) == (str(root), 5)
    assert sum(part.records for part in found.parts) == 9


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_depend_on_the_seed_and_not_on_the_workers(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "images")
    for name, changes in (("a", {"workers": 1}), ("b", {"workers": 3}), ("c", {"seed": 1})):
        assert convert(root, tmp_path / name, **changes).returncode == 0
    assert contents_of(tmp_path / "a") == contents_of(tmp_path / "b")
    assert contents_of(tmp_path / "a") != contents_of(tmp_path / "c")


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_conversion_keeps_the_finished_files_and_writes_the_others(tmp_path: Path, kind: str) -> None:
    root = class_folder(tmp_path / "images")
    out = tmp_path / "out"
    size = 1500 if kind == "tfrecord" else 1
    assert convert(root, out, to=kind, size_per_record_bytes=size).returncode == 0
    whole = contents_of(out)
    files = sorted(path for path in out.iterdir() if path.suffix == f".{kind}")
    data = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**data, "finished": False, "parts": []}))
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:100])
    (out / f".{files[1].name}.part").write_bytes(b"half")
    kept = files[0].stat().st_mtime_ns
    done = convert(root, out, to=kind, size_per_record_bytes=size)
    assert f"wrote and verified 2 files, kept {len(files) - 2}" in done.stdout
    assert files[0].stat().st_mtime_ns == kept
    assert contents_of(out) == whole
    assert "all were already there" in convert(root, out, to=kind, size_per_record_bytes=size).stdout


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.nightly) for one in (signal.SIGINT, signal.SIGTERM))],
)
def test_interrupted_process_is_continued_by_the_same_command(tmp_path: Path, number: int) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    for index in range(3000):
        (tmp_path / "images" / "a" / f"{index}.jpg").write_bytes(contents(index, 10))
    out = tmp_path / "out"
    given = command(tmp_path / "images", out, size_per_record_bytes=1)
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        limit_s = time.monotonic() + WAIT_S
        while not any(out.glob("*.tfrecord")) and time.monotonic() < limit_s:
            time.sleep(0.01)
        child.send_signal(number)
        printed, problem = child.communicate(timeout=WAIT_S)
    if number == signal.SIGKILL:
        assert child.returncode == -signal.SIGKILL
    else:
        assert (child.returncode, printed, problem) == (130, "", "runner: stopped; the same command continues\n")
        assert list(out.glob(".images*.part")) == []
    assert 0 < len(list(out.glob("*.tfrecord"))) < 3000
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ", kept " in done.stdout
    assert samples(out) == samples(tmp_path / "images")


def test_record_files_of_another_format_can_be_converted(tmp_path: Path) -> None:
    record_files(tmp_path / "in", "tfrecord")
    assert convert(tmp_path / "in", tmp_path / "out", to="array_record").returncode == 0
    assert samples(tmp_path / "out") == samples(tmp_path / "in")


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "images" / b"\xff\xfe".decode("utf-8", "surrogateescape")
    folder.mkdir(parents=True)
    for number in range(2):
        (folder / f"수달{number}.jpg").write_bytes(contents(number))
    assert convert(tmp_path / "images", tmp_path / "out").stderr == ""
    assert open_source(tmp_path / "out").classes == (folder.name,)
    folder.joinpath("수달1.jpg").unlink()
    assert r"class with one image (1): \xff\xfe" in convert(tmp_path / "images", tmp_path / "other").stderr


def test_unusual_data_is_noted_on_standard_error(tmp_path: Path) -> None:
    done = convert(class_folder(tmp_path / "images", (2, 0, 1)), tmp_path / "out")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"runner: {tmp_path}/images: class without images (1): pear",
        f"runner: {tmp_path}/images: class with one image (1): plum",
    ]


def refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "images")
    convert(root, tmp_path / "out")
    refused(convert(root, tmp_path / "out", seed=1), "seed was 0, not 1")
    refused(convert(root, tmp_path / "out", to="array_record"), "it is tfrecord, not array_record")
    (root / "plum" / "9.jpg").write_bytes(b"new")
    refused(convert(root, tmp_path / "out"), "source_sha256 was")


def test_folder_with_other_contents_is_not_touched(tmp_path: Path) -> None:
    root = class_folder(tmp_path / "images")
    refused(convert(root, root / "plum"), "lies within the data set")
    refused(convert(root, tmp_path), "is not empty")
    (tmp_path / "file").touch()
    refused(convert(root, tmp_path / "file"), "is a file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "images"]
    shutil.rmtree(root / "plum")
    refused(convert(tmp_path / "nowhere", tmp_path / "out"), "nowhere: no such folder")


def test_disk_without_room_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    sparse = tmp_path / "images" / "a" / "1.jpg"
    with sparse.open("wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).free + (1 << 30))
    done = convert(tmp_path / "images", tmp_path / "out")
    assert (done.returncode, done.stdout) == (3, "")
    assert re.search(r"needs [\d.,]+ [KMGT]iB, but the disk has [\d.,]+ [KMGT]iB left; free some space", done.stderr)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
