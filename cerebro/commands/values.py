"""Parse hyperparameters typed on the command line or the page, such as ``lr=0.001``, and format them. Pure.

A value is parsed as JSON, and otherwise taken as text: ``0.001``, ``true``, ``[32, 64]``, ``adam``. Quotes make a text
of something that JSON would parse: ``"1"``. Whether a model has such a hyperparameter is checked in `training_config`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cerebro.errors import BadRequestError


def value_of(text: str) -> Any:
    """Parse a typed value.

    >>> value_of("0.001"), value_of("adam")
    (0.001, 'adam')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def text_of(value: object) -> str:
    """Return the one-line text that `value_of` parses to `value`."""
    if isinstance(value, str) and value and value.isprintable() and value == value.strip():
        read = value_of(value)
        if isinstance(read, str) and read == value:
            return value
    return json.dumps(value)


def values_of(words: Iterable[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` words.

    Raises:
        BadRequestError: a word has another form, or a name occurs twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not name or not sign or name in found:
            raise BadRequestError(f"{word!r}: expected NAME=VALUE, such as lr=0.001, with each name once")
        found[name] = value_of(text)
    return found
