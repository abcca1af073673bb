"""What an address asks for, as the queries that views take. An address may be old or typed: what no query has is left
out, and a value that does not fit gives way to its default, so that a page is shown in any case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from flask import request
from pydantic import ValidationError

from cerebro.contract.base import Contract

Query = TypeVar("Query", bound=Contract)


def parsed_query(kind: type[Query], **fixed: object) -> Query:
    """The query of this request; `fixed` fields are not taken from the address."""
    return query_of(kind, {name: ",".join(values) for name, values in request.args.lists()}, **fixed)


def query_of(kind: type[Query], given: Mapping[str, str], **fixed: object) -> Query:
    """The query in `given`; a field that is repeated has commas between."""
    fields: dict[str, object] = {
        name: value for name, value in given.items() if name in kind.model_fields and value
    }
    fields |= fixed
    while True:
        try:
            return kind.model_validate(fields, strict=False)
        except ValidationError as error:
            wrong = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
            if not wrong & fields.keys():
                raise
            fields = {name: value for name, value in fields.items() if name not in wrong}
