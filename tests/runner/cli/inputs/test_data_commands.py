"""The commands `runner make-images` and `runner convert`: their flags, and what they start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.runner.cli.inputs import child
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import UsageError
from tests.golden import Golden
from tests.transcripts import Transcript

Started = tuple[str, list[str], dict[str, str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Started]:
    """What the commands were replaced with; the fake does not replace anything."""
    found: list[Started] = []

    def execve(program: str, words: list[str], environment: dict[str, str]) -> None:
        found.append((program, words, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.chdir(tmp_path)
    return found


def request_of(*words: str, started: list[Started]) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        main(words)
    found = json.loads(started[-1][1][-1])
    assert isinstance(found, dict)
    return found


def test_convert_starts_its_module_with_paths_from_the_current_folder(started: list[Started], tmp_path: Path) -> None:
    assert request_of("convert", started=started) == {
        "dataset_path": str(tmp_path / "images"),
        "output_path": str(tmp_path / "tfrecords"),
        "size_per_record_bytes": 50 << 20,
        "to": "tfrecord",
        "seed": 0,
        "workers": None,
    }
    program, words, environment = started[0]
    assert (program, words[:-1]) == (
        sys.executable,
        [sys.executable, "-P", "-m", "keras_matrix.models.inputs.stored.convert"],
    )
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert request_of("convert", "--to", "array_record", started=started)["output_path"] == str(
        tmp_path / "array_records"
    )
    words_given = ("--dataset-path", "/a/b", "--output-path", "c", "--size-per-record", "1MB", "--workers", "3")
    found = request_of("convert", *words_given, started=started)
    assert (found["dataset_path"], found["output_path"], found["size_per_record_bytes"], found["workers"]) == (
        "/a/b",
        str(tmp_path / "c"),
        1_000_000,
        3,
    )


def test_make_images_starts_its_module(started: list[Started], tmp_path: Path) -> None:
    found = request_of("make-images", "--count", "7", "--classes", "2", "--size", "64x48", started=started)
    assert found == {
        "count": 7,
        "classes": 2,
        "width": 64,
        "height": 48,
        "quality": 93,
        "output_path": str(tmp_path / "images"),
        "seed": 0,
        "workers": None,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("52428800", 52_428_800),
        ("50MiB", 50 << 20),
        ("50 MB", 50_000_000),
        ("1.5GiB", 3 << 29),
        ("10kB", 10_000),
        ("10KiB", 10_240),
        ("7B", 7),
        ("2tib", 2 << 40),
    ],
)
def test_sizes_have_decimal_and_binary_units(text: str, expected: int) -> None:
    assert child.size_in_bytes("--size-per-record", text) == expected


@pytest.mark.parametrize("text", ["50M", "", "MiB", "-1MB", "0", "0.5B", "1e6", "5 XB", "٣MB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"--size-per-record: must be a size such as .*, got {re.escape(repr(text))}"):
        child.size_in_bytes("--size-per-record", text)


@pytest.mark.process
def test_images_are_made_and_converted_from_the_command_line(tmp_path: Path) -> None:
    def runner(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "keras_matrix.runner", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    made = runner("make-images", "--count", "6", "--classes", "2", "--size", "64x48")
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith(f"{tmp_path}/images: 6 images in 2 classes, mean ")
    converted = runner("convert", "--size-per-record", "50MiB", "--output-path", "tfrecords")
    assert (converted.returncode, converted.stderr) == (0, "")
    assert converted.stdout.startswith(f"{tmp_path}/tfrecords: 6 images in 1 file, ")
    assert sorted(path.name for path in (tmp_path / "tfrecords").iterdir()) == [
        "images-00000-of-00001.tfrecord",
        "images-00000-of-00001.tfrecord.index",
        "manifest.json",
    ]
    failed = runner("convert", "--dataset-path", "nowhere")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == (
        f"runner: {tmp_path}/nowhere: no such folder; give the folder of the data set, or run `runner make-images`\n"
    )


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (
            "make-images",
            ("--count 0", "--count 5 --classes 6", "--quality 101", "--size 500", "--size 8x9000", "--output-path ''"),
        ),
        ("convert", ("--size-per-record 50M", "--workers 0", "--seed -1", "--output-path ''")),
    ],
)
def test_messages_of_flags_that_are_refused(
    command: str, flags: Sequence[str], started: list[Started], transcript: Transcript, golden: Golden
) -> None:
    """What else these commands print is printed by the program that replaces them."""
    transcript.run(command, *(f"{command} {words}" for words in flags))
    assert len(started) == 1
    golden.check(f"{command}.txt", transcript.text)
