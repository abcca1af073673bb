"""The OpenAPI document of the dispatcher: what it shows as JSON, and the part of the store's API that it hands on.

Pages are not in it: they are for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cerebro.contract.openapi import BYTES, CSV, JSON, SVG, Operation
from cerebro.contract.openapi import document as made
from cerebro.contract.routes import STORE
from dispatcher.api import gateway

__all__ = ["BYTES", "CSV", "JSON", "SVG", "Operation", "document", "handed_on"]

_EVERY = (401, 429, 503)
"""Any route may answer so: without the token, after too many wrong ones, while the store is away."""


def handed_on() -> Iterator[tuple[str, Operation]]:
    """What is handed on to the store, by method and path of the store."""
    for method, rule, _ in gateway.ROUTES:
        key = f"{method} {rule}".replace("<name:key>", "{name}").replace(
            "<string(length=64):key>", "{sha256}"
        )
        known = STORE[key]
        refusals = {400, 404} if "{" in rule or "<" in rule else {400} if known.query or known.body else set()
        statuses = tuple({*known.statuses, *refusals, *((413,) if known.body else ())})
        # While the store is away, the answer is the dispatcher's.
        answers = {503: dict[str, Any]} if known.answers else {}
        yield key, replace(known, name="", is_open=False, statuses=statuses, answers=answers)


def document(version: str, views: Mapping[str, Operation]) -> str:
    """The OpenAPI 3.1 document as JSON; `views` are the operations of the read API, by method and path."""
    store = {key.replace(" ", f" {gateway.PREFIX}"): operation for key, operation in handed_on()}
    info = {
        "title": "Cerebro",
        "version": version,
        "description": "Read what the page shows, and ask for runs. Times are seconds since the epoch.",
    }
    return made(info, {**views, **store}, _EVERY)
