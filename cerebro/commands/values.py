"""Hyper-parameters as people type them, on the command line and on the page: words such as ``lr=0.001``. Pure.

A value is what JSON reads in its text, or else the text itself: ``0.001``, ``true``, ``[32, 64]``, ``adam``. A text
that JSON would read as something else stands in quotes: ``"1"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cerebro.errors import BadRequestError


def value_of(text: str) -> Any:
    """The value that somebody typed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def text_of(value: object) -> str:
    """What to type for a value that JSON can say, on one line: `value_of` gives it back."""
    if isinstance(value, str) and value and value.isprintable() and value == value.strip():
        read = value_of(value)
        if isinstance(read, str) and read == value:
            return value
    return json.dumps(value)


def values_of(words: Iterable[str]) -> dict[str, Any]:
    """Hyper-parameters of ``NAME=VALUE`` words.

    Raises:
        BadRequestError: one of them is none, or a name is there twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not name or not sign or name in found:
            raise BadRequestError(f"{word!r}: expected NAME=VALUE, such as lr=0.001, with each name once")
        found[name] = value_of(text)
    return found
