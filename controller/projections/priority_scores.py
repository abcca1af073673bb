"""Priority scores of a fit run's models, by its policy's rule, from their sub-epochs.

`SubEpochTimes` owns the scores of a run, and dispatch by priority score reads them. They are a pure function of the
committed sub-epochs, cached until these change: a restarted controller computes the same scores. The rules are in
`cerebro.scheduling.convergence`. A sub-epoch gives the curve of its first reported metric (`TaskResult.curve`), or
else a training metric that it returned.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.results import CurvePoint
from cerebro.scheduling.convergence import UNSEEN, Progress, Quantum, Rule, Sample
from cerebro.scheduling.policies import ByPriorityScore, Policy
from cerebro.state import CompletedSubEpoch, ExperimentState, Model, Run
from cerebro.state.models.completed_sub_epoch import (
    CheckpointFile,
    MetricCurve,
    ReturnedMetrics,
    SubEpochTimings,
)
from cerebro.state.models.sub_epochs import EpochSummary

_LOSS = "loss"
"""Metric used without reports, if `train` does not return the run's metric."""
_LARGEST = 1e100
"""Values beyond this are equally bad; their squares are still finite."""

_ModelInputs = tuple[int, CompletedSubEpoch | None, int, int]
"""A model's inputs: number of sub-epochs, the last one, its epochs, and the number compacted."""


@dataclass(kw_only=True)
class _Known:
    """The knowledge about a model.

    Attributes:
        inputs: its inputs. Another difference than one more sub-epoch causes a rebuild.
        reported: name of the reported metric, or "".
        shown: results of its sub-epochs, as summed.
    """

    inputs: _ModelInputs
    reported: str
    shown: _Shown


@dataclass
class PriorityScores:
    """Priority scores of one fit run. Not thread-safe: one owner."""

    _known: list[_Known] = field(default_factory=list)
    """Knowledge of each model, in order."""
    _inputs: list[_ModelInputs] = field(default_factory=list)
    _progress: list[Progress] = field(default_factory=list)
    _reported: Counter[str] = field(default_factory=Counter)
    """Reported metrics, with numbers of models."""
    _measure: str = ""
    """Metric for comparing models."""
    _rule: Rule | None = None
    _seq: int = 0
    """Newest event at the last update."""
    _priority_score: list[float] = field(default_factory=list)

    def of(self, state: ExperimentState, run: Run, policy: Policy) -> list[float]:
        """Return `DispatchState.priority_score` for each model; [] without a rule. Do not change it.

        Costs a check of each model after each event; a repeated call is cheap.
        """
        if not isinstance(policy, ByPriorityScore) or not isinstance(run.plan, FitPlan):
            return []
        if (state.seq, policy.rule) == (self._seq, self._rule):
            return self._priority_score
        self._seq = state.seq
        if self._learn(run, sum(run.plan.partitions.values())) or policy.rule is not self._rule:
            self._rule = policy.rule
            self._priority_score = policy.rule(self._progress)
        return self._priority_score

    def _learn(self, run: Run, rows: int) -> bool:
        """Update models with changed sub-epochs; return True if any changed. `rows`: of all partitions."""
        models = list(run.models.values())
        inputs = [
            (len(m.sub_epochs), m.sub_epochs[-1] if m.sub_epochs else None, m.epochs, m.compacted_epochs)
            for m in models
        ]
        if inputs == self._inputs:
            return False
        previous, self._inputs = self._inputs, inputs
        changed = [n for n, now in enumerate(inputs) if n >= len(previous) or now != previous[n]]
        for number in changed:
            self._update_metric(number, models[number])
        # One metric for all models, because others are not comparable.
        measure = min(self._reported, default="")
        if measure != self._measure:
            self._measure, changed = measure, list(range(len(models)))
        for number in changed:
            known, model = self._known[number], models[number]
            total_rows = _epochs(run, model) * rows
            known.shown = known.shown.further(run, model, measure, total_rows)
            self._progress[number] = known.shown.progress()
        return True

    def _update_metric(self, number: int, model: Model) -> None:
        if number == len(self._known):
            self._known.append(_Known(inputs=_NOTHING, reported="", shown=_Shown()))
            self._progress.append(UNSEEN)
        known, count = self._known[number], self._inputs[number][0]
        reported = known.reported
        is_one_more = (
            count == known.inputs[0] + 1
            and (count < 2 or (model.sub_epochs.knows(count - 2) and model.sub_epochs[-2] is known.inputs[1]))
            and self._inputs[number][3] == known.inputs[3]
        )
        if not is_one_more or not reported:
            reported = next((each.curve.name for each in _all_shown(model) if each.curve.name), "")
        if not is_one_more:
            known.shown = _Shown()
        if reported != known.reported:
            self._reported[reported] += 1
            self._reported[known.reported] -= 1
            self._reported = Counter({name: n for name, n in self._reported.items() if name and n > 0})
        known.inputs, known.reported = self._inputs[number], reported


