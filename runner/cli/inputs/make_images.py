"""Write a data set of realistic JPEG files in class folders, so that input pipelines can be measured offline.

    runner make-images --count 5000 --output-path images

Half of the images are crops of photographs that installed packages ship, half are 1/f noise; with the default size and
quality they have 100 kB in the mean. The same seed writes the same images. An interrupted command continues with the
same flags. docs/inputs.md#data-sets-of-images has more."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from keras_matrix.runner.cli.inputs import child
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.measure.request import check_range

MOST_IMAGES, MOST_PIXELS = 9_999_999, 8192
QUALITY = 93


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("--count", type=int, default=5000, metavar="N", help="number of images; default: 5000")
    parser.add_argument(
        "--output-path", type=Path, default=Path("images"), metavar="FOLDER", help="new or empty; default: images"
    )
    parser.add_argument("--classes", type=int, default=10, metavar="N", help="number of class folders; default: 10")
    parser.add_argument("--size", default="500x375", metavar="WIDTHxHEIGHT", help="in pixels; default: 500x375")
    parser.add_argument(
        "--quality", type=int, default=QUALITY, metavar="N", help=f"of JPEG, 1 to 100; default: {QUALITY}"
    )
    child.add_shared_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check the flags and write the images."""
    check_range("--count", args.count, 1, MOST_IMAGES)
    check_range("--classes", args.classes, 1, args.count)
    check_range("--quality", args.quality, 1, 100)
    width, height = _pixels(args.size)
    request = {
        "count": args.count,
        "classes": args.classes,
        "width": width,
        "height": height,
        "quality": args.quality,
        "output_path": child.data_folder("--output-path", args.output_path),
        **child.shared_request(args),
    }
    child.become("make_images", request)


def _pixels(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text, re.ASCII)
    width, height = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (16 <= width <= MOST_PIXELS and 16 <= height <= MOST_PIXELS):
        raise UsageError(f"--size: must be WIDTHxHEIGHT with 16 to {MOST_PIXELS} pixels each, got {text!r}")
    return width, height
