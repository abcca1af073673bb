"""Query language for a table of models: filter, order, columns and page, as in an address.

A filter is an expression: ``lr >= 0.01 and (state = failed or id ~ m1) and not worker is empty``.

    filter     = or
    or         = and ("or" and)*
    and        = term ("and" term)*
    term       = "not" term | "(" or ")" | comparison
    comparison = NAME ("=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~") VALUE
               | NAME "in" (LOW ".." HIGH | values | "(" values ")")
               | NAME "is" ["not"] "empty"
    values     = VALUE ("," VALUE)*

``~`` finds a part of a text, ignoring case. NAME is a column, a hyperparameter or a metric. Names and values with
blanks or signs need double quotes. A row without a value matches no comparison, not even ``!=`` and ``!~``; only
``is empty`` finds it. A filter has at most 2,000 characters and 50 levels of ``not`` and parentheses. Pure: the tabs
Models, Analysis and Curves and the read API call `matching`.
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
from dispatcher.read_models.columns import Column, Columns

Test = Callable[[ModelSummary], bool]
ValueTest = Callable[[Any], bool]

_MAX_FILTER = 2_000
_MAX_DEPTH = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>!=|<=|>=|!~|[=<>~(),])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s=<>~!(),"]+))"""
)
_ACTIONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SIGNS = ("=", "!=", *_ACTIONS, "~", "!~")


class ModelQuery(Contract):
    """Selection, order and columns of a fit run's models.

    Attributes:
        fit: id of the fit run, by default the newest.
        filter: expression; see the module.
        sort: names of columns separated by commas; a leading ``-`` means descending. By default best first.
        columns: names of columns separated by commas, by default the most useful ones.
    """

    fit: str = Field("", max_length=60)
    filter: str = Field("", max_length=_MAX_FILTER)
    sort: str = Field("", max_length=500)
    columns: str = Field("", max_length=4000)
    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(100, ge=1, le=500)


def matching(rows: Iterable[ModelSummary], query: ModelQuery, columns: Columns) -> list[ModelSummary]:
    """Return the rows that match the filter, in the requested order.

    Raises:
        BadRequestError: filter or order is invalid; the message names the position.
    """
    test = parse_filter(query.filter, columns)
    found = [row for row in rows if test(row)] if test else list(rows)
    for name, is_descending in reversed(sort_keys(query.sort)):
        column = columns.find(name)
        value = column.value if column.name != "id" else lambda row: row.index
        found = ordered(found, value, is_descending=is_descending)
    return found


def selected_columns(names: str, columns: Columns, default: Sequence[Column]) -> tuple[Column, ...]:
    """Return the named columns without duplicates.

    Raises:
        BadRequestError: a column does not exist.
    """
    operand = dict.fromkeys(part.strip() for part in names.split(",") if part.strip())
    return tuple({(found := columns.find(name)).name: found for name in operand}.values()) or tuple(default)


def parse_filter(expression: str, columns: Columns) -> Test | None:
    """Return the filter as a predicate; `None` for an empty filter.

    Raises:
        BadRequestError: the filter is invalid; the message has the reason and position.
    """
    if not expression.strip():
        return None
    reader = _Parser(_tokens(expression), columns)
    test = reader.disjunction()
    if reader.next.kind != "end":
        raise reader.error("expected `and`, `or` or the end")
    return test


# --- parser -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """``sign``, ``word``, ``quoted`` or ``end``."""
    text: str
    at: int
    """Position in the expression, from 1."""


def _tokens(expression: str) -> list[_Token]:
    found, at = [], 0
    while expression[at:].strip():
        match = _TOKEN.match(expression, at)
        if match is None:
            place = at + len(expression[at:]) - len(expression[at:].lstrip())
            hint = (
                "a quote is not closed" if expression[place] == '"' else f"cannot read {expression[place]!r}"
            )
            raise _error(place + 1, hint)
        kind = str(match.lastgroup)
        value = match[kind]
        found.append(
            _Token(kind, re.sub(r"\\(.)", r"\1", value) if kind == "quoted" else value, match.start(kind) + 1)
        )
        at = match.end()
    return [*found, _Token("end", "the end", len(expression) + 1)]


