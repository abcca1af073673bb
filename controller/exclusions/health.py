"""Broken machines: which workers are quarantined, which are to be checked, and what of them is left out. Pure.

What attempts came to at a worker, and what its own check says, tell that its machine is broken. It is given nothing
then, and what it holds is made elsewhere, as that of a worker that was removed. At most half of the workers, and never
the last one that could do something: where so many fail, the machines are not the cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.health import CONTROLLER, HealthAnswer, Quarantine, WorkerCheck, WorkerHealth
from cerebro.contract.records import WorkerStatus
from cerebro.contract.tasks import FailureKind
from cerebro.contract.texts import first_line
from cerebro.state import ExperimentState, ModelState, Run, TaskState
from cerebro.state.quarantine import CHECK_S, refusal
from cerebro.state.workers import LAST, Ended
from controller.scaling.orchestrator import Exit

DEVICE_FAILURES = 2
"""So many attempts that failed of the machine, among the last `LAST` of a worker, and it is quarantined. Not those of
tasks that failed so at several workers: it may be what they do."""
AGAIN_S = 600.0
"""Between two checks of a worker for failures that say nothing of machines, or of one that does not answer."""

Evidence = Mapping[str, Sequence[Ended]]
"""Worker -> its last attempts, of all experiments, oldest first."""


def evidence(of: Iterable[Mapping[str, Iterable[Ended]]]) -> dict[str, list[Ended]]:
    """What several experiments know of the workers, as one."""
    found: dict[str, list[Ended]] = {}
    for each in of:
        for worker, ended in each.items():
            found.setdefault(worker, []).extend(ended)
    return {worker: sorted(ended, key=lambda e: e.time)[-LAST:] for worker, ended in found.items()}


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """Give a worker nothing more."""

    worker: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Spared:
    """A worker that is broken by the rule, and is given tasks all the same, for it cannot be spared."""

    worker: str
    reason: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Have a worker check its machine."""

    worker: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Released:
    """A worker of this name runs on another machine now: give it tasks again."""

    worker: str


Action = Quarantined | Spared | Checked | Released


def act(
    statuses: Sequence[WorkerStatus], health: HealthAnswer, seen: Evidence, now: float
) -> Iterator[Action]:
    """What is to be done now.

    Args:
        now: seconds since the epoch, as events have them.
    """
    known, wandering = dict(health.workers), _wandering(seen)
    for status in statuses:
        name = status.record.worker
        if name not in seen and name not in known and not status.record.gpus:
            continue
        of_it = known.get(name) or WorkerHealth()
        if status.is_lost:
            continue
        if of_it.is_quarantined:
            if _is_elsewhere(of_it.quarantine, status):
                yield Released(worker=name)
                known[name] = _marked(of_it, now, is_on=False)
            continue
        ended = [each for each in seen.get(name, ()) if each.time > of_it.since]
        is_own = _is_fresh(of_it.check, status, now)
        reason = broken(of_it, (each for each in ended if each.key not in wandering), is_fresh=is_own)
        if reason:
            why = refusal(name, statuses, known) or _everywhere(seen, wandering) or _shared(name, known)
            if why:
                yield Spared(worker=name, reason=reason, why=why)
                continue
            yield Quarantined(worker=name, reason=reason)
            # The limits are those of all: the store refuses the next one that is too many.
            known[name] = _marked(of_it, now, reason=reason)
        elif "train" in status.record.kinds:
            reason = _to_check(of_it.check, ended, now) or _is_new(of_it.check, status, now)
            if reason:
                yield Checked(worker=name, reason=reason)


def _marked(health: WorkerHealth, now: float, *, is_on: bool = True, reason: str = "") -> WorkerHealth:
    mark = Quarantine(is_on=is_on, reason=reason, by=CONTROLLER, time=now)
    return health.model_copy(update={"quarantine": mark})


def _wandering(seen: Evidence) -> set[tuple[str, str]]:
    """(experiment, task) that failed of the machine at more than one worker."""
    places: dict[tuple[str, str], set[str]] = {}
    for worker, attempts in seen.items():
        for each in attempts:
            if each.is_device:
                places.setdefault(each.key, set()).add(worker)
    return {task for task, workers in places.items() if len(workers) > 1}


