"""Making data sets of realistic images, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_matrix.models.inputs.stored import make_images
from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.models.inputs.stored.source import open_source

REQUEST = {"count": 40, "classes": 3, "width": 500, "height": 375, "seed": 0, "quality": 93, "workers": 2}


def make(folder: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    request = json.dumps({**REQUEST, "output_path": str(folder), **changes})
    command = [sys.executable, "-P", "-m", "keras_matrix.models.inputs.stored.make_images", request]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def images(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jpg")}


@pytest.mark.process
def test_images_have_size_classes_and_about_100_kb(tmp_path: Path) -> None:
    import simplejpeg

    done = make(tmp_path / "images")
    assert (done.returncode, done.stderr) == (0, "")
    source = open_source(tmp_path / "images")
    assert (len(source), source.classes, source.notes) == (40, ("class_0", "class_1", "class_2"), ())
    assert 70_000 < source.sizes().mean() < 130_000
    for sample in source.read([0, 20, 39]):
        assert simplejpeg.decode_jpeg(sample.data).shape == (375, 500, 3)
    assert len({sample.data for sample in source.read(range(40))}) == 40


@pytest.mark.process
def test_images_depend_on_the_seed_and_not_on_the_workers(tmp_path: Path) -> None:
    for name, changes in (("a", {}), ("b", {"workers": 1}), ("c", {"seed": 1})):
        make(tmp_path / name, count=8, **changes)
    assert images(tmp_path / "a") == images(tmp_path / "b") != images(tmp_path / "c")


@pytest.mark.process
def test_unfinished_data_set_is_continued_and_others_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    make(folder, count=8)
    whole = images(folder)
    data = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**data, "finished": False}))
    (folder / "class_1" / "0000004.jpg").unlink()
    (folder / "class_1" / ".0000004.jpg.part").write_bytes(b"half")
    with pytest.raises(InputDataError, match="is unfinished"):
        open_source(folder)
    assert "wrote 1, kept 7" in make(folder, count=8).stdout
    assert images(folder) == whole
    assert "all were already there" in make(folder, count=8).stdout
    refused = make(folder, count=9)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "count was 8, not 9" in refused.stderr
    assert "is not empty" in make(tmp_path).stderr


def plan(bases: tuple[Any, ...]) -> make_images.ImageSetPlan:
    return make_images.ImageSetPlan(Path("images"), 10, ("a", "b"), 64, 48, 0, 90, bases, make_images.noise_tile(0))


def test_images_without_photographs_are_noise() -> None:
    found = plan(())
    pixels = [make_images.image(found, number) for number in range(6)]
    assert {one.shape for one in pixels} == {(48, 64, 3)}
    assert all(one.std() > 10 for one in pixels)


def test_amplitude_of_the_noise_falls_with_the_frequency() -> None:
    tile = make_images.noise_tile(1)
    assert (round(float(tile.mean()), 3), round(float(tile.std()), 3)) == (0.0, 1.0)
    amplitude = np.abs(np.fft.rfft2(tile[..., 0]))
    low, high = amplitude[10:20, 10:20].mean(), amplitude[100:200, 100:200].mean()
    assert 7 < low / high < 14  # frequencies a factor of 10 apart


def test_photographs_smaller_than_the_image_are_enlarged() -> None:
    base = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    assert make_images.image(plan((base,)), 3).shape == (48, 64, 3)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(make_images, "find_spec", lambda name: None)
    with pytest.raises(
        InputDataError, match=r"needs the packages cv2 and simplejpeg: pip install 'keras-matrix\[inputs,opencv\]'"
    ):
        make_images.make_images({**REQUEST, "output_path": str(tmp_path / "x")})
    assert list(tmp_path.iterdir()) == []