class _Parser:
    """Recursive-descent parser. Each method consumes its construct and returns the predicate."""

    def __init__(self, tokens: list[_Token], columns: Columns) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0
        self._columns = columns

    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def error(self, expected: str) -> BadRequestError:
        return _error(self.next.at, f"{expected}, found {self.next.text!r}")

    def disjunction(self) -> Test:
        return self._combined("or", any, self._conjunction)

    def _conjunction(self) -> Test:
        return self._combined("and", all, self._term)

    def _combined(self, word: str, holds: Callable[[Iterable[bool]], bool], part: Callable[[], Test]) -> Test:
        tests = [part()]
        while self._accept(word):
            tests.append(part())
        return tests[0] if len(tests) == 1 else lambda row: holds(test(row) for test in tests)

    def _term(self) -> Test:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"nested deeper than {_MAX_DEPTH}")
        try:
            if self._accept("not"):
                test = self._term()
                return lambda row: not test(row)
            if self._accept("("):
                test = self.disjunction()
                if not self._accept(")"):
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
            raise _error(name.at, str(error)) from error
        if self._accept("is"):
            is_there = self._accept("not")
            if not self._accept("empty"):
                raise self.error("expected `empty`")
            return lambda row: (value(row) is not None) == is_there
        test = self._membership() if self._accept("in") else self._value_comparison(name.text)
        return lambda row: (found := value(row)) is not None and test(found)

    def _value_comparison(self, name: str) -> ValueTest:
        sign = self.next
        if sign.kind != "sign" or sign.text not in _SIGNS:
            raise self.error(f"expected one of {' '.join(_SIGNS)}, `in` or `is` after {name!r}")
        self._at += 1
        operand = self._word("expected a value")
        if sign.text in _ACTIONS and _number(operand.text) is None:
            raise _error(operand.at, f"{sign.text} compares numbers, found {operand.text!r}")
        test = _value_test(sign.text.removeprefix("!"), operand.text)
        return (lambda found: not test(found)) if sign.text.startswith("!") else test

    def _membership(self) -> ValueTest:
        is_open = self._accept("(")
        first = self._word("expected a value")
        low, dots, high = first.text.partition("..")
        if dots and not is_open:
            bottom, top = _number(low or "-inf"), _number(high or "inf")
            if bottom is None or top is None:
                raise _error(first.at, f"expected a range of numbers like 0.1..0.5, found {first.text!r}")
            return lambda found: (n := number(found)) is not None and bottom <= n <= top
        tests = [_value_test("=", first.text)]
        while self._accept(","):
            tests.append(_value_test("=", self._word("expected a value").text))
        if is_open and not self._accept(")"):
            raise self.error("expected `,` or `)`")
        return lambda found: any(test(found) for test in tests)

    def _word(self, expected: str) -> _Token:
        token = self.next
        if token.kind not in ("word", "quoted"):
            raise self.error(expected)
        self._at += 1
        return token

    def _accept(self, word: str) -> bool:
        token = self.next
        is_match = token.kind in ("word", "sign") and token.text.casefold() == word
        self._at += is_match
        return is_match


def _error(at: int, what: str) -> BadRequestError:
    return BadRequestError(f"filter, character {at}: {what}")


def _value_test(sign: str, operand: str) -> ValueTest:
    """Return a predicate for existing values."""
    folded, limit = operand.casefold(), _number(operand)
    if sign == "~":
        return lambda found: folded in text(found).casefold()
    if sign == "=":

        def is_same(found: Any) -> bool:
            known = number(found) if limit is not None else None
            return text(found).casefold() == folded if known is None else known == limit

        return is_same
    compare = _ACTIONS[sign]
    return lambda found: (n := number(found)) is not None and compare(n, limit)


def _number(word: str) -> float | None:
    try:
        # A float would equal other integers above 2**53.
        return int(word) if word.lstrip("+-").isdecimal() else float(word)
    except ValueError:
        return None
