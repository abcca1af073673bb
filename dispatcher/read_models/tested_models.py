"""Results of a test run's models, updated with each committed task. Not thread-safe; `ReadModel` owns them."""

from __future__ import annotations

from cerebro.contract.runs import EvaluatePlan
from cerebro.figures.measurements import Measured, measured, tasks_by_model
from cerebro.state import Run
from cerebro.state.tasks.task import Task


class TestedModels:
    """Results of a planned test run. Its owner applies events to the run, then calls `invalidate`."""

    __test__ = False  # for pytest

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tasks: dict[str, list[Task]] = {}
        self._num_tasks = 0
        self._changed: set[str] = set()
        self._results: dict[str, Measured] = {}
        self._values: dict[str, dict[str, float]] = {}

    def invalidate(self, model: str) -> None:
        """Compute the result of this model again at the next access."""
        self._changed.add(model)

    def results(self) -> list[Measured]:
        """Return a new list of the results of all models in the plan's order."""
        self._refresh()
        return list(self._results.values())

    def values(self, metric: str) -> dict[str, float]:
        """Return model -> metric of the models with a complete test. It never changes."""
        self._refresh()
        if metric not in self._values:
            self._values[metric] = {
                each.model: each.metrics[metric]
                for each in self._results.values()
                if metric in each.metrics and each.done == each.parts
            }
        return self._values[metric]

    def _refresh(self) -> None:
        assert isinstance(self._run.plan, EvaluatePlan)
        models = self._run.plan.models
        if len(self._run.tasks.by_key) != self._num_tasks:
            self._num_tasks = len(self._run.tasks.by_key)
            self._tasks = tasks_by_model(self._run)
            self._changed.update(models)
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        self._values = {}
        new = {
            model: measured(model, models[model], self._tasks.get(model, []))
            for model in models
            if model in changed
        }
        self._results.update(new)
