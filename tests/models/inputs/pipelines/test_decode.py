"""Decoders agree with each other and with what was encoded, and refuse the same data for the same reason."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from keras_matrix.models.inputs.pipelines import decode as module
from keras_matrix.models.inputs.pipelines.decode import (
    DECODERS,
    BadImage,
    Decode,
    DecoderUnavailable,
    JpegHeader,
    chosen_decoder,
    read_header,
    resizer,
)
from tests.models.inputs.pipelines.jpegs import encoded, pixels

EVERY = pytest.mark.parametrize("decoder", DECODERS)


def decoded(decoder: str, data: bytes, size: int = 64, *, scaled: bool = False) -> np.ndarray:
    out = np.zeros((size, size, 3), np.uint8)
    Decode(decoder, size, scaled).into(out, data)
    return out


def difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first.astype(int) - second.astype(int)).mean())


def reference(image: np.ndarray, size: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


@EVERY
def test_decoded_and_resized_image_is_the_encoded_one(decoder: str) -> None:
    image = pixels()
    assert difference(decoded(decoder, encoded(image)), reference(image, 64)) < 2


@EVERY
def test_image_of_the_right_size_is_not_resized(decoder: str) -> None:
    image = pixels(64, 64)
    assert difference(decoded(decoder, encoded(image)), image) < 1.5


@EVERY
@pytest.mark.parametrize("size", [100, 60, 31, 16])
def test_scaled_decoding_gives_the_same_picture(decoder: str, size: int) -> None:
    data = encoded(pixels(512, 512)[:256, :256])  # half a wave
    assert difference(decoded(decoder, data, size, scaled=True), decoded(decoder, data, size)) < 4


@EVERY
def test_grey_image_becomes_grey_rgb(decoder: str) -> None:
    found = decoded(decoder, encoded(pixels(), "L"))
    assert (found[..., 0] == found[..., 2]).all()
    assert difference(found[..., 0], reference(np.asarray(Image.fromarray(pixels()).convert("L")), 64)) < 2


def test_cmyk_image_is_the_same_from_every_decoder() -> None:
    found = [decoded(name, encoded(pixels(), "CMYK")) for name in DECODERS]
    assert [difference(one, found[0]) for one in found] == [0.0] * len(found)
    assert difference(found[0], reference(pixels(), 64)) < 8


@EVERY
def test_exif_rotation_is_not_applied(decoder: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    assert difference(decoded(decoder, encoded(pixels(), exif=exif)), decoded(decoder, encoded(pixels()))) == 0


@EVERY
def test_progressive_image_is_decoded(decoder: str) -> None:
    assert difference(decoded(decoder, encoded(pixels(), progressive=True)), reference(pixels(), 64)) < 2


def png(mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    (Image.fromarray(pixels()) if mode == "RGB" else Image.new(mode, (8, 8))).save(buffer, "PNG")
    return buffer.getvalue()


def with_thumbnail(data: bytes) -> bytes:
    """Return the file with another complete JPEG in its header."""
    inner = encoded(pixels(16, 16))
    return data[:2] + b"\xff\xe1" + (len(inner) + 2).to_bytes(2, "big") + inner + data[2:]


def with_precision(data: bytes, bits: int) -> bytes:
    at = data.index(b"\xff\xc0")
    return data[: at + 4] + bytes([bits]) + data[at + 5 :]


GOOD = encoded(pixels())
BAD = {
    "is empty": b"",
    "is a PNG file, not JPEG; convert it": png(),
    "is a PNG file": png("I;16"),
    "is not JPEG: begins with b'text'": b"text that is long enough to be an image",
    "is truncated: has no end marker": GOOD[: len(GOOD) // 2],
    "is truncated: has no end": with_thumbnail(GOOD)[:-400],
    "is truncated: ends within its header, at byte 100": GOOD[:100],
    "is truncated: ends within its header, at byte 2": GOOD[:2],
    "has 12 bits per sample; decoders read 8": with_precision(GOOD, 12),
    "is damaged: has no marker at byte 2": GOOD[:2] + b"\0" * 60 + GOOD[2:],
}


@EVERY
@pytest.mark.parametrize("reason", BAD)
def test_data_that_is_no_image_is_refused_with_the_same_reason(decoder: str, reason: str) -> None:
    with pytest.raises(BadImage) as raised:
        decoded(decoder, BAD[reason])
    assert str(raised.value).startswith(reason)


@EVERY
def test_damage_that_only_a_decoder_finds_is_a_bad_image(decoder: str) -> None:
    at = GOOD.index(b"\xff\xdb")
    damaged = GOOD[:at] + b"\xff\xfe" + GOOD[at + 2 :]  # its quantisation table becomes a comment
    tables = damaged.count(b"\xff\xdb")
    for _ in range(tables):
        damaged = damaged.replace(b"\xff\xdb", b"\xff\xfe")
    with pytest.raises(BadImage, match=f"cannot be decoded by {decoder}: "):
        decoded(decoder, damaged)


def test_image_of_more_pixels_than_memory_should_hold_is_refused() -> None:
    at = GOOD.index(b"\xff\xc0") + 5
    huge = GOOD[:at] + b"\xff\xff\xff\xff" + GOOD[at + 4 :]
    with pytest.raises(BadImage, match="has 65535 x 65535 pixels, more than 178956970; make it smaller"):
        read_header(huge)


def test_header_with_thumbnail_and_fill_bytes_is_that_of_the_image() -> None:
    filled = with_thumbnail(GOOD)
    assert read_header(filled[:2] + b"\xff\xff" + filled[2:]) == JpegHeader(96, 128, 3)


def test_auto_is_the_first_decoder_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_decoder("auto") == "simplejpeg"
    monkeypatch.setattr(module, "_installed", lambda names: names == ("PIL",))
    assert chosen_decoder("auto") == "pil"
    with pytest.raises(
        DecoderUnavailable, match=r"decoder: cv2 is not installed; install keras-matrix\[opencv\] \(into"
    ):
        chosen_decoder("cv2")
    with pytest.raises(
        DecoderUnavailable, match=r"simplejpeg is not installed; install keras-matrix\[inputs\], or use"
    ):
        chosen_decoder("simplejpeg")
    monkeypatch.setattr(module, "_installed", lambda names: False)
    with pytest.raises(DecoderUnavailable, match=r"decoder: none is installed; install keras-matrix\[inputs\]"):
        chosen_decoder("auto")


def test_opencv_resizes_where_it_is_installed_and_otherwise_the_decoder_or_pillow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("simplejpeg", "cv2", "pil", "tf_io")
    assert [resizer(name) for name in names] == ["cv2", "cv2", "pil", "cv2"]
    monkeypatch.setattr(module, "_installed", lambda names: names != ("cv2",))
    module._functions.cache_clear()
    try:
        assert [resizer(name) for name in names] == ["pil", "pil", "pil", "tf_io"]
        image = pixels()
        assert difference(decoded("simplejpeg", encoded(image)), reference(image, 64)) < 2
    finally:
        module._functions.cache_clear()
