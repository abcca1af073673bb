"""Parallel plans of a model: the run's plans without the ruled-out ones.

An attempt rules a plan out for its model if the technique does not apply or memory ran out. While another plan remains,
the failure counts as no attempt. A model fails only after its last plan, and its error lists the reason for each.

User code that raises, hangs or crashes under a plan other than the plain one may fail because of the plan. A failure
that would end the model rules the plan out if another remains: an error in user code will appear there too.

A gang that keeps losing workers continues as single workers.

Each device serves one attempt, so a single failure is proof. Host memory is shared: the sub-epoch is first
retried alone on its worker, if attempts remain (`controller.exclusions.memory_retries`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cerebro.contract.events import ParallelPlansRuledOut
from cerebro.contract.parallel_plans import SINGLE, MemoryKind, ParallelPlan
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.trials import Cause, TrialOutcome
from cerebro.errors import IllegalEventError
from cerebro.state.models.failures import RuledOut
from cerebro.state.models.model import Model, ModelState
from cerebro.state.models.sub_epochs import ParallelPlanUsed
from cerebro.state.runs.run import Run
from cerebro.state.tasks.task import MAX_LOSSES, Task


def parallel_plans_of(run: Run) -> tuple[ParallelPlan, ...]:
    """Return the plans for a fit's sub-epochs, in the order of trying."""
    return (run.plan.parallel_plans if isinstance(run.plan, FitPlan) else ()) or (SINGLE,)


def allowed_plans(run: Run, model: Model, *, without: ParallelPlan | None = None) -> Iterator[ParallelPlan]:
    """Yield the plans that are not ruled out for a model.

    If `single` is ruled out, no stack is allowed: it needs more memory, and without partners its plan is `single`.

    Args:
        without: a plan to treat as ruled out.
    """
    ruled_out = {*model.failures.ruled_out, *([without.label] if without is not None else [])}
    return (plan for plan in parallel_plans_of(run) if _is_allowed(plan, ruled_out))


def _is_allowed(parallel_plan: ParallelPlan, ruled_out: Collection[str]) -> bool:
    is_stack = parallel_plan.fused_models > 0
    return parallel_plan.label not in ruled_out and not (is_stack and SINGLE.label in ruled_out)


def judge(failure: Failure, run: Run, task: Task, model: Model) -> bool:
    """Rule a plan out if the failure of the task's open attempt proves it unusable.

    Call it before the task records the failure.

    Returns:
        True if another plan remains; the failure then counts as no attempt.
    """
    parallel_plan = task.attempts[-1].parallel_plan or SINGLE
    traits = failure.kind.traits
    is_doubtful = failure.is_by_parallel_plan and traits.plan == "doubt"
    if not (traits.plan == "rule_out" or is_doubtful) or parallel_plan.label in model.failures.ruled_out:
        return False
    has_other = next(allowed_plans(run, model, without=parallel_plan), None) is not None
    if failure.kind is FailureKind.MEMBER_LOST and not (has_other and task.losses >= MAX_LOSSES):
        return False
    is_last_attempt = task.failures + 1 >= run.max_attempts
    if is_doubtful and not (has_other and (is_last_attempt or traits.retry != "counted")):
        return False
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        is_group = task.attempts[-1].group is not None  # the models of a fused group fit only one by one
        was_alone = failure.memory_kind == "device" or bool(task.exhausted) or is_group
        if not is_last_attempt and not (has_other and was_alone):
            return False
    strike(model, parallel_plan, failure)
    return has_other


def strike_last(failure: Failure, run: Run, task: Task, model: Model) -> None:
    """Rule out the plan of the newest attempt, with no other plan left."""
    parallel_plan = task.attempts[-1].parallel_plan or SINGLE
    if len(parallel_plans_of(run)) > 1 and parallel_plan.label not in model.failures.ruled_out:
        strike(model, parallel_plan, failure)


