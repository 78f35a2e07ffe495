"""TensorFlow reads our TFRecord files, and we read its."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from keras_matrix.models.inputs.stored import writers
from keras_matrix.models.inputs.stored.sample import Sample
from keras_matrix.models.inputs.stored.source import Features, open_source
from tests.models.inputs.stored.data_sets import named

SCRIPT = Path(__file__).with_name("read_with_tensorflow.py")


@pytest.mark.nightly
@pytest.mark.process
def test_tensorflow_reads_our_files_and_we_read_its(tmp_path: Path) -> None:
    samples = named(20)
    writers.write_file(tmp_path / "a.tfrecord", "tfrecord", samples)
    command = [sys.executable, str(SCRIPT), str(tmp_path / "theirs.tfrecord"), str(tmp_path / "a.tfrecord")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = [[one.sample.label, zlib.crc32(one.sample.data), one.text, one.file] for one in samples]
    assert json.loads(done.stdout) == expected
    source = open_source(tmp_path / "theirs.tfrecord", features=Features("pixels", "y"))
    assert source.read(range(5)) == [Sample(bytes([number]) * 1000, number) for number in range(5)]
