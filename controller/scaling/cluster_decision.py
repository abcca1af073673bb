"""Decisions for the cluster log: workers that joined or were lost, and their replicas. Pure.

`controller.scaling.cluster_log` calls it and writes the events, once for all experiments. Every experiment reads them
together with its own log, and revokes its tasks itself (`controller.decisions.decide`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from cerebro.contract.events import ClusterEvent, ReplicasChanged, WorkerJoined, WorkerLost, WorkerRemoved
from cerebro.contract.records import Replica
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import ClusterState, ExperimentState
from cerebro.state.workers import Worker
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from controller.scaling.orchestrator import Exit

ENDING = Exit(reason="it was asked to end", kind=FailureKind.PREEMPTED)

Life = tuple[str, str]
"""(worker, incarnation)."""


def decide(
    state: ClusterState,
    snapshot: ClusterSnapshot,
    *,
    ending: Collection[Life] = (),
    busy: Collection[str] = (),
) -> list[ClusterEvent]:
    """Return the new events about workers.

    Args:
        ending: workers known from a released task to be ending, possibly before the snapshot shows it.
        busy: workers with open tasks of loaded experiments, which are revoked first: each log records the
            loss, the revocation, and then the new incarnation.
    """
    found: list[ClusterEvent] = []
    for name, view in snapshot.workers.items():
        known = state.workers.get(name)
        loss = _loss(known, view, (name, view.incarnation) in ending) if known and known.is_alive else None
        if known is not None and loss is not None:
            found.append(_lost(known, loss))
        is_free = known is None or (name not in busy and (not known.is_alive or loss is not None))
        if is_free and view.absence is None and (name, view.incarnation) not in ending:
            found.append(_joined(name, view))
    for name, known in state.workers.items():
        if name not in snapshot.workers:
            if known.is_alive:
                found.append(_lost(known, snapshot.exit_of(name)))
            if name not in busy:
                found.append(WorkerRemoved(worker=name, reason=snapshot.exit_of(name).reason))
    return found


def replicas(state: ClusterState, snapshot: ClusterSnapshot) -> Iterator[ClusterEvent]:
    """Yield changes of the replicas on the volumes of present workers.

    Workers that share a volume each register its replicas; a replica exists while any worker lists it.
    """
    known: dict[str, set[tuple[str, int]]] = {}
    found: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    for name, view in snapshot.workers.items():
        worker = state.workers.get(name)
        if worker is not None and worker.incarnation == view.incarnation:
            found[worker.volume].update((replica.dataset, replica.partition) for replica in view.replicas)
            if worker.is_alive:
                known[worker.volume] = worker.replicas
    for volume, held in known.items():
        if held != found[volume]:
            yield ReplicasChanged(
                volume=volume, gained=_named(found[volume] - held), lost=_named(held - found[volume])
            )


def ending(state: ExperimentState) -> set[Life]:
    """Return workers that released a task of an experiment because they are ending."""
    return {(w.name, w.incarnation) for w in state.workers.values() if w.is_ending}


def busy(state: ExperimentState) -> set[str]:
    """Return workers with open tasks of an experiment."""
    return {w.name for w in state.workers.values() if w.open_tasks}


def _loss(known: Worker, view: WorkerView, is_ending: bool) -> Exit | None:
    """Return why a worker is lost, or `None`."""
    if known.incarnation != view.incarnation:
        return view.previous_exit
    if view.absence is not None:
        return view.absence.exit
    return ENDING if is_ending else None


def _joined(name: str, view: WorkerView) -> WorkerJoined:
    return WorkerJoined(
        worker=name,
        incarnation=view.incarnation,
        weight=view.weight,
        kinds=view.kinds,
        replicas=view.replicas,
        volume=view.volume,
        devices=view.devices,
        device=view.device,
    )


def _lost(known: Worker, exit: Exit) -> WorkerLost:
    return WorkerLost(worker=known.name, incarnation=known.incarnation, reason=exit.reason)


def _named(pairs: Iterable[tuple[str, int]]) -> tuple[Replica, ...]:
    return tuple(Replica(dataset=dataset, partition=partition) for dataset, partition in sorted(pairs))
