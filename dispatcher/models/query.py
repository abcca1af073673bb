"""Asks a table of models: a filter, an order, columns and a page, as they stand in an address.

A filter is a sentence: ``lr >= 0.01 and (state = failed or id ~ m1) and not worker is empty``.

    filter     = or
    or         = and ("or" and)*
    and        = term ("and" term)*
    term       = "not" term | "(" or ")" | comparison
    comparison = NAME ("=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~") VALUE
               | NAME "in" (LOW ".." HIGH | values | "(" values ")")
               | NAME "is" ["not"] "empty"
    values     = VALUE ("," VALUE)*

``~`` finds a part of a text, whatever its case. NAME is a column, a hyper-parameter or a metric. What has blanks or
signs in it stands in double quotes. A row without a value in a column fits no comparison of that column, ``!=`` and
``!~`` neither: it is found by ``is empty``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.errors import BadRequestError
from cerebro.figures.models import ModelSummary
from dispatcher.pages.tables import number, ordered, sort_keys, text
from dispatcher.reading.columns import Column, Columns

Test = Callable[[ModelSummary], bool]
ValueTest = Callable[[Any], bool]

_MAX_FILTER = 2_000
_MAX_DEPTH = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>!=|<=|>=|!~|[=<>~(),])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s=<>~!(),"]+))"""
)
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SIGNS = ("=", "!=", *_ORDERS, "~", "!~")


class ModelQuery(Contract):
    """Which models of a fit run, in which order, with which columns.

    Attributes:
        fit: id of the fit run; the newest one if empty.
        filter: see the module; empty for all.
        sort: names of columns, commas between, each with ``-`` before it for descending.
        columns: names of columns, commas between; those that tell most if empty.
    """

    fit: str = Field("", max_length=60)
    filter: str = Field("", max_length=_MAX_FILTER)
    sort: str = Field("", max_length=500)
    columns: str = Field("", max_length=4000)
    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(100, ge=1, le=500)


def matching(rows: Iterable[ModelSummary], query: ModelQuery, columns: Columns) -> list[ModelSummary]:
    """The rows that fit the filter, in the order that is asked for.

    Raises:
        BadRequestError: the filter or the order cannot be understood; names the place.
    """
    test = parsed(query.filter, columns)
    found = [row for row in rows if test(row)] if test else list(rows)
    for name, is_descending in reversed(sort_keys(query.sort)):
        column = columns.find(name)
        value = column.value if column.name != "id" else lambda row: row.index
        found = ordered(found, value, is_descending=is_descending)
    return found