def _is_elsewhere(mark: Quarantine | None, status: WorkerStatus) -> bool:
    """Whether what the rule found was of another machine. A person's word stays."""
    host = status.record.host
    return mark is not None and mark.by == CONTROLLER and bool(host and mark.host) and host != mark.host


def _is_fresh(check: WorkerCheck | None, status: WorkerStatus, now: float) -> bool:
    """Whether a check tells of the worker as it is: by the process that is registered, and not long ago."""
    return (
        check is not None
        and check.result is not None
        and check.result.incarnation == status.record.incarnation
        and now - (check.ended or 0.0) <= _FRESH_S
    )


def _shared(name: str, known: Mapping[str, WorkerHealth]) -> str:
    """Why what a worker's check has found may be a fault of what all share; empty if it is its own."""
    failing = {worker: _failing(health) for worker, health in known.items()}
    common = failing.get(name, set()) & _OF_ALL
    others = sorted(worker for worker, probes in failing.items() if worker != name and probes & common)
    if not others or not failing[name] <= _OF_ALL:
        return ""
    return f"the cluster is the cause, not a worker: {', '.join(sorted(common))} fails at {', '.join(others)}, too"


def _failing(health: WorkerHealth) -> set[str]:
    result = health.check.result if health.check is not None else None
    return {probe.name for probe in result.probes if probe.problem} if result is not None else set()


def broken(health: WorkerHealth, ended: Iterable[Ended], *, is_fresh: bool) -> str:
    """Why a worker's machine counts as broken; empty if it does not.

    Args:
        ended: its last attempts since it was released, as far as they count.
        is_fresh: whether its check tells of it as it is.
    """
    check = health.check
    is_new = is_fresh and check is not None and (check.ended or 0.0) > health.since
    verdict = check.result.verdict if is_new and check is not None and check.result is not None else ""
    if verdict and not _failing(health) and check is not None and not check.reason.startswith(_OF_DEVICE):
        verdict = ""  # it did not come to its end, beside sub-epochs that compute: perhaps for want of memory or time
    if verdict:
        return f"its check failed: {verdict}"
    failed = [each for each in ended if each.is_device]
    certain = next((each.failure for each in failed if each.is_certain), None)
    if certain is not None:
        return certain.line
    if len(failed) < DEVICE_FAILURES:
        return ""
    tasks = list(dict.fromkeys(each.task for each in failed))
    message = failed[-1].failure.message if failed[-1].failure else ""
    return f"{', '.join(tasks[-3:])} failed of its machine: {first_line(message)}"


def suspects(statuses: Iterable[WorkerStatus], health: HealthAnswer, now: float) -> frozenset[str]:
    """Workers that are being checked because of a failure that may be the machine's: they are given nothing new."""
    return frozenset(
        status.record.worker
        for status in statuses
        if (check := health.of(status.record.worker).check) is not None
        and check.ended is None
        and check.by == CONTROLLER
        and check.reason.startswith(_OF_DEVICE)
        and now - check.asked < CHECK_S
    )


def left_out(statuses: Sequence[WorkerStatus], health: HealthAnswer) -> dict[str, Exit]:
    """Workers that are given nothing, and why: those that are quarantined, and those for ETL alone on volumes with
    which nobody else trains. What they hold would count, and nobody could read it."""
    found = {
        name: Exit(reason=f"quarantined: {each.quarantine.reason}", kind=FailureKind.PREEMPTED)
        for name, each in health.workers.items()
        if each.quarantine is not None and each.quarantine.is_on
    }
    if not found:
        return found
    for volume, sharing in _by_volume(statuses).items():
        trainers = [s.record.worker for s in sharing if "train" in s.record.kinds]
        if trainers and all(name in found for name in trainers):
            reason = f"{', '.join(trainers)} on its volume {volume}: {found[trainers[0]].reason}"
            for status in sharing:
                found.setdefault(status.record.worker, Exit(reason=reason, kind=FailureKind.PREEMPTED))
    return found


