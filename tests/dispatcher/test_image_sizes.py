"""Sizes of images from headers equal the sizes that a decoder finds."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dispatcher.rows.image_sizes import num_pixels
from dispatcher.start.locator_process import image_kind

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")


def encoded(form: str, width: int, height: int, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (13, 300), (1025, 64)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_headers_have_the_size(form: str, size: tuple[int, int], mode: str) -> None:
    """Of all kinds of images that a page shows."""
    content = encoded(form, *size, "RGB" if form == "JPEG" and mode == "RGBA" else mode)
    assert num_pixels(image_kind(content), content) == size[0] * size[1]


@pytest.mark.parametrize(
    ("form", "options"),
    [("WEBP", {"lossless": True}), ("WEBP", {"exif": b"Exif\0\0"}), ("JPEG", {"progressive": True})],
)
def test_other_headers_of_a_kind_have_the_size(form: str, options: dict[str, object]) -> None:
    """Lossless and extended WebP, and progressive JPEG."""
    content = encoded(form, 40, 30, "RGB", **options)
    assert num_pixels(image_kind(content), content) == 1200


def test_the_first_frame_of_a_gif_may_exceed_its_canvas() -> None:
    """Browsers enlarge the canvas."""
    content = bytearray(encoded("GIF", 8, 8))
    at = content.index(b"\x2c\0\0\0\0\x08\0\x08\0")
    content[at + 5 : at + 9] = struct.pack("<HH", 60_000, 60_000)
    assert num_pixels("image/gif", bytes(content)) == 60_000**2


@given(st.sampled_from(FORMATS), st.integers(0, 40), st.binary(max_size=60))
def test_damaged_headers_have_no_size_or_any(form: str, kept: int, rest: bytes) -> None:
    """They raise nothing."""
    content = encoded(form, 4, 4)[:kept] + rest
    found = num_pixels(f"image/{form.lower()}", content)
    assert found is None or found >= 0
