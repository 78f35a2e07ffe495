"""The header of a JPEG file, read before decoding: what an image is, and whether it can be decoded.

The checks are the same for every decoder, because the libraries differ: OpenCV fills the missing part of a truncated
file with grey, the others refuse it. Reads markers only, not the compressed data: damage inside that data is found by
a decoder, if at all.

Source: ITU-T T.81 (1992), Annex B.
"""

from __future__ import annotations

from dataclasses import dataclass

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


class BadImage(ValueError):
    """Encoded data that is not an image this project decodes; the message completes "NAME: "."""


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """Height and width in pixels as stored (an EXIF rotation is not applied), and the number of colour components."""

    height: int
    width: int
    components: int


def read_header(data: bytes) -> JpegHeader:
    """Return the header of a JPEG file. Raises `BadImage` for data that cannot be decoded, with the reason."""
    if not data:
        raise BadImage("is empty")
    if not data.startswith(START):
        other = next((name for sign, name in _OTHER_FORMATS.items() if data.startswith(sign)), None)
        raise BadImage(f"is {other}, not JPEG; convert it" if other else f"is not JPEG: begins with {data[:4]!r}")
    frame: JpegHeader | None = None
    at = len(START)
    while True:
        marker, at = _marker(data, at)
        if marker == _SCAN:
            break
        length = int.from_bytes(data[at : at + 2], "big")
        if length < 2 or at + length > len(data):
            raise BadImage(f"is truncated: ends within its header, at byte {len(data)}")
        if marker in _FRAMES:
            frame = _frame(data[at : at + length], marker)
        at += length
    if frame is None:
        raise BadImage("has no frame header before its data")
    # Thumbnails end with the same marker, but they are in the header.
    if data.rfind(END) < at:
        raise BadImage(f"is truncated: has no end marker in its {len(data)} bytes")
    return frame


def _marker(data: bytes, at: int) -> tuple[int, int]:
    """Return the next marker with a length, and the position after it."""
    while True:
        if at + 4 > len(data) or data[at : at + 2] == END:
            raise BadImage(f"is truncated: ends within its header, at byte {len(data)}")
        if data[at] != 0xFF:
            raise BadImage(f"is damaged: has no marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            return marker, at + 2


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
