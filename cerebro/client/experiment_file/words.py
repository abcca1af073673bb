"""The words of a notebook in a file: ``loguniform(1e-4, 1e-1)``, ``ASHA(sampler=TPE())``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cerebro.usercode.named import WordError, close_to, evaluate, unknown

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(.*", re.DOTALL)
"""The beginning of one: that it does not end is a mistake, too."""


def meant(value: Any, words: Mapping[str, Callable[..., Any]], *, is_strict: bool) -> Any:
    """A value of a file with the calls in it made.

    Args:
        words: what may be called, by name.
        is_strict: whether a call of any other name is a mistake; else it is the text that stands there.

    Raises:
        WordError: a call cannot be read or made; the message says why.
    """
    if isinstance(value, Mapping):
        return {key: meant(each, words, is_strict=is_strict) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [meant(each, words, is_strict=is_strict) for each in value]
    found = _CALL.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    if found[1] in words:
        return evaluate(value.strip(), words)
    if is_strict or close_to(found[1], words):
        raise WordError(f"{value.strip()}: {unknown(found[1], words)}")
    return value