def given_up_at(workers: Collection[str], run: Run, retried: Mapping[str, float]) -> list[str]:
    """Models of a run that were given up for a task whose last attempt failed at one of these workers.

    Args:
        retried: model -> when the controller has retried it last. What had attempts by then and is given up once more
            is no fault of these workers alone: a task is retried once. One that a failure rule gave up is not.
    """
    if not run.models or ModelState.FAILED not in {model.state for model in run.models.values()}:
        return []
    found = []
    for task in run.tasks.values():
        model = run.models.get(task.key.model or "")
        if (
            model is None
            or task.key.kind == "audit"
            or model.state is not ModelState.FAILED
            or task.state is not TaskState.FAILED
        ):
            continue
        first, last = task.attempts[0], task.attempts[-1]
        is_ruled_out = task.failure is not None and task.failure.is_final
        is_again = is_ruled_out or first.assigned <= retried.get(model.id, -1.0)
        if last.has_failed and last.worker in workers and not is_again and model.id not in found:
            found.append(model.id)
    return found


def retried(state: ExperimentState, run: str) -> dict[str, float]:
    """Model -> when the controller has retried it last."""
    return {
        each.model: each.time
        for each in state.commands
        if each.run == run and each.by == CONTROLLER and not each.is_late
    }


_OF_DEVICE = "its machine may have failed: "
_OF_ALL = frozenset({"checkpoint volume"})
"""Probes of what workers share."""
_FRESH_S = 3600.0
"""An older check tells of what was."""
_REGISTERED = "its process is new"
_IN_A_ROW = "two models in a row failed: "


def _to_check(check: WorkerCheck | None, ended: Sequence[Ended], now: float) -> str:
    """Why a worker is to check its machine now; empty if it is not to."""
    checked = check.asked if check is not None else 0.0
    if check is not None and check.ended is None and now - check.asked < CHECK_S:
        return ""  # one is under way
    suspicious = [each for each in ended if each.is_device or each.is_doubtful]
    if suspicious and suspicious[-1].time > checked:
        newest = suspicious[-1]
        reason = f"{_OF_DEVICE}{newest.task}: {first_line(newest.failure.message) if newest.failure else ''}"
        # Whatever the clocks say: once for each failure.
        return reason if check is None or check.reason != reason else ""
    last = ended[-2:]
    are_failures = len(last) == 2 and all(each.failure is not None and each.model for each in last)
    is_due = check is None or now - checked >= AGAIN_S
    is_news = are_failures and last[1].time > checked and is_due
    return f"{_IN_A_ROW}{last[0].task}, {last[1].task}" if is_news and last[0].model != last[1].model else ""


def _is_new(check: WorkerCheck | None, status: WorkerStatus, now: float) -> str:
    """Why a worker with GPUs is to check its machine although nothing has failed: its process has not looked at it yet.
    What breaks a GPU happens between two runs, too, such as a reset or a driver that was replaced."""
    if not status.record.gpus:
        return ""
    if check is not None and check.ended is None and now - check.asked < AGAIN_S:
        return ""  # one is under way, or came to no answer
    told = check.result.incarnation if check is not None and check.result is not None else ""
    return "" if told == status.record.incarnation else _REGISTERED


def _everywhere(seen: Evidence, wandering: set[tuple[str, str]]) -> str:
    """Why no worker is the cause: more than half of those where something failed, and more than one, failed so."""
    failing = [w for w, ended in seen.items() if any(e.is_device and e.key not in wandering for e in ended)]
    trying = [w for w, ended in seen.items() if ended]
    if len(failing) <= max(1, len(trying) / 2):
        return ""
    return (
        f"{len(failing)} of {len(trying)} workers failed of their machines ({', '.join(sorted(failing))}): the cluster "
        "is the cause, or the code, not a worker"
    )


def _by_volume(statuses: Iterable[WorkerStatus]) -> dict[str, list[WorkerStatus]]:
    found: dict[str, list[WorkerStatus]] = {}
    for status in statuses:
        found.setdefault(status.record.volume or status.record.worker, []).append(status)
    return found
