"""Sizes as people write and read them."""

from __future__ import annotations

import pytest

from cerebro.cli.text import bytes_of
from cerebro.errors import BadRequestError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("4096", 4096),
        ("200GB", 200 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("2k", 2000),
        ("7 MiB", 7 << 20),
    ],
)
def test_a_size_is_read_in_either_sub_epoch(text: str, number: int) -> None:
    """Powers of ten, and of two with an i."""
    assert bytes_of(text) == number


@pytest.mark.parametrize("text", ["", "much", "-1", "1 XB", "1e9", "1.GB", "GB"])
def test_what_is_no_size_is_refused_with_one_that_is(text: str) -> None:
    """Before anything is sent."""
    with pytest.raises(BadRequestError, match="200GB"):
        bytes_of(text)
