"""Broken machines: workers to quarantine, check and release, and the models to retry afterwards. Pure.

Evidence is the last 20 attempts on each worker and the latest check of its machine. A quarantined worker gets no
tasks, and other workers rebuild its partitions, as after its removal. At most half of the training workers are
quarantined, and never the last able one: if more fail, the machines are not the cause.

`controller.loop.cluster_facts` collects the evidence; `controller.exclusions.machines` calls `act` in the loop and
performs the actions. Nothing here calls the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.records import WorkerStatus
from cerebro.contract.stored.health import CONTROLLER, HealthAnswer, Quarantine, WorkerCheck, WorkerHealth
from cerebro.contract.texts import first_line
from cerebro.state import ExperimentState, ModelState, Run, TaskState
from cerebro.state.worker_quarantine import CHECK_TIMEOUT_S, DOUBTED_MACHINE, refusal
from cerebro.state.workers import LAST, Ended

DEVICE_FAILURES = 2
"""Machine failures among a worker's last `LAST` attempts that quarantine it; one is enough if its cause is certain.

A fused group's tasks fail together and count once. Tasks that failed this way on several workers do not count, because
they may be the cause.
"""
AGAIN_S = 600.0
"""Seconds between two checks for failures that do not point to a machine, or of a worker that does not answer."""

Evidence = Mapping[str, Sequence[Ended]]
"""Worker -> its last attempts in all experiments, oldest first."""


def evidence(of: Iterable[Mapping[str, Iterable[Ended]]]) -> dict[str, list[Ended]]:
    """Merge the evidence of several experiments; keep each worker's last `LAST` attempts."""
    found: dict[str, list[Ended]] = {}
    for each in of:
        for worker, ended in each.items():
            found.setdefault(worker, []).extend(ended)
    return {worker: sorted(ended, key=lambda e: e.time)[-LAST:] for worker, ended in found.items()}


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """Give a worker no more tasks."""

    worker: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Spared:
    """Keep a worker in use although the rule finds it broken, because of the limits on quarantine."""

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
    """Give tasks to a worker again: its name now runs on another machine."""

    worker: str


Action = Quarantined | Spared | Checked | Released


def act(
    statuses: Sequence[WorkerStatus], health: HealthAnswer, evidence: Evidence, now: float
) -> Iterator[Action]:
    """Yield the actions due now.

    Args:
        now: seconds since the epoch, as in events.
    """
    known, faulty_tasks = dict(health.workers), _faulty_tasks(evidence)
    for status in statuses:
        name = status.record.worker
        if name not in evidence and name not in known and not status.record.gpus:
            continue
        of_it = known.get(name) or WorkerHealth()
        if status.is_lost:
            continue
        if of_it.is_quarantined:
            if _is_elsewhere(of_it.quarantine, status):
                yield Released(worker=name)
                known[name] = _marked(of_it, now, is_on=False)
            continue
        ended = [each for each in evidence.get(name, ()) if each.time > of_it.since]
        is_own = _is_fresh(of_it.check, status, now)
        reason = broken(
            of_it, (each for each in ended if faulty_tasks.isdisjoint(each.keys)), is_fresh=is_own
        )
        if reason:
            why = (
                refusal(name, statuses, known)
                or _cluster_fault(evidence, faulty_tasks)
                or _shared_fault(name, known)
            )
            if why:
                yield Spared(worker=name, reason=reason, why=why)
                continue
            yield Quarantined(worker=name, reason=reason)
            # The limits apply to all together: the store refuses a quarantine beyond them.
            known[name] = _marked(of_it, now, reason=reason)
        elif "train" in status.record.kinds:
            reason = _to_check(of_it.check, ended, now) or _is_new(of_it.check, status, now)
            if reason:
                yield Checked(worker=name, reason=reason)


def _marked(health: WorkerHealth, now: float, *, is_on: bool = True, reason: str = "") -> WorkerHealth:
    mark = Quarantine(is_on=is_on, reason=reason, by=CONTROLLER, time=now)
    return health.model_copy(update={"quarantine": mark})


def _faulty_tasks(evidence: Evidence) -> set[tuple[str, str]]:
    """Return (experiment, task) of tasks with machine failures on more than one worker."""
    places: dict[tuple[str, str], set[str]] = {}
    for worker, attempts in evidence.items():
        for each in attempts:
            if each.is_device:
                for key in each.keys:
                    places.setdefault(key, set()).add(worker)
    return {task for task, workers in places.items() if len(workers) > 1}


def _is_elsewhere(mark: Quarantine | None, status: WorkerStatus) -> bool:
    """True if the rule's quarantine concerned another machine. A person's quarantine stays."""
    host = status.record.host
    return mark is not None and mark.by == CONTROLLER and bool(host and mark.host) and host != mark.host


def _is_fresh(check: WorkerCheck | None, status: WorkerStatus, now: float) -> bool:
    """True if the check is recent and by the registered process."""
    return (
        check is not None
        and check.result is not None
        and check.result.incarnation == status.record.incarnation
        and now - (check.ended or 0.0) <= _FRESH_S
    )


