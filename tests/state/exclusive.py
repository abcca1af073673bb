"""Check from logs that no device of a worker incarnation runs two attempts at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from cerebro.contract.events import (
    Event,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
    WorkerJoined,
)


class Place(NamedTuple):
    """A resource for one attempt at a time; device -1 is the executor for tasks without a device."""

    worker: str
    incarnation: str
    device: int


class Span(NamedTuple):
    """The run time of an attempt, by the times of the log."""

    began: float
    ended: float
    experiment: str
    task: str


def spans(experiment: str, log: Iterable[Event]) -> Iterable[tuple[Place, Span]]:
    """Yield each device slot that an attempt used, with its time span.

    The worker's incarnation comes from the cluster events before the assignment in the same log.
    """
    lives: dict[str, str] = {}
    given: dict[tuple[str, int], tuple[str, tuple[int, ...]]] = {}
    began: dict[tuple[str, int], TaskStarted] = {}
    for event in log:
        if isinstance(event, WorkerJoined):
            lives[event.worker] = event.incarnation
        elif isinstance(event, TaskAssigned):
            given[event.task, event.attempt] = lives[event.worker], event.devices
        elif isinstance(event, TaskStarted):
            began[event.task, event.attempt] = event
        elif isinstance(event, TaskCommitted | TaskFailed | TaskRevoked) and (
            started := began.pop((event.task, event.attempt), None)
        ):
            yield from _on_each(experiment, started, event.time, *given[event.task, event.attempt])
    for key, started in began.items():
        yield from _on_each(experiment, started, math.inf, *given[key])


def _on_each(
    experiment: str, started: TaskStarted, ended: float, incarnation: str, devices: tuple[int, ...]
) -> Iterable[tuple[Place, Span]]:
    for device in devices or (-1,):
        yield (
            Place(started.worker, incarnation, device),
            Span(started.time, ended, experiment, f"{started.task} {started.attempt}"),
        )


def assert_exclusive(logs: Mapping[str, Sequence[Event]]) -> int:
    """Check all experiments together and return the number of attempts.

    `logs` maps each experiment to its log, including cluster events.
    """
    found: defaultdict[Place, list[Span]] = defaultdict(list)
    for name, log in logs.items():
        for place, span in spans(name, log):
            found[place].append(span)
    for place, taken in found.items():
        for one, other in pairwise(sorted(taken)):
            assert one.ended <= other.began, f"{place}: {one} and {other}"
    return sum(len(taken) for taken in found.values())
