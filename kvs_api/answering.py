"""What all views share: reading a request's parts, and writing answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from flask import Response, request
from pydantic import BaseModel, TypeAdapter

from cerebro import errors
from cerebro.contract import api
from cerebro.contract.base import Contract, Name

Body = TypeVar("Body", bound=BaseModel)

_MAX_ONCE = 64
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def body(model: type[Body]) -> Body:
    """The request's body."""
    return model.model_validate_json(request.get_data())


def checked_name(name: str) -> str:
    """A name from the path."""
    return _NAME.validate_python(name)


def identity() -> str:
    """Of the call, by which it counts once; empty if it has none."""
    once = request.headers.get(api.ONCE, "")
    if len(once) > _MAX_ONCE:
        raise errors.BadRequestError(f"{api.ONCE} has {len(once)} characters, expected at most {_MAX_ONCE}")
    return once


def whole_number(name: str, meaning: str) -> int:
    """A parameter that must be there."""
    text = request.args.get(name, "")
    if not text.isdecimal() or int(text) > api.MAX_SEQ:
        raise errors.BadRequestError(f"{name} must be {meaning}, not {text!r}")
    return int(text)


def cursor() -> tuple[int, float]:
    """After which entry, and how long one may be waited for."""
    try:
        after, wait_s = int(request.args.get("after", "0")), float(request.args.get("wait_s", "0"))
    except ValueError as cause:
        raise errors.BadRequestError(f"after and wait_s must be numbers: {cause}") from cause
    if not (0 <= after <= api.MAX_SEQ and 0 <= wait_s <= api.MAX_WAIT_S):
        raise errors.BadRequestError(
            f"after must be between 0 and 2^53 and wait_s between 0 and {api.MAX_WAIT_S:g}"
        )
    return after, wait_s


def spliced(field: str, entries: Iterable[str]) -> Response:
    """An answer of one list, whose entries are JSON."""
    return json_answer(f'{{"{field}":[{",".join(entries)}]}}')


def json_answer(content: str) -> Response:
    """An answer that is JSON already."""
    return Response(content, mimetype="application/json")


def answer(model: Contract) -> Response:
    """An answer as a model."""
    return json_answer(model.model_dump_json())
