"""Reasons why a run waits, as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro.contract.records import WorkerStatus
from cerebro.contract.runs import EtlPlan, EvaluatePlan, EvaluateRequest, FitPlan, FitRequest
from cerebro.contract.search import OwnSampler
from cerebro.state.exclusions import Exclusion
from cerebro.state.experiment import ExperimentState
from cerebro.state.models.model import ModelState
from cerebro.state.reports.sharing import QueuePosition
from cerebro.state.runs.concurrent_runs import obstacle
from cerebro.state.runs.run import Run, RunState
from cerebro.state.runs.search_reports import own_procedure
from cerebro.state.tasks.task import Task, TaskState
from cerebro.state.workers import Worker, answers_searches

KIND = {"etl": "etl", "fit": "train", "test": "test", "predict": "predict"}
"""Kind of run -> kind of its main tasks."""


Excluded = Mapping[str, Exclusion]
"""Workers that are excluded from all tasks, such as quarantined ones, by name."""


class Missing(NamedTuple):
    """What an open run without running tasks waits for.

    Attributes:
        reason: text; empty if it waits for no worker.
        workers: absent workers that could run its tasks.
    """

    reason: str = ""
    workers: tuple[Worker, ...] = ()


def waiting_for(state: ExperimentState, run: Run) -> str:
    """Return why a run waits; empty for a running or ended run."""
    if run.state is RunState.PAUSED:
        return f"paused: {run.pause.reason}"
    if not run.is_open or run.tasks.open:
        return ""
    if run.state is RunState.QUEUED:
        found = obstacle(state.runs, run)
        return found.reason if found else ""
    if run.plan is None:  # stopped before its start
        return ""
    return (
        _missing_worker(state, run, {}).reason
        or _missing_orders(state, run)
        or _missing_search_worker(state, run, {})
        or _missing_suggestions(run)
        or _missing_memory(run)
    )


def missing_worker(state: ExperimentState, run: Run, excluded: Excluded) -> Missing:
    """Return the workers that an open run without running tasks waits for. An excluded worker counts as absent."""
    if run.state not in (RunState.QUEUED, RunState.RUNNING) or run.tasks.open:
        return Missing()
    if run.plan is None:
        return _no_worker(state, run, excluded)
    found = _missing_worker(state, run, excluded)
    return (
        found
        if found.reason
        else Missing(_missing_search_worker(state, run, excluded) or _missing_memory(run))
    )


def _is_there(worker: Worker, excluded: Excluded) -> bool:
    return worker.is_alive and worker.name not in excluded


def _missing_memory(run: Run) -> str:
    """The memory an exhausted task needs, while a larger worker is away or restarting.

    The controller fails tasks that no worker could ever run."""
    known = (run.tasks.by_key[key] for key in sorted(run.tasks.exhausted))
    waiting = [
        task for task in known if task.state is TaskState.PENDING and task.lacks and _is_wanted(run, task)
    ]
    if not waiting:
        return ""
    most = max(lack.limit_bytes for task in waiting for lack in task.lacks)
    who = ", ".join(dict.fromkeys(task.key.model or task.key.kind for task in waiting))
    return f"{_WAITING}a worker with more than {most / 2**30:.4g} GiB of memory, which {who} needs"


def _is_wanted(run: Run, task: Task) -> bool:
    model = run.models.get(task.key.model or "")
    return model is None or not model.is_cut_short


def _missing_orders(state: ExperimentState, run: Run) -> str:
    """The reason why a user-defined search procedure waits."""
    procedure = own_procedure(run)
    if run.search is None or procedure is None:
        return ""
    if run.search.finish is not None or len(run.search.answers) > len(run.search.reports):
        return ""
    return _missing_search_worker(state, run, {}) or f"{_WAITING}the actions of {procedure.name}"


def _missing_search_worker(state: ExperimentState, run: Run, excluded: Excluded) -> str:
    search = run.search
    if search is None or search.finish is not None:
        return ""
    needs_actions = own_procedure(run) is not None and len(search.answers) <= len(search.reports)
    if not needs_actions and not _needs_own_suggestions(run):
        return ""
    is_there = any(
        _is_there(worker, excluded) and answers_searches(worker) for worker in state.workers.values()
    )
    what = "search procedures" if needs_actions else "samplers"
    return "" if is_there else f"{_WAITING}a worker that runs {what}"


def _needs_own_suggestions(run: Run) -> bool:
    """True if a user's own sampler, which only workers run, has open requests."""
    request = run.request.search if isinstance(run.request, FitRequest) else None
    has_requests = run.search is not None and bool(run.search.open_suggestions)
    return has_requests and request is not None and isinstance(request.sampler, OwnSampler)


def _missing_suggestions(run: Run) -> str:
    count = len(run.search.open_suggestions) if run.search is not None else 0
    return f"{_WAITING}{count} value{'' if count == 1 else 's'} of the sampler" if count else ""


def reason_to_wait(reported_reason: str, queue_position: QueuePosition | None, otherwise: str = "") -> str:
    """Return the reason to show for a waiting run.

    Args:
        reported_reason: reason from the experiment's own log (`waiting_for`); it comes first.
        queue_position: the run's position among all runs.
        otherwise: text if there is no other reason.
    """
    return reported_reason or (queue_position.reason if queue_position is not None else "") or otherwise


