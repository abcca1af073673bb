"""Convert hyperparameters to JSON values that mean the same in Python, in the log and in a browser. Pure.

Lists, arrays and scalars of NumPy, torch and pandas become lists and plain numbers, members of an Enum their values.
`carried` refuses a value that JSON would change, such as a dict with integer keys, a masked element or an integer
beyond 2**53.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType
from typing import Any

from pydantic import JsonValue

MAX_INTEGER = 2**53
"""JavaScript, and so the page, rounds larger integers."""
MAX_VALUE_BYTES = 1 << 20
"""Size limit of one hyperparameter as JSON. The log, each task and each table of models hold a copy."""

_MAX_DEPTH = 50
_NUMPY_KINDS = "biufOU"


def carried(value: object) -> JsonValue:
    """Return the JSON value that equals `value`; tuples become lists.

    Raises:
        ValueError: JSON cannot hold the value exactly, or the value is too large. The message is a reason that can
            follow a hyperparameter's name.

    >>> carried({"betas": (0.9, 0.999)})
    {'betas': [0.9, 0.999]}
    """
    found = _carried(value, "", 0)
    if isinstance(found, str | list | dict):
        size = len(json.dumps(found, ensure_ascii=False).encode())
        if size > MAX_VALUE_BYTES:
            raise ValueError(
                f"takes {size / 2**20:,.1f} MiB, at most {MAX_VALUE_BYTES >> 20} MiB: list a file under `misc` in the "
                "locators, and give its name as the hyperparameter"
            )
    return found


def require_finite(value: JsonValue) -> JsonValue:
    """Return a JSON value; ValueError if it has NaN or an infinity, which JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"{value} is not a finite number: JSON cannot hold it, so leave it out or write a text"
        )
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        require_finite(each)
    return value


def is_array(value: object) -> bool:
    """True for arrays and scalars of NumPy, torch and pandas."""
    return hasattr(value, "tolist") and hasattr(value, "dtype")


def has_masked(value: object) -> bool:
    """True if a masked array of NumPy has a masked element."""
    mask = getattr(value, "mask", False)
    return not callable(mask) and bool(getattr(mask, "any", lambda: mask)())


def listed(value: Any) -> Any:
    """Return an array's elements as Python values.

    Raises:
        ValueError: Python has no equal values, or an element is masked.
    """
    if has_masked(value):
        raise ValueError("has a masked element: fill the mask or remove the element")
    if getattr(value.dtype, "kind", "f") not in _NUMPY_KINDS:
        raise ValueError(f"is of dtype {value.dtype}: {_ADVICE}")
    try:
        found = value.tolist()
    except RuntimeError as error:  # a tensor that is sparse, quantized or on the device "meta"
        raise ValueError(f"is a {type(value).__name__} without a list of its elements: {_ADVICE}") from error
    if type(found) is type(value):  # NumPy's longdouble has no equal in Python
        if float(found) != found:
            raise ValueError(
                f"is of dtype {value.dtype}, which float64 cannot hold exactly: convert it by float()"
            )
        found = float(found)
    return found


_ADVICE = "use numbers, text, booleans, or lists and dicts of these"
_KIND_ADVICE: tuple[tuple[tuple[type, ...], str], ...] = (
    ((set, frozenset), "use a list, as in sorted(values)"),
    ((range,), "use a list, as in list(values)"),
    ((PurePath,), "use text, as in str(path)"),
    ((date, time), "use text, as in value.isoformat()"),
    ((timedelta,), "use seconds, as in value.total_seconds()"),
    ((bytes, bytearray), "use text, as in value.decode()"),
    ((Decimal, Fraction), "use float(value)"),
    ((complex,), "use a list of two numbers"),
    ((type, FunctionType, BuiltinFunctionType), "use its name, and look it up in your code"),
)
"""Advice for values of some types."""


def _carried(value: Any, where: str, depth: int) -> JsonValue:
    if depth > _MAX_DEPTH:
        raise ValueError(f"is nested too deeply, in more than {_MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        try:
            return _carried(value.value, where, depth + 1)
        except ValueError as cause:
            raise ValueError(f"{cause}; or give the name of the member, {value.name!r}") from None
    if isinstance(value, str):
        return _text("".join(value), where)
    if is_array(value) and not isinstance(value, float):
        try:
            return _carried(listed(value), where, depth + 1)
        except ValueError as cause:
            raise ValueError(
                f"{where} {cause}".strip() if where and where not in str(cause) else str(cause)
            ) from None
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ValueError(
                f"{where} is {int(value)}, beyond 2**53, which the page would round: give it as text".strip()
            )
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {float(value)}, which JSON cannot hold: {_ADVICE}".strip())
        return float(value)
    if isinstance(value, Mapping):
        return {
            _key(key, where): _carried(each, f"{where}[{key!r}]", depth + 1) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_carried(each, f"{where}[{number}]", depth + 1) for number, each in enumerate(value)]
    advice = next((text for kinds, text in _KIND_ADVICE if isinstance(value, kinds)), _ADVICE)
    raise ValueError(f"{where} is a {type(value).__name__}: {advice}".strip())


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise ValueError(
            f"{where} has the key {key!r}, and JSON makes each key text: use text as keys".strip()
        )
    return _text("".join(key), where)


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{where} has half a character (a lone surrogate) in a text: remove it, for example by "
            "text.encode('utf-8', 'replace').decode()".strip()
        ) from None
    return text
