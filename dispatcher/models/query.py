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

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pydantic import Field

from cerebro.contract.base import Contract
from cerebro.errors import BadRequestError
from cerebro.figures.models import ModelSummary
from dispatcher.reading.columns import Column, Columns, number, order, text

Test = Callable[[ModelSummary], bool]

_MAX_FILTER = 2_000
_MAX_DEPTH = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>!=|<=|>=|!~|[=<>~(),])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s=<>~!(),"]+))"""
)
_NUMBERS = frozenset({int, float})
_SIGNS = ("=", "!=", "<", "<=", ">", ">=", "~", "!~")


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
    for name in reversed([part.strip() for part in query.sort.split(",") if part.strip()]):
        found = _sorted(found, columns.find(name.lstrip("-")), is_descending=name.startswith("-"))
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


def _sorted(rows: list[ModelSummary], column: Column, *, is_descending: bool) -> list[ModelSummary]:
    """Rows without a value last, whichever way."""
    if column.name == "id":
        return sorted(rows, key=lambda row: row.index, reverse=is_descending)
    value = column.value
    known = [(found, row) for row in rows if (found := value(row)) is not None]
    # Most columns hold nothing but numbers, which need no key; NaN differs from itself.
    is_plain = all(type(found) in _NUMBERS and found == found for found, _ in known)
    known.sort(key=itemgetter(0) if is_plain else _place, reverse=is_descending)
    if len(known) == len(rows):
        return [row for _, row in known]
    return [row for _, row in known] + [row for row in rows if value(row) is None]


def _place(known: tuple[Any, ModelSummary]) -> tuple[int, float, str]:
    return order(known[0])


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
            raise BadRequestError(f"filter, character {place + 1}: {hint}")
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
        return BadRequestError(f"filter, character {self.next.at}: {expected}, found {self.next.text!r}")

    def either(self) -> Test:
        tests = [self._both()]
        while self._takes("or"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda row: any(test(row) for test in tests)

    def _both(self) -> Test:
        tests = [self._term()]
        while self._takes("and"):
            tests.append(self._term())
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

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
        name = self.next
        if name.kind not in ("word", "quoted"):
            raise self.error("expected the name of a column")
        self._at += 1
        try:
            column = self._columns.find(name.text)
        except BadRequestError as error:
            raise BadRequestError(f"filter, character {name.at}: {error}") from error
        value = column.value
        if self._takes("is"):
            is_negated = self._takes("not")
            if not self._takes("empty"):
                raise self.error("expected `empty`")
            return (lambda row: value(row) is not None) if is_negated else (lambda row: value(row) is None)
        if self._takes("in"):
            return self._within(value)
        sign = self.next
        if sign.kind != "sign" or sign.text not in _SIGNS:
            raise self.error(f"expected one of {' '.join(_SIGNS)}, `in` or `is` after {name.text!r}")
        self._at += 1
        at = self.next
        wanted = self._value()
        if sign.text.startswith(("<", ">")) and _number(wanted) is None:
            raise BadRequestError(
                f"filter, character {at.at}: {sign.text} compares numbers, found {wanted!r}"
            )
        return _present(value, _compared(sign.text, wanted))

    def _within(self, value: Callable[[ModelSummary], Any]) -> Test:
        if self._takes("("):
            test = self._one_of(value, self._value())
            if not self._takes(")"):
                raise self.error("expected `,` or `)`")
            return test
        at, first = self.next.at, self._value()
        low, dots, high = first.partition("..")
        if dots:
            bottom, top = _number(low) if low else float("-inf"), _number(high) if high else float("inf")
            if bottom is None or top is None:
                raise BadRequestError(
                    f"filter, character {at}: expected a range of numbers like 0.1..0.5, found {first!r}"
                )
            return _present(value, lambda found: (n := number(found)) is not None and bottom <= n <= top)
        return self._one_of(value, first)

    def _one_of(self, value: Callable[[ModelSummary], Any], first: str) -> Test:
        wanted = [_compared("=", first)]
        while self._takes(","):
            wanted.append(_compared("=", self._value()))
        return _present(value, lambda found: any(test(found) for test in wanted))

    def _value(self) -> str:
        if self.next.kind not in ("word", "quoted"):
            raise self.error("expected a value")
        self._at += 1
        return self._tokens[self._at - 1].text

    def _takes(self, word: str) -> bool:
        token = self.next
        is_it = token.kind in ("word", "sign") and token.text.casefold() == word
        self._at += is_it
        return is_it


def _present(value: Callable[[ModelSummary], Any], test: Callable[[Any], bool]) -> Test:
    return lambda row: (found := value(row)) is not None and test(found)


def _compared(sign: str, wanted: str) -> Callable[[Any], bool]:
    """A test of a value that is there."""
    if sign in ("!=", "!~"):
        test = _compared(sign[1:], wanted)
        return lambda found: not test(found)
    folded, limit = wanted.casefold(), _number(wanted)
    if sign == "~":
        return lambda found: folded in text(found).casefold()
    if sign == "=":
        return lambda found: (
            number(found) == limit
            if limit is not None and number(found) is not None
            else _same(found, folded)
        )
    assert limit is not None
    compare: dict[str, Callable[[float], bool]] = {
        "<": lambda found: found < limit,
        "<=": lambda found: found <= limit,
        ">": lambda found: found > limit,
        ">=": lambda found: found >= limit,
    }
    holds = compare[sign]
    return lambda found: (n := number(found)) is not None and holds(n)


def _same(found: Any, folded: str) -> bool:
    return text(found).casefold() == folded


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
