"""Priorities of runs in the cluster and of models in their run: one number for both, and its name and weight.

Among runs it weights fair share (`controller.sharing`); among models the higher priority goes first. Decision 47 has
the rule. Logs and answers contain the name of a number that has one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from cerebro.errors import BadRequestError

LOW, NORMAL, HIGH = -1, 0, 1
NAMES = {"low": LOW, "normal": NORMAL, "high": HIGH}
"""Named priorities, ascending."""
MOST = 9
"""Users choose numbers from ``-MOST`` to ``MOST``. A search uses one number for each of its brackets."""

_NAME_OF = {number: name for name, number in NAMES.items()}
_FACTOR = 4.0
_DIGITS = 20
"""Maximum digits of a priority as text: int() refuses more than some thousands."""


def shown(priority: int) -> str:
    """Return the name of a priority, or else its number as text."""
    return _NAME_OF.get(priority, str(priority))


def weight(priority: int) -> float:
    """Return the weight of a run's fair share: four times the weight of the next lower priority."""
    return _FACTOR ** min(max(priority, -MOST), MOST)


def parse(value: object) -> int:
    """Parse a priority given as a name, a number, or digits.

    Raises:
        BadRequestError: it is no priority, or outside ``-MOST`` to ``MOST``.
    """
    number = value
    if isinstance(value, str):
        number = NAMES.get(value, value)
        if isinstance(number, str) and len(number) <= _DIGITS and number.removeprefix("-").isdecimal():
            number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > MOST:
        raise BadRequestError(
            f"no priority {value!r:.80}: choose one of {', '.join(NAMES)}, or a whole number from -{MOST} to "
            f"{MOST}"
        )
    return number


def _number(value: object) -> object:
    return NAMES.get(value, value) if isinstance(value, str) else value


def _stored(priority: int) -> int | str:
    return _NAME_OF.get(priority, priority)


Priority = Annotated[int, BeforeValidator(_number), PlainSerializer(_stored)]
"""A number in Python; its name in JSON if it has one."""
