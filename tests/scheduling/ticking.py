"""A test clock that advances by one second at each reading."""

from __future__ import annotations


class Ticking:
    """Counts its readings.

    Attributes:
        readings: how often it was read.
    """

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return float(self.readings)
