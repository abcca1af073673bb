"""One page of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """Page number `page` of `pages`, both from 1."""

    rows: Sequence[T]
    page: int
    pages: int


def page_of(rows: Sequence[T], page: int, size: int) -> Page[T]:
    """Page number `page`, from 1, of `size` rows each; past the end it is the last."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(1, page), pages)
    return Page(rows=rows[(page - 1) * size : page * size], page=page, pages=pages)
