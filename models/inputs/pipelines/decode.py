"""JPEG images: their headers are checked, then one of several libraries decodes them to RGB of one size.

Every decoder gives uint8 RGB; grey and CMYK images become RGB, CMYK ones by Pillow in every decoder, because the
libraries disagree on them. An orientation in the EXIF data is not applied by any decoder, as in the data sets that
are stored upright. All resize bilinearly without keeping the aspect ratio: OpenCV, for every decoder but Pillow's,
takes four pixels, as `tf.image.resize` does; Pillow averages over the pixels that one output pixel covers. Without
OpenCV, TensorFlow's decoder uses TensorFlow (a third slower in all: three operations per image), the others Pillow.

Not known here: files. `BadImage` messages have no file name; the caller adds it.

The checks are the same for every decoder, because the libraries differ: OpenCV fills the missing part of a truncated
file with grey, the others refuse it. Reads markers only, not the compressed data: damage inside that data is found by
a decoder, if at all.

Source: ITU-T T.81 (1992), Annex B.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_matrix.models.inputs.opencv import opencv

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """Height and width in pixels as stored (an EXIF rotation is not applied), and the number of colour components."""

    height: int
    width: int
    components: int


Decoder = Callable[[bytes, JpegHeader, int], Any]
"""Encoded bytes, their header and the divisor of the size (1, 2, 4 or 8), to (height, width, 3) uint8."""
# In the order of `auto`: by images per CPU-second (lab/run input_pipelines). Each with the packages that it needs.
DECODERS = {"simplejpeg": ("simplejpeg",), "cv2": ("cv2",), "pil": ("PIL",)}
NATIVE_DECODER = "tf_io"
# What to install for one that is missing; the images have all but OpenCV.
_ADVICE = {"cv2": "keras-matrix[opencv] (into an image: EXTRAS=opencv docker compose build SERVICE)"}
_CMYK = 4
START, END = b"\xff\xd8", b"\xff\xd9"
# Pillow's limit against decompression bombs; a decoded image of this size takes 0.5 GB.
MOST_PIXELS = 178_956_970
_OTHER_FORMATS = {
    b"\x89PNG": "a PNG file",
    b"GIF8": "a GIF file",
    b"RIFF": "a WebP or other RIFF file",
    b"BM": "a BMP file",
    b"II*\0": "a TIFF file",
    b"MM\0*": "a TIFF file",
    b"\0\0\0\x0cJXL": "a JPEG XL file",
    b"\0\0\0\x0cjP": "a JPEG 2000 file",
}
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_DECODED_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
_SCAN = 0xDA


class DecoderUnavailable(Exception):
    """A decoder's package is not installed; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Decode:
    """How images are decoded: by which library, to which size in pixels, and whether by a scaled DCT if that is enough.

    `decoder` is a name of `DECODERS`, or `tf_io` where its backend runs.
    """

    decoder: str
    image_size: int
    scaled: bool = False

    def into(self, out: Pixels, data: bytes) -> None:
        """Decode one image into `out` (size, size, 3) uint8. Raises `BadImage`."""
        header = read_header(data)
        divisor = _divisor(header, self.image_size) if self.scaled else 1
        decode, resize = _functions(self.decoder if header.components != _CMYK else "pil")
        try:
            pixels = decode(data, header, divisor)
            resize(pixels, out)
        except _raised_by_decoders() as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BadImage(f"cannot be decoded by {self.decoder}: {reason}") from None


def chosen_decoder(name: str) -> str:
    """Return the decoder's name, for `auto` the fastest one installed. Raises `DecoderUnavailable`."""
    if name == NATIVE_DECODER:
        return name
    if name == "auto":
        decoder = next(
            (candidate for candidate, needed_packages in DECODERS.items() if _installed(needed_packages)), None
        )
        if decoder is None:
            raise DecoderUnavailable("decoder: none is installed; install keras-matrix[inputs]")
        return decoder
    if not _installed(DECODERS[name]):
        advice = _ADVICE.get(name, "keras-matrix[inputs]")
        raise DecoderUnavailable(f"decoder: {name} is not installed; install {advice}, or use decoder: auto")
    return name


def _installed(modules: tuple[str, ...]) -> bool:
    return all(importlib.util.find_spec(module) for module in modules)


def _divisor(header: JpegHeader, size: int) -> int:
    """Return the largest divisor by which a DCT scales, so that both sides stay at least as long as needed.

    Other ratios than powers of two have no vector code in libjpeg-turbo: 5/8 of 500 x 375 takes 1.3 times as long as
    the full size.
    """
    return next(n for n in (8, 4, 2, 1) if n == 1 or min(header.height, header.width) >= n * size)


def resizer(decoder: str) -> str:
    """Return the decoder whose library resizes what this one decodes: itself, or OpenCV where it is installed."""
    if decoder != "pil" and _installed(("cv2",)):
        return "cv2"
    return NATIVE_DECODER if decoder == NATIVE_DECODER else "pil"


@lru_cache(maxsize=8)
def _functions(name: str) -> tuple[Decoder, Callable[[Any, Pixels], None]]:
    resizes_with_opencv = resizer(name) == "cv2"
    if name == NATIVE_DECODER:
        native = importlib.import_module("keras_matrix.models.inputs.pipelines.tensorflow")
        return native.decode_jpeg, _cv2_resize if resizes_with_opencv else native.resize
    if name == "pil":
        return _pil, _pil_resize
    decode = {"simplejpeg": _simplejpeg, "cv2": _cv2}[name]
    return decode, _cv2_resize if resizes_with_opencv else _pil_resize_array