def strike(model: Model, parallel_plan: ParallelPlan, failure: Failure) -> None:
    """Rule a plan out for a model. The caller updates the run's counts."""
    model.failures.ruled_out[parallel_plan.label] = RuledOut(
        parallel_plan=parallel_plan,
        reason=failure.line,
        kind=failure.kind,
        memory_kind=failure.memory_kind,
        peak_bytes=failure.peak_bytes,
    )


def strike_all(event: ParallelPlansRuledOut, run: Run) -> None:
    """Apply an event; fail a model without remaining plans.

    Raises:
        IllegalEventError: the run has no such model.
    """
    model = run.models.get(event.model)
    if model is None:
        raise IllegalEventError(f"ParallelPlansRuledOut of {event.model!r}, which is no model of {run.id}")
    failure = Failure(kind=FailureKind.NOT_APPLICABLE, message=event.reason)
    for parallel_plan in event.parallel_plans:
        if parallel_plan.label not in model.failures.ruled_out:
            strike(model, parallel_plan, failure)
    if next(allowed_plans(run, model), None) is None:
        model.give_up(final(failure, run, model))
    run.observe_model(model)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelPlanDescription:
    """Facts about a parallel plan of a model.

    Attributes:
        sub_epochs: number committed with this plan.
        seconds: mean time of a sub-epoch, in a stack the model's share. Without sub-epochs, the measured time of
            similar models, if the run chooses between stacks and separate training; else `None`.
        ruled_out: reason, or empty.
        is_next: True for the plan of the running or probable next sub-epoch.
        batch_s: seconds per batch in a trial; 0 without one.
        is_verified: True if a trial matched the gradient of one device; `None` without a trial.
    """

    parallel_plan: ParallelPlan
    sub_epochs: int
    seconds: float | None
    ruled_out: str
    is_next: bool
    batch_s: float = 0.0
    is_verified: bool | None = None


def describe_plans(run: Run, model: Model) -> list[ParallelPlanDescription]:
    """Describe all plans of a model, in the order of trying."""
    seconds: dict[str, tuple[int, float]] = {}
    known = {parallel_plan.label: parallel_plan for parallel_plan in parallel_plans_of(run)}
    for used in _used(model):
        parallel_plan = used.parallel_plan or SINGLE
        known.setdefault(parallel_plan.label, parallel_plan)
        sub_epochs, taken = seconds.get(parallel_plan.label, (0, 0.0))
        seconds[parallel_plan.label] = sub_epochs + used.sub_epochs, taken + used.seconds
    tried = _tried(run, model)
    for label, (parallel_plan, _) in tried.items():
        known.setdefault(label, parallel_plan)
    upcoming, similar_s = _upcoming(run, model), _similar_s(run, model)
    found = []
    for label, parallel_plan in known.items():
        sub_epochs, taken = seconds.get(label, (0, 0.0))
        outcome = tried[label][1] if label in tried else None
        is_measured = parallel_plan.is_single or parallel_plan.fused_models > 0
        known_s = similar_s.get(parallel_plan.fused_models > 0) if is_measured else None
        found.append(
            ParallelPlanDescription(
                parallel_plan=parallel_plan,
                sub_epochs=sub_epochs,
                seconds=taken / sub_epochs if sub_epochs else known_s,
                ruled_out=_reason(model, parallel_plan) or (outcome.reason if outcome else ""),
                is_next=label == upcoming,
                batch_s=outcome.batch_s if outcome else 0.0,
                is_verified=outcome.is_verified if outcome and outcome.is_usable else None,
            )
        )
    return found


def _reason(model: Model, parallel_plan: ParallelPlan) -> str:
    """Return why a plan is ruled out; empty if it is allowed."""
    ruled_out = model.failures.ruled_out
    if _is_allowed(parallel_plan, ruled_out):
        return ""
    struck = ruled_out.get(parallel_plan.label)
    return _words(struck) if struck else "single is ruled out, and a stack needs more memory"


def _used(model: Model) -> Iterator[ParallelPlanUsed]:
    """Yield the plans of a model's sub-epochs, inherited ones included."""
    yield from model.summaries.parallel_plans
    for sub_epoch in model.sub_epochs.recent:
        yield ParallelPlanUsed(sub_epoch.parallel_plan, 1, sub_epoch.device_s)


