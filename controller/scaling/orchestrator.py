"""What keeps workers running, as the controller sees it: the interface to a cluster manager.

On one machine there is none, and a worker's silence is all that tells of its end. A cluster manager knows sooner, and
why. It is told how many workers are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cerebro.contract.tasks import FailureKind


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended, or why it ends.

    Attributes:
        reason: for people: names what happened, and what to do where something can be done.
        kind: how a task that ran there counts: `PREEMPTED` (taken away: not at all), `OUT_OF_MEMORY` (a failed
            attempt), `CRASH` (a lost worker).
        limit_bytes: of `OUT_OF_MEMORY`: its own limit, which it had used up. 0: it has none, or its machine ran short.
    """

    reason: str
    kind: FailureKind
    limit_bytes: int = 0


class Memory(NamedTuple):
    """What a container asks for, and what it may use; bytes. What it asks for is 0 if that is not said."""

    request: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of the worker set.

    Attributes:
        uid: differs from `PodRef.uid` of a worker that ran in an earlier pod of this name.
        leaving: why it is being ended, while its processes may still run: it is given nothing new and gives back
            what it has.
        dead: why its processes run no more, or never will; known for certain, so nobody waits for a lease.
        exits: container -> how the process before the present one ended, where there was one.
        ended: container -> how its process ended, where none runs now although the pod lives: it waits to be started
            again.
        trouble: why it does not run yet (image cannot be pulled, no node fits); empty while there is nothing to say.
        is_pending: it is that no node fits: one may be on its way.
        gpus: number of GPUs its containers were granted.
        memory: container -> its memory request and limit in bytes, of those that have a limit.
        unresized: why its containers are not given the resources that they were asked to be given; empty while there is
            nothing to say.
    """

    uid: str
    leaving: Exit | None = None
    dead: Exit | None = None
    exits: Mapping[str, Exit] = field(default_factory=dict)
    ended: Mapping[str, Exit] = field(default_factory=dict)
    trouble: str = ""
    is_pending: bool = False
    gpus: int = 0
    memory: Mapping[str, Memory] = field(default_factory=dict)
    unresized: str = ""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """All pods of the worker set, by name, and how many are wanted. A pod that is not listed does not exist.

    `size` counts from ordinal 0: a pod ``NAME-K`` with K >= size is not wanted, and will not come back.

    `set_uid`: UID of the worker set. `told`: the number in the annotation of charts before 0.3; `None` without it.
    `unmade`: pods that are wanted and do not exist -> why the cluster manager cannot make them, where it says so.
    `expected`: pods that fit on no node, and for which one is being made, as far as that is told.
    """

    pods: Mapping[str, Pod]
    size: int
    set_uid: str = ""
    told: int | None = None
    unmade: Mapping[str, str] = field(default_factory=dict)
    expected: frozenset[str] = frozenset()

    def is_wanted(self, pod: str) -> bool:
        """Whether a pod of this name will be there again."""
        ordinal = pod.rpartition("-")[2]
        return not ordinal.isdigit() or int(ordinal) < self.size

    def troubles(self) -> dict[str, str]:
        """Pods that do not start -> why."""
        troubles = {name: pod.trouble for name, pod in self.pods.items() if pod.trouble}
        coming = {
            name: f"a node is being made for it; until then {troubles[name]}"
            for name in self.expected & troubles.keys()
        }
        return troubles | coming | dict(self.unmade)


class Orchestrator(Protocol):
    """A cluster manager. No method waits for the network longer than a request takes."""

    def fleet(self) -> Fleet | None:
        """The pods as last heard; `None` while that may be out of date: then silence alone tells of lost workers."""
        ...

    def scale(self, workers: int) -> None:
        """Ask for so many workers.

        Raises:
            RetryableError: the cluster manager does not answer now.
            ClusterError: it refuses; says why.
        """
        ...

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Give a container of a pod more memory, while it runs.

        Raises:
            RetryableError: the cluster manager does not answer now.
            ClusterError: it refuses, or cannot do such a thing; says why.
        """
        ...