def _shared_fault(name: str, known: Mapping[str, WorkerHealth]) -> str:
    """Return why a failed check may be a fault of shared infrastructure; "" if the worker is at fault."""
    failing = {worker: _failing(health) for worker, health in known.items()}
    common = failing.get(name, set()) & _OF_ALL
    other_workers = sorted(worker for worker, probes in failing.items() if worker != name and probes & common)
    if not other_workers or not failing[name] <= _OF_ALL:
        return ""
    return (
        f"the cluster is the cause, not a worker: {', '.join(sorted(common))} fails at "
        f"{', '.join(other_workers)}, too"
    )


def _failing(health: WorkerHealth) -> set[str]:
    result = health.check.result if health.check is not None else None
    return {probe.name for probe in result.probes if probe.problem} if result is not None else set()


def broken(health: WorkerHealth, ended: Iterable[Ended], *, is_fresh: bool) -> str:
    """Return why a worker's machine counts as broken, or "".

    Args:
        ended: its last relevant attempts since its release.
        is_fresh: True if its check describes its present state.
    """
    check = health.check
    is_new = is_fresh and check is not None and (check.ended or 0.0) > health.since
    verdict = check.result.verdict if is_new and check is not None and check.result is not None else ""
    if (
        verdict
        and not _failing(health)
        and check is not None
        and not check.reason.startswith(DOUBTED_MACHINE)
    ):
        verdict = ""  # the check did not finish while sub-epochs ran, possibly for lack of memory or time
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


def given_up_at(workers: Collection[str], run: Run, retried: Mapping[str, float]) -> list[str]:
    """Return failed models of a run whose task last failed on one of these workers.

    Args:
        retried: model -> time of the controller's last retry. A task is retried once: the result omits models
            that failed again afterwards, and models that a failure rule failed.
    """
    if not run.models or ModelState.FAILED not in {model.state for model in run.models.values()}:
        return []
    found = []
    for task in run.tasks.by_key.values():
        model = run.models.get(task.key.model or "")
        if (
            model is None
            or task.key.kind == "verify"
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
    """Return model -> time of the controller's last retry."""
    return {
        each.model: each.time
        for each in state.commands
        if each.run == run and each.by == CONTROLLER and not each.is_late
    }


_OF_ALL = frozenset({"checkpoint volume"})
"""Probes of resources that workers share."""
_FRESH_S = 3600.0
"""Maximum age of a check's result, in seconds."""
_REGISTERED = "its process is new"
_IN_A_ROW = "two models in a row failed: "


def _to_check(check: WorkerCheck | None, ended: Sequence[Ended], now: float) -> str:
    """Return why a worker should check its machine now, or ""."""
    checked = check.requested if check is not None else 0.0
    if check is not None and check.ended is None and now - check.requested < CHECK_TIMEOUT_S:
        return ""  # a check is running
    suspicious = [each for each in ended if each.is_device or each.is_doubtful]
    if suspicious and suspicious[-1].time > checked:
        newest = suspicious[-1]
        reason = (
            f"{DOUBTED_MACHINE}{newest.task}: {first_line(newest.failure.message) if newest.failure else ''}"
        )
        # Independent of clocks: once for each failure.
        return reason if check is None or check.reason != reason else ""
    last = ended[-2:]
    are_failures = len(last) == 2 and all(each.failure is not None and each.model for each in last)
    is_due = check is None or now - checked >= AGAIN_S
    is_news = are_failures and last[1].time > checked and is_due
    return f"{_IN_A_ROW}{last[0].task}, {last[1].task}" if is_news and last[0].model != last[1].model else ""


def _is_new(check: WorkerCheck | None, status: WorkerStatus, now: float) -> str:
    """Return why a worker with GPUs needs a first check by its process, or "".

    GPUs can break between runs, for example by a reset or a driver update.
    """
    if not status.record.gpus:
        return ""
    if check is not None and check.ended is None and now - check.requested < AGAIN_S:
        return ""  # a check is running, or got no answer
    checked_incarnation = check.result.incarnation if check is not None and check.result is not None else ""
    return "" if checked_incarnation == status.record.incarnation else _REGISTERED


def _cluster_fault(evidence: Evidence, faulty_tasks: set[tuple[str, str]]) -> str:
    """Return why no worker is the cause, or "": most workers that ran attempts failed this way."""
    failing = [
        w
        for w, ended in evidence.items()
        if any(e.is_device and faulty_tasks.isdisjoint(e.keys) for e in ended)
    ]
    trying = [w for w, ended in evidence.items() if ended]
    if len(failing) <= max(1, len(trying) / 2):
        return ""
    return (
        f"{len(failing)} of {len(trying)} workers failed of their machines ({', '.join(sorted(failing))}): the cluster "
        "is the cause, or the code, not a worker"
    )