def _epochs(run: Run, model: Model) -> int:
    """Return the last epoch of the model's prediction.

    A search grants few epochs at first; models are compared at the maximum, not at their present resource.
    """
    return max(model.epochs, run.fit_request.epochs)


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """Results of a model's first `sub_epochs` sub-epochs.

    Attributes:
        measure: metric for comparing models; "" for the training metric.
        total_rows: rows of its whole training.
        done, trained: rows of its sub-epochs, and those they trained.
        seconds: training time.
    """

    sub_epochs: int = 0
    measure: str = ""
    total_rows: int = 0
    done: int = 0
    trained: int = 0
    seconds: float = 0.0
    quanta: tuple[Quantum, ...] = ()
    has_diverged: bool = False
    since: float = 0.0

    def further(self, run: Run, model: Model, measure: str, total_rows: int) -> _Shown:
        """Return the results with all sub-epochs; rebuilt for another metric."""
        if (self.measure, self.total_rows) != (measure, total_rows):
            return _Shown(measure=measure, total_rows=total_rows)._with(
                run, _all_shown(model), len(model.sub_epochs)
            )
        return self._with(run, _all_shown(model, self.sub_epochs), len(model.sub_epochs))

    def _with(self, run: Run, sub_epochs: Sequence[CompletedSubEpoch], count: int) -> _Shown:
        done, trained, seconds, since = self.done, self.trained, self.seconds, self.since
        has_diverged, quanta = self.has_diverged, list(self.quanta)
        for sub_epoch in sub_epochs:
            took = sub_epoch.timings.compute_s or sub_epoch.ended - sub_epoch.started
            start = done / self.total_rows
            samples = tuple(
                _samples(run, sub_epoch, self.measure, start=start, total_rows=self.total_rows, took=took)
            )
            if samples:
                since = since if quanta else sub_epoch.ended
                quanta.append(Quantum(samples))
            is_now = sub_epoch.curve.has_diverged and sub_epoch.curve.name == self.measure
            if is_now or samples:
                has_diverged = is_now
            done += sub_epoch.rows
            trained += sub_epoch.rows - sub_epoch.resumed_rows
            seconds += took
        return replace(
            self,
            sub_epochs=count,
            done=done,
            trained=trained,
            seconds=seconds,
            quanta=tuple(quanta),
            has_diverged=has_diverged,
            since=since,
        )

    def progress(self) -> Progress:
        if not self.quanta and not self.has_diverged:
            return UNSEEN
        return Progress(
            quanta=self.quanta,
            done=self.done / self.total_rows,
            total_s=self.seconds / max(1, self.trained) * self.total_rows,
            has_diverged=self.has_diverged,
            since=self.since,
        )


_NOTHING: _ModelInputs = (-1, None, 0, 0)


def _all_shown(model: Model, since: int = 0) -> list[CompletedSubEpoch]:
    """Return the sub-epochs after the first `since`; a compacted epoch counts as one."""
    if since >= model.sub_epochs.compacted:
        return model.sub_epochs[since:]
    return [
        *(_together(epoch, known) for epoch, known in enumerate(model.summaries, start=1)),
        *model.sub_epochs.recent,
    ]


def _together(epoch: int, known: EpochSummary) -> CompletedSubEpoch:
    """Return a compacted epoch as one sub-epoch."""
    return CompletedSubEpoch(
        epoch=epoch,
        partition=0,
        attempt=0,
        worker="",
        rows=known.totals.rows,
        returned=ReturnedMetrics(known.names, known.values),
        checkpoint=CheckpointFile("", "", 0),
        started=0.0,
        ended=known.shown_at,
        timings=SubEpochTimings(load_s=0.0, compute_s=known.took_s, save_s=0.0),
        resumed_rows=known.totals.rows - known.trained_rows,
        curve=MetricCurve(known.reported, array("d", known.reports).tobytes(), known.has_diverged),
    )


def _samples(
    run: Run, sub_epoch: CompletedSubEpoch, measure: str, *, start: float, total_rows: int, took: float
) -> Iterator[Sample]:
    """Yield the samples of a sub-epoch's metric; smaller is better."""
    request, found = run.fit_request, sub_epoch.returned.metrics
    name = measure or (request.metric if request.metric in found else _LOSS)
    points = sub_epoch.curve.points if sub_epoch.curve.name == name else ()
    if not points and name in found:
        points = (CurvePoint(took / 2, found[name], 1),)
    sign = -1.0 if name == request.metric and request.mode == "max" else 1.0
    for point in points:
        # By rows instead of seconds, because workers differ in speed.
        rows = sub_epoch.resumed_rows + (sub_epoch.rows - sub_epoch.resumed_rows) * min(
            1.0, point.seconds / (took or 1.0)
        )
        value = max(-_LARGEST, min(_LARGEST, sign * point.mean))
        yield Sample(start + rows / total_rows, value, point.number)