def explained(reason: str, pod_problems: Mapping[str, str], note: str = "") -> str:
    """Add why workers are missing (`WorkerSetStatus.note` and `.pods`) to a reason to wait for workers."""
    reasons = [note] if note else []
    reasons += [f"{pod} does not start: {why}" for pod, why in sorted(pod_problems.items())]
    return "; ".join([reason, *reasons]) if reason.startswith(_WAITING) else reason


def lost_because(status: WorkerStatus | None, words: str, pod_problems: Mapping[str, str]) -> str:
    """Describe why a worker is lost.

    Args:
        status: status in the store; `None` if unknown.
        words: reason from a log, or empty.
        pod_problems: why pods do not start (`WorkerSetStatus.pods`).
    """
    words = words or (status.leaving if status else "")
    pod = status.record.pod.name if status and status.record.pod else ""
    why = pod_problems.get(pod, "")
    reasons = [words, f"{pod} does not start: {why}" if why and why not in words else ""]
    return "; ".join(filter(None, reasons)) or "it does not report"


_WAITING = "waiting for "


def needed_partitions(state: ExperimentState, run: Run) -> set[int]:
    """Return the training partitions that a run still has to read."""
    if isinstance(run.plan, FitPlan):
        if not run.has_known_end:
            return set(run.plan.partitions)  # a new model needs all partitions
        needed: set[int] = set()
        for model in run.models.values():
            if model.state is ModelState.ACTIVE and model.lineage.fold is not None:
                needed.update(model.lineage.fold.partitions)
            if model.state is ModelState.ACTIVE and not model.is_trained:
                needed.update(model.remaining if model.epoch == model.epochs else model.partitions)
                if len(needed) == len(run.plan.partitions):
                    break
        return needed
    if isinstance(run.request, EvaluateRequest) and run.request.split == "train":
        return {task.key.partition or 0 for task in run.counts.pending.values()}
    return set()


def _no_worker(state: ExperimentState, run: Run, excluded: Excluded) -> Missing:
    able = [w for w in state.workers.values() if KIND[run.kind] in w.kinds and not w.is_removed]
    if any(_is_there(worker, excluded) for worker in able):
        return Missing()
    lost = ", ".join(_described(worker, excluded) for worker in able)
    return Missing(f"{_WAITING}a worker{': ' + lost if lost else ' to register'}", tuple(able))


def _missing_worker(state: ExperimentState, run: Run, excluded: Excluded) -> Missing:
    if (nobody := _no_worker(state, run, excluded)).reason:
        return nobody
    find = _missing_makers if run.kind == "etl" else _missing_holders
    missing, absent = find(state, run, excluded)
    description = "; ".join(
        f"{who}, which {'is to make' if run.kind == 'etl' else 'alone holds'} partition {', '.join(partitions)}"
        for who, partitions in missing.items()
    )
    hint = "" if run.kind == "etl" or set(missing) <= {_NOBODY} else f" ({_GONE_FOR_GOOD})"
    return Missing(f"{_WAITING}{description}{hint}" if description else "", tuple(absent))


def _missing_makers(
    state: ExperimentState, run: Run, excluded: Excluded
) -> tuple[dict[str, list[str]], list[Worker]]:
    """Lost workers and their pending partitions. Any worker can make a removed worker's partitions."""
    found: dict[str, list[str]] = {}
    absent: list[Worker] = []
    assert isinstance(run.plan, EtlPlan)
    for task in run.tasks.by_key.values():
        parts = run.plan.splits.get(task.key.split or "", ())
        owner = state.workers.get(next((p.worker for p in parts if p.partition == task.key.partition), ""))
        if task.state is not TaskState.PENDING or owner is None or owner.is_removed:
            continue
        if not _is_there(owner, excluded):
            absent.append(owner)
            found.setdefault(_described(owner, excluded), []).append(f"{task.key.split} {task.key.partition}")
    return found, absent


def _missing_holders(
    state: ExperimentState, run: Run, excluded: Excluded
) -> tuple[dict[str, list[str]], list[Worker]]:
    """Absent workers and the training partitions that only they hold."""
    found: dict[str, list[str]] = {}
    absent: list[Worker] = []
    assert isinstance(run.plan, FitPlan | EvaluatePlan)
    for partition in sorted(needed_partitions(state, run)):
        holders = [w for w in state.holders(run.plan.dataset, partition) if KIND[run.kind] in w.kinds]
        if not any(_is_there(worker, excluded) for worker in holders):
            volumes = sorted({w.volume for w in state.holders(run.plan.dataset, partition)})
            who = " or ".join(_described(worker, excluded) for worker in holders) or " or ".join(
                f"a worker on volume {volume}" for volume in volumes
            )
            found.setdefault(who or _NOBODY, []).append(str(partition))
            # A removed worker may have held it.
            absent += holders or [w for w in state.workers.values() if w.is_removed]
    return found, absent


_NOBODY = "a worker for ETL (such as run_etl uses) beside one that trains, to make again what no worker holds"


_GONE_FOR_GOOD = (
    "if a worker and its disk are gone for good, `cerebro remove WORKER` has its partitions made again"
)


def _described(worker: Worker, excluded: Excluded) -> str:
    exclusion = excluded.get(worker.name)
    why = worker.lost or (exclusion.reason if exclusion is not None else "")
    return f"{worker.name} ({why})" if why else worker.name
