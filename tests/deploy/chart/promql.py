"""A parser for the part of PromQL that the chart uses. It rejects invalid queries and lists the metrics.

Grammar, by rising precedence: ``or``, ``and`` and ``unless``, comparisons, ``+ -``, ``* /``, then a number, a selector
with an optional range, a call, an aggregation with ``by`` or ``without``, or parentheses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

AGGREGATIONS = {"sum", "min", "max", "avg", "count"}
FUNCTIONS = {"absent", "histogram_quantile", "increase", "rate", "time"}
_RANGED = {"increase", "rate"}
_LEVELS = (("or",), ("and", "unless"), ("<", ">", "<=", ">=", "==", "!="), ("+", "-"), ("*", "/"))
_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<duration>\d+[smhd])|(?P<number>\d+(\.\d+)?)"""
    r"""|(?P<string>"(?:[^"\\]|\\.)*")|(?P<sign>=~|!~|<=|>=|==|!=|[-+*/(){}\[\],=<>]))"""
)


@dataclass
class Query:
    """The metrics and labels of a query.

    Attributes:
        metrics: names of metrics.
        matchers: (metric, label, operator, value) of selectors.
        grouped: labels of all ``by (...)``.
    """

    metrics: set[str] = field(default_factory=set)
    matchers: list[tuple[str, str, str, str]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def parse(text: str) -> Query:
    """Parse a query.

    Raises:
        ValueError: the query is invalid; names the position and the expectation.
    """
    parser = _Parser(text)
    parser.binary(0)
    parser.end()
    return parser.query


class _Parser:
    def __init__(self, text: str) -> None:
        self.query, self._text, self._position = Query(), text, 0
        self._tokens: list[tuple[str, str]] = []
        end = 0
        while text[end:].strip():
            found = _TOKEN.match(text, end)
            if found is None:
                raise ValueError(f"no PromQL at {text[end : end + 20]!r} in {text!r}")
            assert found.lastgroup is not None
            kind = next(name for name in ("name", "duration", "number", "string", "sign") if found[name])
            self._tokens.append((kind, found[kind]))
            end = found.end()

    def _next(self, *expected: str) -> str:
        kind, value = self._tokens[self._position] if self._position < len(self._tokens) else ("end", "")
        if expected and kind not in expected and value not in expected:
            raise ValueError(f"{value or 'the end'!r} instead of {' or '.join(expected)} in {self._text!r}")
        self._position += 1
        return value

    def _is(self, *values: str) -> bool:
        return self._position < len(self._tokens) and self._tokens[self._position][1] in values

    def end(self) -> None:
        if self._position < len(self._tokens):
            raise ValueError(f"{self._tokens[self._position][1]!r} is too much in {self._text!r}")

    def binary(self, level: int) -> None:
        if level == len(_LEVELS):
            self._operand()
            return
        self.binary(level + 1)
        while self._is(*_LEVELS[level]):
            self._next()
            self.binary(level + 1)

    def _operand(self) -> None:
        if self._is("("):
            self._next()
            self.binary(0)
            self._next(")")
        elif (word := self._next("name", "number")) in AGGREGATIONS:
            if self._is("by", "without"):
                self._next()
                self.query.grouped |= set(self._list("name"))
            self._arguments()
        elif word in FUNCTIONS and self._is("("):
            before = self._position
            self._arguments()
            is_ranged = any(kind == "duration" for kind, _ in self._tokens[before : self._position])
            if is_ranged != (word in _RANGED) and word != "histogram_quantile":
                raise ValueError(f"{word} takes {'a' if word in _RANGED else 'no'} range in {self._text!r}")
        elif not word[0].isdigit():
            self._selector(word)

    def _list(self, kind: str) -> list[str]:
        found = []
        self._next("(")
        while not self._is(")"):
            found.append(self._next(kind))
            if not self._is(")"):
                self._next(",")
        self._next(")")
        return found

    def _arguments(self) -> None:
        self._next("(")
        while not self._is(")"):
            self.binary(0)
            if not self._is(")"):
                self._next(",")
        self._next(")")

    def _selector(self, metric: str) -> None:
        self.query.metrics.add(metric)
        if self._is("{"):
            self._next()
            while not self._is("}"):
                label, operator = self._next("name"), self._next("=", "!=", "=~", "!~")
                value = self._next("string")[1:-1]
                if operator in ("=~", "!~"):
                    re.compile(value)
                self.query.matchers.append((metric, label, operator, value))
                if not self._is("}"):
                    self._next(",")
            self._next("}")
        if self._is("["):
            self._next()
            self._next("duration")
            self._next("]")
