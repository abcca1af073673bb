"""`Call`, the request a view receives, and helpers that build its response. Used by all view classes.

It checks the form of headers and parameters, not who may call. Nothing here reads the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from cerebro import errors
from cerebro.contract.accounts.identity import Principal
from cerebro.contract.base import Contract, Name
from cerebro.contract.rest import api

Body = TypeVar("Body", bound=BaseModel)

_MAX_ONCE = 64
"""Maximum number of characters of an idempotency key."""
_MAX_DIGITS = 16  # of `MAX_SEQ`; Python refuses to convert thousands
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class Call:
    """One request, with its whole body.

    Attributes:
        content: the body; empty until `kvs_api.api.app` has read it.
        principal: the caller; `None` on clusters without users.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.args = request, request.query_params
        self.content = b""
        self.principal: Principal | None = None

    def body(self, model: type[Body]) -> Body:
        """Return the body as a model."""
        return model.model_validate_json(self.content)

    def term(self) -> int:
        """Return the controller's term that the request names; 0 if none."""
        text = self.request.headers.get(api.TERM, "0")
        if not (text.isascii() and text.isdecimal()) or len(text) > _MAX_DIGITS:
            raise errors.BadRequestError(f"header {api.TERM}: expected a whole number, got {text!r}")
        return int(text)

    def identity(self) -> str:
        """Return the idempotency key of the call, or an empty string."""
        once = self.request.headers.get(api.ONCE, "")
        if len(once) > _MAX_ONCE:
            raise errors.BadRequestError(
                f"{api.ONCE} has {len(once)} characters, expected at most {_MAX_ONCE}"
            )
        return once

    def require_integer(self, name: str, meaning: str) -> int:
        """Return a required query parameter, between 0 and `api.MAX_SEQ`. `meaning` completes the error message."""
        text = self.args.get(name, "")
        if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) > api.MAX_SEQ:
            raise errors.BadRequestError(f"{name} must be {meaning}, not {text!r}")
        return int(text)

    def cursor(self) -> tuple[int, float]:
        """Return the caller's last entry number, and the seconds to wait for the next."""
        try:
            number, wait_s = int(self.args.get("after", "0")), float(self.args.get("wait_s", "0"))
        except ValueError as cause:
            raise errors.BadRequestError(f"after and wait_s must be numbers: {cause}") from cause
        if not (0 <= number <= api.MAX_SEQ and 0 <= wait_s <= api.MAX_WAIT_S):
            raise errors.BadRequestError(
                f"after must be between 0 and 2^53 and wait_s between 0 and {api.MAX_WAIT_S:g}"
            )
        return number, wait_s


def checked_name(name: str) -> str:
    """Return a name from the path. An invalid one raises `ValidationError`, which the app answers with 400."""
    return _NAME.validate_python(name)


def spliced(field: str, entries: Iterable[str]) -> Response:
    """Answer with an object of one field, a list whose entries are JSON text."""
    return json_answer(f'{{"{field}":[{",".join(entries)}]}}')


def json_answer(content: str, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(content, status, media_type="application/json")


def bytes_answer(content: bytes) -> Response:
    """Answer with bytes."""
    return Response(content, media_type="application/octet-stream")


def answer(model: Contract) -> Response:
    """Answer with a model."""
    return json_answer(model.model_dump_json())


def done() -> Response:
    """Answer without content."""
    return Response(status_code=204)
