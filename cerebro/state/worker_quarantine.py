"""Quarantine of workers: limits for people and the controller, exclusions, and changes of health records. Pure.

`kvs_api.store.health` applies the changes and stores them; the controller and pages derive exclusions and texts.
This module doesn't decide when a machine counts as broken (`controller.exclusions.health`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cerebro.contract.records import WorkerStatus
from cerebro.contract.stored.health import (
    CONTROLLER,
    CheckRequest,
    CheckResult,
    HealthAnswer,
    Incident,
    IncidentRequest,
    Pace,
    PaceRequest,
    Quarantine,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerCheck,
    WorkerHealth,
)
from cerebro.errors import ConflictError, NotFoundError
from cerebro.state.exclusions import Exclusion, Scope

MAX_SHARE = 0.5
"""Maximum share of training workers in quarantine."""
SLOW_FACTOR = 1.5
"""Factor over the median time above which a worker is labelled slow.

Used for check results on equal devices and for times of sub-epochs (`controller.exclusions.stragglers`). The label
is for people; dispatch and replica copies use the estimates behind it."""
CHECK_PASSED = "check passed"
"""`Incident.what` of a passed check, which the log keeps and the page hides."""

CHECK_TIMEOUT_S = 75.0
"""Seconds to wait for a check's result."""

DOUBTED_MACHINE = "its machine may have failed: "
"""Start of `WorkerCheck.reason` after a possible machine failure."""


def machine_exclusions(
    statuses: Sequence[WorkerStatus], health: HealthAnswer, now: float
) -> tuple[Exclusion, ...]:
    """Return the exclusions of workers because of their machines.

    A quarantined worker gets no tasks. Neither do the other workers on a volume whose training workers are all
    quarantined: the partitions they make would count as available, but no worker could train on them. A worker
    gets no new tasks during a check after a possible machine failure.

    Args:
        statuses: all registered workers.
        now: seconds since the epoch.
    """
    names = (status.record.worker for status in statuses)
    known = {name: health.workers[name] for name in names if name in health.workers}
    found = {
        name: Exclusion(name, Scope.EVERYTHING, _quarantine_reason(each.quarantine))
        for name, each in known.items()
        if each.quarantine is not None and each.quarantine.is_on
    }
    by_volume: dict[str, list[WorkerStatus]] = {}
    for status in statuses if found else ():
        by_volume.setdefault(_volume(status), []).append(status)
    for volume, sharing in by_volume.items():
        trainers = [s.record.worker for s in sharing if "train" in s.record.kinds]
        if trainers and all(name in found for name in trainers):
            reason = f"{', '.join(trainers)} on its volume {volume}: {found[trainers[0]].reason}"
            for name in (status.record.worker for status in sharing):
                found.setdefault(name, Exclusion(name, Scope.EVERYTHING, reason))
    return (*found.values(), *_checking(known, now))


def _quarantine_reason(mark: Quarantine) -> str:
    who = "" if mark.by == CONTROLLER else f" (by {mark.by or 'somebody'})"
    return f"quarantined{who}: {mark.reason}"


def _checking(known: Mapping[str, WorkerHealth], now: float) -> Iterator[Exclusion]:
    for name, check in ((name, each.check) for name, each in known.items()):
        is_open = check is not None and check.ended is None and now - check.requested < CHECK_TIMEOUT_S
        if (
            check is not None
            and is_open
            and check.by == CONTROLLER
            and check.reason.startswith(DOUBTED_MACHINE)
        ):
            until = check.requested + CHECK_TIMEOUT_S
            yield Exclusion(name, Scope.NEW_TASKS, f"checking its machine: {check.reason}", until)


def refusal(worker: str, statuses: Sequence[WorkerStatus], health: Mapping[str, WorkerHealth]) -> str:
    """Return why a worker cannot be quarantined now, or an empty string.

    Args:
        statuses: all registered workers.
        health: known health records by worker.
    """
    out = {name for name, each in health.items() if each.is_quarantined} | {worker}
    here = [status for status in statuses if not status.is_lost]
    there = [status for status in here if status.record.worker not in out]
    record = next((status.record for status in statuses if status.record.worker == worker), None)
    if record is None or "train" not in record.kinds:
        return _no_preprocessing(worker, there)
    trainers = [status.record.worker for status in statuses if "train" in status.record.kinds]
    remaining_trainers = [status.record.worker for status in there if "train" in status.record.kinds]
    if not remaining_trainers:
        return f"{worker} is the last worker that trains: all runs would wait for it"
    if why := _no_replacement(worker, statuses, there):
        return why
    quarantined = sorted(name for name in trainers if name in out)
    if len(quarantined) > MAX_SHARE * len(trainers):
        return (
            f"{', '.join(quarantined)} would be {len(quarantined)} of {len(trainers)} workers, more than half: the "
            "cluster is the cause, not a worker"
        )
    return ""


