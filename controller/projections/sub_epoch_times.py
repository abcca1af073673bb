"""Times and losses of a fit run's sub-epochs, for dispatch's estimate of the remaining work.

A fold of the log separate from the dispatch state (`controller.decisions.fit_dispatch`), so that a rebuilt
dispatch state loses no knowledge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import nlargest
from itertools import islice

from cerebro.contract.events import TaskCommitted
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.runs import FitPlan
from cerebro.scheduling.estimates import Estimates
from cerebro.state import CompletedSubEpoch, Run, TaskKey, Worker
from controller.projections.priority_scores import PriorityScores
from controller.projections.priors import Priors

_FADING = 0.9
"""Decay of a long load time per sub-epoch."""

_RARELY = 4
"""Relative growth of the observations that triggers new estimates: each costs a pass over all pairs."""


_PAIRS = 20_000
"""Pairs of model and partition per additional observation to wait for: a pass over a million takes a second."""

_REMEMBERED = 50
"""Age in epochs of results that have little weight (`cerebro.scheduling.estimates`)."""


_AT_START = 10_000
"""Maximum sub-epochs for learning at a restart: each takes 30 microseconds, and decisions should start at once."""

_FEWEST_MODELS = 50
"""Assumed minimum of models for searches: the first models do not predict the number of sub-epochs."""


def technique_of(parallel_plan: ParallelPlan | None) -> str:
    """Return the key of a plan's sub-epochs in `Estimates`."""
    return "" if parallel_plan is None or parallel_plan.is_single else parallel_plan.label


def shown_by(sub_epoch: CompletedSubEpoch) -> tuple[int, float, float]:
    """Return (rows, their seconds, fixed seconds) of a sub-epoch.

    Without the start of the process and imports, which happen once. Starting ranks counts as fixed. A sub-epoch of a
    fused group counts with its share of the group's time.
    """
    seconds = sub_epoch.timings.compute_s or sub_epoch.ended - sub_epoch.started
    # Without a worker's times, all is one.
    fixed_s = sub_epoch.timings.load_s + sub_epoch.timings.save_s if sub_epoch.timings.compute_s else 0.0
    sharing = sub_epoch.group.size
    return sub_epoch.rows - sub_epoch.resumed_rows, seconds / sharing, fixed_s / sharing


class SubEpochTimes:
    """Times of one fit run's sub-epochs. Not thread-safe: one owner.

    New results are processed on demand: after reading a long log, only the newest.

    Attributes:
        run: id of the run.
        priority_scores: scores from their losses (`priority_scores`).

    Args:
        priors: expectations from earlier runs.
    """

    def __init__(self, run: Run, priors: Priors | None = None) -> None:
        self.run = run.id
        self.priority_scores = PriorityScores()
        self._estimates = Estimates()
        self._load_s = 0.0
        self._priors, self._expected = priors, 0
        if priors and priors.sigma is not None:
            self._estimates.expect_sigma(priors.sigma)
        models = len(run.models) if run.has_known_models else max(len(run.models), _FEWEST_MODELS)
        self._settled, self._settle_at = 0, 1
        self._fewest = models * len(run.fit_rows) // _PAIRS
        self._trials = 0
        self._noted: deque[tuple[str, CompletedSubEpoch]] = deque(
            maxlen=_REMEMBERED * models * len(run.fit_rows)
        )

    @classmethod
    def of(cls, run: Run, priors: Priors | None = None) -> SubEpochTimes:
        """Return the times from a run's committed sub-epochs, or the newest of very many."""
        times = cls(run, priors)
        sub_epochs = (
            (sub_epoch.ended, model.id, sub_epoch)
            for model in run.models.values()
            for sub_epoch in model.kept_sub_epochs
        )
        newest = nlargest(_AT_START, sub_epochs)
        times._noted.extend((name, sub_epoch) for _, name, sub_epoch in reversed(newest))
        times.observe_trials(run)
        return times

    @property
    def estimates(self) -> Estimates:
        """Estimates from the committed sub-epochs."""
        self._learn()
        return self._estimates

    @property
    def load_s(self) -> float:
        """Recent maximum seconds to load a model."""
        self._learn()
        return self._load_s

    @property
    def settled(self) -> int:
        """Number of complete updates; in between only models with commits change."""
        self._learn()
        return self._settled

    def apply(self, run: Run, event: TaskCommitted) -> None:
        """Process an event that the experiment's state, including `run`, has just applied."""
        key = TaskKey.parse(event.task)
        if key.kind == "train" and key.run == self.run:
            self._noted.append((key.model or "", run.models[key.model or ""].sub_epochs[-1]))

    def expect(self, run: Run, workers: Mapping[str, Worker]) -> None:
        """Use the priors for workers and new models. Idempotent."""
        if not self._priors:
            return
        for name, worker in workers.items():
            self._estimates.expect_slowness(name, self._priors.slowness(worker.device))
        for name in islice(run.models, self._expected, None):
            prior = self._priors.of(run.models[name].hyperparams)
            if prior is not None:
                self._estimates.expect(
                    name, log_rate=prior.log_rate, fixed_s=prior.fixed_s, sub_epochs=prior.sub_epochs
                )
        self._expected = len(run.models)
        self._settle()

    def observe_trials(self, run: Run) -> None:
        """Use the trials of plans that schedules may choose: usable, and verified or named by the user.
        Idempotent.
        """
        if (
            run.trials.inspection is None
            or not isinstance(run.plan, FitPlan)
            or len(run.trials.outcomes) == self._trials
        ):
            return
        self._trials = len(run.trials.outcomes)
        rows = sum(run.plan.partitions.values()) / len(run.plan.partitions)
        for (name, parallel_plan), outcome in run.trials.outcomes.items():
            group = run.trials.inspection.group(name)
            known = group.parallel_plan(parallel_plan) if group is not None else None
            is_right = outcome.is_usable and (outcome.is_verified or run.fit_request.techniques is not None)
            if group is None or known is None or not is_right:
                continue
            key = TaskKey(run=run.id, kind="trial", group=name, parallel_plan=parallel_plan)
            task = run.tasks.by_key.get(str(key))
            for model in group.models:
                self._estimates.seed(
                    model,
                    task.attempts[-1].worker if task is not None and task.attempts else "",
                    rows=rows,
                    seconds=outcome.batch_s * rows / max(1, group.batch_size),
                    # A sub-epoch also loads and saves its model. Its processes are reused by the next one.
                    fixed_s=outcome.load_s + outcome.save_s,
                    technique=technique_of(known.parallel_plan),
                )

    def _learn(self) -> None:
        while self._noted:
            self._observe(*self._noted.popleft())

    def _observe(self, model: str, sub_epoch: CompletedSubEpoch) -> None:
        self._load_s = max(sub_epoch.timings.load_s, _FADING * self._load_s)
        rows, seconds, fixed_s = shown_by(sub_epoch)
        technique = technique_of(sub_epoch.parallel_plan)
        self._estimates.observe(
            model, sub_epoch.worker, rows=rows, seconds=seconds, fixed_s=fixed_s, technique=technique
        )
        count = self._estimates.observations
        if count >= self._settle_at:
            self._settle()
            self._settle_at = count + 1 + max(count // _RARELY, self._fewest)

    def _settle(self) -> None:
        self._estimates.settle()
        self._settled += 1
