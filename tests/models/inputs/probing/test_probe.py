"""The probe of a data set: costs, threads and storage, as the command's child process reports them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_matrix.models.inputs import probe
from keras_matrix.models.inputs import probe as probing
from keras_matrix.models.inputs.pipelines.decode import BadImage, Decode, Pixels
from keras_matrix.models.inputs.probe import limits
from keras_matrix.models.inputs.stored.sample import InputDataError

PARAMS: dict[str, Any] = {"dataset_path": "images", "image_size": 32}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two classes with six small images, one of them damaged."""
    simplejpeg = pytest.importorskip("simplejpeg")
    pixels = np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8)
    data = simplejpeg.encode_jpeg(pixels)
    for number in range(6):
        path = tmp_path / "images" / f"class_{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if number else data[:200])
    return tmp_path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "LOCK_TIME_S", 0.1)


def test_probe_has_the_cost_of_each_decoder_and_leaves_damaged_images_out(images: Path) -> None:
    found = probing.probe({"params": PARAMS, "batch_size": 4, "folders": [str(images)]})
    assert found.samples == 5
    assert "simplejpeg" in found.decoders
    assert all(0 < one.full_s < 1 and one.scaled_s is not None for one in found.decoders.values())
    assert found.host_preprocess_s is not None
    assert found.lock_held_share is not None
    assert 0 <= found.lock_held_share <= 1
    assert found.alone_cpu_s is not None
    assert found.alone_cpu_s < 0.020


def test_python_code_that_computes_is_seen_to_hold_the_interpreter(images: Path) -> None:
    params = {**PARAMS, "prepare_spin_ms": 20.0}
    found = probing.probe({"params": params, "batch_size": 4, "folders": [str(images)]})
    assert found.lock_held_share is not None
    assert found.lock_held_share > 0.5
    assert found.alone_cpu_s is not None
    assert found.alone_cpu_s >= 0.020


def test_missing_data_set_is_one_message(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probing.main('{"params": {"dataset_path": "nowhere", "image_size": 32}, "batch_size": 4}') == 2
    assert "dataset_path: nowhere does not exist" in capsys.readouterr().err


def test_data_set_without_a_usable_image_is_refused(images: Path) -> None:
    for path in (images / "images").rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputDataError, match="none of 6 samples can be decoded"):
        probing.probe({"params": PARAMS, "batch_size": 4, "folders": [str(images)]})


def test_storage_figures_need_bytes_from_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / str(number) for number in range(60)]
    for path in paths:
        path.write_bytes(b"x" * 8192)
    monkeypatch.setattr(probe, "_delivered", lambda: 0)
    found = limits(paths)
    assert (found.bytes_per_s, found.small_reads_per_s, found.one_read_s) == (None, None, None)
    assert "reads came from memory" in str(found.note)


def test_storage_figures_are_reads_and_bytes_per_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / str(number) for number in range(60)]
    for path in paths:
        path.write_bytes(b"x" * 8192)
    delivered = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(probe, "_delivered", lambda: next(delivered))
    evicted: list[Path] = []
    monkeypatch.setattr(probe, "evict", evicted.extend)
    found = limits(paths)
    assert sorted(evicted) == sorted(paths)
    assert found.bytes_per_s is not None
    assert found.small_reads_per_s is not None
    assert found.bytes_per_s > found.small_reads_per_s > 0


@pytest.mark.parametrize("paths", [[], [Path("/nowhere/1.jpg")]])
def test_data_set_that_is_too_small_has_no_figures(paths: Sequence[Path]) -> None:
    assert limits(paths).note == "the data set is too small to probe its storage"


def test_image_that_one_decoder_refuses_costs_only_its_sample(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into, refused = Decode.into, [0]

    def picky(self: Decode, out: Pixels, data: bytes) -> None:
        if self.decoder == "pil":
            refused[0] += 1
            raise BadImage("cannot be decoded by pil: odd")
        into(self, out, data)

    monkeypatch.setattr(Decode, "into", picky)
    found = probing.probe({"params": PARAMS, "batch_size": 4, "folders": [str(images)]})
    assert refused[0] > 0
    assert "pil" not in found.decoders
    assert "simplejpeg" in found.decoders
    assert found.storage is not None
    assert found.lock_held_share is not None
    assert found.memory_bytes is not None
