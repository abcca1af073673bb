"""Sizes of images from their headers. Nothing is decoded, because the files may be hostile."""

from __future__ import annotations

import struct

_NO_FRAME_MARKERS = (0xC4, 0xC8, 0xCC)
_CORE_HEADER_BYTES = 12


def num_pixels(kind: str, content: bytes) -> int | None:
    """Return width times height; `None` for a damaged header.

    Args:
        kind: media type of a PNG, JPEG, GIF, WebP or BMP.
        content: the whole file.
    """
    try:
        width, height = _READERS[kind](content)
    except (struct.error, IndexError, KeyError, ValueError):
        return None
    return width * height


def _png(content: bytes) -> tuple[int, int]:
    return _unpacked(">II", content, 16)


def _gif(content: bytes) -> tuple[int, int]:
    """Return the larger of canvas and first frame, because browsers enlarge the canvas to it."""
    width, height = _unpacked("<HH", content, 6)
    at = 13 + _color_table_bytes(content[10])
    while content[at] == 0x21:  # an extension
        at += 2
        while content[at]:
            at += content[at] + 1
        at += 1
    if content[at] != 0x2C:
        raise ValueError("no frame")
    x, y, frame_width, frame_height = struct.unpack_from("<HHHH", content, at + 1)
    return max(width, x + frame_width), max(height, y + frame_height)


def _color_table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _jpeg(content: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if content[at] != 0xFF:
            raise ValueError("no marker")
        marker = content[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_MARKERS:
            height, width = _unpacked(">HH", content, at + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", content, at + 2)
            at += 2 + length


def _webp(content: bytes) -> tuple[int, int]:
    match content[12:16]:
        case b"VP8X":
            return (
                1 + int.from_bytes(content[24:27], "little"),
                1 + int.from_bytes(content[27:30], "little"),
            )
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", content, 21)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = _unpacked("<HH", content, 26)
            return width & 0x3FFF, height & 0x3FFF
    raise ValueError("no known chunk")


def _bmp(content: bytes) -> tuple[int, int]:
    (header_bytes,) = struct.unpack_from("<I", content, 14)
    width, height = _unpacked("<HH" if header_bytes == _CORE_HEADER_BYTES else "<ii", content, 18)
    return abs(width), abs(height)


def _unpacked(layout: str, content: bytes, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from(layout, content, at)
    return first, second


_READERS = {
    "image/png": _png,
    "image/gif": _gif,
    "image/jpeg": _jpeg,
    "image/webp": _webp,
    "image/bmp": _bmp,
}
