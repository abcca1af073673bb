"""What the models of a fit run are worth, by the rule of the policy that dispatches it, from what their units showed.

A pure function of the visits, kept until they change: a controller that has just read the log finds the same merits as
one that saw every unit end. A unit shows the curve of what it reported first (`TaskResult.curve`) or, where the log has
none, a training metric that it returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks import CurvePoint
from cerebro.scheduling.convergence import UNSEEN, Progress, Quantum, Rule, Sample
from cerebro.scheduling.policies import ByMerit, Policy
from cerebro.state import ExperimentState, Model, Run, Visit

_LOSS = "loss"
"""What is looked at where nothing was reported, and `train` does not return the run's metric."""
_LARGEST = 1e100
"""Beyond it all values are equally bad: squares of them are still numbers."""

_Given = tuple[int, Visit | None, int]


@dataclass(kw_only=True)
class _Known:
    """What was learned of a model.

    Attributes:
        given: what it was learned from: number of visits, the last one, epochs. Made anew where that differs.
        reported: name of what its units reported; empty where none did.
    """

    given: _Given
    reported: str
    progress: Progress = UNSEEN


@dataclass
class Merits:
    """Of one fit run. Not thread-safe: one owner."""

    _known: dict[str, _Known] = field(default_factory=dict)
    _measure: str = ""
    """What models are compared by."""
    _rule: Rule | None = None
    _seq: int = 0
    """Number of the newest event when models were looked at."""
    _merit: list[float] = field(default_factory=list)

    def of(self, state: ExperimentState, run: Run, policy: Policy) -> list[float]:
        """For each model, in their order, `DispatchState.merit`. None by a policy without a rule. Not to be changed.

        Costs a look at each model after each event, and next to nothing when asked again.
        """
        if not isinstance(policy, ByMerit) or not isinstance(run.plan, FitPlan):
            return []
        if (state.seq, policy.rule) == (self._seq, self._rule):
            return self._merit
        self._seq = state.seq
        if self._learn(run, run.plan.partitions) or policy.rule is not self._rule:
            self._rule = policy.rule
            self._merit = policy.rule([self._known[name].progress for name in run.models])
        return self._merit

    def _learn(self, run: Run, rows: Mapping[int, int]) -> bool:
        """Look at the models whose visits have changed; whether there were any."""
        known = self._known
        changed = [m for name, m in run.models.items() if name not in known or known[name].given != _given(m)]
        if not changed:
            return False
        for model in changed:
            reported = (visit.reported for visit in model.visits if visit.reported)
            known[model.id] = _Known(given=_given(model), reported=next(reported, ""))
        # One for all models, or their values could not be compared.
        measure = min((each.reported for each in known.values() if each.reported), default="")
        if measure != self._measure:
            self._measure, changed = measure, list(run.models.values())
        for model in changed:
            known[model.id].progress = _progress(run, model, rows, measure)
        return True


def _given(model: Model) -> _Given:
    visits = model.visits
    return len(visits), visits[-1] if visits else None, model.epochs


def _epochs(run: Run, model: Model) -> int:
    """To whose end the model is foretold. A search grants few epochs at first: what models come to in all that they may
    have is compared, and not what they come to in their grants."""
    return max(model.epochs, run.fit_request.epochs)


def _progress(run: Run, model: Model, rows: Mapping[int, int], measure: str) -> Progress:
    """What the model's visits have shown.

    Args:
        rows: of the partitions.
        measure: what models are compared by; empty: the training metric.
    """
    whole, done, trained, seconds = _epochs(run, model) * sum(rows.values()), 0, 0, 0.0
    has_diverged = False
    quanta: list[Quantum] = []
    for visit in model.visits:
        took = visit.compute_s or visit.ended - visit.started
        samples = tuple(_samples(run, visit, measure, before=done / whole, of=whole, took=took))
        if samples:
            quanta.append(Quantum(samples))
        is_now = visit.has_diverged and visit.reported == measure
        if is_now or samples:
            has_diverged = is_now
        done += visit.rows
        trained += visit.rows - visit.resumed_rows
        seconds += took
    if not quanta and not has_diverged:
        return UNSEEN
    return Progress(
        quanta=tuple(quanta),
        done=done / whole,
        total_s=seconds / max(1, trained) * whole,
        has_diverged=has_diverged,
    )


def _samples(
    run: Run, visit: Visit, measure: str, *, before: float, of: int, took: float
) -> Iterator[Sample]:
    """What a visit has shown of the measure; the smaller, the better."""
    request, found = run.fit_request, visit.metrics
    name = measure or (request.metric if request.metric in found else _LOSS)
    points = visit.points if visit.reported == name else ()
    if not points and name in found:
        points = (CurvePoint(took / 2, found[name], 1),)
    sign = -1.0 if name == request.metric and request.mode == "max" else 1.0
    for point in points:
        # By rows, not by seconds: workers are not equally fast.
        rows = visit.resumed_rows + (visit.rows - visit.resumed_rows) * min(
            1.0, point.seconds / (took or 1.0)
        )
        value = max(-_LARGEST, min(_LARGEST, sign * point.mean))
        yield Sample(before + rows / of, value, point.number)