def chosen(names: str, columns: Columns, default: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of these names, each once.

    Raises:
        BadRequestError: there is no such column.
    """
    wanted = dict.fromkeys(part.strip() for part in names.split(",") if part.strip())
    return tuple({(found := columns.find(name)).name: found for name in wanted}.values()) or tuple(default)


def parsed(sentence: str, columns: Columns) -> Test | None:
    """The filter as a test of a row; `None` if there is none.

    Raises:
        BadRequestError: what is wrong with it, and where.
    """
    if not sentence.strip():
        return None
    reader = _Reader(_tokens(sentence), columns)
    test = reader.either()
    if reader.next.kind != "end":
        raise reader.error("expected `and`, `or` or the end")
    return test


# --- the language -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """``sign``, ``word``, ``quoted`` or ``end``."""
    text: str
    at: int
    """Position in the sentence, from 1."""


def _tokens(sentence: str) -> list[_Token]:
    found, at = [], 0
    while sentence[at:].strip():
        match = _TOKEN.match(sentence, at)
        if match is None:
            place = at + len(sentence[at:]) - len(sentence[at:].lstrip())
            hint = "a quote is not closed" if sentence[place] == '"' else f"cannot read {sentence[place]!r}"
            raise _wrong(place + 1, hint)
        kind = str(match.lastgroup)
        value = match[kind]
        found.append(
            _Token(kind, re.sub(r"\\(.)", r"\1", value) if kind == "quoted" else value, match.start(kind) + 1)
        )
        at = match.end()
    return [*found, _Token("end", "the end", len(sentence) + 1)]


class _Reader:
    """Reads tokens by recursive descent; each method takes what it names and returns its test."""

    def __init__(self, tokens: list[_Token], columns: Columns) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0
        self._columns = columns

    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def error(self, expected: str) -> BadRequestError:
        return _wrong(self.next.at, f"{expected}, found {self.next.text!r}")

    def either(self) -> Test:
        return self._joined("or", any, self._both)

    def _both(self) -> Test:
        return self._joined("and", all, self._term)

    def _joined(self, word: str, holds: Callable[[Iterable[bool]], bool], part: Callable[[], Test]) -> Test:
        tests = [part()]
        while self._takes(word):
            tests.append(part())
        return tests[0] if len(tests) == 1 else lambda row: holds(test(row) for test in tests)

    def _term(self) -> Test:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"nested deeper than {_MAX_DEPTH}")
        try:
            if self._takes("not"):
                test = self._term()
                return lambda row: not test(row)
            if self._takes("("):
                test = self.either()
                if not self._takes(")"):
                    raise self.error("expected `)`")
                return test
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Test:
        name = self._word("expected the name of a column")
        try:
            value = self._columns.find(name.text).value
        except BadRequestError as error:
            raise _wrong(name.at, str(error)) from error
        if self._takes("is"):
            is_there = self._takes("not")
            if not self._takes("empty"):
                raise self.error("expected `empty`")
            return lambda row: (value(row) is not None) == is_there
        test = self._within() if self._takes("in") else self._compared(name.text)
        return lambda row: (found := value(row)) is not None and test(found)

    def _compared(self, name: str) -> ValueTest:
        sign = self.next
        if sign.kind != "sign" or sign.text not in _SIGNS:
            raise self.error(f"expected one of {' '.join(_SIGNS)}, `in` or `is` after {name!r}")
        self._at += 1
        wanted = self._word("expected a value")
        if sign.text in _ORDERS and _number(wanted.text) is None:
            raise _wrong(wanted.at, f"{sign.text} compares numbers, found {wanted.text!r}")
        test = _value_test(sign.text.removeprefix("!"), wanted.text)
        return (lambda found: not test(found)) if sign.text.startswith("!") else test

    def _within(self) -> ValueTest:
        is_open = self._takes("(")
        first = self._word("expected a value")
        low, dots, high = first.text.partition("..")
        if dots and not is_open:
            bottom, top = _number(low or "-inf"), _number(high or "inf")
            if bottom is None or top is None:
                raise _wrong(first.at, f"expected a range of numbers like 0.1..0.5, found {first.text!r}")
            return lambda found: (n := number(found)) is not None and bottom <= n <= top
        tests = [_value_test("=", first.text)]
        while self._takes(","):
            tests.append(_value_test("=", self._word("expected a value").text))
        if is_open and not self._takes(")"):
            raise self.error("expected `,` or `)`")
        return lambda found: any(test(found) for test in tests)

    def _word(self, expected: str) -> _Token:
        token = self.next
        if token.kind not in ("word", "quoted"):
            raise self.error(expected)
        self._at += 1
        return token

    def _takes(self, word: str) -> bool:
        token = self.next
        is_it = token.kind in ("word", "sign") and token.text.casefold() == word
        self._at += is_it
        return is_it


def _wrong(at: int, what: str) -> BadRequestError:
    return BadRequestError(f"filter, character {at}: {what}")


def _value_test(sign: str, wanted: str) -> ValueTest:
    """A test of a value that is there."""
    folded, limit = wanted.casefold(), _number(wanted)
    if sign == "~":
        return lambda found: folded in text(found).casefold()
    if sign == "=":

        def is_same(found: Any) -> bool:
            known = number(found) if limit is not None else None
            return text(found).casefold() == folded if known is None else known == limit

        return is_same
    compare = _ORDERS[sign]
    return lambda found: (n := number(found)) is not None and compare(n, limit)


def _number(word: str) -> float | None:
    try:
        # A float would equal other integers beyond 2**53.
        return int(word) if word.lstrip("+-").isdecimal() else float(word)
    except ValueError:
        return None
