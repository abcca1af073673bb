"""Calls in an experiment file, such as ``loguniform(1e-4, 1e-1)`` or ``ASHA(sampler=TPE())``.

`schema.py` passes the allowed functions; no other code of the file is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cerebro.usercode.named import WordError, close_to, evaluate, unknown

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(.*", re.DOTALL)
"""Start of a call. The rest may be invalid, which is reported as a mistake."""


def resolve_calls(value: Any, functions: Mapping[str, Callable[..., Any]], *, is_strict: bool) -> Any:
    """Evaluate the calls in a value of the file.

    Args:
        value: text, or nested mappings and sequences of texts.
        functions: allowed functions, by name.
        is_strict: True to reject calls of other functions; False to keep them as text.

    Returns:
        The value with results instead of calls.

    Raises:
        WordError: a call is malformed, unknown, or failed.
    """
    if isinstance(value, Mapping):
        return {key: resolve_calls(each, functions, is_strict=is_strict) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [resolve_calls(each, functions, is_strict=is_strict) for each in value]
    call = _CALL.fullmatch(value) if isinstance(value, str) else None
    if call is None:
        return value
    if call[1] in functions:
        return evaluate(value.strip(), functions)
    if is_strict or close_to(call[1], functions):
        raise WordError(f"{value.strip()}: {unknown(call[1], functions)}")
    return value
