"""The controller's interface to a cluster manager, which keeps workers running. Types only.

`controller.kubernetes.KubernetesOrchestrator` implements it; `controller.scaling` and
`controller.exclusions.memory_limits` call it. A single machine has no cluster manager, and only silence shows that a
worker has ended. A cluster manager knows earlier, and the cause. It also gets the requested number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cerebro.contract.tasks.failures import FailureKind


@dataclass(frozen=True, kw_only=True)
class Exit:
    """The end of a process, or its reason.

    Attributes:
        reason: the event and the remedy, for people.
        kind: effect on a task there: `PREEMPTED` (no attempt counted), `OUT_OF_MEMORY` (a failed attempt),
            `CRASH` (a lost worker).
        limit_bytes: for `OUT_OF_MEMORY`, the exhausted limit; 0 without a limit or if the machine ran short.
    """

    reason: str
    kind: FailureKind
    limit_bytes: int = 0


class Memory(NamedTuple):
    """A container's memory request and limit in bytes. An unknown request is 0."""

    request: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of the worker set.

    Attributes:
        uid: differs from `PodRef.uid` of a worker in an earlier pod with this name.
        leaving: why it is ending. Its processes may still run; it releases its tasks and gets no new ones.
        dead: why its processes certainly do not run any more, so no lease is awaited.
        exits: container -> end of its previous process.
        ended: container -> end of its process, while the pod lives and the container waits for a restart.
        problem: why it does not run yet (image pull, no node), or "".
        is_pending: True if no node fits; one may be starting.
        gpus: number of GPUs granted to its containers.
        memory: container -> memory request and limit in bytes, for containers with a limit.
        unresized: why a resize has no effect, or "".
    """

    uid: str
    leaving: Exit | None = None
    dead: Exit | None = None
    exits: Mapping[str, Exit] = field(default_factory=dict)
    ended: Mapping[str, Exit] = field(default_factory=dict)
    problem: str = ""
    is_pending: bool = False
    gpus: int = 0
    memory: Mapping[str, Memory] = field(default_factory=dict)
    unresized: str = ""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """All pods of the worker set by name, and the requested number. Unlisted pods do not exist.

    `size` counts from ordinal 0: a pod ``NAME-K`` with K >= size will not return. `set_uid`: UID of the
    worker set. `annotated_size`: number in the annotation of charts before 0.3; `None` without it. `not_created`:
    requested pods that do not exist -> reason, if known. `expected`: pods without a node for which one is starting, if
    known.
    """

    pods: Mapping[str, Pod]
    size: int
    set_uid: str = ""
    annotated_size: int | None = None
    not_created: Mapping[str, str] = field(default_factory=dict)
    expected: frozenset[str] = frozenset()

    def is_wanted(self, pod: str) -> bool:
        """True if a pod with this name is requested."""
        ordinal = pod.rpartition("-")[2]
        return not ordinal.isdigit() or int(ordinal) < self.size

    def pod_problems(self) -> dict[str, str]:
        """Return pods that do not start -> reason."""
        pod_problems = {name: pod.problem for name, pod in self.pods.items() if pod.problem}
        coming = {
            name: f"a node is being made for it; until then {pod_problems[name]}"
            for name in self.expected & pod_problems.keys()
        }
        return pod_problems | coming | dict(self.not_created)


class Orchestrator(Protocol):
    """A cluster manager. No method waits longer than one network request."""

    def fleet(self) -> Fleet | None:
        """Return the last known pods; `None` while they may be outdated, so that only silence shows losses."""
        ...

    def scale(self, workers: int) -> None:
        """Request a number of workers.

        Raises:
            RetryableError: the cluster manager does not answer now.
            ClusterError: it refuses, with the reason.
        """
        ...

    def resize(self, pod: str, container: str, memory: Memory) -> None:
        """Raise the memory of a running pod's container.

        Raises:
            RetryableError: the cluster manager does not answer now.
            ClusterError: it refuses or cannot resize, with the reason.
        """
        ...
