"""Writes a data set of realistic JPEG files: crops of photographs that installed packages ship, and 1/f noise.

    python -m keras_matrix.models.inputs.stored.make_images '{"count": 5000, "output_path": "images", ...}'

Each image depends on the seed and its number alone, so that the data set is the same with any number of workers, with
the same versions of the packages. Classes differ in tint, so that training on them learns something. Real and synthetic
images of this kind decode within 6 % of each other and of photographs of equal size (docs/lab/inputs.md).
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.models.inputs.opencv import opencv
from keras_matrix.models.inputs.stored import shards
from keras_matrix.models.inputs.stored.command import (
    WriteProgress,
    check_stopped,
    in_parallel,
    main,
    require_space,
    start_output,
    usable_cpus,
)
from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.models.inputs.stored.shards import Manifest

# (package, folder inside it, files): found without importing the packages.
PHOTOGRAPHS = (
    ("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
    ("skimage", "data", ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")),
)
KIND = "folder"
TILE_PIXELS = 1024
TASK_IMAGES = 32
MOST_WORKERS = 8
# Bytes per pixel at the highest quality, for the check of free space.
BYTES_PER_PIXEL = 1.0
SMALLEST_CROP, NOISE_SHARE = 0.5, 0.5

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Noise = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class ImageSetPlan:
    """The data set to write. `bases` are the photographs, RGB (height, width, 3) uint8; `noise` the tile of noise."""

    folder: Path
    count: int
    classes: tuple[str, ...]
    width: int
    height: int
    seed: int
    quality: int
    bases: tuple[Pixels, ...]
    noise: Noise

    def path(self, number: int) -> Path:
        """Return the path of an image: classes in turn."""
        return self.folder / self.classes[number % len(self.classes)] / f"{number:07d}.jpg"


_PLAN: list[ImageSetPlan] = []


def make_images(request: dict[str, Any]) -> str:
    """Write the data set and return a summary of one line.

    The request has count, classes, width, height, seed, quality, output_path, and workers or null. Raises
    `InputDataError` and OSError.
    """
    _require_packages()
    folder = Path(request["output_path"]).absolute()
    photographs = _photographs()
    plan = _planned(request, folder, photographs)
    settings = {key: request[key] for key in ("count", "classes", "width", "height", "seed", "quality")}
    facts = {"photographs": [path.name for path in photographs], "noise_share": NOISE_SHARE if plan.bases else 1.0}
    begun = Manifest(KIND, {**settings, **facts}, plan.classes, plan.count, finished=False)
    start_output(folder, begun)
    missing_numbers = [number for number in range(plan.count) if not plan.path(number).exists()]
    require_space(folder, int(len(missing_numbers) * plan.width * plan.height * BYTES_PER_PIXEL))
    for name in plan.classes:
        (folder / name).mkdir(exist_ok=True)
        for leftover in (folder / name).glob(".*.part"):
            leftover.unlink()
    progress = WriteProgress("make-images:", len(missing_numbers))
    _PLAN[:] = [plan]
    tasks = [missing_numbers[first : first + TASK_IMAGES] for first in range(0, len(missing_numbers), TASK_IMAGES)]
    with closing(in_parallel(_write, tasks, request.get("workers") or min(usable_cpus(), MOST_WORKERS))) as results:
        for images, stored_bytes in results:
            progress.add(images, stored_bytes)
    progress.end()
    total_bytes = sum(plan.path(number).stat().st_size for number in range(plan.count))
    shards.write(folder, replace(begun, finished=True, facts={"bytes": total_bytes}))
    text = (
        f"{folder}: {plan.count} images in {len(plan.classes)} classes, mean {total_bytes / plan.count / 1000:.0f} kB"
    )
    if not missing_numbers:
        return f"{text}; all were already there"
    return (
        f"{text}; wrote "
        f"{len(missing_numbers)}{f', kept {kept_count}' if (kept_count := plan.count - len(missing_numbers)) else ''}"
    )


def image(plan: ImageSetPlan, number: int) -> Pixels:
    """Return an image: RGB (height, width, 3) uint8."""
    random = np.random.default_rng([plan.seed, number])
    if plan.bases and random.random() >= NOISE_SHARE:
        pixels = _crop(plan.bases[int(random.integers(len(plan.bases)))], plan, random)
    else:
        pixels = _texture(plan, random)
    tint = np.random.default_rng([plan.seed, 1 << 32, number % len(plan.classes)]).uniform(0.75, 1.0, 3)
    light = random.uniform(0.9, 1.1)
    tables = np.clip(np.arange(256)[:, None] * (tint * light)[None], 0, 255).astype(np.uint8)
    return np.stack([tables[:, channel][pixels[..., channel]] for channel in range(3)], axis=-1)


def noise_tile(seed: int) -> Noise:
    """Return 1/f noise that repeats at its edges: (TILE_PIXELS, TILE_PIXELS, 3), mean 0 and standard deviation 1.

    Photographs have amplitude spectra near 1/f (Field, J. Opt. Soc. Am. A 4, 1987), which decides how well they
    compress.
    """
    random = np.random.default_rng([seed, 1 << 33])
    frequency = np.hypot(np.fft.fftfreq(TILE_PIXELS)[:, None], np.fft.rfftfreq(TILE_PIXELS)[None])
    frequency[0, 0] = np.inf
    shape = (TILE_PIXELS, TILE_PIXELS)
    common, *channels = (np.fft.irfft2(np.fft.rfft2(random.standard_normal(shape)) / frequency) for _ in range(4))
    # Channels of photographs are strongly correlated.
    tile = np.stack([common + 0.4 * channel for channel in channels], axis=-1)
    normal: Noise = ((tile - tile.mean()) / tile.std()).astype(np.float32)
    return normal


def _texture(plan: ImageSetPlan, random: np.random.Generator) -> Pixels:
    top, left = random.integers(0, TILE_PIXELS, 2)
    rows = (top + np.arange(plan.height)) % TILE_PIXELS
    columns = (left + np.arange(plan.width)) % TILE_PIXELS
    tile = plan.noise[rows[:, None], columns[None]]
    return _pixels(tile * random.uniform(35, 60) + random.uniform(100, 150))


def _crop(base: Pixels, plan: ImageSetPlan, random: np.random.Generator) -> Pixels:
    """Return a random part of a photograph in the form of the image, mirrored in half of the cases."""
    cv2 = opencv()
    height, width = base.shape[:2]
    largest_scale = min(height / plan.height, width / plan.width)
    scale = largest_scale * random.uniform(SMALLEST_CROP, 1.0)
    part_height, part_width = max(1, int(plan.height * scale)), max(1, int(plan.width * scale))
    top, left = int(random.integers(height - part_height + 1)), int(random.integers(width - part_width + 1))
    crop = base[top : top + part_height, left : left + part_width]
    resized = cv2.resize(crop, (plan.width, plan.height), interpolation=cv2.INTER_CUBIC)
    if random.random() < 0.5:
        resized = resized[:, ::-1]
    # An enlarged crop lacks the finest detail of a photograph; sensor noise restores it.
    top, left = random.integers(0, TILE_PIXELS, 2)
    grain = random.standard_normal((plan.height, plan.width, 1), dtype=np.float32) * random.uniform(2, 8)
    return _pixels(resized + grain)


def _pixels(values: Noise) -> Pixels:
    pixels: Pixels = np.clip(values, 0, 255).astype(np.uint8)
    return pixels


def _write(numbers: list[int]) -> tuple[int, int]:
    """Write a task's images; return how many they are and their bytes."""
    import simplejpeg

    plan, written_bytes = _PLAN[0], 0
    for number in numbers:
        check_stopped()
        pixels = np.ascontiguousarray(image(plan, number))
        data = simplejpeg.encode_jpeg(pixels, quality=plan.quality, colorsubsampling="420")
        path = plan.path(number)
        partial = path.with_name(f".{path.name}.part")
        partial.write_bytes(data)
        partial.replace(path)
        written_bytes += len(data)
    return len(numbers), written_bytes


