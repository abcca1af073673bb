"""The planner's searches over priorities and over rotations: late acceptance (Burke and Bykov, 2017).

Each search is an iterator that decodes one schedule per item, so the caller decides when to stop and
alternates between searches. Must not read a clock or use bounds.

Late acceptance has one parameter without units; annealing would need temperatures in seconds. Neighbours are
a few changed priorities, decoded again, rather than sub-epochs moved within a finished schedule: one changed
priority moves a sub-epoch across several gaps. In 2 s each on nine balanced 20 x 16 instances, moves (by
annealing) ended at 1.015-1.045 of the bound, half of them above 1.025, priorities at 1.006-1.036, three
quarters below 1.02. The openings put the longest processing time first, with noise, which keeps short
sub-epochs for the end, where they fit.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cerebro.scheduling.planning.decoder import Decoded, Decoder, Start
from cerebro.scheduling.planning.plan_table import (
    PlanTable,
    alternatives,
    has_choice,
    of_width,
    only_at,
    widths,
)
from cerebro.scheduling.planning.rotation import Rotation
from cerebro.scheduling.problem import Problem

_HISTORY = 50
"""Length of late acceptance's history.

A step may be as bad as this many steps ago.
"""
_OPENINGS = 30
_MAX_STALLED_STEPS = 3000
"""Steps without improvement before the search restarts."""
_WEIGHTS = (1.0, 1.5, 2.0, 0.5, 0.0)
"""Weights of a sub-epoch's own time in its priority; its model's remaining work weighs 1."""
_MAX_CHANGES = 4
_WIDTH = 24
"""Number of models compared for a decision; covers all models in hard cases."""
_TRIES = 8
_ENTRIES = 0.3
"""Share of plan table changes that change a single entry."""


class Candidate(NamedTuple):
    """A schedule: makespan in seconds, sub-epochs, parallel plans and its origin in words."""

    makespan: float
    starts: list[Start]
    plan_table: PlanTable
    source: str


class _Genes:
    """Input of dispatch: priorities, parallel plans and patience. Changes can be undone."""

    def __init__(
        self, decoder: Decoder, weight: float, noise: float, is_patient: bool, rng: random.Random
    ) -> None:
        problem = decoder.problem
        self.decoder = decoder
        self._rng = rng
        self._models, self._workers = problem.num_models, problem.num_workers
        self._weight = weight
        self._scale = sum(decoder.model_left) / max(1, problem.num_sub_epochs)
        self._has_choice = has_choice(problem)
        self._is_shared = any(len(holders) > 1 for holders in problem.holders)
        self._is_patient = is_patient
        self._width = _WIDTH if weight or noise else 1
        self.priority = [
            [self._value(m, w, noise) for m in range(self._models)] for w in range(self._workers + 1)
        ]

    def decode(self, cutoff: float = math.inf) -> Decoded | None:
        """Decode the schedule; `None` if its makespan exceeds `cutoff`."""
        return self.decoder.dispatch(
            self.priority, cutoff=cutoff, width=self._width, is_patient=self._is_patient
        )

    def change(self) -> list[tuple[int, int, float]]:
        """Change some priorities; return the previous ones as (worker, model, priority)."""
        rng, previous_priorities = self._rng, []
        for _ in range(rng.randint(1, _MAX_CHANGES)):
            m, w = rng.randrange(self._models), rng.randrange(self._workers)
            previous_priorities.append((w, m, self.priority[w][m]))
            self.priority[w][m] = self._value(m, w, 1.0)
        return previous_priorities[::-1]

    def change_back(self, before: list[tuple[int, int, float]]) -> None:
        for w, m, value in before:
            self.priority[w][m] = value

    def choose(self) -> dict[int, list[int]]:
        """Sometimes change rows of the plan table; return the previous rows by model."""
        rng, decoder = self._rng, self.decoder
        for _ in range(_TRIES if self._has_choice and rng.random() < 0.5 else 0):
            rows = self._one_entry() if rng.random() < _ENTRIES else self._widths()
            rows = {m: row for m, row in rows.items() if row != decoder.plan_table[m]}
            if rows:
                previous_rows = {m: decoder.plan_table[m] for m in rows}
                decoder.choose(rows)
                return previous_rows
        return {}

    def _one_entry(self) -> dict[int, list[int]]:
        rng, decoder = self._rng, self.decoder
        m, w = rng.randrange(self._models), rng.randrange(self._workers)
        other_entries = alternatives(decoder.problem, decoder.plan_table, m, w)
        row = list(decoder.plan_table[m])
        if other_entries:
            row[w] = rng.choice(other_entries)
        return {m: row}

    def _widths(self) -> dict[int, list[int]]:
        """Return rows of equal width on all workers, for one or two models.

        Two models may exchange GPUs.
        """
        rng = self._rng
        models = rng.sample(range(self._models), min(self._models, rng.choice((1, 1, 2))))
        return {m: self._row(m) for m in models}

    def _row(self, model: int) -> list[int]:
        problem, rng = self.decoder.problem, self._rng
        row = of_width(problem, model, rng.choice(widths(problem, model)))
        if self._is_shared and rng.random() < 0.5:
            return only_at(problem, row, rng.randrange(self._workers))
        return row

    def _value(self, model: int, worker: int, noise: float) -> float:
        seconds = self.decoder.seconds(model, worker)
        return self._weight * seconds + (noise * self._rng.random() * self._scale if noise else 0.0)


def search_priorities(
    problem: Problem, tables: Mapping[str, PlanTable], rng: random.Random
) -> Iterator[Candidate | None]:
    """Search over priorities: some openings, late acceptance from the best, then again from new openings.

    Args:
        problem: any problem.
        tables: plan tables to start from, by name.
        rng: seeded by the caller.

    Yields:
        A better schedule or `None`, after one decoding each.
    """
    best = math.inf
    while True:
        decoders = {name: Decoder(problem, table) for name, table in tables.items()}
        for found in _climb(decoders, rng):
            is_better = found is not None and found.makespan < best
            best = found.makespan if found is not None and is_better else best
            yield found if is_better else None


def _climb(decoders: Mapping[str, Decoder], rng: random.Random) -> Iterator[Candidate | None]:
    """Run new openings and then late acceptance until it stalls."""
    best, current = None, math.inf
    for genes, source in _openings(decoders, rng):
        decoded = genes.decode(current)
        if decoded is None or decoded.makespan >= current:
            yield None
            continue
        best, current = genes, decoded.makespan
        yield _candidate(genes, decoded, source)
    assert best is not None, "the first opening is decoded without a cutoff"
    yield from _late_acceptance(best, current)


def _openings(decoders: Mapping[str, Decoder], rng: random.Random) -> Iterator[tuple[_Genes, str]]:
    rounds = max(1, _OPENINGS // len(_WEIGHTS) // len(decoders))
    for noise in (0.0, *[1.0] * rounds):
        for weight in _WEIGHTS:
            for name, decoder in decoders.items():
                for is_patient in (False, True) if decoder.is_mixed else (False,):
                    yield _Genes(decoder, weight, noise, is_patient, rng), f"LRPTw by other priorities{name}"


def _late_acceptance(genes: _Genes, current: float) -> Iterator[Candidate | None]:
    history = [current] * _HISTORY
    best, idle = current, 0
    for step in itertools.count():
        at, idle = step % _HISTORY, idle + 1
        if idle > _MAX_STALLED_STEPS:
            return
        chosen = genes.choose()
        previous_priorities = [] if chosen else genes.change()
        decoded = genes.decode(max(current, history[at]))
        found = None
        if decoded is None:
            genes.change_back(previous_priorities)
            if chosen:
                genes.decoder.choose(chosen)
        else:
            current = decoded.makespan
            if current < best:
                best, idle = current, 0
                found = _candidate(genes, decoded, "local search over priorities")
        history[at] = current
        yield found


def _candidate(genes: _Genes, decoded: Decoded, source: str) -> Candidate:
    return Candidate(*decoded, [list(row) for row in genes.decoder.plan_table], source)


def search_rotations(decoder: Decoder, rng: random.Random) -> Iterator[Candidate | None]:
    """Search over rotations: change the order of models, workers and rounds, starting from sorted orders.

    Args:
        decoder: decoder of an open shop (`rotation.is_open_shop`).
        rng: seeded by the caller.

    Yields:
        A better schedule or `None`.
    """
    rotation = Rotation(decoder)
    forward = _rotated(rotation, decoder, "sorted cyclic")
    yield forward
    rotation.rounds[1:] = rotation.rounds[:0:-1]
    backward = _rotated(rotation, decoder, "sorted cyclic, backward")
    yield backward
    if forward.makespan < backward.makespan:
        rotation.rounds[1:] = rotation.rounds[:0:-1]
    best = current = min(forward.makespan, backward.makespan)
    history = [current] * _HISTORY
    swappable = [order for order in (rotation.rows, rotation.rounds, rotation.columns) if len(order) > 1]
    for steps in itertools.count() if swappable else ():
        order = rng.choice(swappable)
        i, j = rng.sample(range(len(order)), 2)
        order[i], order[j] = order[j], order[i]
        makespan = rotation.makespan()
        if makespan <= max(current, history[steps % _HISTORY]):
            current = makespan
        else:
            order[i], order[j] = order[j], order[i]
        history[steps % _HISTORY] = current
        yield _rotated(rotation, decoder, "local search over rotations") if current < best else None
        best = min(best, current)


def _rotated(rotation: Rotation, decoder: Decoder, source: str) -> Candidate:
    starts: list[Start] = []
    return Candidate(rotation.makespan(starts), starts, decoder.plan_table, source)