def _no_preprocessing(worker: str, there: Sequence[WorkerStatus]) -> str:
    if any("etl" in status.record.kinds for status in there):
        return ""
    return f"{worker} is the last worker that preprocesses: no worker could make partitions"


def _no_replacement(worker: str, statuses: Sequence[WorkerStatus], there: Sequence[WorkerStatus]) -> str:
    """Return why no other worker could rebuild this one's partitions, or an empty string."""
    held = _held(status for status in statuses if status.record.worker == worker)
    trainers = [status for status in there if "train" in status.record.kinds]
    lonely = sorted(held - _held(trainers))
    volumes = {_volume(status) for status in trainers}
    if not lonely or any("etl" in s.record.kinds and _volume(s) in volumes for s in there):
        return ""
    named = ", ".join(f"{partition} of {dataset}" for dataset, partition in lonely[:3])
    return (
        f"only {worker} holds partition {named}, and no other worker that preprocesses shares a volume with a "
        "training worker"
    )


def _held(statuses: Iterable[WorkerStatus]) -> set[tuple[str, int]]:
    return {(each.dataset, each.partition) for status in statuses for each in status.record.replicas}


def _volume(status: WorkerStatus) -> str:
    return status.record.volume or status.record.worker


# --- texts ----------------------------------------------------------------------------------------


def health_words(statuses: Sequence[WorkerStatus], health: HealthAnswer, now: float) -> dict[str, str]:
    """Return worker -> state of its machine, for people; an empty text for a healthy one.

    Args:
        statuses: all registered workers.
        now: seconds since the epoch.
    """
    exclusions: dict[str, Exclusion] = {}
    for each in machine_exclusions(statuses, health, now):
        exclusions.setdefault(each.worker, each)
    factors = slow_factors(health)
    return {
        name: _words(status, health, exclusions.get(name), factors.get(name))
        for status in statuses
        for name in [status.record.worker]
    }


def _words(
    status: WorkerStatus, health: HealthAnswer, exclusion: Exclusion | None, factor: float | None
) -> str:
    known = health.of(status.record.worker)
    if exclusion is not None:
        hint = cordon_line(status) if known.is_quarantined else ""
        return f"{exclusion.reason}. {hint}" if hint else exclusion.reason
    check = known.check
    if check is not None and check.result is not None and check.result.verdict:
        return f"its check failed: {check.result.verdict}"
    if known.pace is not None and known.pace.host == status.record.host:
        return f"slow: its sub-epochs take {known.pace.factor:.1f} times as long as on others"
    return f"slow: its check took {factor:.1f} times the median of equal devices" if factor else ""


def cordon_line(status: WorkerStatus) -> str:
    """Return the command that cordons a worker's node, which Cerebro has no permission to run; empty outside pods."""
    record = status.record
    return f"If its node is broken: kubectl cordon {record.host}" if record.pod and record.host else ""


# --- records --------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A new health record and the incident to announce, if any."""

    health: WorkerHealth
    incident: Incident | None = None


def quarantined(
    worker: str,
    request: QuarantineWorkerRequest,
    statuses: Sequence[WorkerStatus],
    health: HealthAnswer,
    now: float,
) -> Change:
    """Quarantine a worker. A person's request replaces the controller's.

    Raises:
        NotFoundError: the worker is not registered.
        ConflictError: the cluster needs the worker.
    """
    status, known = registered(worker, statuses), health.of(worker)
    if known.quarantine is not None and known.is_quarantined:
        is_repeated = (known.quarantine.reason, known.quarantine.by) == (request.reason, request.by)
        if request.term is not None or is_repeated:
            return Change(known)
    elif why := refusal(worker, statuses, health.workers):
        raise ConflictError(f"{worker} cannot be quarantined: {why}")
    mark = Quarantine(reason=request.reason, by=_by(request), time=now, host=status.record.host)
    action = "it gets no tasks; other workers rebuild its partitions when needed"
    return _marked(known, mark, worker, "quarantined", evidence=request.reason, action=action)


def released(
    worker: str, request: ReleaseRequest, statuses: Sequence[WorkerStatus], health: HealthAnswer, now: float
) -> Change:
    """Release a worker from quarantine and discard earlier evidence.

    Raises:
        NotFoundError: the worker is not registered.
        ConflictError: it is not quarantined.
    """
    status, known = registered(worker, statuses), health.of(worker)
    if known.quarantine is None or not known.is_quarantined:
        raise ConflictError(f"{worker} is not quarantined: there is nothing to release")
    reason, host = known.quarantine.reason, status.record.host
    mark = Quarantine(is_on=False, reason=reason, by=_by(request), time=now, host=host)
    action = "it gets tasks again" + (f", now on {host}" if host != known.quarantine.host else "")
    return _marked(known, mark, worker, "released", evidence=f"was quarantined: {reason}", action=action)


