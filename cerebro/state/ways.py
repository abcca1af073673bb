"""By which ways a model can be trained: those of its run but for the ones that are struck off.

A way is struck off for a model when an attempt shows that it cannot be used: the technique does not apply to the model,
or memory ran out. It is not chosen again for this model, and as long as another way is left the failure counts as no
attempt. A model fails for its ways only once none is left; then it tells of each why.

User code that raises, hangs or crashes by another way than it is written may do so because of the way. So what would
end the model strikes off the way, as long as another one is left: if it was user code, the other one shows the same.

A gang that loses workers again and again goes on as workers that train alone.

Memory of a device belongs to the attempt that has the device, so one failure is proof. Memory of a machine is shared:
what runs out of it is first done once more with nothing else on its worker, as far as attempts remain
(`controller.memory_retries`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from cerebro.contract.events import WaysStruckOff
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks import RETRYABLE, Failure, FailureKind
from cerebro.contract.trials import Cause, TrialOutcome
from cerebro.contract.ways import SINGLE, MemoryPlace, Way
from cerebro.errors import IllegalEventError
from cerebro.state.archived import WayUsed
from cerebro.state.models import Model, ModelState, StruckOff
from cerebro.state.runs import Run
from cerebro.state.tasks import MAX_LOSSES, Task

_STRIKING = frozenset({FailureKind.NOT_APPLICABLE, FailureKind.OUT_OF_MEMORY, FailureKind.MEMBER_LOST})
_DOUBTFUL = frozenset({FailureKind.USER_ERROR, FailureKind.HANG, FailureKind.CRASH})
"""Failures that are perhaps the way's, and perhaps user code's or chance."""


def ways_of(run: Run) -> tuple[Way, ...]:
    """By which units of a fit may run, those first that are tried first."""
    return (run.plan.ways if isinstance(run.plan, FitPlan) else ()) or (SINGLE,)


def left(run: Run, model: Model) -> Iterator[Way]:
    """Those of them that are not struck off for a model."""
    return (way for way in ways_of(run) if way.label not in model.struck)


def judge(failure: Failure, run: Run, task: Task, model: Model) -> bool:
    """Strike a way off if the end of the open attempt of `task`, a unit of `model`, shows that it cannot be used; the
    task does not know of the failure yet.

    Returns:
        Whether the unit is to be done by another way: then the failure counts as no attempt.
    """
    way = task.attempts[-1].way or SINGLE
    is_doubtful = failure.is_by_way and failure.kind in _DOUBTFUL
    if not (failure.kind in _STRIKING or is_doubtful) or way.label in model.struck:
        return False
    has_other = any(other.label != way.label for other in left(run, model))
    if failure.kind is FailureKind.MEMBER_LOST and not (has_other and task.losses >= MAX_LOSSES):
        return False
    is_last_attempt = task.failures + 1 >= run.max_attempts
    if is_doubtful and not (has_other and (is_last_attempt or failure.kind not in RETRYABLE)):
        return False
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        was_alone = failure.place == "device" or bool(task.exhausted)
        if not is_last_attempt and not (has_other and was_alone):
            return False
    strike(model, way, failure)
    return has_other


def strike_last(failure: Failure, run: Run, task: Task, model: Model) -> None:
    """No other way is left for a unit of `model`, and by the one of its newest attempt it cannot be done."""
    way = task.attempts[-1].way or SINGLE
    if len(ways_of(run)) > 1 and way.label not in model.struck:
        strike(model, way, failure)


def strike(model: Model, way: Way, failure: Failure) -> None:
    """A model cannot be trained by a way; `failure` says why. Its run is to see the model again."""
    model.struck[way.label] = StruckOff(
        way=way,
        reason=failure.line,
        kind=failure.kind,
        place=failure.place,
        peak_bytes=failure.peak_bytes,
    )


def strike_all(event: WaysStruckOff, run: Run) -> None:
    """Take in an event; a model without a way left is given up.

    Raises:
        IllegalEventError: the run has no such model.
    """
    model = run.models.get(event.model)
    if model is None:
        raise IllegalEventError(f"WaysStruckOff of {event.model!r}, which is no model of {run.id}")
    failure = Failure(kind=FailureKind.NOT_APPLICABLE, message=event.reason)
    for way in event.ways:
        if way.label not in model.struck:
            strike(model, way, failure)
    if next(left(run, model), None) is None:
        model.give_up(final(failure, run, model))
    run.see_model(model)


@dataclass(frozen=True, kw_only=True, slots=True)
class WayTold:
    """What there is to say of a way for a model.

    Attributes:
        units: that are committed and ran so.
        seconds: that one of them took on average; `None` where there is none.
        struck_off: why it cannot be used; empty: it can, as far as is known.
        is_next: units run so now, or the next one does where it can.
        batch_s: seconds of a batch, as a trial has measured; 0: none has.
        is_verified: a trial has shown that it computes the gradient of one device; `None`: none was made.
    """

    way: Way
    units: int
    seconds: float | None
    struck_off: str
    is_next: bool
    batch_s: float = 0.0
    is_verified: bool | None = None


def told(run: Run, model: Model) -> list[WayTold]:
    """All ways of a model, those first that are tried first."""
    seconds: dict[str, tuple[int, float]] = {}
    known = {way.label: way for way in ways_of(run)}
    for used in _used(model):
        way = used.way or SINGLE
        known.setdefault(way.label, way)
        units, taken = seconds.get(way.label, (0, 0.0))
        seconds[way.label] = units + used.units, taken + used.seconds
    tried = _tried(run, model)
    for label, (way, _) in tried.items():
        known.setdefault(label, way)
    upcoming = _upcoming(run, model)
    found = []
    for label, way in known.items():
        struck, (units, taken) = model.struck.get(label), seconds.get(label, (0, 0.0))
        outcome = tried[label][1] if label in tried else None
        found.append(
            WayTold(
                way=way,
                units=units,
                seconds=taken / units if units else None,
                struck_off=_words(struck) if struck else outcome.reason if outcome else "",
                is_next=label == upcoming,
                batch_s=outcome.batch_s if outcome else 0.0,
                is_verified=outcome.is_verified if outcome and outcome.is_usable else None,
            )
        )
    return found


def _used(model: Model) -> Iterator[WayUsed]:
    """By which ways its units ran, and those that it has from another model."""
    yield from model.summaries.ways
    for visit in model.visits.kept:
        yield WayUsed(visit.way, 1, visit.seconds)


def _tried(run: Run, model: Model) -> dict[str, tuple[Way, TrialOutcome]]:
    """Label -> a way of the model, and what a trial of it has shown; of several kinds of devices the best."""
    group = run.inspection.group_of(model.id) if run.inspection else None
    found: dict[str, tuple[Way, TrialOutcome]] = {}
    for known in group.ways if group else ():
        outcome = run.trials.get((group.id, known.id)) if group else None
        if outcome is not None and (known.way.label not in found or outcome.is_usable):
            found[known.way.label] = known.way, outcome
    return found


def _upcoming(run: Run, model: Model) -> str:
    """Label of the way by which its unit runs, or else the last one ran, or the next one probably does; empty if there
    is none to come."""
    if model.state is not ModelState.ACTIVE or model.is_trained:
        return ""
    task = run.open.get(model.busy or "")
    if task is not None:
        return (task.attempts[-1].way or SINGLE).label
    last = (model.visits[-1].way or SINGLE).label if model.visits else ""
    upcoming = next(left(run, model), None)
    return last if last and last not in model.struck else upcoming.label if upcoming else ""


def has_more_than_one(run: Run, model: Model) -> bool:
    """Whether there is something to say of a model's ways: it was trained by another one than is tried first without a
    choice, or one is struck off or was measured."""
    return bool(model.struck or _tried(run, model)) or any(used.way is not None for used in _used(model))


def lines(run: Run) -> list[str]:
    """By which ways the models of a fit are trained, and why ways are struck off, in words; nothing where all run on
    one device, as user code is written."""
    used: Counter[str] = Counter()
    struck: dict[str, list[WayTold]] = {}
    for model in run.models.values():
        if not has_more_than_one(run, model):
            used[SINGLE.label] += not model.is_cut_short
            continue
        for found in told(run, model):
            used[found.way.label] += found.is_next or (model.is_trained and found.units > 0)
            if found.struck_off:
                struck.setdefault(found.way.label, []).append(found)
    used += Counter()  # without what nobody uses
    if not struck and set(used) <= {SINGLE.label}:
        return []
    by = ", ".join(f"{_models(count)} by {label}" for label, count in used.items())
    return [
        *([f"ways: {by}"] if by else []),
        *(f"{label} is struck off for {_models(len(f))}: {f[0].struck_off}" for label, f in struck.items()),
    ]


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


_CONCLUSIVE: dict[Cause, tuple[FailureKind, MemoryPlace | None]] = {
    "device_memory": (FailureKind.OUT_OF_MEMORY, "device"),
    "not_applicable": (FailureKind.NOT_APPLICABLE, None),
    "gradient": (FailureKind.NOT_APPLICABLE, None),
}
"""Why a trial has failed -> what it proves of its way. A crash or a hang, or memory of the machine, proves nothing."""


def see_trial(run: Run, group: str, way: str) -> None:
    """Strike a way off for the models of a group if a trial has shown that it cannot be used; on each kind of devices,
    if there are several. Not where a unit of one of them has been trained so, nor for those that have changed since;
    and the last way that a model has is left for its own units to judge.

    Args:
        group, way: ids in the run's inspection.
    """
    known = run.inspection.group(group) if run.inspection else None
    tried = known.way(way) if known else None
    if known is None or tried is None:
        return
    label = tried.way.label
    outcomes = [run.trials.get((group, each.id)) for each in known.ways if each.way.label == label]
    bad = [each for each in outcomes if each is not None and each.cause in _CONCLUSIVE]
    models = [each for name in known.models if (each := run.models.get(name)) and not each.has_changed]
    has_worked = any((used.way or SINGLE).label == label for model in models for used in _used(model))
    if len(bad) < len(outcomes) or has_worked:
        return
    kind, place = _CONCLUSIVE[bad[0].cause]
    peak = bad[0].device_bytes if place == "device" else 0
    failure = Failure(kind=kind, message=bad[0].reason, place=place, peak_bytes=peak)
    for model in models:
        others = [way for way in left(run, model) if way.label != label]
        if model.state is ModelState.ACTIVE and label not in model.struck and others:
            strike(model, tried.way, failure)
            run.see_model(model)


def final(failure: Failure, run: Run, model: Model) -> Failure:
    """What a model that is given up tells: of its ways, if it is for want of one."""
    if failure.kind not in _STRIKING or len(ways_of(run)) == 1 or next(left(run, model), None) is not None:
        return failure
    struck = [*model.struck.values()]
    lines = [f"  {each.way.label}: {_words(each)}" for each in struck]
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


def _words(struck: StruckOff) -> str:
    if struck.kind is not FailureKind.OUT_OF_MEMORY:
        return struck.reason
    where = {"device": " of the device", "host": " of the machine", None: ""}[struck.place]
    return f"out of memory{where}: {struck.reason}"
