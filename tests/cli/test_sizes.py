"""Parse and format sizes."""

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
def test_a_size_is_read_in_either_notation(text: str, number: int) -> None:
    """Decimal units, and binary units with an i."""
    assert bytes_of(text) == number


@pytest.mark.parametrize("text", ["", "much", "-1", "1 XB", "1e9", "1.GB", "GB"])
def test_an_invalid_size_is_refused_with_a_valid_example(text: str) -> None:
    with pytest.raises(BadRequestError, match="200GB"):
        bytes_of(text)