def _marked(
    known: WorkerHealth, mark: Quarantine, worker: str, what: str, *, evidence: str, action: str
) -> Change:
    """Return the change to a new quarantine mark, with its incident."""
    incident = Incident(
        time=mark.time, worker=worker, what=what, evidence=evidence, action=action, by=mark.by
    )
    return Change(known.model_copy(update={"quarantine": mark}), incident)


def check_requested(
    worker: str, request: CheckRequest, statuses: Sequence[WorkerStatus], health: HealthAnswer, now: float
) -> Change:
    """Request a node check.

    Raises:
        NotFoundError: the worker is not registered.
        ConflictError: the worker trains no models.
    """
    status = registered(worker, statuses)
    if "train" not in status.record.kinds:
        raise ConflictError(
            f"{worker} trains no models, so it cannot check its machine: name a worker that trains"
        )
    known, by = health.of(worker), _by(request)
    if (
        known.check is not None
        and known.check.ended is None
        and now - known.check.requested < CHECK_TIMEOUT_S
    ):
        return Change(known)  # a check is running
    check = WorkerCheck(requested=now, reason=request.reason, by=by)
    return Change(known.model_copy(update={"check": check}))


def check_completed(worker: str, result: CheckResult, health: HealthAnswer, now: float) -> Change:
    """Record the result of a check.

    Also records an unrequested result, or one from another incarnation of the worker, because it is newer.
    """
    known = health.of(worker)
    check = known.check or WorkerCheck(requested=now, reason="unasked", by=worker)
    if check.result == result:
        return Change(known)  # repeated report
    completed_check = check.model_copy(update={"ended": now, "result": result})
    verdict = result.verdict
    incident = Incident(
        time=now,
        worker=worker,
        what="check failed" if verdict else CHECK_PASSED,
        evidence=verdict or f"{len(result.probes)} probes in {result.seconds:.1f} s on {result.device}",
        action=f"checked because {check.reason}",
        by=check.by,
    )
    return Change(known.model_copy(update={"check": completed_check}), incident)


def labelled(
    worker: str, request: PaceRequest, statuses: Sequence[WorkerStatus], health: HealthAnswer, now: float
) -> Change:
    """Set or clear the slow label of a worker. Announce only changes of the label, not of the factor.

    Raises:
        NotFoundError: the worker is not registered.
    """
    host, known = registered(worker, statuses).record.host, health.of(worker)
    pace = None
    if request.is_slow and request.factor is not None:
        pace = Pace(factor=request.factor, sub_epochs=request.sub_epochs, time=now, host=host)
    was_labelled = known.pace is not None and known.pace.host == host
    changed = known.model_copy(update={"pace": pace})
    if was_labelled == (pace is not None):
        return Change(changed)
    evidence = "there is no other worker to compare it with"
    if request.factor is not None:
        evidence = (
            f"{request.sub_epochs} of its sub-epochs take {request.factor:.1f} times as long as on others"
        )
    incident = Incident(
        time=now,
        worker=worker,
        what="slow" if pace is not None else "no longer slow",
        evidence=evidence,
        action="its partitions may also be copied to other workers if that saves time"
        if pace is not None
        else "",
        by=CONTROLLER,
    )
    return Change(changed, incident)


def new_incident(request: IncidentRequest, health: HealthAnswer, now: float) -> Incident | None:
    """Return the incident to keep; `None` if it repeats the worker's newest one."""
    newest = next((each for each in reversed(health.incidents) if each.worker == request.worker), None)
    if newest is not None and (newest.what, newest.evidence) == (request.what, request.evidence):
        return None
    return Incident(time=now, by=CONTROLLER, **request.model_dump(exclude={"term"}))


def slow_factors(health: HealthAnswer) -> dict[str, float]:
    """Return worker -> factor over the median check time on equal devices, for slow workers."""
    rates: dict[str, dict[str, float]] = {}
    for name, each in health.workers.items():
        result = each.check.result if each.check is not None else None
        if result is not None and result.rate:
            rates.setdefault(result.device, {})[name] = result.rate
    found: dict[str, float] = {}
    for alike in rates.values():
        median = statistics.median(alike.values())
        found |= {name: median / rate for name, rate in alike.items() if median / rate > SLOW_FACTOR}
    return found


def registered(worker: str, statuses: Sequence[WorkerStatus]) -> WorkerStatus:
    """Return a registered worker, or raise `NotFoundError`."""
    for status in statuses:
        if status.record.worker == worker:
            return status
    there = ", ".join(status.record.worker for status in statuses) or "none"
    raise NotFoundError(f"no worker {worker!r} is registered; there is: {there}")


def _by(request: QuarantineWorkerRequest | ReleaseRequest | CheckRequest) -> str:
    """Return the author. Only the controller sends a term; without users mode, clients can send any name."""
    if request.term is not None:
        return CONTROLLER
    return "somebody" if request.by == CONTROLLER else request.by