@lru_cache(maxsize=1)
def _raised_by_decoders() -> tuple[type[Exception], ...]:
    """Return the exceptions by which the libraries refuse data; TensorFlow's are converted by its module."""
    exceptions: list[type[Exception]] = [ValueError, OSError, SyntaxError]
    if _installed(("cv2",)):
        exceptions.append(opencv().error)
    return tuple(exceptions)


def _simplejpeg(data: bytes, header: JpegHeader, divisor: int) -> Any:
    import simplejpeg

    if divisor == 1:
        return simplejpeg.decode_jpeg(data)
    height, width = math.ceil(header.height / divisor), math.ceil(header.width / divisor)
    return simplejpeg.decode_jpeg(data, min_height=height, min_width=width, min_factor=divisor)


def _cv2(data: bytes, header: JpegHeader, divisor: int) -> Any:
    cv2 = opencv()
    scales = {1: cv2.IMREAD_COLOR_RGB, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    flag = scales.get(divisor, cv2.IMREAD_REDUCED_COLOR_8) | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    if pixels is None:
        raise ValueError("no image")
    return pixels if divisor == 1 else cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def _cv2_resize(pixels: Any, out: Pixels) -> None:
    cv2 = opencv()
    if pixels.shape == out.shape:
        out[...] = pixels
    else:
        cv2.resize(np.asarray(pixels), out.shape[1::-1], dst=out, interpolation=cv2.INTER_LINEAR)


def _pil(data: bytes, header: JpegHeader, divisor: int) -> Any:
    from PIL import Image

    image: Any = Image.open(io.BytesIO(data), formats=("JPEG",))
    if divisor > 1:
        image.draft("RGB", (math.ceil(header.width / divisor), math.ceil(header.height / divisor)))
    return image.convert("RGB")


def _pil_resize(image: Any, out: Pixels) -> None:
    from PIL import Image

    if image.size != out.shape[1::-1]:
        image = image.resize(out.shape[1::-1], Image.Resampling.BILINEAR)
    out[...] = np.asarray(image)


def _pil_resize_array(pixels: Any, out: Pixels) -> None:
    from PIL import Image

    _pil_resize(Image.fromarray(np.asarray(pixels)), out)


class BadImage(ValueError):
    """Encoded data that is not an image this project decodes; the message completes "NAME: "."""


def read_header(data: bytes) -> JpegHeader:
    """Return the header of a JPEG file. Raises `BadImage` for data that cannot be decoded, with the reason."""
    if not data:
        raise BadImage("is empty")
    if not data.startswith(START):
        other_format = next((name for sign, name in _OTHER_FORMATS.items() if data.startswith(sign)), None)
        raise BadImage(
            f"is {other_format}, not JPEG; convert it" if other_format else f"is not JPEG: begins with {data[:4]!r}"
        )
    frame: JpegHeader | None = None
    offset = len(START)
    while True:
        marker, offset = _marker(data, offset)
        if marker == _SCAN:
            break
        length = int.from_bytes(data[offset : offset + 2], "big")
        if length < 2 or offset + length > len(data):
            raise BadImage(f"is truncated: ends within its header, at byte {len(data)}")
        if marker in _FRAMES:
            frame = _frame(data[offset : offset + length], marker)
        offset += length
    if frame is None:
        raise BadImage("has no frame header before its data")
    # Thumbnails end with the same marker, but they are in the header.
    if data.rfind(END) < offset:
        raise BadImage(f"is truncated: has no end marker in its {len(data)} bytes")
    return frame


def _marker(data: bytes, offset: int) -> tuple[int, int]:
    """Return the next marker with a length, and the position after it."""
    while True:
        if offset + 4 > len(data) or data[offset : offset + 2] == END:
            raise BadImage(f"is truncated: ends within its header, at byte {len(data)}")
        if data[offset] != 0xFF:
            raise BadImage(f"is damaged: has no marker at byte {offset}")
        marker = data[offset + 1]
        if marker == 0xFF:  # a fill byte
            offset += 1
        elif marker in _WITHOUT_LENGTH:
            offset += 2
        else:
            return marker, offset + 2


def _frame(segment: bytes, marker: int) -> JpegHeader:
    if len(segment) < 8:
        raise BadImage("is damaged: its frame header is too short")
    precision, components = segment[2], segment[7]
    height, width = int.from_bytes(segment[3:5], "big"), int.from_bytes(segment[5:7], "big")
    if precision != 8:
        raise BadImage(f"has {precision} bits per sample; decoders read 8: convert it")
    if marker not in _DECODED_FRAMES:
        raise BadImage(f"is a lossless, hierarchical or arithmetic-coded JPEG (SOF{marker - 0xC0}); convert it")
    if components not in (1, 3, 4):
        raise BadImage(f"has {components} colour components; decoders read 1, 3 or 4: convert it")
    if not height or not width:
        raise BadImage(f"has a size of {height} x {width} pixels")
    if height * width > MOST_PIXELS:
        raise BadImage(f"has {height} x {width} pixels, more than {MOST_PIXELS}; make it smaller")
    return JpegHeader(height, width, components)
