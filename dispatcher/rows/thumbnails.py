"""Thumbnails of rows: small PNG files from arrays, and unchanged image objects. Runs in the child process only.

User code and users wrote both, so size and kind are limited. No image is decoded here: an object counts as an image by
its first bytes, and the browser decodes it. A small file may decode to gigabytes, so the header's size is limited too.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from cerebro.data.objects import ObjectStore
from cerebro.errors import CerebroError
from dispatcher.ranking.outcomes import Thumbnail
from dispatcher.rows.image_sizes import num_pixels
from dispatcher.start.locator_process import image_kind
from dispatcher.start.locator_sources import NotCheckedError

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]

MAX_OBJECT_BYTES = 128 << 10
MAX_PIXELS = 16 << 20
"""Maximum width times height of an object."""
MAX_SIDE = 96
"""Maximum width and height of a PNG from an array."""
_MIN_SIDE, _MAX_ARRAY_SIDE, _MAX_RATIO = 8, 4096, 4
_GRAY, _RGB = 1, 3
_CHANNELS = (_GRAY, _RGB, 4)


def from_object(root: ObjectStore, name: str) -> Thumbnail | None:
    """Return an object; `None` if it is missing, no image, or has too many bytes or pixels."""
    try:
        if root.size(name) > MAX_OBJECT_BYTES:
            return None
        content = root.head(name, MAX_OBJECT_BYTES)
    except (NotCheckedError, CerebroError, OSError, ValueError):
        return None
    kind = image_kind(content)
    pixels = num_pixels(kind, content) if kind else None
    return Thumbnail(kind=kind, content=content) if pixels and pixels <= MAX_PIXELS else None


def from_array(value: np.ndarray[Any, Any]) -> Thumbnail | None:
    """Return an array as a PNG of at most `MAX_SIDE` pixels; `None` if it has no shape of an image.

    Images have the shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, and bytes, bools or floats. Floats
    outside 0 to 1 are scaled from their lowest to their highest value. A fourth channel is ignored.
    """
    image = _with_channels(value)
    if image is None:
        return None
    height, width = image.shape[:2]
    if min(height, width) < _MIN_SIDE or max(height, width) > min(
        _MAX_ARRAY_SIDE, _MAX_RATIO * min(height, width)
    ):
        return None
    pixels = _bytes(_reduced(image[..., :_RGB]))
    return None if pixels is None else Thumbnail(kind="image/png", content=_png(pixels))


def _with_channels(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return an array as (H, W, C), or `None`."""
    if value.ndim == 2:
        return value[..., None]
    if value.ndim != 3:
        return None
    if value.shape[0] in _CHANNELS:
        return np.moveaxis(value, 0, -1)
    return value if value.shape[-1] in _CHANNELS else None


def _reduced(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return means over squares of pixels, so that no side exceeds `MAX_SIDE`."""
    step = math.ceil(max(image.shape[:2]) / MAX_SIDE)
    if step == 1:
        return image
    height, width = image.shape[0] // step, image.shape[1] // step
    squares = image[: height * step, : width * step].reshape(height, step, width, step, -1)
    found: np.ndarray[Any, Any] = squares.mean(axis=(1, 3))
    return found.astype(np.uint8) if image.dtype == np.uint8 else found


def _bytes(image: np.ndarray[Any, Any]) -> Pixels | None:
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind not in "bf":
        return None
    values = image.astype(np.float64)
    if not np.isfinite(values).all():
        return None
    low, high = min(0.0, float(values.min())), max(1.0, float(values.max()))
    if (low, high) != (0.0, 1.0):
        low, high = float(values.min()), float(values.max())
    pixels: Pixels = np.rint(255 * (values - low) / ((high - low) or 1.0)).astype(np.uint8)
    return pixels


def _png(pixels: Pixels) -> bytes:
    """Encode (H, W, 1) as gray, (H, W, 3) as colours."""
    height, width, channels = pixels.shape
    colour = 0 if channels == _GRAY else 2
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
