"""Queries from the address of a page, as the query class of its view.

Addresses may be old or typed by hand, so a page never fails: unknown parameters are ignored, and an invalid value is
replaced by its default. The read API refuses such addresses instead (`api.views`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from flask import request
from pydantic import ValidationError

from cerebro.contract.base import Contract

Query = TypeVar("Query", bound=Contract)


def parsed_query(kind: type[Query], **fixed: object) -> Query:
    """Return the query of this request. `fixed` fields are not taken from the address."""
    return query_of(kind, {name: ",".join(values) for name, values in request.args.lists()}, **fixed)


def query_of(kind: type[Query], parameters: Mapping[str, str], **fixed: object) -> Query:
    """Return the query in `parameters`; commas join repeated values."""
    fields: dict[str, object] = {
        name: value for name, value in parameters.items() if name in kind.model_fields and value
    }
    fields |= fixed
    while True:
        try:
            return kind.model_validate(fields, strict=False)
        except ValidationError as error:
            invalid = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
            if not invalid & fields.keys():
                raise
            fields = {name: value for name, value in fields.items() if name not in invalid}