def _tried(run: Run, model: Model) -> dict[str, tuple[ParallelPlan, TrialOutcome]]:
    """Label -> plan and trial outcome; the best one across kinds of devices."""
    group = run.trials.inspection.group_of(model.id) if run.trials.inspection else None
    found: dict[str, tuple[ParallelPlan, TrialOutcome]] = {}
    for known in group.parallel_plans if group else ():
        outcome = run.trials.outcomes.get((group.id, known.id)) if group else None
        if outcome is not None and (known.parallel_plan.label not in found or outcome.is_usable):
            found[known.parallel_plan.label] = known.parallel_plan, outcome
    return found


def _upcoming(run: Run, model: Model) -> str:
    """Label of the running, last or probable next sub-epoch's plan; empty for an ended model."""
    if model.state is not ModelState.ACTIVE or model.is_trained:
        return ""
    task = run.tasks.open.get(model.busy or "")
    if task is not None:
        return (task.attempts[-1].parallel_plan or SINGLE).label
    last = (model.sub_epochs[-1].parallel_plan or SINGLE) if model.sub_epochs else None
    if last is not None and _is_allowed(last, model.failures.ruled_out):
        return last.label
    upcoming = next(allowed_plans(run, model), None)
    return upcoming.label if upcoming else ""


def _similar_s(run: Run, model: Model) -> dict[bool, float]:
    """Measured seconds of a sub-epoch of similar models: True: in stacks of the fastest size, False: separately.

    Empty before both are known.
    """
    kind, found = run.trials.similar_models(model) if run.chooses_stacks else None, dict[bool, float]()
    for key in run.trials.stacks:
        for size, seconds in run.trials.stacks.measured(key).items() if key.models == kind else ():
            found[size > 1] = min(found.get(size > 1, math.inf), seconds * _mean_rows(run))
    return found if len(found) > 1 else {}


def _mean_rows(run: Run) -> float:
    return sum(run.fit_rows.values()) / len(run.fit_rows)


def has_more_than_one(run: Run, model: Model) -> bool:
    """True if a model's plans are worth showing: a plan was used, ruled out or measured."""
    return bool(model.failures.ruled_out or _tried(run, model) or _similar_s(run, model)) or any(
        used.parallel_plan is not None for used in _used(model)
    )


def lines(run: Run) -> list[str]:
    """Describe the plans of a fit's models and why plans are ruled out; no lines without plans."""
    used: Counter[str] = Counter()
    struck: dict[str, list[ParallelPlanDescription]] = {}
    for model in run.models.values():
        if not has_more_than_one(run, model):
            used[SINGLE.label] += not model.is_cut_short
            continue
        for found in describe_plans(run, model):
            used[found.parallel_plan.label] += found.is_next or (model.is_trained and found.sub_epochs > 0)
            if found.ruled_out:
                struck.setdefault(found.parallel_plan.label, []).append(found)
    used += Counter()  # drops unused plans
    stacks = [*_stack_lines(run)]
    if not struck and not stacks and set(used) <= {SINGLE.label}:
        return []
    by = ", ".join(f"{_models(count)} by {label}" for label, count in used.items())
    return [
        *([f"parallel plans: {by}"] if by else []),
        *stacks,
        *(f"{label} is ruled out for {_models(len(f))}: {f[0].ruled_out}" for label, f in struck.items()),
    ]


def _stack_lines(run: Run) -> Iterator[str]:
    """Describe the choice between stacks and separate training, once both are measured."""
    groups = {group.id: group for group in run.trials.inspection.groups} if run.trials.inspection else {}
    for key in run.trials.stacks:
        measured, chosen = run.trials.stacks.measured(key), run.trials.stacks.chosen(key)
        if len(measured) < 2 or 1 not in measured:
            continue
        times = ", ".join(
            f"{seconds * _mean_rows(run):.3g} s {f'in a stack of {size}' if size > 1 else 'separately'}"
            for size, seconds in measured.items()
        )
        device = f" on {key.device.name}" if key.device is not None else ""
        decision = f"stacks of {chosen} are used" if chosen > 1 else "they train separately"
        models = groups[key.models].models
        yield f"models like {models[0]}{device}: a sub-epoch takes {times}: {decision}"


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


