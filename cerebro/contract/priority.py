"""Priority: which of several go first, runs that share a cluster and models of a run alike. One number for both.

Decision 47 has the rule. Logs and answers hold the name of a number that has one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from cerebro.errors import BadRequestError

LOW, NORMAL, HIGH = -1, 0, 1
NAMES = {"low": LOW, "normal": NORMAL, "high": HIGH}
"""Named priorities, ascending."""
MOST = 9
"""Users choose numbers from ``-MOST`` to ``MOST``. A search numbers as many as it has brackets."""

_NAME_OF = {number: name for name, number in NAMES.items()}
_FACTOR = 4.0
_DIGITS = 20
"""Of a number as a text: int() refuses more than some thousands."""


def shown(priority: int) -> str:
    """As people read it: its name, or the number."""
    return _NAME_OF.get(priority, str(priority))


def weight(priority: int) -> float:
    """Return the weight of a run's fair share: four times the weight of the next lower priority."""
    return _FACTOR ** min(max(priority, -MOST), MOST)


def parse(value: object) -> int:
    """A priority as a name, a number, or its digits.

    Raises:
        BadRequestError: it is none, or beyond what users choose.
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
"""In events and answers: the number here, its name there if it has one."""
