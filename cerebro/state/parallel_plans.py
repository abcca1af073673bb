"""By which ways a model can be trained: those of its run but for the ones that are ruled out.

A way is ruled out for a model when an attempt shows that it cannot be used: the technique does not apply to the model,
or memory ran out. It is not chosen again for this model, and as long as another way is left the failure counts as no
attempt. A model fails for its ways only once none is left; then it tells of each why.

User code that raises, hangs or crashes by another way than it is written may do so because of the way. So what would
end the model rules out the way, as long as another one is left: if it was user code, the other one shows the same.

A gang that loses workers again and again goes on as workers that train alone.

Memory of a device belongs to the attempt that has the device, so one failure is proof. Memory of a machine is shared:
what runs out of it is first done once more with nothing else on its worker, as far as attempts remain
(`controller.exclusions.memory_retries`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from cerebro.contract.events import ParallelPlansRuledOut
from cerebro.contract.parallel_plans import SINGLE, MemoryPlace, ParallelPlan
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks import RETRYABLE, Failure, FailureKind
from cerebro.contract.trials import Cause, TrialOutcome
from cerebro.errors import IllegalEventError
from cerebro.state.archived import ParallelPlanUsed
from cerebro.state.models import Model, ModelState, RuledOut
from cerebro.state.runs import Run
from cerebro.state.tasks import MAX_LOSSES, Task

_STRIKING = frozenset({FailureKind.NOT_APPLICABLE, FailureKind.OUT_OF_MEMORY, FailureKind.MEMBER_LOST})
_DOUBTFUL = frozenset({FailureKind.USER_ERROR, FailureKind.HANG, FailureKind.CRASH})
"""Failures that are perhaps the way's, and perhaps user code's or chance."""


def parallel_plans_of(run: Run) -> tuple[ParallelPlan, ...]:
    """By which sub-epochs of a fit may run, those first that are tried first."""
    return (run.plan.parallel_plans if isinstance(run.plan, FitPlan) else ()) or (SINGLE,)


def left(run: Run, model: Model) -> Iterator[ParallelPlan]:
    """Those of them that are not ruled out for a model."""
    return (
        parallel_plan for parallel_plan in parallel_plans_of(run) if parallel_plan.label not in model.struck
    )


def judge(failure: Failure, run: Run, task: Task, model: Model) -> bool:
    """Strike a way off if the end of the open attempt of `task`, a sub-epoch of `model`, shows that it cannot be used;
    the task does not know of the failure yet.

    Returns:
        Whether the sub-epoch is to be done by another way: then the failure counts as no attempt.
    """
    parallel_plan = task.attempts[-1].parallel_plan or SINGLE
    is_doubtful = failure.is_by_parallel_plan and failure.kind in _DOUBTFUL
    if not (failure.kind in _STRIKING or is_doubtful) or parallel_plan.label in model.struck:
        return False
    has_other = any(other.label != parallel_plan.label for other in left(run, model))
    if failure.kind is FailureKind.MEMBER_LOST and not (has_other and task.losses >= MAX_LOSSES):
        return False
    is_last_attempt = task.failures + 1 >= run.max_attempts
    if is_doubtful and not (has_other and (is_last_attempt or failure.kind not in RETRYABLE)):
        return False
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        was_alone = failure.place == "device" or bool(task.exhausted)
        if not is_last_attempt and not (has_other and was_alone):
            return False
    strike(model, parallel_plan, failure)
    return has_other


def strike_last(failure: Failure, run: Run, task: Task, model: Model) -> None:
    """No other way is left for a sub-epoch of `model`, and by the one of its newest attempt it cannot be done."""
    parallel_plan = task.attempts[-1].parallel_plan or SINGLE
    if len(parallel_plans_of(run)) > 1 and parallel_plan.label not in model.struck:
        strike(model, parallel_plan, failure)


def strike(model: Model, parallel_plan: ParallelPlan, failure: Failure) -> None:
    """A model cannot be trained by a way; `failure` says why. Its run is to see the model again."""
    model.struck[parallel_plan.label] = RuledOut(
        parallel_plan=parallel_plan,
        reason=failure.line,
        kind=failure.kind,
        place=failure.place,
        peak_bytes=failure.peak_bytes,
    )


def strike_all(event: ParallelPlansRuledOut, run: Run) -> None:
    """Take in an event; a model without a way left is given up.

    Raises:
        IllegalEventError: the run has no such model.
    """
    model = run.models.get(event.model)
    if model is None:
        raise IllegalEventError(f"ParallelPlansRuledOut of {event.model!r}, which is no model of {run.id}")
    failure = Failure(kind=FailureKind.NOT_APPLICABLE, message=event.reason)
    for parallel_plan in event.parallel_plans:
        if parallel_plan.label not in model.struck:
            strike(model, parallel_plan, failure)
    if next(left(run, model), None) is None:
        model.give_up(final(failure, run, model))
    run.see_model(model)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelPlanTold:
    """What there is to say of a way for a model.

    Attributes:
        sub-epochs: that are committed and ran so.
        seconds: that one of them took on average; `None` where there is none.
        ruled_out: why it cannot be used; empty: it can, as far as is known.
        is_next: sub-epochs run so now, or the next one does where it can.
        batch_s: seconds of a batch, as a trial has measured; 0: none has.
        is_verified: a trial has shown that it computes the gradient of one device; `None`: none was made.
    """

    parallel_plan: ParallelPlan
    sub_epochs: int
    seconds: float | None
    ruled_out: str
    is_next: bool
    batch_s: float = 0.0
    is_verified: bool | None = None


def told(run: Run, model: Model) -> list[ParallelPlanTold]:
    """All ways of a model, those first that are tried first."""
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
    upcoming = _upcoming(run, model)
    found = []
    for label, parallel_plan in known.items():
        struck, (sub_epochs, taken) = model.struck.get(label), seconds.get(label, (0, 0.0))
        outcome = tried[label][1] if label in tried else None
        found.append(
            ParallelPlanTold(
                parallel_plan=parallel_plan,
                sub_epochs=sub_epochs,
                seconds=taken / sub_epochs if sub_epochs else None,
                ruled_out=_words(struck) if struck else outcome.reason if outcome else "",
                is_next=label == upcoming,
                batch_s=outcome.batch_s if outcome else 0.0,
                is_verified=outcome.is_verified if outcome and outcome.is_usable else None,
            )
        )
    return found


def _used(model: Model) -> Iterator[ParallelPlanUsed]:
    """By which ways its sub-epochs ran, and those that it has from another model."""
    yield from model.summaries.parallel_plans
    for visit in model.visits.kept:
        yield ParallelPlanUsed(visit.parallel_plan, 1, visit.seconds)


def _tried(run: Run, model: Model) -> dict[str, tuple[ParallelPlan, TrialOutcome]]:
    """Label -> a way of the model, and what a trial of it has shown; of several kinds of devices the best."""
    group = run.inspection.group_of(model.id) if run.inspection else None
    found: dict[str, tuple[ParallelPlan, TrialOutcome]] = {}
    for known in group.parallel_plans if group else ():
        outcome = run.trials.get((group.id, known.id)) if group else None
        if outcome is not None and (known.parallel_plan.label not in found or outcome.is_usable):
            found[known.parallel_plan.label] = known.parallel_plan, outcome
    return found


def _upcoming(run: Run, model: Model) -> str:
    """Label of the way by which its sub-epoch runs, or else the last one ran, or the next one probably does; empty if
    there is none to come."""
    if model.state is not ModelState.ACTIVE or model.is_trained:
        return ""
    task = run.open.get(model.busy or "")
    if task is not None:
        return (task.attempts[-1].parallel_plan or SINGLE).label
    last = (model.visits[-1].parallel_plan or SINGLE).label if model.visits else ""
    upcoming = next(left(run, model), None)
    return last if last and last not in model.struck else upcoming.label if upcoming else ""


def has_more_than_one(run: Run, model: Model) -> bool:
    """Whether there is something to say of a model's ways: it was trained by another one than is tried first without a
    choice, or one is ruled out or was measured."""
    return bool(model.struck or _tried(run, model)) or any(
        used.parallel_plan is not None for used in _used(model)
    )


def lines(run: Run) -> list[str]:
    """By which ways the models of a fit are trained, and why ways are ruled out, in words; nothing where all run on
    one device, as user code is written."""
    used: Counter[str] = Counter()
    struck: dict[str, list[ParallelPlanTold]] = {}
    for model in run.models.values():
        if not has_more_than_one(run, model):
            used[SINGLE.label] += not model.is_cut_short
            continue
        for found in told(run, model):
            used[found.parallel_plan.label] += found.is_next or (model.is_trained and found.sub_epochs > 0)
            if found.ruled_out:
                struck.setdefault(found.parallel_plan.label, []).append(found)
    used += Counter()  # without what nobody uses
    if not struck and set(used) <= {SINGLE.label}:
        return []
    by = ", ".join(f"{_models(count)} by {label}" for label, count in used.items())
    return [
        *([f"ways: {by}"] if by else []),
        *(f"{label} is ruled out for {_models(len(f))}: {f[0].ruled_out}" for label, f in struck.items()),
    ]


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


_CONCLUSIVE: dict[Cause, tuple[FailureKind, MemoryPlace | None]] = {
    "device_memory": (FailureKind.OUT_OF_MEMORY, "device"),
    "not_applicable": (FailureKind.NOT_APPLICABLE, None),
    "gradient": (FailureKind.NOT_APPLICABLE, None),
}
"""Why a trial has failed -> what it proves of its way. A crash or a hang, or memory of the machine, proves nothing."""


def see_trial(run: Run, group: str, parallel_plan: str) -> None:
    """Strike a way off for the models of a group if a trial has shown that it cannot be used; on each kind of devices,
    if there are several. Not where a sub-epoch of one of them has been trained so, nor for those that have changed
    since; and the last way that a model has is left for its own sub-epochs to judge.

    Args:
        group, way: ids in the run's inspection.
    """
    known = run.inspection.group(group) if run.inspection else None
    tried = known.parallel_plan(parallel_plan) if known else None
    if known is None or tried is None:
        return
    label = tried.parallel_plan.label
    outcomes = [
        run.trials.get((group, each.id)) for each in known.parallel_plans if each.parallel_plan.label == label
    ]
    bad = [each for each in outcomes if each is not None and each.cause in _CONCLUSIVE]
    models = [each for name in known.models if (each := run.models.get(name)) and not each.has_changed]
    has_worked = any(
        (used.parallel_plan or SINGLE).label == label for model in models for used in _used(model)
    )
    if len(bad) < len(outcomes) or has_worked:
        return
    kind, place = _CONCLUSIVE[bad[0].cause]
    peak = bad[0].device_bytes if place == "device" else 0
    failure = Failure(kind=kind, message=bad[0].reason, place=place, peak_bytes=peak)
    for model in models:
        others = [parallel_plan for parallel_plan in left(run, model) if parallel_plan.label != label]
        if model.state is ModelState.ACTIVE and label not in model.struck and others:
            strike(model, tried.parallel_plan, failure)
            run.see_model(model)


def final(failure: Failure, run: Run, model: Model) -> Failure:
    """What a model that is given up tells: of its ways, if it is for want of one."""
    if (
        failure.kind not in _STRIKING
        or len(parallel_plans_of(run)) == 1
        or next(left(run, model), None) is not None
    ):
        return failure
    struck = [*model.struck.values()]
    lines = [f"  {each.parallel_plan.label}: {_words(each)}" for each in struck]
    most = max((each.peak_bytes for each in struck), default=0)
    limit = f" of a limit of {failure.limit_bytes / 2**30:.3g} GiB" if failure.limit_bytes else ""
    seen = f"; the most memory that was seen is {most / 2**30:.3g} GiB{limit}" if most else ""
    # Tables show the first line, so need and limit come first.
    need = f"{failure.line.partition('. ')[0]}; " if failure.kind is FailureKind.OUT_OF_MEMORY else ""
    told = "\n".join(
        [
            f"{need}no way is left to train {model.id}: {len(struck)} were tried or cannot be used{seen}. Give workers "
            "more devices or more memory, name the blocks of the model in SubEpochSpec.hints (Hints.blocks), or choose "
            "a smaller batch size",
            *lines,
        ]
    )
    return failure.model_copy(update={"message": told})


def _words(struck: RuledOut) -> str:
    if struck.kind is not FailureKind.OUT_OF_MEMORY:
        return struck.reason
    where = {"device": " of the device", "host": " of the machine", None: ""}[struck.place]
    return f"out of memory{where}: {struck.reason}"