_CONCLUSIVE: dict[Cause, tuple[FailureKind, MemoryKind | None]] = {
    "device_memory": (FailureKind.OUT_OF_MEMORY, "device"),
    "not_applicable": (FailureKind.NOT_APPLICABLE, None),
    "gradient": (FailureKind.NOT_APPLICABLE, None),
}
"""Cause of a failed trial -> conclusive failure. A crash, a hang or host memory proves nothing."""


def observe_trial(run: Run, group: str, parallel_plan: str) -> None:
    """Rule a plan out for a group if its trials failed conclusively.

    With several kinds of devices, all trials must fail. Keeps a plan that has trained a sub-epoch, the plans of
    models whose hyperparameters changed, and a model's last plan.

    Args:
        group, parallel_plan: ids in the run's inspection.
    """
    known = run.trials.inspection.group(group) if run.trials.inspection else None
    tried = known.parallel_plan(parallel_plan) if known else None
    if known is None or tried is None:
        return
    label = tried.parallel_plan.label
    outcomes = [
        run.trials.outcomes.get((group, each.id))
        for each in known.parallel_plans
        if each.parallel_plan.label == label
    ]
    bad = [each for each in outcomes if each is not None and each.cause in _CONCLUSIVE]
    models = [
        each for name in known.models if (each := run.models.get(name)) and not each.configs.has_changed
    ]
    has_worked = any(
        (used.parallel_plan or SINGLE).label == label for model in models for used in _used(model)
    )
    if len(bad) < len(outcomes) or has_worked:
        return
    kind, memory_kind = _CONCLUSIVE[bad[0].cause]
    peak = bad[0].device_bytes if memory_kind == "device" else 0
    failure = Failure(kind=kind, message=bad[0].reason, memory_kind=memory_kind, peak_bytes=peak)
    for model in models:
        has_other = next(allowed_plans(run, model, without=tried.parallel_plan), None) is not None
        if model.state is ModelState.ACTIVE and label not in model.failures.ruled_out and has_other:
            strike(model, tried.parallel_plan, failure)
            run.observe_model(model)


def final(failure: Failure, run: Run, model: Model) -> Failure:
    """Return the failure to show for a failed model; it lists all plans once they are ruled out."""
    if (
        failure.kind.traits.plan != "rule_out"
        or len(parallel_plans_of(run)) == 1
        or next(allowed_plans(run, model), None) is not None
    ):
        return failure
    struck = [*model.failures.ruled_out.values()]
    lines = [f"  {each.parallel_plan.label}: {_words(each)}" for each in struck]
    most = max((each.peak_bytes for each in struck), default=0)
    limit = f" of a limit of {failure.limit_bytes / 2**30:.3g} GiB" if failure.limit_bytes else ""
    peak = f"; the most memory that it took or requested is {most / 2**30:.3g} GiB{limit}" if most else ""
    # Tables show the first line, so put need and limit first.
    need = f"{failure.line.partition('. ')[0]}; " if failure.kind is FailureKind.OUT_OF_MEMORY else ""
    message = "\n".join(
        [
            f"{need}no parallel plan is left to train {model.id}: {len(struck)} were tried or cannot be used{peak}. "
            "Give workers more devices or more memory, name the blocks of the model in SubEpochSpec.hints "
            "(Hints.blocks), or choose a smaller batch size",
            *lines,
        ]
    )
    return failure.model_copy(update={"message": message})


def _words(struck: RuledOut) -> str:
    if struck.kind is not FailureKind.OUT_OF_MEMORY:
        return struck.reason
    where = {"device": " of the device", "host": " of the machine", None: ""}[struck.memory_kind]
    return f"out of memory{where}: {struck.reason}"