def _planned(request: dict[str, Any], folder: Path, photographs: list[Path]) -> ImageSetPlan:
    digits = len(str(request["classes"] - 1))
    names = tuple(f"class_{number:0{digits}d}" for number in range(request["classes"]))
    return ImageSetPlan(
        folder,
        request["count"],
        names,
        request["width"],
        request["height"],
        request["seed"],
        request["quality"],
        tuple(map(_decoded, photographs)),
        noise_tile(request["seed"]),
    )


def _photographs() -> list[Path]:
    """Return the photographs in installed packages, which are located without being imported."""
    photographs = []
    for package, folder, names in PHOTOGRAPHS:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            photographs += [path for name in names if (path := Path(place) / folder / name).is_file()]
    return photographs


def _decoded(path: Path) -> Pixels:
    cv2 = opencv()
    pixels = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise InputDataError(f"{path}: cannot be decoded; reinstall its package")
    return np.ascontiguousarray(pixels[..., ::-1])


def _require_packages() -> None:
    missing_packages = [package for package in ("cv2", "simplejpeg") if find_spec(package) is None]
    if missing_packages:
        raise InputDataError(
            f"make-images needs the packages {' and '.join(missing_packages)}: pip install "
            "'keras-matrix[inputs,opencv]'"
        )


if __name__ == "__main__":
    sys.exit(main(make_images))
