"""The interface of a dispatch policy. A policy sees only eligible pairs, so it cannot break an invariant."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A unit that may go to a worker now: its model is idle and the worker holds the partition."""

    model: str
    partition: int


class Policy(Protocol):
    """Chooses one pair at a time; called again with what is left until it returns `None` or nothing is eligible.

    Must be pure: the same arguments and generator state give the same answer. Called by one thread.
    """

    def choose(
        self, eligible: Mapping[str, Sequence[Choice]], rng: random.Random
    ) -> tuple[str, Choice] | None:
        """A (worker, unit) of `eligible`, or `None` to leave the workers idle for now.

        Args:
            eligible: worker -> its eligible units, never empty; workers and units in a fixed order.
            rng: seeded from the run and the length of its log, so a decision can be repeated.
        """
        ...
