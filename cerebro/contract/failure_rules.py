"""Failure rules: patterns in the log of a failed attempt, and their consequences. Types and validation.

The worker's agent matches them (`cerebro.worker.health.failure_rules`); the result is a part of the task's `Failure`.

The first match counts: first the cluster's rules (`worker.failureRules` of the chart), then the run's, then
built-in rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field

from cerebro.contract.base import Contract
from cerebro.contract.texts import cleaned
from cerebro.errors import DataError

MAX_RULES, MAX_NAME, MAX_PATTERN = 20, 60, 200
MAX_LINE = 300
"""Maximum characters of a matched line."""

Action = Literal["label", "no_retry", "retry_elsewhere", "quarantine"]
ACTIONS: tuple[Action, ...] = ("label", "no_retry", "retry_elsewhere", "quarantine")
OF_RUNS: tuple[Action, ...] = ("label", "no_retry", "retry_elsewhere")
"""Actions that a run's rules may have: a run must not take workers from other runs."""

RuleName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class FailureRule(Contract):
    """A pattern in the log of a failed attempt, and its consequence.

    Attributes:
        name: label of the failure.
        pattern: Python regular expression, searched for in the end of the log and in the error's text. ``^`` and
            ``$`` match at each line.
        action: ``label``: only label the failure. ``no_retry``: no further attempt. ``retry_elsewhere``: another
            attempt while attempts remain, on another worker if possible. ``quarantine``: report a fault of the
            machine, and quarantine its worker.
    """

    name: RuleName
    pattern: str = Field(min_length=1, max_length=MAX_PATTERN)
    action: Action = "label"


class MatchedRule(Contract):
    """The failure rule that matched. `line`: the line in which the match begins, shortened."""

    name: RuleName
    action: Action
    line: str = Field("", max_length=MAX_LINE)


def _of_run(rules: tuple[FailureRule, ...]) -> tuple[FailureRule, ...]:
    if any(rule.action not in OF_RUNS for rule in rules):
        raise ValueError(f"failure rules of a run may {', '.join(OF_RUNS)}: workers are not its own")
    return rules


RulesOfRun = Annotated[tuple[FailureRule, ...], Field(max_length=MAX_RULES), AfterValidator(_of_run)]
"""Failure rules of a run, without quarantine."""


def checked(given: object, source: str, actions: Sequence[Action] = ACTIONS) -> tuple[FailureRule, ...]:
    """Validate failure rules from a user or the chart.

    Args:
        given: objects or mappings with name, pattern and action.
        source: name of the setting or argument, for messages.
        actions: allowed actions.

    Raises:
        DataError: a rule is invalid. The message has its number and, for a pattern, the position.
    """
    if isinstance(given, str | dict) or not isinstance(given, Iterable):
        raise DataError(f"{source} is {given!r}, expected a list of rules with name, pattern and action")
    rules = [_checked(rule, f"{source}[{number}]", actions) for number, rule in enumerate(given)]
    if len(rules) > MAX_RULES:
        raise DataError(f"{source} has {len(rules)} rules, expected at most {MAX_RULES}")
    return tuple(rules)


def _checked(given: object, place: str, actions: Sequence[Action]) -> FailureRule:
    known = (
        given
        if isinstance(given, dict)
        else {name: getattr(given, name, None) for name in ("name", "pattern", "action")}
    )
    if unknown := sorted(map(str, known.keys() - {"name", "pattern", "action"})):
        raise DataError(f"{place} has {', '.join(unknown)}, expected only name, pattern and action")
    name, pattern, action = known.get("name"), known.get("pattern"), known.get("action", "label")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise DataError(f"{place}: name is {name!r}, expected 1 to {MAX_NAME} printable characters")
    if not isinstance(pattern, str) or not pattern:
        raise DataError(f"{place} ({name!r}): pattern is {pattern!r}, expected a regular expression")
    if len(pattern) > MAX_PATTERN:
        raise DataError(
            f"{place} ({name!r}): the pattern has {len(pattern)} characters, expected at most {MAX_PATTERN}: it is too "
            f"long from position {MAX_PATTERN} on, {pattern[MAX_PATTERN : MAX_PATTERN + 20]!r}"
        )
    if action not in actions:
        only = "; only rules of the cluster (worker.failureRules of the chart) may quarantine workers"
        raise DataError(
            f"{place} ({name!r}): action is {action!r}, expected one of {', '.join(actions)}"
            f"{only if action == 'quarantine' else ''}"
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        where = getattr(error, "pos", None)
        at = "" if where is None else f" at position {where}, {pattern[where : where + 20]!r}"
        raise DataError(
            f"{place} ({name!r}): the pattern {pattern!r} is not a regular expression: "
            f"{getattr(error, 'msg', error)}{at}"
        ) from error
    return FailureRule(name=name, pattern=pattern, action=cast(Action, action))


def shown(line: str) -> str:
    """Clean and shorten a line for `MatchedRule`."""
    return cleaned(line.strip(), MAX_LINE)
